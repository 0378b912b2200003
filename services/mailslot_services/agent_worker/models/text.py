"""Text from outside, made fit for a ledger (semantics L5): well-formed and of bounded size."""

from __future__ import annotations

from typing import Final

CUT_NOTE_BYTES_MAX: Final = 100
"""Room for the note that something was cut off."""


def without_surrogates(text: str) -> str:
    """The text as well-formed UTF-8: two halves of a pair become their character, a lone half becomes U+FFFD.

    Halves come from streams that cut a character in two, and from file names that are no text.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def within_bytes(text: str, bytes_max: int) -> str:
    """The text, or as much of its beginning as fits in `bytes_max` of UTF-8 together with a note."""
    if len(text) * 4 <= bytes_max:
        return text
    encoded = text.encode("utf-8")
    if len(encoded) <= bytes_max:
        return text
    kept = encoded[: max(0, bytes_max - CUT_NOTE_BYTES_MAX)].decode("utf-8", "ignore")
    return f"{kept}\n[cut off: {len(encoded)} bytes, the limit is {bytes_max}]"

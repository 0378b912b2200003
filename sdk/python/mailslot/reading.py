"""How JSON that came over the wire becomes Python values; what is not as the protocol says is a `BadAnswer`.

Rule 1: unknown fields are skipped here and kept wherever data is passed on whole.
Rule 2: `NaN` and `Infinity` are no JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from mailslot.errors import BadAnswer, Refused

JsonMap = Mapping[str, Any]
V = TypeVar("V")

EXCERPT_CHARACTERS_MAX = 120
"""How much of an answer that cannot be read is shown in the sentence about it."""


def encode(value: object) -> bytes:
    """JSON bytes to send; what no door would take is refused here, with the door's code."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("bad-input", "text holds a lone surrogate, which is not UTF-8") from None
    except RecursionError:
        raise Refused("bad-input", "the value is nested too deeply") from None
    except ValueError as error:
        raise Refused("bad-input", f"the value is not JSON: {error}") from None


def decode(data: bytes | str, what: str) -> JsonMap:
    """One JSON object."""
    try:
        value = _DECODER.decode(data if isinstance(data, str) else data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadAnswer(f"{what} is not JSON: {excerpt(data)}") from None
    if not isinstance(value, dict):
        raise BadAnswer(f"{what} is not a JSON object: {excerpt(data)}")
    return value


def field(value: JsonMap, name: str, kind: type[V]) -> V:
    """A field that must be there."""
    found = value.get(name)
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise BadAnswer(f"{name}: expected {kind.__name__}, got {excerpt(repr(found))}")
    return found


def optional(value: JsonMap, name: str, kind: type[V]) -> V | None:
    """A field that may be absent or null."""
    return None if value.get(name) is None else field(value, name, kind)


def texts(value: JsonMap, name: str) -> tuple[str, ...]:
    """A list of texts; none when the field is absent."""
    found = optional(value, name, list) or []
    if not all(isinstance(entry, str) for entry in found):
        raise BadAnswer(f"{name}: expected a list of text, got {excerpt(repr(found))}")
    return tuple(found)


def maps(value: JsonMap, name: str) -> list[JsonMap]:
    """A list of objects that must be there."""
    found = field(value, name, list)
    if not all(isinstance(entry, dict) for entry in found):
        raise BadAnswer(f"{name}: expected a list of objects, got {excerpt(repr(found))}")
    return found


def excerpt(data: bytes | str) -> str:
    """The beginning of an answer, safe to show."""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    shown = text[:EXCERPT_CHARACTERS_MAX]
    return repr(shown + "…" if len(text) > EXCERPT_CHARACTERS_MAX else shown)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
"""One for all: making one for each event costs more than a short event does."""

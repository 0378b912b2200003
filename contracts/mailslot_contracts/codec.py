"""Values as bytes: one version byte and msgpack inside the system, JSON at the public doors.

    0x01 | msgpack ........
    ^      ^
    |      one value: text, numbers, booleans, null, lists, maps with text keys
    version; a reader refuses one it does not know instead of guessing

Rule 1: what goes in comes out: an integer stays an integer, a float stays a float, text is kept
        to the last code point (NUL, U+2028 and all).
Rule 2: refused with the path of the culprit, on the way in and on the way out (semantics L5): lone
        surrogates, non-finite numbers, integers beyond signed 64 bit, nesting deeper than
        DEPTH_MAX, map keys that are not text, bytes and every other type.
Rule 3: nothing is read past its limit. Bytes after the value are an error, not a second value.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, TypeAlias

import msgpack

from mailslot_contracts.problems import BadValue, CodecError, CodecTooLarge, CodecVersionError

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"
"""What a ledger may hold."""

CODEC_VERSION = 1
"""The version byte that `encode` writes and the only one that `decode` takes."""

DEPTH_MAX = 64
"""Lists and maps inside one another. Deeper JSON is an attack or a defect, never a message."""

FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Longest encoded value: the largest content with its metadata and much air, far below Redis' limits."""

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
PATH_CHARACTERS_MAX = 200
"""Longest path in an error sentence; keys are the sender's, so they may be huge."""


def encode(value: object) -> bytes:
    """The value as version byte and msgpack. BadValue when it holds what no ledger may hold."""
    _check(value, 0, text_too=False)
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except UnicodeEncodeError:
        check_value(value)
        raise
    if len(packed) >= FRAME_BYTES_MAX:
        raise CodecTooLarge(f"encoded value has {len(packed) + 1} bytes; the limit is {FRAME_BYTES_MAX}")
    return _VERSION_BYTE + packed


def frame(value: object) -> bytes:
    """As `encode`, for a value whose parts were all checked at a door: it is not walked again."""
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except (UnicodeEncodeError, OverflowError, ValueError, TypeError):
        check_value(value)
        raise
    return _VERSION_BYTE + packed


def unframe(data: bytes) -> Any:
    """As `decode`, for bytes that the store itself kept: they were checked before they were kept."""
    if data[:1] != _VERSION_BYTE:
        raise CodecVersionError(data[0] if data else 0, CODEC_VERSION)
    return msgpack.unpackb(memoryview(data)[1:])


def decode(data: bytes) -> Value:
    """The value that `encode` was given. CodecError for anything but exactly one such value."""
    if len(data) > FRAME_BYTES_MAX:
        raise CodecTooLarge(f"encoded value has {len(data)} bytes; the limit is {FRAME_BYTES_MAX}")
    if not data:
        raise CodecError("encoded value is empty")
    if data[0] != CODEC_VERSION:
        raise CodecVersionError(data[0], CODEC_VERSION)
    return unpack(memoryview(data)[1:])


def unpack(data: bytes | memoryview) -> Value:
    """One msgpack value without the version byte: what other programs put on the broker door."""
    size_bytes = len(data)
    if size_bytes > FRAME_BYTES_MAX:
        raise CodecTooLarge(f"encoded value has {size_bytes} bytes; the limit is {FRAME_BYTES_MAX}")
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_ext,
            max_str_len=size_bytes,
            max_bin_len=size_bytes,
            max_array_len=size_bytes,
            max_map_len=size_bytes,
            max_ext_len=size_bytes,
        )
    except CodecError:
        raise
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise CodecError(f"encoded value is damaged: {_reason(error)}") from None
    return _accepted(value)


def decode_json(data: bytes) -> Value:
    """One JSON text as a value, held to the same rules as everything else."""
    if len(data) > FRAME_BYTES_MAX:
        raise CodecTooLarge(f"JSON text has {len(data)} bytes; the limit is {FRAME_BYTES_MAX}")
    try:
        value: Value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise CodecError(f"JSON text is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise CodecError(f"JSON text is nested deeper than {DEPTH_MAX}") from None
    except json.JSONDecodeError as error:
        raise CodecError(f"JSON text is damaged: {error.msg} at character {error.pos}") from None
    except CodecError:
        raise
    except ValueError:
        raise CodecError("JSON text holds a number with too many digits") from None
    check_value(value)
    return value


def encode_json(value: object) -> bytes:
    """The value as one line of compact UTF-8 JSON, safe to stand on a line of its own.

    U+2028 and U+2029 are written as escapes: some readers of lines take them for an end of line.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode("utf-8")


def canonical(value: object) -> bytes:
    """The one encoding of a value: map keys sorted by code point, so equal values give equal bytes."""
    _check(value, 0, text_too=False)
    try:
        packed: bytes = msgpack.packb(_sorted(value), use_bin_type=True)
    except UnicodeEncodeError:
        check_value(value)
        raise
    return packed


def check_value(value: object) -> None:
    """Return when a ledger may hold the value; BadValue names the first place that it may not."""
    _check(value, 0, text_too=True)


_VERSION_BYTE = bytes((CODEC_VERSION,))
_PLAIN_TYPES: tuple[Any, ...] = (str, int, float, list, tuple, dict)


def _check(value: Any, depth: int, *, text_too: bool) -> None:
    """Walk the value; the path is put together only on the way out of a refusal.

    Without `text_too` surrogates are left to msgpack, which refuses them at a tenth of the cost.
    """
    kind = type(value)
    if kind is str:
        if text_too:
            _check_text(value)
    elif kind is dict:
        _check_map(value, depth, text_too=text_too)
    elif kind is list or kind is tuple:
        _check_list(value, depth, text_too=text_too)
    elif kind is int:
        _check_int(value)
    elif kind is float:
        if not math.isfinite(value):
            raise BadValue("value", "must be a finite number")
    elif value is not None and kind is not bool:
        _check_subclass(value, depth, text_too=text_too)


def _check_map(value: Any, depth: int, *, text_too: bool) -> None:
    if depth >= DEPTH_MAX:
        raise BadValue("value", f"is nested deeper than {DEPTH_MAX}")
    for key, item in value.items():
        try:
            _check_key(key, text_too=text_too)
            _check(item, depth + 1, text_too=text_too)
        except BadValue as error:
            raise BadValue(_under(f".{key}", error.path), error.why) from None


def _check_key(key: object, *, text_too: bool) -> None:
    if not isinstance(key, str):
        raise BadValue("value", "must have text as map keys")
    if text_too:
        _check_text(key)


def _check_list(value: Any, depth: int, *, text_too: bool) -> None:
    if depth >= DEPTH_MAX:
        raise BadValue("value", f"is nested deeper than {DEPTH_MAX}")
    for index, item in enumerate(value):
        try:
            _check(item, depth + 1, text_too=text_too)
        except BadValue as error:
            raise BadValue(_under(f"[{index}]", error.path), error.why) from None


def _check_int(value: int) -> None:
    if not INT_MIN <= value <= INT_MAX:
        raise BadValue("value", "must be an integer of at most 64 bits with sign")


def _check_text(value: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadValue("value", "must not hold a lone surrogate") from None


def _check_subclass(value: Any, depth: int, *, text_too: bool) -> None:
    """Text enums, integer enums and the like count as what they extend; the rest is refused."""
    for plain in _PLAIN_TYPES:
        if isinstance(value, plain):
            _check(plain(value), depth, text_too=text_too)
            return
    raise BadValue("value", f"must be text, a number, a boolean, a list or a map, not {type(value).__name__}")


def _under(step: str, path: str) -> str:
    """`.a` and `value[0]` give `value.a[0]`, printable and of bounded length."""
    joined = "value" + step + path.removeprefix("value")
    printable = joined.encode("utf-8", "backslashreplace").decode("utf-8")
    return printable if len(printable) <= PATH_CHARACTERS_MAX else printable[: PATH_CHARACTERS_MAX - 1] + "…"


def _accepted(value: Any) -> Value:
    try:
        _check(value, 0, text_too=False)
    except BadValue as error:
        raise CodecError(f"encoded {error}") from None
    accepted: Value = value
    return accepted


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value


def _refuse_ext(code: int, _data: bytes) -> NoReturn:
    raise CodecError(f"encoded value holds the msgpack extension {code}")


def _refuse_constant(name: str) -> NoReturn:
    raise CodecError(f"JSON text holds {name}; numbers must be finite")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__

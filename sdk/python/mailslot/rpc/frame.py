"""Frames of JSON-RPC 2.0: bytes in, calls out; results, errors and notifications in, bytes out. Pure.

    {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {…}}      Call, answered
    {"jsonrpc": "2.0", "method": "session/cancel", "params": {…}}               Call without id: never answered
    [{…}, {…}]                                                                  Batch, answered by one list

Rule 1: frames are split at byte 0x0A and nowhere else: U+2028 is text, and a character split between reads stays whole.
Rule 2: whatever is wrong has an answer: -32700 what is not JSON, -32600 what is no call. The next frame is read as if
        nothing had happened.
Rule 3: an answer carries the id as it came; an id that cannot be one is answered as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

VERSION: Final = "2.0"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
APPLICATION_ERROR: Final = -32000
"""The call was understood and refused; `data` is the problem, as on the REST door."""

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one frame: the largest body that the REST door takes."""

BATCH_COUNT_MAX: Final = 1_000
"""Calls in one batch."""

Id: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `answered` is false for a notification, whatever becomes of it."""

    method: str
    params: Mapping[str, Any]
    id: Id = None
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result: a code, a sentence, and for what the dispatcher refused its problem."""

    code: int
    message: str
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Invalid:
    """Something that is no call, to be answered with a failure."""

    id: Id
    failure: Failure


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that are answered together."""

    items: tuple[Call | Invalid, ...]


class RpcError(Exception):
    """A call that ends with a failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Splitter:
    """Feed it bytes as they come; it gives whole frames (rule 1). None stands for a frame over the limit, once."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """The frames that these bytes complete; blank lines are none."""
        *whole, rest = chunk.split(b"\n")
        frames: list[bytes | None] = []
        for piece in whole:
            self._keep(piece, frames)
            if not self._skipping and self._rest.strip():
                frames.append(bytes(self._rest))
            self._rest.clear()
            self._skipping = False
        self._keep(rest, frames)
        return frames

    def _keep(self, piece: bytes, frames: list[bytes | None]) -> None:
        if not self._skipping and len(self._rest) + len(piece) > self._frame_bytes_max:
            self._skipping = True
            self._rest.clear()
            frames.append(None)
        if not self._skipping:
            self._rest += piece


# -- in -----------------------------------------------------------------------------------------------------------


def read(frame: bytes | str) -> Call | Invalid | Batch:
    """What a frame says."""
    try:
        value = _DECODER.decode(frame if isinstance(frame, str) else frame.decode("utf-8"))
    except (ValueError, RecursionError):
        return Invalid(None, Failure(PARSE_ERROR, "the frame is not JSON in UTF-8"))
    if not isinstance(value, list):
        return _item(value)
    if not value:
        return Invalid(None, Failure(INVALID_REQUEST, "a batch must hold at least one call"))
    if len(value) > BATCH_COUNT_MAX:
        sentence = f"the batch has {len(value)} calls; the limit is {BATCH_COUNT_MAX}"
        return Invalid(None, Failure(INVALID_REQUEST, sentence))
    return Batch(tuple(map(_item, value)))


def too_large(frame_bytes_max: int) -> Invalid:
    """The answer to a frame that was not read to its end."""
    return Invalid(None, Failure(INVALID_REQUEST, f"the frame has more than {frame_bytes_max} bytes"))


def _item(value: object) -> Call | Invalid:
    if not isinstance(value, dict):
        return Invalid(None, Failure(INVALID_REQUEST, "a call must be an object"))
    found = value.get("id")
    if isinstance(found, bool) or not isinstance(found, str | int | float | None):
        return Invalid(None, Failure(INVALID_REQUEST, "an id must be text, a number or null"))
    if isinstance(found, float) and not math.isfinite(found):
        return Invalid(None, Failure(INVALID_REQUEST, "an id that is a number must be one that can be sent back"))
    wrong = _wrong(value)
    if wrong is not None:
        return Invalid(found, wrong)
    return Call(value["method"], value.get("params", {}), found, answered="id" in value)


def _wrong(value: Mapping[str, Any]) -> Failure | None:
    if value.get("jsonrpc") != VERSION:
        return Failure(INVALID_REQUEST, 'jsonrpc must be "2.0"')
    if not isinstance(value.get("method"), str):
        return Failure(INVALID_REQUEST, "method must be text")
    if not isinstance(value.get("params", {}), dict):
        return Failure(
            INVALID_PARAMS if isinstance(value["params"], list) else INVALID_REQUEST, "params must be an object"
        )
    return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


# -- out ----------------------------------------------------------------------------------------------------------


def result(call_id: Id, value: object) -> bytes:
    """The answer to a call that was carried out."""
    return encode({"jsonrpc": VERSION, "id": call_id, "result": value})


def error(call_id: Id, failure: Failure) -> bytes:
    """The answer to a call that was not."""
    told: dict[str, object] = {"code": failure.code, "message": failure.message}
    if failure.data is not None:
        told["data"] = failure.data
    return encode({"jsonrpc": VERSION, "id": call_id, "error": told})


def batch(answers: list[bytes]) -> bytes:
    """One answer for a batch."""
    return b"[" + b",".join(answers) + b"]"


def notification(method: str, params: bytes) -> bytes:
    """Something that nobody asked for just now; `params` is JSON already."""
    return b'{"jsonrpc":"2.0","method":"%s","params":%s}' % (method.encode(), params)


def encode(value: object) -> bytes:
    """One line of JSON: line ends inside text are escaped, U+2028 is left as it is. A lone surrogate, which only an
    id can bring here, is escaped too."""
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
"""One for all: making one costs more than most frames do."""

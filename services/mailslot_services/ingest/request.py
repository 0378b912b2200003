"""What a request says, read once and held to the contracts: path, query, headers, body.

Rule 1: nothing is read past its limit. A body that is declared too long is refused before its first byte, one that
        turns out too long at the byte that was one too many.
Rule 2: a parameter that a route does not know is refused: a misspelt one would be lost in silence.
Rule 3: a path is decoded as strict UTF-8, segment by segment, so an id may hold `/` as `%2F`.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection
from contextlib import suppress
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from mailslot_contracts import FRAME_BYTES_MAX, BadInput, TooLarge, Value, check_id, decode_json
from mailslot_contracts.codec import INT_MAX

TYPES_MAX: Final = 64
"""Event types in one filter: there are fewer."""

NAME_SHOWN_MAX: Final = 80
"""Characters of an unknown parameter's name in the sentence about it: the name is the sender's."""

DISCARD_BYTES_MAX: Final = 64 * 1024 * 1024
DISCARD_S: Final = 5.0
"""How much of a refused body is read and thrown away, and for how long. Many clients read the answer only when they
have sent everything; a connection closed under their hands would take the answer with it."""

_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_REVISION = re.compile(r'(?:W/)?"?([0-9]{1,19})"?', re.ASCII)
_SWITCH = {"1": True, "true": True, "0": False, "false": False}


# -- path and headers ---------------------------------------------------------------------------------------


def session_id(request: Request) -> str:
    """The session that the path names."""
    return _segment(request, "sid", "sessionId")


def message_id(request: Request) -> str:
    """The message that the path names."""
    return _segment(request, "mid", "messageId")


def letter_id(request: Request) -> str:
    """The dead letter that the path names."""
    return _segment(request, "id", "letterId")


def _segment(request: Request, part: str, what: str) -> str:
    try:
        name = unquote_to_bytes(request.path_params[part]).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} is not UTF-8 at byte {error.start}") from None
    return check_id(name, what)


def idempotency_key(request: Request) -> str | None:
    """The message id that the header gives, for a body that has none."""
    given = request.headers.get("idempotency-key")
    return None if given is None else check_id(_utf8(given), "Idempotency-Key")


def last_event_id(request: Request) -> int | None:
    """Where an interrupted stream goes on. A browser sends no header, or an empty one, when there was no event."""
    given = request.headers.get("last-event-id")
    return None if not given else _number("Last-Event-ID", given)


def if_match(request: Request) -> int | None:
    """The revision that the caller saw; None when it names none or takes any."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    found = _REVISION.fullmatch(given.strip())
    if found is None:
        raise BadInput('If-Match must be one revision, such as "3"')
    return int(found.group(1))


def wants_page(request: Request) -> bool:
    """The caller asked for JSON and not for a stream."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def wants_html(request: Request) -> bool:
    """The caller is a browser."""
    return "text/html" in request.headers.get("accept", "")


def _utf8(header: str) -> str:
    """Header values come as Latin-1; what was sent as UTF-8 is read as such."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        raise BadInput("Idempotency-Key is not UTF-8") from None


# -- query --------------------------------------------------------------------------------------------------


def check_query(request: Request, known: Collection[str]) -> None:
    """Refuse parameters that are not known, or given twice (rule 2)."""
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            raise BadInput(f"{name[:NAME_SHOWN_MAX]!r} is not a parameter this address knows")
        if name in seen:
            raise BadInput(f"{name} is given twice")
        seen.add(name)


class Query:
    """The parameters of a request, each read at most once."""

    def __init__(self, request: Request) -> None:
        self._given = dict(request.query_params)

    def number(self, name: str, default: int, *, least: int = 0, most: int = INT_MAX) -> int:
        """A whole number within bounds."""
        given = self._given.get(name)
        if given is None:
            return default
        found = _number(name, given)
        if not least <= found <= most:
            raise BadInput(f"{name} must be from {least} to {most}")
        return found

    def given_number(self, name: str) -> int | None:
        """A whole number, None when it is not given."""
        return _number(name, self._given[name]) if name in self._given else None

    def seconds(self, name: str, default: float, most: float) -> float:
        """A time in seconds within bounds."""
        given = self._given.get(name)
        if given is None:
            return default
        if not _SECONDS.fullmatch(given) or not math.isfinite(float(given)) or float(given) > most:
            raise BadInput(f"{name} must be a number of seconds from 0 to {most:g}")
        return float(given)

    def switch(self, name: str) -> bool:
        """1 or 0; off when it is not given."""
        given = self._given.get(name, "0")
        if given not in _SWITCH:
            raise BadInput(f"{name} must be 1 or 0")
        return _SWITCH[given]

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """One of some words, None when it is not given."""
        given = self._given.get(name)
        if given is not None and given not in choices:
            raise BadInput(f"{name} must be one of {', '.join(choices)}")
        return given

    def name(self, name: str) -> str:
        """An id, empty when it is not given."""
        given = self._given.get(name)
        return "" if given is None else check_id(given, name)

    def words(self, name: str) -> frozenset[str] | None:
        """Words between commas, None when it is not given."""
        given = self._given.get(name)
        if given is None:
            return None
        words = frozenset(check_id(word, name) for word in given.split(","))
        if len(words) > TYPES_MAX:
            raise BadInput(f"{name} has {len(words)} words; the limit is {TYPES_MAX}")
        return words


def _number(name: str, given: str) -> int:
    if not _NUMBER.fullmatch(given) or int(given) > INT_MAX:
        raise BadInput(f"{name} must be a whole number")
    return int(given)


# -- body ---------------------------------------------------------------------------------------------------


async def read_bytes(request: Request, limit_bytes: int) -> bytes:
    """The whole body; `too-large` before more than the limit was read. `request.state.unread` says that more comes."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        request.state.unread = "expect" not in request.headers  # who asks first sends nothing after a no
        raise TooLarge("the request body", int(declared), limit_bytes, "bytes")
    chunks: list[bytes] = []
    size_bytes, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        chunks.append(message.get("body", b""))
        size_bytes += len(chunks[-1])
        if size_bytes > limit_bytes:
            request.state.unread = more
            raise TooLarge("the request body", size_bytes, limit_bytes, "bytes or more")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def discard(receive: Receive) -> None:
    """Read what still comes of a refused body and keep nothing, for a bounded while."""
    size_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while size_bytes < DISCARD_BYTES_MAX:
                message = await receive()
                size_bytes += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


async def read_json(request: Request, limit_bytes: int) -> Value:
    """The body as plain data that a ledger may hold."""
    return decode_json(await read_bytes(request, min(limit_bytes, FRAME_BYTES_MAX)))


async def read_json_or_empty(request: Request, limit_bytes: int) -> Value:
    """The same, where a request without a body means one without fields."""
    body = await read_bytes(request, min(limit_bytes, FRAME_BYTES_MAX))
    return decode_json(body) if body else {}

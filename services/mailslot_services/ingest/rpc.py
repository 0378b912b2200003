"""The JSON-RPC door: `WS /v1/rpc`. Frames come and go on a WebSocket; every call goes to the REST door's own handlers.

    WebSocket ──> Connection (mailslot.rpc) ──> Dispatcher: an address, a method, a body ──> Endpoint
                                                └─────────> fanout: what a session's readers share

Rule 1: a frame is a text message. A binary one is answered as none; one over the limit closes the socket (1009).
Rule 2: a subscription that falls behind is fetched anew from its cursor when its reader takes frames again: on this
        door other things are under way, so a slow reader costs time and nothing is thinned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from importlib.metadata import version
from typing import Final
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message, Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

import mailslot.errors as sdk
from mailslot.rpc.connection import Connection, Limits, LineLost, Notice
from mailslot.rpc.frame import INVALID_REQUEST, Failure, Invalid
from mailslot.rpc.method import RestCall
from mailslot.step import Response
from mailslot_contracts import Code, Problem, encode_json
from mailslot_contracts.protocol import SSE_DELTA, SSE_EVENT, SSE_STATUS
from mailslot_core.errors import CoreError, CursorExpired, Refused
from mailslot_services.ingest.door import Door, level_of
from mailslot_services.ingest.fanout import Ended, Frame
from mailslot_services.ingest.problem import INTERNAL_DETAIL, problem_of

PATH: Final = "/v1/rpc"

LIMITS: Final = Limits()
"""Of one connection."""

NORMAL: Final = 1000
TRY_AGAIN_LATER: Final = 1013
"""Close codes (RFC 6455, IANA)."""

REASON_BYTES_MAX: Final = 123
"""Bytes of a reason in a close frame (RFC 6455, 5.5)."""

NOT_TEXT: Final = Invalid(None, Failure(INVALID_REQUEST, "a frame must be a text message"))

log = logging.getLogger("mailslot.ingest")


class Rpc:
    """The address as an ASGI application."""

    def __init__(self, door: Door, dispatcher: ASGIApp) -> None:
        self._door = door
        self._carrier = Dispatcher(door, dispatcher)

    async def __call__(self, websocket: WebSocket) -> None:
        """Serve one client."""
        await websocket.accept()
        limits = replace(LIMITS, frame_bytes_max=self._door.settings.body_bytes_max)
        connection = Connection(Socket(websocket), self._carrier, server=version("mailslot"), limits=limits)
        self._door.metrics.rpc_connections.inc()
        try:
            await connection.serve()
        finally:
            self._door.metrics.rpc_connections.dec()
        code = TRY_AGAIN_LATER if connection.why else NORMAL
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it may be closed already
            await websocket.close(code, _reason(connection.why))


class Socket:
    """A line on a WebSocket (see `mailslot.rpc.connection.Line`)."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self.ended = asyncio.Event()

    async def frames(self) -> AsyncGenerator[bytes | str | Invalid, None]:
        """Text messages, until the client leaves."""
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            yield NOT_TEXT if text is None else text
        self.ended.set()

    async def send(self, data: bytes) -> None:
        """Send one frame; return when there is room for more."""
        try:
            await self._websocket.send({"type": "websocket.send", "text": data.decode()})
        except (RuntimeError, OSError, WebSocketDisconnect) as error:
            raise LineLost from error


class Dispatcher:
    """The way to the handlers of this process (see `mailslot.rpc.connection.Carrier`)."""

    def __init__(self, door: Door, application: ASGIApp) -> None:
        self._door = door
        self._application = application

    async def ask(self, call: RestCall) -> Response:
        """What the handler of the REST call answers."""
        request = call.request
        headers = {"host": "in-process", "content-type": "application/json", **request.headers}
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": urlencode(request.query).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": None,
            "server": None,
        }
        exchange = _Exchange(request.body or b"")
        try:
            await self._application(scope, exchange.receive, exchange.send)
        except Exception as error:
            log.exception("a call failed", extra={"path": request.path, "cause": f"{type(error).__name__}: {error}"})
            return Response(500, {}, encode_json(Problem.of(Code.INTERNAL, INTERNAL_DETAIL).wire()))
        return Response(exchange.status, {}, bytes(exchange.body))

    async def follow(self, session_id: str, after: int, *, deltas: bool) -> AsyncGenerator[Notice, None]:
        """What comes after a cursor. Who falls behind catches up (rule 2); a store that cannot be read now is asked
        again."""
        cursor = after
        while True:
            try:
                level = await level_of(self._door, session_id)
                following = self._door.fanout.follow(session_id, after=cursor, newest=level.cursor, deltas=deltas)
                async with following as stream:
                    while not stream.ended:
                        for found in await stream.next():
                            yield notice(found)
                        cursor = stream.cursor
            except CursorExpired as gap:
                raise sdk.CursorExpired(str(gap), oldest=gap.oldest, newest=gap.newest) from None
            except Refused as refused:
                problem = problem_of(refused)
                raise sdk.Refused(refused.code, str(refused), problem=problem.wire()) from None
            except CoreError:
                await asyncio.sleep(self._door.settings.poll_ms / 1000)
                continue
            if stream.gap is not None:
                raise sdk.CursorExpired(str(stream.gap), oldest=stream.gap.oldest, newest=stream.gap.newest)
            if stream.ended is Ended.CLOSING:
                raise sdk.TransportLost("the service ends", reached=True)


def notice(found: Frame) -> Notice:
    """A frame of the fan-out as a notification."""
    if found.event is None:
        return Notice(SSE_DELTA, found.line)
    return Notice(SSE_STATUS if found.event.type == "agent/status" else SSE_EVENT, found.line)


class _Exchange:
    """One request's body, and what was answered to it."""

    def __init__(self, body: bytes) -> None:
        self.status = 500
        self.body = bytearray()
        self._request: bytes | None = body

    async def receive(self) -> Message:
        """The body, once; then nothing: whoever asks is here as long as the answer takes."""
        if self._request is None:
            await asyncio.Event().wait()
        body, self._request = self._request, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Keep what is answered."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")


def _reason(why: str) -> str:
    return why.encode()[:REASON_BYTES_MAX].decode(errors="ignore")

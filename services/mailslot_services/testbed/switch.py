"""Faults as switches, and the front of the application in which those of answers stand.

    with faults.lose_receipts(1): ...      a Switch is on while the block is open, and knows how often it struck

    client <--connection-- Front <-- application        Front sees each answer begin, and may cut its connection

Rule 1: a switch is turned in the test's thread and read in the engine's; each question to it is one act.
Rule 2: what a fault does to an answer it does after the application has acted: the product was not asked to pretend.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mailslot_services.testbed.listener import Listener

PROMPTS: Final = ("/prompt", "/prompts")
STREAM: Final = b"text/event-stream"
EVENT: Final = b"id: "
FRAME_END: Final = b"\n\n"


class Switch:
    """A fault: on or off, for so many times or without end. It implements `mailslot.testing.Fault`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: int | None = 0
        self.struck = 0

    @property
    def on(self) -> bool:
        """Whether it would strike."""
        return self._left is None or self._left > 0

    def strikes(self) -> bool:
        """Whether it strikes now; that is counted."""
        with self._lock:
            if not self.on:
                return False
            if self._left is not None:
                self._left -= 1
            self.struck += 1
            return True

    @contextmanager
    def turned_on(self, count: int | None) -> Iterator[Switch]:
        """On while the block is open. Its count begins anew."""
        if count is not None and count < 1:
            raise ValueError(f"a fault strikes once at least, got {count}")
        with self._lock:
            if self.on:
                raise RuntimeError("this fault is on already")
            self._left, self.struck = count, 0
        try:
            yield self
        finally:
            with self._lock:
                self._left = 0


class Switches:
    """Every fault of the doors and their store."""

    def __init__(self) -> None:
        self.losing = Switch()  # receipts
        self.slowing = Switch()  # answers
        self.slow_s = 0.0
        self.cutting = Switch()  # event streams
        self.cut_after = 1
        self.refusing = Switch()  # the store, everything
        self.unknowing = Switch()  # the store's answer to what it did
        self.forgetting = Switch()  # the store's answer to what it did not do
        self.full = Switch()  # inboxes
        self.full_retry_after_ms = 0
        self.deaf = Switch()  # notices
        self.vacant = Switch()  # no worker is hired


class Front:
    """Stands before the application."""

    def __init__(
        self, app: ASGIApp, *, switches: Switches, listener: Listener, streams: set[Exchange], stop: asyncio.Event
    ) -> None:
        self._app, self._switches, self._listener = app, switches, listener
        self.streams, self.stop = streams, stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = Exchange(self, self._switches, scope, receive, send)
        try:
            if scope["type"] == "websocket":
                self.streams.add(exchange)
            await self._app(scope, receive, exchange.send)
            await exchange.over()
        finally:
            self.streams.discard(exchange)

    def cut(self, scope: Scope) -> None:
        """Cut the connection of a request."""
        self._listener.cut(scope.get("client"))


class Exchange:
    """One request and its answer."""

    def __init__(self, front: Front, switches: Switches, scope: Scope, receive: Receive, send: Send) -> None:
        self._front, self._switches, self._scope = front, switches, scope
        self._receive, self._send = receive, send
        self._events_left: int | None = None
        self._cut = False

    def cut(self) -> None:
        """Cut its connection; what the application still says is not sent."""
        if not self._cut:
            self._cut = True
            self._front.streams.discard(self)
            self._front.cut(self._scope)

    async def send(self, message: Message) -> None:
        """What the application sends."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        if self._events_left is not None and message["type"] == "http.response.body":
            await self._pass_events(message)
        elif not self._cut:
            await self._send(message)

    async def over(self) -> None:
        """The application has answered. A server that is given no answer would make one up, so it is let know of the
        cut first."""
        while self._cut and self._scope["type"] == "http":
            if (await self._receive())["type"] == "http.disconnect":
                return

    async def _begin(self, message: Message) -> None:
        switches = self._switches
        if switches.slowing.strikes():
            with suppress(TimeoutError):  # who waits for an answer does not hold up the end
                async with asyncio.timeout(switches.slow_s):
                    await self._front.stop.wait()
        if _is_receipt(self._scope, message) and switches.losing.strikes():
            self.cut()
        if _is_stream(message):
            self._front.streams.add(self)
            if switches.cutting.strikes():
                self._events_left = switches.cut_after

    async def _pass_events(self, message: Message) -> None:
        """Pass frames on up to the last event that may pass, then cut."""
        body: bytes = message.get("body", b"")
        while body and not self._cut:
            frame, end, body = body.partition(FRAME_END)
            await self._send({**message, "body": frame + end, "more_body": True})
            if frame.startswith(EVENT) and self._events_left is not None:
                self._events_left -= 1
                if self._events_left <= 0:
                    self.cut()
        if not message.get("more_body", False) and not self._cut:
            await self._send({**message, "body": b""})


def _is_receipt(scope: Scope, message: Message) -> bool:
    path: str = scope["path"]
    return 200 <= message["status"] < 300 and scope["method"] == "POST" and path.endswith(PROMPTS)


def _is_stream(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(STREAM) for name, value in message.get("headers", ()))

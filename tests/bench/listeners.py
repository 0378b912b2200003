"""Who reads event streams while they are measured: bare connections that count one byte.

    server ── SSE frames ──> Listener: data.count(MARK)

Rule 1: every event that is sent holds MARK once, in its text; nothing else does. So nothing is parsed: a client that
        decoded what it gets would cost more than the server that it measures.
Rule 2: a stream that ends while it is counted is an error: no event may be missing from a figure.
Rule 3: one process reads all of them, on uvloop. Its CPU is in the figures: while that is far below the server's, it is
        not the limit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from tests.bench.scale import PATIENCE_S, TEXT

MARK: Final = "~"
MARKED_TEXT: Final = MARK + TEXT[1:]
OPENED_AT_ONCE: Final = 64
"""Connections that are being opened at a time: all at once would only wait in the server's backlog."""


class Listener(asyncio.Protocol):
    """One open stream."""

    def __init__(self, path: str, on_events: Callable[[int], None]) -> None:
        self.events = 0
        self.closing = False
        self.opened = asyncio.get_running_loop().create_future()
        self._path = path
        self._on_events = on_events
        self._mark = MARK.encode()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the events."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(f"GET {self._path} HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Count (rule 1)."""
        if not self.opened.done():
            assert data.startswith(b"HTTP/1.1 200 "), data[:300]
            self.opened.set_result(None)
        count = data.count(self._mark)
        if count:
            before, self.events = self.events, self.events + count
            self._on_events(before)

    def connection_lost(self, error: Exception | None) -> None:
        """Rule 2."""
        assert self.closing, f"a stream ended after {self.events} events: {error}"

    def close(self) -> None:
        """Hang up."""
        self.closing = True
        assert self._transport is not None
        self._transport.abort()


class Listeners:
    """All open streams of one measurement. `slowest` is how many events every one of them has brought."""

    def __init__(self, port: int) -> None:
        self.slowest = 0
        self._port = port
        self._all: list[Listener] = []
        self._last = 0  # so many have brought no more than the slowest
        self._moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, paths: Sequence[str]) -> None:
        """So many streams, all of which have begun. Once, before the first event."""
        for first in range(0, len(paths), OPENED_AT_ONCE):
            some = paths[first : first + OPENED_AT_ONCE]
            self._all += await asyncio.gather(*(self._one(path) for path in some))
        self._last = len(self._all)

    async def _one(self, path: str) -> Listener:
        loop = asyncio.get_running_loop()
        _, listener = await loop.create_connection(lambda: Listener(path, self._brought), "127.0.0.1", self._port)
        await asyncio.wait_for(listener.opened, PATIENCE_S)
        return listener

    def _brought(self, before: int) -> None:
        """One that had brought so many has brought more. All are looked at only when the last one has moved on."""
        if before == self.slowest:
            self._last -= 1
            if not self._last:
                self.slowest = min(listener.events for listener in self._all)
                self._last = sum(listener.events == self.slowest for listener in self._all)
                moved, self._moved = self._moved, asyncio.get_running_loop().create_future()
                moved.set_result(None)

    async def heard(self, events: int) -> None:
        """Return when every stream has brought so many."""
        async with asyncio.timeout(PATIENCE_S):
            while self.slowest < events:
                await self._moved

    def check(self, events: int) -> None:
        """No stream has brought one more than was sent."""
        most = max(listener.events for listener in self._all)
        assert most == events, f"a stream brought {most} events, {events} were sent"

    def close(self) -> None:
        """Hang up on all."""
        for listener in self._all:
            listener.close()


@asynccontextmanager
async def listeners(port: int) -> AsyncIterator[Listeners]:
    """Streams that are open until the block ends."""
    found = Listeners(port)
    try:
        yield found
    finally:
        found.close()

"""A TCP proxy that breaks connections in the ways networks do. It stands in front of Redis, or of ingest.

    client ──up──> [ proxy ] ──up──> server
           <─down─           <─down─

    cut()                  every connection is reset, both ends learn it
    refusing               new connections are refused
    up_delay_s, down_delay_s  bytes come that much later
    stall(), flow()        nothing passes either way (a black hole); what was on its way is delivered late
    stall_at(words)        the same, from the next write on that holds these bytes
    vanish()               the server's end is closed and the client never learns it (half-open)
    lose_reply(to, nth)    the nth write that holds `to` reaches the server, which carries it out; its reply never comes
                           back, and the connection is reset
    mute_subscribers       connections that subscribe to topics stay open and never hear a notice
    cut_after_bytes        each connection is reset after so many bytes down (a random number below the limit)

Rule 1: it changes no byte and no order; it only delays, withholds or ends.
Rule 2: every fault that was injected is counted, so that a test can tell that it injected some.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

CHUNK_BYTES: Final = 64 * 1024
SUBSCRIBE: Final = b"SUBSCRIBE"
"""In SUBSCRIBE, PSUBSCRIBE and SSUBSCRIBE alike."""


@dataclass
class Loss:
    """A reply that is going to be lost."""

    to: bytes
    left: int
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    muted: bool = False
    doomed: Loss | None = None
    down_left: int | None = None

    def reset(self) -> None:
        """Both ends learn at once that it is over."""
        for writer in (self.client, self.server):
            abort(writer)


class Proxy:
    """One port in front of one server. Faults apply to open and to new connections alike."""

    def __init__(self, server_port: int, server_host: str = "127.0.0.1", rng: random.Random | None = None) -> None:
        self.port = 0
        self.faults = 0
        self.up_delay_s = self.down_delay_s = 0.0
        self.mute_subscribers = False
        self.cut_after_bytes: int | None = None
        self._server = (server_host, server_port)
        self._rng = rng or random.Random(0)
        self._listener: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loss: Loss | None = None
        self._stall_at: tuple[bytes, asyncio.Event] | None = None

    @property
    def redis_url(self) -> str:
        """For a client of Redis."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def http_url(self) -> str:
        """For a client of ingest."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._links)

    # -- faults -----------------------------------------------------------------------------------------------

    def cut(self) -> int:
        """Reset every connection; how many that were."""
        links = list(self._links)
        for link in links:
            link.reset()
        self.faults += len(links)
        return len(links)

    def vanish(self) -> None:
        """The server's ends are gone, and no client hears of it."""
        for link in self._links:
            abort(link.server)
            self.faults += 1

    def stall(self) -> None:
        """Hold every byte back from now on."""
        self._flowing.clear()
        self.faults += 1

    def stall_at(self, words: bytes) -> asyncio.Event:
        """Hold back the next write that holds these bytes, and everything from then on; set once that has happened."""
        self._stall_at = words, asyncio.Event()
        return self._stall_at[1]

    def flow(self) -> None:
        """Deliver what was held back, late."""
        self._flowing.set()

    def lose_reply(self, to: bytes, nth: int = 1) -> Loss:
        """Lose the server's reply to the nth write from now on that holds these bytes."""
        self._loss = Loss(to, nth)
        return self._loss

    async def refuse(self) -> None:
        """New connections are refused."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self.faults += 1

    async def listen(self) -> None:
        """New connections are taken, on the same port as before."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=CHUNK_BYTES)
            self.port = int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Nothing passes any more."""
        await self.refuse()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- passing on -------------------------------------------------------------------------------------------

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server_reader, server = await asyncio.open_connection(*self._server, limit=CHUNK_BYTES)
        except OSError:
            abort(client)
            return
        link = Link(client, server)
        if self.cut_after_bytes is not None:
            link.down_left = self._rng.randrange(1, self.cut_after_bytes)
        self._links.add(link)
        ways = (self._up(link, client_reader), self._down(link, server_reader))
        try:
            await asyncio.gather(*ways)
        except asyncio.CancelledError:  # the proxy is being closed; asyncio would report it as an error of the server
            return
        finally:
            self._links.discard(link)
            link.reset()

    async def _up(self, link: Link, reader: asyncio.StreamReader) -> None:
        async for chunk in chunks(reader):
            if self.up_delay_s:
                await asyncio.sleep(self.up_delay_s)
            if self._stall_at is not None and self._stall_at[0] in chunk:
                self._stall_at[1].set()
                self._stall_at = None
                self.stall()
            await self._flowing.wait()
            if self.mute_subscribers and SUBSCRIBE in chunk:
                link.muted = True
            self._doom(link, chunk)
            if link.server.is_closing():
                continue  # it has vanished: what the client still says goes nowhere
            await write(link.server, chunk)
        with contextlib.suppress(OSError, RuntimeError):
            link.server.write_eof()  # the client has hung up; what it had written still arrives

    def _doom(self, link: Link, chunk: bytes) -> None:
        """Find out whether this is the write whose reply is to be lost."""
        if self._loss is None or self._loss.to not in chunk:
            return
        self._loss.left -= 1
        if self._loss.left == 0:
            link.doomed, self._loss = self._loss, None

    async def _down(self, link: Link, reader: asyncio.StreamReader) -> None:
        confirmations = 1  # of a subscription: the client waits for it, so the first answer passes
        async for chunk in chunks(reader):
            if link.doomed is not None:  # the server has carried it out, for here is its reply
                self.faults += 1
                link.doomed.done.set()
                link.reset()
                return
            if link.muted and not confirmations:
                self.faults += 1
                continue
            confirmations -= link.muted
            if self.down_delay_s:
                await asyncio.sleep(self.down_delay_s)
            await self._flowing.wait()
            if not await self._down_within(link, chunk):
                return
        if not link.server.is_closing():  # the server hung up by itself: so does the proxy
            link.reset()

    async def _down_within(self, link: Link, chunk: bytes) -> bool:
        """Pass on as much as the connection may still carry; False when that was the end of it."""
        if link.down_left is not None:
            passed = chunk[: link.down_left]
            link.down_left -= len(passed)
            await write(link.client, passed)
            if link.down_left == 0:
                self.faults += 1
                link.reset()
                return False
            return True
        await write(link.client, chunk)
        return True


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """What comes, until the end or a reset."""
    with contextlib.suppress(ConnectionError, OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk


async def write(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    """Pass on; an end that is gone takes nothing."""
    with contextlib.suppress(ConnectionError, OSError):
        writer.write(chunk)
        await writer.drain()


def abort(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, so that the other end cannot take it for an orderly end."""
    if writer.is_closing():
        return
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


@asynccontextmanager
async def proxy_to(port: int, host: str = "127.0.0.1", rng: random.Random | None = None) -> AsyncIterator[Proxy]:
    """A proxy in front of a server for the length of the block."""
    proxy = Proxy(port, host, rng)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()

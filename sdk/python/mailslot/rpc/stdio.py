"""Frames on two pipes: what a program that started us writes and reads.

    fd in ──[reader thread]──> frames() ──> connection ──> send() ──[writer thread]──> fd out

Rule 1: nothing but frames is written to `out`, each with the one byte 0x0A that ends it, and each as a whole, even when
        whoever sent it does not wait for it any more.
Rule 2: reading and writing block threads and never the loop: a pipe may be full, a file cannot be waited for. The
        threads die with the process, so a full pipe does not hold up its end.
Rule 3: input ends at its end, when whoever read `out` is gone, or when the parent is: no orphan waits for a pipe that a
        grandchild of somebody else keeps open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Final

from mailslot.rpc.connection import LineLost
from mailslot.rpc.frame import FRAME_BYTES_MAX, Invalid, Splitter, too_large

READ_BYTES: Final = 65_536
CHUNKS_MAX: Final = 16
"""Chunks that were read and not looked at yet; the rest stays in the pipe."""

LOOK_S: Final = 0.25
"""How often the parent and the other end are looked after while nothing can be read."""

GONE: Final = select.POLLERR | select.POLLHUP
"""What a pipe, or a socket, says of a reader that left."""


class Pipes:
    """A line on two file descriptors (see `connection.Line`). Make it on the running loop."""

    def __init__(self, fd_in: int, fd_out: int, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._fd_in = fd_in
        self._fd_out = fd_out
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_MAX)
        self._letters: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self.ended = asyncio.Event()
        """Nothing more is read; see `connection.Line`."""
        self.reader_gone = False
        """Whoever read `out` is gone."""
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"mailslot-rpc{work.__name__}", daemon=True).start()

    def end(self) -> None:
        """Nothing more is taken in."""
        self._stopped.set()
        self.ended.set()

    async def frames(self) -> AsyncGenerator[bytes | str | Invalid, None]:
        """Frames as they come. What stands behind the last 0x0A is one, too: a file may end without it."""
        splitter = Splitter(self._frame_bytes_max)
        while chunk := await self._chunk():
            for found in splitter.feed(chunk):
                yield too_large(self._frame_bytes_max) if found is None else found
        for found in splitter.feed(b"\n"):
            if found is not None:
                yield found

    async def send(self, data: bytes) -> None:
        """Write one frame; return when the pipe has it."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._letters.put((data + b"\n", written))
        await written

    async def _chunk(self) -> bytes:
        """Some bytes; none at the end. What was read before the end still comes."""
        if self._chunks.empty() and not self.ended.is_set():
            reading = asyncio.ensure_future(self._chunks.get())
            ending = asyncio.ensure_future(self.ended.wait())
            try:
                await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
                chunk = reading.result() if reading.done() else b""
            finally:
                reading.cancel()
                ending.cancel()
        else:
            chunk = b"" if self._chunks.empty() else self._chunks.get_nowait()
        self._room.release()
        return chunk

    # -- threads --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        poll, parent = select.poll(), os.getppid()
        poll.register(self._fd_in, select.POLLIN)
        poll.register(self._fd_out, 0)  # what is wrong is told without being asked for
        with contextlib.suppress(OSError):
            while not self._stopped.is_set() and os.getppid() == parent and self._took_in(poll):
                pass
        self._tell_loop(self.ended.set)

    def _took_in(self, poll: select.poll) -> bool:
        """Look once, and take in what there is; whether more may come."""
        has_room = self._room.acquire(timeout=LOOK_S)
        ready = dict(poll.poll(LOOK_S * 1000 if has_room else 0))
        if ready.get(self._fd_out, 0) & GONE:
            self.reader_gone = True
            return False
        if not has_room:
            return True
        if self._fd_in not in ready:
            self._room.release()
            return True
        chunk = os.read(self._fd_in, READ_BYTES)
        if chunk:
            self._tell_loop(self._chunks.put_nowait, chunk)
        return bool(chunk)

    def _write(self) -> None:
        while True:
            data, written = self._letters.get()
            try:
                write_all(self._fd_out, data)
            except OSError:
                self.reader_gone = True
                self._tell_loop(self._settle, written, LineLost())
            else:
                self._tell_loop(self._settle, written, None)

    def _tell_loop(self, what: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(what, *arguments)

    def _settle(self, written: asyncio.Future[None], error: LineLost | None) -> None:
        if written.done():
            return
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)


def write_all(fd: int, data: bytes) -> None:
    """Write everything, also when whoever made the pipe made it one that does not block."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()

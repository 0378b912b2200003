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
from collections.abc import AsyncGenerator
from typing import Final

from mailslot.rpc.connection import LineLost
from mailslot.rpc.frame import FRAME_BYTES_MAX, Invalid, Splitter, too_large

READ_BYTES: Final = 65_536
CHUNKS_MAX: Final = 16
"""Chunks that were read and not looked at yet; the rest stays in the pipe."""

LOOK_MS: Final = 250
"""How often the parent and the other end are looked after while nothing comes in."""


class Pipes:
    """A line on two file descriptors (see `connection.Line`). Make it on the running loop."""

    def __init__(self, fd_in: int, fd_out: int, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._fd_in = fd_in
        self._fd_out = fd_out
        self._frame_bytes_max = frame_bytes_max
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(CHUNKS_MAX)
        self._letters: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self.reader_gone = False
        """Whoever read `out` is gone."""
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"mailslot-rpc{work.__name__}", daemon=True).start()

    def end(self) -> None:
        """Nothing more is taken in."""
        self._ended.set()

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
        if self._ended.is_set() and self._chunks.empty():
            return b""
        reading = asyncio.ensure_future(self._chunks.get())
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else b""
        finally:
            reading.cancel()
            ending.cancel()

    # -- threads --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        poll, parent = select.poll(), os.getppid()
        poll.register(self._fd_in, select.POLLIN)
        poll.register(self._fd_out, 0)  # errors are told without being asked for
        with contextlib.suppress(OSError, RuntimeError):
            while os.getppid() == parent:
                ready = dict(poll.poll(LOOK_MS))
                if self._fd_out != self._fd_in and ready.get(self._fd_out, 0) & select.POLLERR:
                    self.reader_gone = True
                    break
                if self._fd_in not in ready:
                    continue
                chunk = os.read(self._fd_in, READ_BYTES)
                asyncio.run_coroutine_threadsafe(self._chunks.put(chunk), self._loop).result()
                if not chunk:
                    return
        self._tell_loop(self._ended.set)

    def _write(self) -> None:
        while True:
            data, written = self._letters.get()
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(self._fd_out, rest) :]
            except OSError:
                self.reader_gone = True
                self._tell_loop(self._settle, written, LineLost())
            else:
                self._tell_loop(self._settle, written, None)

    def _tell_loop(self, what: object, *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(what, *arguments)  # type: ignore[arg-type]

    def _settle(self, written: asyncio.Future[None], error: LineLost | None) -> None:
        if written.done():
            return
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)

"""A line between a store and its server that a test can cut: what was said reaches the server, its answer does not.

store --> Line --> server          line.deaf = True: answers are dropped from now on
                                   line.cut(): every connection breaks
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.servers import Server

CHUNK_BYTES = 65_536


class Line:
    """A TCP proxy on loopback."""

    def __init__(self, server: Server) -> None:
        self.port = 0
        self.deaf = False
        self.heard = asyncio.Event()  # an answer came while the line was deaf: the server has acted
        self._server = server
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pass(reader, there_writer, back=False), self._pass(there_reader, writer, back=True))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if back and self.deaf:
                    self.heard.set()
                    continue
                writer.write(chunk)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)


@asynccontextmanager
async def line_to(server: Server) -> AsyncIterator[Line]:
    """A line to the server for the length of the block."""
    line = Line(server)
    listening = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    line.port = listening.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        line.cut()
        listening.close()

"""Hears the notices of all sessions and says when each came, by this process's monotonic clock.

    store function --PUBLISH--> session.event.<id>, session.status --> Listener --> on_notice(when, notice)

One bare connection, read as soon as it is readable: a library between would be measured with the rest.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import hiredis

from mailslot_contracts.channels import EVENT_CHANNEL_PATTERN, STATUS_CHANNEL
from mailslot_contracts.codec import unframe
from tests.bench.scale import PATIENCE_S
from tests.servers import Server

OnNotice = Callable[[float, dict[str, Any]], None]
SUBSCRIBED = {b"subscribe", b"psubscribe"}


class Listener(asyncio.Protocol):
    """The connection."""

    def __init__(self, on_notice: OnNotice) -> None:
        self._on_notice = on_notice
        self._reader = hiredis.Reader()
        self._waiting = 2
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for everything."""
        line = cast("asyncio.Transport", transport)
        line.write(hiredis.pack_command(("SUBSCRIBE", STATUS_CHANNEL)))  # type: ignore[arg-type]
        line.write(hiredis.pack_command(("PSUBSCRIBE", EVENT_CHANNEL_PATTERN)))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Pass on what came, all of it under the time at which it came."""
        now = time.monotonic()
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            assert isinstance(reply, list), reply
            if reply[0] in SUBSCRIBED:
                self._waiting -= 1
                if not self._waiting:
                    self.ready.set_result(None)
            else:
                self._on_notice(now, unframe(reply[-1]))


@asynccontextmanager
async def listening(server: Server, on_notice: OnNotice) -> AsyncIterator[None]:
    """Notices are heard while the block is open."""
    loop = asyncio.get_running_loop()
    transport, listener = await loop.create_connection(lambda: Listener(on_notice), "127.0.0.1", server.port)
    try:
        await asyncio.wait_for(listener.ready, PATIENCE_S)
        yield
    finally:
        transport.close()

"""The doors of an engine: the application of ingest behind a front, on a listener whose connections can be cut.

open --> [listener --> front --> application]     shut: connections are cut, the application has ended
                          ^                       open again: at the same port
                          +-- switches
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mailslot_core.clock import Clock
from mailslot_services.ingest import create_app, serve_app
from mailslot_services.testbed.listener import Listener
from mailslot_services.testbed.settings import DoorSettings
from mailslot_services.testbed.store import DoorLine, as_store
from mailslot_services.testbed.switch import Exchange, Front, Switches

POLL_MS: Final = 200
"""How often a ledger is read that somebody watches, when no notice came."""


class Doors:
    """Used on the engine's loop."""

    def __init__(self, line: DoorLine, clock: Clock, switches: Switches, token: str) -> None:
        self._line, self._clock, self._switches = line, clock, switches
        self._settings = DoorSettings(durability="memory", poll_ms=POLL_MS, intake=False, token=token)
        self._streams: set[Exchange] = set()
        self._stop = asyncio.Event()
        self._port = 0
        self._listener: Listener | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """Requests are answered at this URL."""
        self._stop = stop = asyncio.Event()
        self._listener = listener = Listener(self._port)
        self._port = listener.port
        app = create_app(as_store(self._line), self._settings, clock=self._clock)
        app.add_middleware(Front, switches=self._switches, listener=listener, streams=self._streams, stop=stop)
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = serving = asyncio.create_task(serve_app(app, listener, stop, started.set_result))
        both: set[asyncio.Future[Any]] = {started, serving}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        return started.result().rstrip("/")

    async def shut(self) -> None:
        """Nobody is answered any more. Who waits for an answer is cut off, or the end would wait for him."""
        self._stop.set()
        if self._listener is None:
            return
        self._listener.cut_all()
        try:
            if self._serving is not None:
                await self._serving
        finally:
            self._listener.close()
            self._listener = None

    def cut_streams(self) -> int:
        """Every stream that is open is cut; how many."""
        open_now = list(self._streams)
        for exchange in open_now:
            exchange.cut()
        return len(open_now)

"""An ingest of one's own for a test: the application on a store, spoken to in process or over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from starlette.applications import Starlette

from mailslot_core.clock import Clock
from mailslot_core.memory import MemoryStore
from mailslot_core.settings import IngestSettings
from mailslot_core.store import Store
from mailslot_services.ingest import bound, create_app, serve_app

PATIENCE_S: Final = 10.0
"""How long a test waits for what must come at once."""


def settings(**changes: Any) -> IngestSettings:
    """Settings for tests: nothing from the environment's defaults that waits for seconds."""
    return IngestSettings(**{"durability": "memory", "poll_ms": 20, **changes})


@dataclass
class House:
    """An application, its store, and a client that speaks to it."""

    store: Store
    app: Starlette
    client: httpx2.AsyncClient

    async def prompt(self, session_id: str, content: object = "hello", **fields: object) -> httpx2.Response:
        """Send a prompt."""
        return await self.client.post(f"/v1/sessions/{session_id}/prompt", json={"content": content, **fields})

    async def level(self, session_id: str) -> dict[str, Any]:
        """The session's level."""
        found: dict[str, Any] = (await self.client.get(f"/v1/sessions/{session_id}")).json()
        return found

    def metric(self, name: str, **labels: str) -> float:
        """A sample of the application's registry, 0 when there is none yet."""
        return self.app.state.door.metrics.registry.get_sample_value(f"mailslot_ingest_{name}", labels) or 0.0


@asynccontextmanager
async def in_process(store: Store | None = None, *, clock: Clock | None = None, **changes: Any) -> AsyncIterator[House]:
    """Without a socket. Not for streams: this transport hands over an answer only when it is complete."""
    store = store or MemoryStore()
    app = create_app(store, settings(**changes), clock=clock)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport, base_url="http://h") as client:
        yield House(store, app, client)


@asynccontextmanager
async def on_socket(store: Store | None = None, *, clock: Clock | None = None, **changes: Any) -> AsyncIterator[House]:
    """On a free loopback port."""
    store, stop = store or MemoryStore(), asyncio.Event()
    app, listener = create_app(store, settings(**changes), clock=clock), bound("127.0.0.1", 0)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_app(app, listener, stop, url.set_result))
    try:
        base_url = await asyncio.wait_for(url, PATIENCE_S)
        async with httpx2.AsyncClient(base_url=base_url, timeout=PATIENCE_S) as client:
            yield House(store, app, client)
    finally:
        stop.set()
        await asyncio.wait_for(serving, PATIENCE_S)


@dataclass
class Frame:
    """One SSE frame."""

    event: str
    data: dict[str, Any]
    id: int | None


class Stream:
    """Reads the frames of an open answer; comments are kept apart."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.comments: list[str] = []
        self._lines = response.aiter_lines()

    async def next(self) -> Frame | None:
        """The next frame, None at the end of the stream."""
        return await asyncio.wait_for(self._next(), PATIENCE_S)

    async def take(self, count: int) -> list[Frame]:
        """So many frames."""
        frames = [await self.next() for _ in range(count)]
        assert None not in frames, "the stream ended"
        return [frame for frame in frames if frame is not None]

    async def rest(self) -> list[Frame]:
        """Every frame to the end of the stream."""
        frames: list[Frame] = []
        while (frame := await self.next()) is not None:
            frames.append(frame)
        return frames

    async def comment(self) -> str:
        """The next comment."""
        seen = len(self.comments)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.comments) == seen:
                await self._line()
        return self.comments[-1]

    async def _next(self) -> Frame | None:
        fields: dict[str, str] = {}
        while (line := await self._line()) is not None:
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                number = int(fields["id"]) if "id" in fields else None
                return Frame(fields["event"], json.loads(fields["data"]), number)
        assert not fields, f"the stream ended inside a frame: {fields}"
        return None

    async def _line(self) -> str | None:
        """The next line that is no comment, None at the end; an empty string for a comment."""
        line = await anext(self._lines, None)
        if line is not None and line.startswith(":"):
            self.comments.append(line[1:].strip())
            return ""
        return line


@asynccontextmanager
async def stream(
    house: House, session_id: str, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[Stream]:
    """The session's events, live."""
    address = f"/v1/sessions/{session_id}/events{query}"
    async with house.client.stream("GET", address, headers=headers) as response:
        assert response.status_code == 200, (await response.aread(), response.status_code)
        yield Stream(response)

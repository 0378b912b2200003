"""What our streams are compared with: the least that sends server-sent events from Redis to many with Starlette.

    python -m tests.bench.plain_streams REDIS_URL PORT      the server's process

    notices of all sessions --> decode, encode once --> one queue a subscriber --> StreamingResponse

It is served by the very code that serves ingest, so uvicorn's settings, its parser and the event loop are the same. It
has no cursor, no history, no level, no bound on its queues and no heartbeat: who reconnects has lost what was said
meanwhile, and so has everybody when a notice is lost.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import uvloop
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from mailslot_contracts import encode_json
from mailslot_contracts.channels import EVENT_CHANNEL_PATTERN
from mailslot_contracts.codec import unframe
from mailslot_core.memory import MemoryStore
from mailslot_core.settings import IngestSettings
from mailslot_services.ingest import bound, create_app, serve_app

MODULE: Final = "tests.bench.plain_streams"


class Hub:
    """Who listens to what."""

    def __init__(self) -> None:
        self.queues: dict[str, set[asyncio.Queue[bytes]]] = {}

    def push(self, data: bytes) -> None:
        """One event for all who listen to its session, encoded once."""
        event = unframe(data)
        frame = b"id: %d\nevent: session.event\ndata: %s\n\n" % (event["seq"], encode_json(event))
        for queue in self.queues.get(event["sessionId"], ()):
            queue.put_nowait(frame)

    async def stream(self, session_id: str) -> AsyncIterator[bytes]:
        """What comes from now on."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        listening = self.queues.setdefault(session_id, set())
        listening.add(queue)
        try:
            yield b": hello\n\n"
            while True:
                yield await queue.get()
        finally:
            listening.discard(queue)


async def read(redis: Redis, hub: Hub) -> None:
    """Pass on what is published, for ever."""
    async with redis.pubsub() as topics:
        await topics.psubscribe(EVENT_CHANNEL_PATTERN)
        async for message in topics.listen():
            if message["type"] == "pmessage":
                hub.push(message["data"])


def application(url: str) -> Starlette:
    """The whole of it."""
    hub = Hub()

    async def events(request: Request) -> StreamingResponse:
        chunks = hub.stream(request.path_params["session_id"])
        return StreamingResponse(chunks, headers={"Cache-Control": "no-store"}, media_type="text/event-stream")

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        async with Redis.from_url(url) as redis:
            reading = asyncio.create_task(read(redis, hub))
            yield
            reading.cancel()

    app = Starlette(routes=[Route("/v1/sessions/{session_id}/events", events)], lifespan=life)
    # What serves it asks an ingest's door for its settings, and tells it the end.
    app.state.door = create_app(MemoryStore(), IngestSettings(durability="memory")).state.door
    return app


async def serve(url: str, port: int) -> None:
    """Serve until the process is ended."""
    with bound("127.0.0.1", port) as listener:
        await serve_app(application(url), listener, asyncio.Event(), lambda _: None)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))

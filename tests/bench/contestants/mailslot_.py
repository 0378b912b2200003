"""mailslot as a contestant of the peers' harness: see docs/benchmarks.md for how to run it there.

This file and `mailslot_worker.py` are copied into the harness' folder `contestants`; the harness imports this one in
its producer and starts the other one as the worker. Nothing of this repository's tests is used, only the installed
product.

A message is submitted by the store's own call, as the ingest service does it; to wait for a message is to wait for
the session's next idle past its receipt.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from mailslot_contracts import body_fingerprint
from mailslot_contracts.channels import STATUS_CHANNEL
from mailslot_contracts.codec import unframe
from mailslot_core.inbox import Submission
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Lane
from mailslot_core.settings import StoreSettings

PORT: Final = int(os.environ.get("BENCH_PORT", "6500"))
URL: Final = f"redis://127.0.0.1:{PORT}/0"
BORN: Final = {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}}

# What the harness asks a contestant for.
VENV = "mailslot"
STORE = "redis"
ASYNC = True
ORDERED = True


def worker_argv() -> list[str]:
    """How to start one worker process."""
    return [sys.executable, str(Path(__file__).parent / "mailslot_worker.py"), URL]


class Producer:
    """Who submits, and waits for idle."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._idle_seq: dict[str, int] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def open(self) -> None:
        """Connect, and listen to when agents come to rest."""
        settings = StoreSettings(redis_url=URL, durability="memory")
        self._store = await self._stack.enter_async_context(RedisStore.connect(settings))
        self._client = Redis(port=PORT)
        self._topic = self._client.pubsub(ignore_subscribe_messages=True)
        await self._topic.subscribe(STATUS_CHANNEL)
        self._listening = asyncio.create_task(self._listen())

    async def enqueue(self, number: int, key: str, payload: str) -> tuple[str, int]:
        """Submit a message; its session and the cursor of its receipt."""
        message_id, content = f"m{number}", [{"type": "text", "text": f"{number}:{payload}"}]
        source = {"kind": "user"}
        body: dict[str, object] = {"content": content, "delivery": "queue", "source": source, "metadata": {}}
        data: dict[str, Any] = {
            "messageId": message_id,
            "lane": "next-turn",
            "wake": True,
            "content": content,
            "source": source,
        }
        message = Submission(message_id, Lane.NEXT_TURN, True, data, body_fingerprint(body).hex())
        return key, (await self._store.submit(key, message, BORN)).cursor

    async def wait(self, receipt: tuple[str, int]) -> None:
        """Return once the session has come to rest after the message was queued."""
        key, cursor = receipt
        while self._idle_seq.get(key, 0) <= cursor:
            rested = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, []).append(rested)
            await rested

    async def close(self) -> None:
        """Disconnect."""
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        await self._topic.aclose()  # type: ignore[no-untyped-call]
        await self._client.aclose()
        await self._stack.aclose()

    async def _listen(self) -> None:
        async for word in self._topic.listen():
            notice = unframe(word["data"])
            if notice["data"]["status"] == "idle":
                self._idle_seq[notice["sessionId"]] = notice["seq"]
                for rested in self._waiting.pop(notice["sessionId"], ()):
                    rested.set_result(None)

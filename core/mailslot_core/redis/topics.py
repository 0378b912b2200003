"""Notices by pub/sub: one connection for all the sessions that somebody in this process watches.

Rule 1: a notice is a hint. It may be lost, come late, or stop coming from a server that hangs; whoever watches also
        looks at the ledger from time to time (semantics L2, protocol section 3).
Rule 2: a slow watcher loses its own oldest hints, never anybody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from mailslot_contracts.channels import event_channel
from mailslot_contracts.codec import decode
from mailslot_contracts.problems import CodecError

HINTS_MAX = 1024  # notices kept for one watcher; what does not fit is found in the ledger
RECONNECT_S = 0.5

log = logging.getLogger(__name__)

Notices = asyncio.Queue[dict[str, Any]]


class Topics:
    """Fans the notices of sessions out to their watchers."""

    def __init__(self, client: Redis) -> None:
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._watchers: dict[str, set[Notices]] = {}
        self._reader: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, session_id: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """See `Store.watch`."""
        channel, queue = event_channel(session_id), Notices(HINTS_MAX)
        watchers = self._watchers.setdefault(channel, set())
        watchers.add(queue)
        try:
            if len(watchers) == 1:
                await self._subscribe(channel)
            yield _drain(queue)
        finally:
            watchers.discard(queue)
            if not watchers and self._watchers.get(channel) is watchers:
                del self._watchers[channel]
                with suppress(RedisError, OSError):
                    await self._pubsub.unsubscribe(channel)

    async def close(self) -> None:
        """Stop listening."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _subscribe(self, channel: str) -> None:
        """Listen to a channel. A server that cannot be reached now is asked again by the reader."""
        with suppress(RedisError, OSError):
            await self._pubsub.subscribe(channel)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_forever())

    async def _read_forever(self) -> None:
        while True:
            try:
                if not self._watchers:
                    await asyncio.sleep(RECONNECT_S)
                    continue
                if not self._pubsub.subscribed:
                    await self._pubsub.subscribe(*self._watchers)
                message = await self._pubsub.get_message(ignore_subscribe_messages=True, timeout=1)
            except (RedisError, OSError) as error:
                log.warning("notices are not coming: %s", error)
                await asyncio.sleep(RECONNECT_S)
                continue
            if message is not None:
                self._deliver(message)

    def _deliver(self, message: dict[str, Any]) -> None:
        try:
            notice = decode(message["data"])
        except CodecError as error:
            log.warning("a notice on %s cannot be read: %s", message["channel"], error)
            return
        for queue in self._watchers.get(message["channel"].decode(), ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(notice)  # type: ignore[arg-type]


async def _drain(queue: Notices) -> AsyncIterator[dict[str, Any]]:
    while True:
        yield await queue.get()

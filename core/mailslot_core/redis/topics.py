"""Notices by pub/sub: one connection for all the sessions that somebody in this process watches.

    session.event.<sid> --+
    session.status -------+--> one connection --> one reader --> each watcher of the session

Rule 1: a notice is a hint. It may be lost, come late, or stop coming from a server that hangs; whoever watches also
        looks at the ledger from time to time (semantics L2, protocol section 3).
Rule 2: a watch begins when the server has confirmed its subscription, or SUBSCRIBE_S_MAX after it was asked.
Rule 3: a slow watcher loses its own oldest hints, never anybody else's.
Rule 4: `agent/status` of all sessions comes over one topic, which is listened to as long as anybody watches anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgpack import UnpackException
from redis.asyncio import Redis
from redis.exceptions import RedisError

from mailslot_contracts.channels import STATUS_CHANNEL, event_channel
from mailslot_contracts.codec import unframe
from mailslot_contracts.problems import CodecError
from mailslot_core.redis.wire import UNREACHABLE
from mailslot_core.store import Notices
from mailslot_core.task import end

HINTS_MAX = 1024  # notices kept for one watcher; what does not fit is found in the ledger
RECONNECT_S = 0.5
SUBSCRIBE_S_MAX = 1.0

log = logging.getLogger(__name__)


class Topics:
    """Fans the notices of sessions out to their watchers."""

    def __init__(self, client: Redis) -> None:
        self._pubsub = client.pubsub()
        self._watchers: dict[str, set[Notices]] = {}  # by session id
        self._confirmed: dict[str, asyncio.Event] = {}  # by channel, from the asking on
        self._asking = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, session_id: str) -> AsyncIterator[Notices]:
        """See `Store.watch`."""
        notices, watchers = Notices(HINTS_MAX), self._watchers.setdefault(session_id, set())
        watchers.add(notices)
        try:
            await self._listen(STATUS_CHANNEL, event_channel(session_id))
            yield notices
        finally:
            watchers.discard(notices)
            await self._leave(session_id)

    async def close(self) -> None:
        """Stop listening."""
        if self._reader is not None:
            await end(self._reader)
        await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    # -- subscribing ------------------------------------------------------------------------------------------

    async def _listen(self, *channels: str) -> None:
        """Rule 2. A server that cannot be reached now is asked again by the reader."""
        async with self._asking:
            fresh = [channel for channel in channels if channel not in self._confirmed]
            self._confirmed.update((channel, asyncio.Event()) for channel in fresh)
            if fresh:
                with suppress(RedisError, OSError, TimeoutError):
                    async with asyncio.timeout(SUBSCRIBE_S_MAX):
                        await self._pubsub.subscribe(*fresh)
            if self._reader is None:
                self._reader = asyncio.create_task(self._read_forever())
        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_S_MAX):
                for channel in channels:
                    await self._confirmed[channel].wait()

    async def _leave(self, session_id: str) -> None:
        """Nobody watches the session any more, unless somebody does again by now."""
        async with self._asking:
            if self._watchers.get(session_id):
                return
            self._watchers.pop(session_id, None)
            channel = event_channel(session_id)
            if self._confirmed.pop(channel, None) is not None:
                with suppress(RedisError, OSError, TimeoutError):
                    async with asyncio.timeout(SUBSCRIBE_S_MAX):
                        await self._pubsub.unsubscribe(channel)

    # -- reading ----------------------------------------------------------------------------------------------

    async def _read_forever(self) -> None:
        while True:
            try:
                missing = [name for name in self._confirmed if name.encode() not in self._pubsub.channels]
                if missing:  # the first asking failed
                    await self._pubsub.subscribe(*missing)
                message = await self._pubsub.get_message(timeout=None)
            except UNREACHABLE as error:
                log.warning("notices are not coming: %s", error)
                await asyncio.sleep(RECONNECT_S)
                continue
            if message is not None:
                self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        channel = message["channel"].decode()
        if message["type"] == "subscribe":
            if channel in self._confirmed:
                self._confirmed[channel].set()
        elif message["type"] == "message":
            self._deliver(channel, message["data"])

    def _deliver(self, channel: str, data: bytes) -> None:
        """Anybody may publish to a topic: what is no notice is told and passed over, and the others still come. What
        the store published was checked before it was kept; to check it again would cost more than all the rest."""
        try:
            notice: Any = unframe(data)
            watchers = self._watchers.get(notice["sessionId"], ())
        except (CodecError, ValueError, TypeError, LookupError, UnpackException) as error:
            log.warning("a notice on %s cannot be read: %s", channel, error)
            return
        for watcher in watchers:
            watcher.tell(notice)

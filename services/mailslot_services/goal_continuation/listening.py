"""Hearing idle notices: one FastStream subscriber for each partition's stream.

    mailslot:{pNN}:idle --XREADGROUP NOACK--> batch of notices --> Continuation.answer_all

Rule 1: notices are hints, so entries are read with NOACK: none is ever pending, whatever dies when. A notice that was
        lost that way is made up for by reconciling (semantics G8).
Rule 2: all services are one group, so each notice wakes one of them; each process is a consumer with its own name.
Rule 3: a notice that cannot be read is dropped and counted; it never stands in the way of those behind it.
Rule 4: what was delivered is trimmed, and consumers that went away are forgotten: nothing here grows without end.
Rule 5: a stream that was deleted takes its group along, and FastStream gives that subscriber up. `mend` makes the
        group anew, from the first entry, and starts the subscriber again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis

from mailslot_contracts.problems import CodecError
from mailslot_core.errors import StoreUnavailable
from mailslot_core.redis import keys
from mailslot_core.redis.wire import UNREACHABLE
from mailslot_core.settings import StoreSettings
from mailslot_core.store import IdleNotice
from mailslot_services.broker import BLOCK_MS, Arrival, arrivals, consumer_name, ensure_group, make_broker, undecoded
from mailslot_services.goal_continuation.continuation import Continuation, read_notice
from mailslot_services.goal_continuation.metrics import GoalMetrics, Path

NOTICES_MAX: Final = 256
"""Notices that are read at once from one partition."""
GONE_MS: Final = 60_000
"""A consumer that has not asked for this long is gone; a live one asks every BLOCK_MS."""
CONNECTIONS_SPARE: Final = 4
"""Connections beside the one of each subscriber: for tidying, and while a broken one is replaced."""
DATA_FIELD: Final = b"data"

log = logging.getLogger("mailslot.goals")


class Listening:
    """The subscribers of one process, and what keeps their streams in order."""

    def __init__(self, broker: RedisBroker, client: Redis, partitions: int, metrics: GoalMetrics) -> None:
        self._broker = broker
        self._client = client
        self._metrics = metrics
        self._streams = [keys.partition_key(partition, "idle") for partition in range(partitions)]

    def subscribe(self, continuation: Continuation) -> None:
        """Declare one subscriber a partition."""
        consumer = consumer_name()
        for stream in self._streams:
            source = StreamSub(
                stream,
                group=keys.IDLE_GROUP,
                consumer=consumer,
                last_id=">",
                no_ack=True,
                batch=True,
                max_records=NOTICES_MAX,
                polling_interval=BLOCK_MS,
            )

            @self._broker.subscriber(stream=source, parser=arrivals, decoder=undecoded)
            async def on_notices(batch: list[Any]) -> None:
                await continuation.answer_all(readable(batch, self._metrics), Path.NOTICE)

    async def ensure_groups(self) -> None:
        """Every stream has the group, from its first entry on."""
        for stream in self._streams:
            await ensure_group(self._client, stream, keys.IDLE_GROUP)

    async def mend(self) -> None:
        """Every subscriber runs, or the next call tries again (rule 5)."""
        try:
            for subscriber in self._broker.subscribers:
                if not subscriber.running:
                    await self.ensure_groups()
                    await subscriber.start()
                    self._metrics.revived.inc()
        except UNREACHABLE as error:
            log.warning("idle notices cannot be heard for now: %s", error)

    async def tidy(self) -> None:
        """Streams hold what is not delivered, groups hold who is there (rule 4)."""
        try:
            for stream in self._streams:
                await self._trim(stream)
                await self._forget_the_gone(stream)
        except UNREACHABLE as error:
            log.warning("idle notices cannot be tidied for now: %s", error)

    async def _trim(self, stream: str) -> None:
        groups = await self._client.xinfo_groups(stream) if await self._client.exists(stream) else []
        delivered = [group["last-delivered-id"] for group in groups if group["name"] == keys.IDLE_GROUP.encode()]
        if delivered:
            await self._client.xtrim(stream, minid=delivered[0], approximate=False)

    async def _forget_the_gone(self, stream: str) -> None:
        if not await self._client.exists(stream):
            return
        for consumer in await self._client.xinfo_consumers(stream, keys.IDLE_GROUP):
            if consumer["idle"] > GONE_MS:
                await self._client.xgroup_delconsumer(stream, keys.IDLE_GROUP, consumer["name"])


def readable(batch: Sequence[Arrival], metrics: GoalMetrics) -> list[IdleNotice]:
    """The notices of a batch, without those that cannot be read (rule 3)."""
    notices = []
    for arrival in batch:
        try:
            notices.append(read_notice(arrival.fields.get(DATA_FIELD, b"")))
        except CodecError as error:
            metrics.unreadable.inc()
            log.warning("notice %s cannot be read: %s", arrival.entry_id, error)
    return notices


@asynccontextmanager
async def listening(
    settings: StoreSettings, continuation: Continuation, metrics: GoalMetrics
) -> AsyncIterator[Listening]:
    """Notices are heard while the context is open; those in hand are answered before it is left."""
    broker = make_broker(settings, connections_max=settings.partitions + CONNECTIONS_SPARE)
    ears = Listening(broker, await broker.connect(), settings.partitions, metrics)
    ears.subscribe(continuation)
    try:
        try:
            await ears.ensure_groups()
            await broker.start()
        except UNREACHABLE as error:
            raise StoreUnavailable(f"idle notices cannot be heard: {error}") from error
        yield ears
    finally:
        await broker.stop()

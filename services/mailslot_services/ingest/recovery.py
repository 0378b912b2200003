"""The consumer group of the intake, as the server keeps it: who is heard of, and what was lost with whom.

    consumer A   heard of now        its pending entries are its own business
    consumer B   silent for dead_ms  its pending entries are claimed, by whoever claims first
    ourselves                        what is pending with us and not in hand was lost on its way: a broken connection
    nobody                           handed out once, and pending no more: somebody removed a consumer with what it had

Rule 1: whether a consumer lives is asked of the consumer, not of its entries: one that lives may hold an entry as long
        as it takes, and makes itself heard all the while.
Rule 2: a claim names how long the entry must have rested, so that of two who claim at the same time one gets it.
Rule 3: a consumer that is gone is removed in the same act that finds nothing pending with it: removing a consumer drops
        what is pending.
Rule 4: what is settled is deleted, so an entry that was handed out and is still there must be pending with somebody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from mailslot_contracts import INTAKE, INTAKE_GROUP
from mailslot_services.broker import Arrival
from mailslot_services.ingest.limit import CLAIM_COUNT, IntakeLimits

PURGE: Final = """
local removed = 0
for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  if (ARGV[3] == '' or ARGV[3] == c[2]) and c[4] == 0 and c[6] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], c[2])
    removed = removed + 1
  end
end
return removed
"""
"""KEYS: the stream. ARGV: the group, ms of silence, one consumer or ''. Returns how many consumers were removed."""

BEYOND: Final = "18446744073709551615-0"
"""No entry has a greater id. Reading one's own pending entries after it gives none, and the server notes who asked.
(Redis 7.0 notes it neither for a poll that found nothing new nor for a claim that found no entry.)"""


class Found(NamedTuple):
    """An entry that was claimed, and how often it had been handed out before."""

    arrival: Arrival
    deliveries: int


class Recovery:
    """What one consumer does for the group."""

    def __init__(self, client: Redis, consumer: str, limits: IntakeLimits) -> None:
        self._client: Any = client
        self._consumer = consumer
        self._limits = limits

    async def be_heard(self) -> None:
        """The server notes that this consumer lives, also while it does not read."""
        await self._client.xreadgroup(INTAKE_GROUP, self._consumer, {INTAKE: BEYOND}, count=1)

    async def lost(self, in_hand: Container[str]) -> AsyncIterator[list[Found]]:
        """Claim entries that nobody works on, some at a time."""
        for consumer in await self._client.xinfo_consumers(INTAKE, INTAKE_GROUP):
            name = consumer["name"].decode()
            idle_ms = self._limits.lost_ms if name == self._consumer else self._limits.dead_ms
            if not consumer["pending"] or (name != self._consumer and consumer["idle"] < idle_ms):
                continue
            async for found in self._claimed(name, idle_ms, in_hand):
                yield found
        async for found in self._orphans(in_hand):
            yield found

    async def _orphans(self, in_hand: Container[str]) -> AsyncIterator[list[Found]]:
        """Claim entries that were handed out and are pending with nobody (rule 4)."""
        handed_out = await self._handed_out()
        start = "-" if handed_out else None
        while start is not None:
            page = await self._client.xrange(INTAKE, start, handed_out, count=CLAIM_COUNT)
            entry_ids = [entry_id for entry_id, _ in page]
            if entry_ids:
                pending = await self._client.xpending_range(
                    INTAKE, INTAKE_GROUP, entry_ids[0], entry_ids[-1], len(entry_ids)
                )
                held = {each["message_id"] for each in pending}
                wanted = [each for each in entry_ids if each not in held and each.decode() not in in_hand]
                yield await self._claimed_anyway(wanted)
            start = f"({entry_ids[-1].decode()}" if len(page) == CLAIM_COUNT else None

    async def _handed_out(self) -> str | None:
        """Up to where entries were handed out; None when all that were are settled or pending, as it should be."""
        async with self._client.pipeline(transaction=True) as pipe:
            length, groups = await pipe.xlen(INTAKE).xinfo_groups(INTAKE).execute()
        group = next((each for each in groups if each["name"].decode() == INTAKE_GROUP), None)
        if group is None or group["lag"] is None or length - group["lag"] <= group["pending"]:
            return None
        last: bytes = group["last-delivered-id"]
        return last.decode()

    async def _claimed_anyway(self, entry_ids: list[bytes]) -> list[Found]:
        """Those of the entries that are there and that nobody claimed meanwhile; this may be all the server knows."""
        if not entry_ids:
            return []
        claimed = await self._client.xclaim(
            INTAKE, INTAKE_GROUP, self._consumer, self._limits.lost_ms, entry_ids, force=True
        )
        return [Found(Arrival(entry_id.decode(), fields), 0) for entry_id, fields in claimed]

    async def _claimed(self, consumer: str, idle_ms: int, in_hand: Container[str]) -> AsyncIterator[list[Found]]:
        start = "-"
        while True:
            pending = await self._client.xpending_range(
                INTAKE, INTAKE_GROUP, start, "+", CLAIM_COUNT, consumername=consumer, idle=idle_ms
            )
            deliveries = {each["message_id"].decode(): int(each["times_delivered"]) for each in pending}
            wanted = [entry_id for entry_id in deliveries if entry_id not in in_hand]
            if wanted:
                claimed = await self._client.xclaim(INTAKE, INTAKE_GROUP, self._consumer, idle_ms, wanted)
                arrivals = [Arrival(entry_id.decode(), fields) for entry_id, fields in claimed]
                yield [Found(arrival, deliveries[arrival.entry_id]) for arrival in arrivals]
            if len(pending) < CLAIM_COUNT:
                return
            start = f"({pending[-1]['message_id'].decode()}"

    async def remove_gone(self) -> None:
        """Consumers that were silent for long and hold nothing are removed."""
        await self._purge(self._limits.gone_ms, "")

    async def leave(self) -> None:
        """This consumer is removed, unless it still holds something: then others find that with it."""
        await self._purge(0, self._consumer)

    async def _purge(self, idle_ms: int, consumer: str) -> None:
        await self._client.eval(PURGE, 1, INTAKE, INTAKE_GROUP, str(idle_ms), consumer)

"""A store and what surrounds it: its clock, its damage, and what somebody sees who looks at the bytes.

    memory      MemoryStore on a clock that a test moves
    redis70     RedisStore on a real server, emptied for each test; its clock is waited for, never slept through
    valkey91    the same on the fork

What only a test does to a store (damage, clocks, bytes) is here; what a user does to it goes through the port.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from mailslot_core.clock import ManualClock
from mailslot_core.memory import MemoryStore
from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Store
from tests.servers import Server

PARTITIONS: Final = 2
PENDING_MAX: Final = 12
"""Queued messages after which a session is full: few, so that tests reach it."""

IMPLEMENTATIONS: Final = ("memory", "redis70", "valkey91")


class World(Protocol):
    """One store under test."""

    store: Store

    async def pass_ms(self, ms: int) -> None:
        """The store's clock went on by at least this many ms."""
        ...

    async def tick(self) -> None:
        """The store's clock shows another ms than at the last tick and at any call that ended before this one."""
        ...

    async def set_back(self, session_id: str, ms: int) -> None:
        """The store's clock now stands `ms` before what it said when the session was last written."""
        ...

    async def everything(self, session_id: str) -> object:
        """All that is kept of a session, byte for byte; two equal ones mean that nothing at all was written."""
        ...

    async def lose_ready(self, session_id: str) -> bool:
        """Damage: the session is no longer in the ready queue; whether it was."""
        ...

    async def plant_ready(self, *session_ids: str) -> None:
        """Damage: these sessions stand in the ready queue, in this order, before all others."""
        ...


class MemoryWorld:
    """The port on dictionaries."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kept = MemoryStore(partitions=PARTITIONS, clock=self.clock, pending_max=PENDING_MAX)
        self.store: Store = self.kept

    async def pass_ms(self, ms: int) -> None:
        await self.clock.advance(ms)

    async def tick(self) -> None:
        await self.clock.advance(1)

    async def set_back(self, session_id: str, ms: int) -> None:
        await self.clock.advance(-ms)

    async def everything(self, session_id: str) -> object:
        kept = self.kept._kept.get(session_id)
        return repr(kept), [list(part.ready) for part in self.kept._parts]

    async def lose_ready(self, session_id: str) -> bool:
        return self._ready(session_id).pop(session_id, None) is not None

    async def plant_ready(self, *session_ids: str) -> None:
        for session_id in reversed(session_ids):
            ready = self._ready(session_id)
            others = {name: since for name, since in ready.items() if name != session_id}
            ready.clear()
            ready.update({session_id: 0, **others})

    def _ready(self, session_id: str) -> dict[str, int]:
        return self.kept._parts[self.kept.partition(session_id)].ready


class RedisWorld:
    """The port on a real server, and a second connection that looks and damages."""

    def __init__(self, server: Server, store: RedisStore) -> None:
        self.server = server
        self.store: Store = store
        self.look = server.client()
        self.look.config_set("rdbcompression", "no")  # compression may write equal values as different bytes

    async def pass_ms(self, ms: int) -> None:
        until = self.now_ms() + ms
        while self.now_ms() < until:  # noqa: ASYNC110 - a moment, looked at closely: walks wait for thousands of them
            await asyncio.sleep(0)

    async def tick(self) -> None:
        """A server on this machine has this machine's clock."""
        began = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == began:  # noqa: ASYNC110 - less than a ms
            await asyncio.sleep(0)

    async def set_back(self, session_id: str, ms: int) -> None:
        state, leases = self.key(session_id, "state"), self.partition_key(session_id, "leases")
        self.look.hincrby(state, "time", ms)
        if self.look.zscore(leases, session_id) is not None:
            self.look.hincrby(state, "lease", ms)
            self.look.zincrby(leases, ms, session_id)

    async def everything(self, session_id: str) -> object:
        look, own = self.look, [self.key(session_id, name) for name in keys.SESSION_KEYS]
        state, stream, turn, step, messages, later = own
        lanes = [look.zrange(lane, 0, -1, withscores=True) for lane in (turn, step, later)]
        names = ("ready", "active", "leases", "due", "erase")
        queues = [look.zrange(self.partition_key(session_id, name), 0, -1) for name in names]
        hashes = [sorted(look.hgetall(name).items()) for name in (state, messages)]
        return hashes, look.dump(stream), lanes, queues

    async def lose_ready(self, session_id: str) -> bool:
        return self.look.zrem(self.partition_key(session_id, "ready"), session_id) == 1

    async def plant_ready(self, *session_ids: str) -> None:
        for number, session_id in enumerate(session_ids):
            self.look.zadd(self.partition_key(session_id, "ready"), {session_id: number})

    def now_ms(self) -> int:
        seconds, micros = self.look.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def key(self, session_id: str, name: str) -> str:
        return keys.session_key(session_id, PARTITIONS, name)

    def partition_key(self, session_id: str, name: str) -> str:
        return keys.partition_key(keys.partition_of(session_id, PARTITIONS), name)


def settings(server: Server, **options: Any) -> StoreSettings:
    """Settings for a store on this server; receipts promise `memory` unless a test says otherwise."""
    given = {"redis_url": server.url, "partitions": PARTITIONS, "pending_max": PENDING_MAX, "durability": "memory"}
    return StoreSettings(**{**given, **options})


async def loop_turns() -> None:
    """The loop has looked at its sockets: what was sent is sent, what was closed is known to be closed."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def redis_world(server: Server, **options: Any) -> AsyncIterator[RedisWorld]:
    """A store on an emptied server."""
    with server.client() as client:
        client.flushall()
        client.function_flush()
    async with RedisStore.connect(settings(server, **options)) as store:
        world = RedisWorld(server, store)
        try:
            yield world
        finally:
            world.look.close()

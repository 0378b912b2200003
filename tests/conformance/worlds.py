"""A store and what surrounds it: its clock, its damage, and what somebody sees who looks at the bytes.

    memory      MemoryStore on a clock that a test moves
    redis70     RedisStore on a real server, emptied for each test; its clock is waited for, never slept through
    valkey91    the same on the fork
    steered     a server whose functions read a clock that a test moves, at the places in STEERED

What only a test does to a store (damage, clocks, bytes) is here; what a user does to it goes through the port.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from mailslot_core.clock import ManualClock
from mailslot_core.memory import MemoryStore
from mailslot_core.redis import functions, keys
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Store
from tests.servers import Server

PARTITIONS: Final = 2
PENDING_MAX: Final = 12
"""Queued messages after which a session is full: few, so that tests reach it."""

NAMES_ONLY: Final = re.compile(rb":idle$|:slot:")
"""Hints and last answers: they name sessions for a while and say nothing of them."""
STEERED: Final = {
    """local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end""": "local function now_ms() return tonumber(redis.call('GET', 'clock')) end",
    "redis.call('XADD', a.p.dead, '*',": "redis.call('XADD', a.p.dead, int(a.now) .. '-*',",
}
"""Where the library reads the server's clock, and how it reads a test's."""

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

    def now_ms(self) -> int:
        """The store's clock."""
        ...

    async def set_back(self, session_id: str, ms: int) -> None:
        """The store's clock now stands `ms` before what it said when the session was last written."""
        ...

    async def everything(self, session_id: str) -> object:
        """All that is kept of a session, byte for byte; two equal ones mean that nothing at all was written."""
        ...

    async def traces(self, session_id: str) -> list[str]:
        """Where anything of the session is kept: a bare name in a hint or in a slot's last answer is nothing of it."""
        ...

    async def lose_ready(self, session_id: str) -> bool:
        """Damage: the session is no longer in the ready queue; whether it was."""
        ...

    async def plant_ready(self, *session_ids: str) -> None:
        """Damage: these sessions stand in the ready queue, in this order, before all others."""
        ...


class MemoryWorld:
    """The port on dictionaries."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualClock()
        self.kept = MemoryStore(partitions=PARTITIONS, clock=self.clock, **{"pending_max": PENDING_MAX, **limits})
        self.store: Store = self.kept

    async def pass_ms(self, ms: int) -> None:
        await self.clock.advance(ms)

    async def tick(self) -> None:
        await self.clock.advance(1)

    async def set_back(self, session_id: str, ms: int) -> None:
        await self.clock.advance(-ms)

    def now_ms(self) -> int:
        return self.clock.now_ms()

    async def everything(self, session_id: str) -> object:
        kept = self.kept._kept.get(session_id)
        return repr(kept), [(list(part.ready), repr(part.letters), set(part.erasing)) for part in self.kept._parts]

    async def traces(self, session_id: str) -> list[str]:
        parts = self.kept._parts
        kept = {
            "session": session_id in self.kept._kept,
            "ready": any(session_id in part.ready for part in parts),
            "erasing": any(session_id in part.erasing for part in parts),
            "letters": any(letter.session_id == session_id for part in parts for letter in part.letters),
        }
        return [name for name, is_kept in kept.items() if is_kept]

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
        names = ("ready", "active", "leases", "due", "erase", "forget", "sessions")
        queues = [look.zrange(self.partition_key(session_id, name), 0, -1, withscores=True) for name in names]
        streams = [look.dump(stream), look.dump(self.partition_key(session_id, "dead"))]
        hashes = [sorted(look.hgetall(name).items()) for name in (state, messages)]
        return hashes, streams, lanes, queues, sorted(look.smembers(self.partition_key(session_id, "goals")))

    async def traces(self, session_id: str) -> list[str]:
        """The id must be a name that nothing else has in it."""
        keys_there = [key for key in sorted(self.look.scan_iter()) if not NAMES_ONLY.search(key)]
        named = session_id.encode()
        return [key.decode() for key in keys_there if named in key or named in (self.look.dump(key) or b"")]

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


class SteeredWorld(RedisWorld):
    """A real server on a clock that a test moves, as `MemoryWorld` is: both tell the same times."""

    def __init__(self, server: Server, store: RedisStore) -> None:
        super().__init__(server, store)
        source = functions.SOURCE
        for own, steered in STEERED.items():
            assert source.count(own) == 1, f"the library no longer reads its clock like this: {own}"
            source = source.replace(own, steered)
        self.look.function_load(source, replace=True)
        self.start()

    def start(self) -> None:
        """The time at which the clock of a `MemoryWorld` stands at first."""
        self.look.set("clock", ManualClock().now_ms())

    async def pass_ms(self, ms: int) -> None:
        self.look.incrby("clock", ms)

    async def tick(self) -> None:
        self.look.incrby("clock", 1)

    async def set_back(self, session_id: str, ms: int) -> None:
        self.look.decrby("clock", ms)

    def now_ms(self) -> int:
        return int(self.look.get("clock") or 0)


def settings(server: Server, **options: Any) -> StoreSettings:
    """Settings for a store on this server; receipts promise `memory` unless a test says otherwise."""
    given = {"redis_url": server.url, "partitions": PARTITIONS, "pending_max": PENDING_MAX, "durability": "memory"}
    return StoreSettings(**{**given, **options})


async def loop_turns() -> None:
    """The loop has looked at its sockets: what was sent is sent, what was closed is known to be closed."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def redis_world(server: Server, *, steered: bool = False, **options: Any) -> AsyncIterator[RedisWorld]:
    """A store on an emptied server; a steered one stands on a clock of the test's own."""
    with server.client() as client:
        client.flushall()
        client.function_flush()
    async with RedisStore.connect(settings(server, **options)) as store:
        world = SteeredWorld(server, store) if steered else RedisWorld(server, store)
        try:
            yield world
        finally:
            world.look.close()

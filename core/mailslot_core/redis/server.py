"""What the server must be and give, asked at the start; what can change later is asked again (semantics M2).

    fsync, the server has WAITAOF   a barrier: each durable batch waits for it, so no setting needs to be believed
    fsync, it has not               its settings are believed, and asked for again by who writes (`SyncedAlways`)
    replicated                      a barrier, WAIT

Rule 1: features are found by asking for the command, never by version: forks count differently.
Rule 2: a server that cannot give what is configured is refused, with the setting that would help.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from mailslot_core.errors import Misconfigured, StoreUnavailable
from mailslot_core.redis import keys
from mailslot_core.redis.wire import Barrier, Command
from mailslot_core.settings import StoreSettings

SETTINGS_AGE_S_MAX = 1.0  # how long the settings of a server without WAITAOF are believed


async def check(client: Redis, settings: StoreSettings) -> Barrier | None:
    """The barrier that the configured durability needs (None: none), once the server passed every check."""
    if not await _has(client, "FCALL"):
        raise Misconfigured("the server has no functions: mailslot needs Redis 7.0 or Valkey 7.2 or newer")
    memory = await client.info("memory")
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise Misconfigured(f"the server may evict keys (maxmemory-policy {policy}): set maxmemory-policy noeviction")
    await _check_partitions(client, settings.partitions)
    return await barrier(client, settings)


async def _check_partitions(client: Redis, partitions: int) -> None:
    """The first process of a database fixes the number; the others must agree."""
    found = await client.hget(keys.CONFIG, "partitions")
    if found is None:  # a server that is full takes no writes, and has it already
        await client.hsetnx(keys.CONFIG, "partitions", str(partitions))
        found = await client.hget(keys.CONFIG, "partitions")
    kept = int(found or 0)
    if kept != partitions:
        raise Misconfigured(f"this database has {kept} partitions, not {partitions}: set --partitions {kept}")


async def barrier(client: Redis, settings: StoreSettings) -> Barrier | None:
    """What the configured durability needs after each batch. Raises `Misconfigured` when the server cannot give it."""
    if settings.durability == "memory":
        return None
    if settings.durability == "replicated":
        return await _replicated(client, settings)
    if not (await client.info("persistence")).get("aof_enabled"):
        raise Misconfigured(
            "durability fsync needs an append-only file: set appendonly yes and appendfsync always on the server, "
            "or run with --durability memory"
        )
    if await _has(client, "WAITAOF"):
        return Barrier(("WAITAOF", 1, 0, settings.durability_timeout_ms), needed=1, index=0)
    if await _appendfsync(client) == "always":
        return None
    raise Misconfigured(
        "durability fsync needs appendfsync always on a server without WAITAOF: set appendfsync always, "
        "or run with --durability memory"
    )


class SyncedAlways:
    """A server without WAITAOF that synced each write when it was asked. Whoever is about to write asks again when the
    answer is old; all who ask at the same moment share one question."""

    def __init__(self, ask: Callable[[Command], Awaitable[Any]]) -> None:
        self._ask = ask
        self._believed_until_s = 0.0  # of the monotonic clock
        self._asking: asyncio.Task[None] | None = None

    async def confirm(self) -> None:
        """The level is given as of SETTINGS_AGE_S_MAX ago at most. Raises `StoreUnavailable` when it is not."""
        if time.monotonic() < self._believed_until_s:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_again())
        await asyncio.shield(self._asking)

    async def _ask_again(self) -> None:
        asked_s = time.monotonic()
        persistence = await self._ask(("INFO", "persistence"))
        found = await self._ask(("CONFIG", "GET", "appendfsync"))
        if "aof_enabled:1" not in _text(persistence) or "always" not in _text(found):
            raise StoreUnavailable(
                "the server no longer syncs each write, which durability fsync needs: set appendonly yes and "
                "appendfsync always on it"
            )
        self._believed_until_s = asked_s + SETTINGS_AGE_S_MAX


def _text(reply: Any) -> str:
    """A reply as it reads, whichever protocol the connection speaks."""
    return str(reply)


async def _replicated(client: Redis, settings: StoreSettings) -> Barrier:
    connected = (await client.info("replication")).get("connected_slaves", 0)
    if connected < settings.replicas:
        raise Misconfigured(
            f"durability replicated needs {settings.replicas} connected replicas and the server has {connected}: "
            "connect replicas, set --replicas lower, or run with --durability fsync"
        )
    return Barrier(("WAIT", settings.replicas, settings.durability_timeout_ms), needed=settings.replicas)


async def _appendfsync(client: Redis) -> str | None:
    """The setting, None where the server does not let us ask."""
    try:
        found = await client.config_get("appendfsync")
    except ResponseError:
        return None
    return found.get("appendfsync")


async def _has(client: Redis, command: str) -> bool:
    # In one word: for "COMMAND", "INFO" redis-py has a parser that fails when the command is not known.
    found: Any = await client.execute_command("COMMAND INFO", command)  # type: ignore[no-untyped-call]
    return bool(found) and found[0] is not None

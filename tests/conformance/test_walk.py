"""The stores are twins: whatever is done to one and to the other, they answer the same and keep the same.

Each walk goes over memory and one of the servers in turn.

A failure prints the smallest part of the walk that still goes wrong, the seed of the run, and what was done.
MAILSLOT_TEST_WALKS=3000 with `--timeout 0` walks for an hour.
"""

import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Final, cast

import pytest

from tests.conformance.steps import BIRTHS, one_step
from tests.conformance.walk import Diverged, Walk, smallest
from tests.conformance.worlds import MemoryWorld, SteeredWorld, World, redis_world
from tests.servers import Server

pytestmark = [pytest.mark.conformance, pytest.mark.slow]

WALKS: Final = int(os.environ.get("MAILSLOT_TEST_WALKS") or 150)
CRASHES_MAX: Final = {"redis70": 1, "valkey91": 2}
"""Few, so that walks give turns up."""
STEPS_PER_WALK: Final = 40


@pytest.fixture
async def servers(redis70: Server, valkey91: Server) -> AsyncIterator[list[SteeredWorld]]:
    async with AsyncExitStack() as stack:
        both = (redis70, valkey91)
        worlds = [redis_world(one, steered=True, crashes_max=CRASHES_MAX[one.kind]) for one in both]
        yield [cast("SteeredWorld", await stack.enter_async_context(world)) for world in worlds]


async def went_wrong(server: SteeredWorld, numbers: list[int]) -> tuple[Walk, Diverged | None]:
    server.look.flushall()
    server.start()
    worlds: list[World] = [MemoryWorld(crashes_max=CRASHES_MAX[server.server.kind]), server]
    walk = Walk(worlds, BIRTHS)
    try:
        await walk.run(numbers, one_step)
    except Diverged as difference:
        return walk, difference
    return walk, None


async def test_all_stores_walk_the_same_way(servers: list[SteeredWorld], rng: random.Random, seed: int) -> None:
    for number, server in zip(range(WALKS), cycle(servers), strict=False):
        numbers = [rng.getrandbits(32) for _ in range(STEPS_PER_WALK)]
        _, difference = await went_wrong(server, numbers)
        if difference is None:
            continue

        async def fails(fewer: list[int], server: SteeredWorld = server) -> bool:
            return (await went_wrong(server, fewer))[1] is not None

        walk, difference = await went_wrong(server, await smallest(numbers, fails))
        done = "\n".join(walk.log)
        pytest.fail(f"walk {number} of MAILSLOT_TEST_SEED={seed}:\n{done}\n{difference}", pytrace=False)

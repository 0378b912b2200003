"""Fixtures of the conformance suite.

    world      a store, its clock and its damage, once for each implementation (`worlds.IMPLEMENTATIONS`)
    store      the store of that world
    slot       one worker's slot on that store
    rival      the slot of another worker
    redis      a world on a real server alone, once for each server: what only Redis can show

Servers come from `tests/conftest.py` and live as long as the run; each test finds its own emptied.
"""

from collections.abc import AsyncIterator

import pytest

from mailslot_core.store import Store
from tests.conformance.dialogue import Slot
from tests.conformance.worlds import IMPLEMENTATIONS, MemoryWorld, RedisWorld, World, redis_world
from tests.servers import Server


@pytest.fixture(params=IMPLEMENTATIONS)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    async with redis_world(request.getfixturevalue(request.param)) as found:
        yield found


@pytest.fixture
def store(world: World) -> Store:
    return world.store


@pytest.fixture
def slot(store: Store) -> Slot:
    return Slot(store, "worker-1/0")


@pytest.fixture
def rival(store: Store) -> Slot:
    return Slot(store, "worker-2/0")


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[RedisWorld]:
    async with redis_world(server) as found:
        yield found

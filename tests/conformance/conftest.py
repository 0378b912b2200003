"""Fixtures of the conformance suite.

    world      a store, its clock and its damage, once for each implementation (`worlds.IMPLEMENTATIONS`)
    store      the store of that world
    slot       one worker's slot on that store
    rival      the slot of another worker
    options    limits of that store; a test may be parametrized with others
    steered    whether the clock of a server is the test's to move; a module may say so
    redis      a world on a real server alone, once for each server: what only Redis can show

Servers come from `tests/conftest.py` and live as long as the run; each test finds its own emptied.
"""

from collections.abc import AsyncIterator

import pytest

from mailslot_core.store import Store
from tests.conformance.dialogue import Slot
from tests.conformance.worlds import IMPLEMENTATIONS, MemoryWorld, RedisWorld, World, redis_world
from tests.servers import Server


@pytest.fixture
def options() -> dict[str, int]:
    """Limits of the world's store. A test that wants others is parametrized with them."""
    return {}


@pytest.fixture
def steered() -> bool:
    """Whether a server's clock stands until the test moves it, as that of memory does. A module may say so."""
    return False


@pytest.fixture(params=IMPLEMENTATIONS)
async def world(request: pytest.FixtureRequest, options: dict[str, int], steered: bool) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld(**options)
        return
    async with redis_world(request.getfixturevalue(request.param), steered=steered, **options) as found:
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

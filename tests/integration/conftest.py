"""The store that a test of a service runs on: in memory, and on both servers."""

from collections.abc import AsyncIterator

import pytest

from mailslot_core.memory import MemoryStore
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Store
from tests.conftest import empty


@pytest.fixture(params=["memory", "redis70", "valkey91"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    server = request.getfixturevalue(request.param)
    empty(server.url)
    async with RedisStore.connect(StoreSettings(redis_url=server.url, durability="memory")) as connected:
        yield connected

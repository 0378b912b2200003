"""Word to a worker: a cancel recorded anywhere reaches the turn's owner at once (semantics C1, C4)."""

from collections.abc import AsyncIterator

import pytest

from mailslot_contracts.channels import control_channel
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_services.agent_worker.control import listening
from mailslot_services.agent_worker.models.gate import Gates
from mailslot_services.agent_worker.models.scripted import ScriptedModel
from tests.crew import agent, crew, history, prompt, rested
from tests.waiting import wait_until


@pytest.fixture
def settings(clean_server_url: str) -> StoreSettings:
    return StoreSettings(redis_url=clean_server_url, durability="memory")


@pytest.fixture
async def store(settings: StoreSettings) -> AsyncIterator[RedisStore]:
    async with RedisStore.connect(settings) as store:
        yield store


class Ears:
    """Hears what a worker would hear."""

    name = "ears"

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int, str]] = []

    def cancel(self, session_id: str, epoch: int, turn: int, cause: str) -> None:
        self.heard.append((session_id, epoch, turn, cause))


async def test_a_cancel_reaches_the_owner_by_its_topic(store: RedisStore, settings: StoreSettings) -> None:
    """The lease is long, so it is the word and not a renewal that ends the model's call."""
    gates = Gates()
    only = agent(ScriptedModel.sequence([{"say": "never", "wait": "half"}], gates=gates))
    async with crew(store, only, lease_ms=600_000) as worker, listening(settings, worker):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await store.cancel("s", cause="user")
        await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] cancel s1 t1(aborted user) I"


async def test_a_word_that_cannot_be_read_is_dropped_and_the_next_is_heard(
    store: RedisStore, settings: StoreSettings
) -> None:
    ears = Ears()
    async with listening(settings, ears):
        for body in (b"", b"{}", b"\x01\x80", b"\xff" * 40):
            await store._client.publish(control_channel("ears"), body)
        await prompt(store, "s", "A")
        grant = next(filter(None, [await store.acquire(p, "ears/0", 1, 60_000) for p in range(store.partitions)]))
        await store.cancel("s", cause="user")
        await wait_until(lambda: ears.heard, 5, "the word of the cancel")
    assert ears.heard == [("s", grant.lease.epoch, 1, "user")]

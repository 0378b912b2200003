"""A session that takes the name of an erased one is another session, and its owner can tell (M9)."""

import pytest

from mailslot_core.store import Store
from tests.conformance.dialogue import Slot, prompt
from tests.conformance.worlds import World

pytestmark = pytest.mark.conformance


async def test_a_grant_tells_a_session_from_an_erased_one_of_its_name(world: World, store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.run("s")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    first = slot.grant.born
    await slot.echo()
    await store.close_session("s", erase=True)
    await world.tick()
    await prompt(store, "s", "A")
    await slot.acquire("s")
    assert slot.grant.born > first


async def test_a_session_is_born_when_its_ledger_begins(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    (created,) = await store.events("s", after=0, limit=1)
    indexes = await store.indexes("s")
    assert indexes is not None
    assert slot.grant.born == created.time == indexes["born"]

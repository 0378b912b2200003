"""The doors: a message is queued once, its receipt says where, and the agent runs if the message wakes it."""

import asyncio

import pytest

from mailslot_core.errors import Refused
from mailslot_core.session import Status
from mailslot_core.store import Created, Store
from tests.conformance.dialogue import BIRTH, CAREFUL, Slot, history, inject, ledger, message, prompt, steer
from tests.conformance.worlds import PENDING_MAX, World

pytestmark = pytest.mark.conformance


async def test_a_session_is_made_once(store: Store) -> None:
    assert await store.create("s", BIRTH) == Created(1, fresh=True)
    assert await store.create("s", dict(reversed(list(BIRTH.items())))) == Created(1, fresh=False)
    (born,) = await ledger(store, "s")
    assert (born.seq, born.type, born.epoch, born.data) == (1, "session/created", 0, BIRTH)


async def test_a_session_is_not_made_with_two_settings(world: World) -> None:
    await world.store.create("s", BIRTH)
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await world.store.create("s", CAREFUL)
    assert refused.value.code == "session-exists"
    assert await world.everything("s") == before


async def test_a_new_session_is_idle_without_an_event(store: Store) -> None:
    await store.create("s", BIRTH)
    level = await store.level("s")
    assert level is not None
    assert (level.status, level.idle_cursor, level.cursor) == (Status.IDLE, 0, 1)


async def test_a_receipt_points_at_the_queueing_of_its_message(store: Store) -> None:
    receipt = await prompt(store, "s", "A")
    events = await ledger(store, "s")
    assert (receipt.message_id, receipt.duplicate) == ("A", False)
    queued = events[receipt.cursor - 1]
    assert (queued.type, queued.data) == ("inbox/queued", message("A").data)


async def test_a_receipt_says_nothing_about_a_turn(store: Store) -> None:
    receipt = await prompt(store, "s", "A")
    assert set(type(receipt).__dataclass_fields__) == {"message_id", "cursor", "duplicate"}


async def test_a_message_to_nobody_makes_its_session(store: Store) -> None:
    assert (await store.submit("s", message("A"), BIRTH)).cursor == 2
    assert [event.type for event in await ledger(store, "s")] == ["session/created", "inbox/queued", "agent/status"]


async def test_a_message_to_nobody_is_refused_when_no_session_may_be_made(store: Store) -> None:
    with pytest.raises(Refused) as refused:
        await store.submit("s", message("A"), None)
    assert refused.value.code == "not-found"
    assert await store.level("s") is None
    assert await store.sessions(after="", limit=10) == []


async def test_a_message_sent_twice_is_queued_once(world: World) -> None:
    first = await prompt(world.store, "s", "A")
    before = await ledger(world.store, "s")
    again = await prompt(world.store, "s", "A")
    assert (again.message_id, again.cursor, again.duplicate) == ("A", first.cursor, True)
    assert await ledger(world.store, "s") == before


@pytest.mark.parametrize("end", ["completed", "error"])
async def test_a_message_sent_again_after_it_was_settled_gives_the_same_receipt(store: Store, end: str) -> None:
    first = await prompt(store, "s", "A")
    worker = Slot(store)
    await worker.acquire("s")
    if end == "completed":
        await worker.echo()
    else:
        await worker.settle(end="error")
    before = await ledger(store, "s")
    again = await prompt(store, "s", "A")
    assert (again.cursor, again.duplicate) == (first.cursor, True)
    assert await ledger(store, "s") == before


async def test_the_same_id_with_another_body_is_a_conflict(world: World) -> None:
    await prompt(world.store, "s", "A", "one")
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await prompt(world.store, "s", "A", "another")
    assert refused.value.code == "conflict"
    assert await world.everything("s") == before


async def test_the_same_words_under_two_ids_are_two_messages(store: Store) -> None:
    await prompt(store, "s", "A", "the same")
    await prompt(store, "s", "B", "the same")
    assert await history(store, "s") == "q[A] R q[B]"


async def test_the_same_id_in_two_sessions_is_two_messages(store: Store) -> None:
    assert not (await prompt(store, "s", "A")).duplicate
    assert not (await prompt(store, "other", "A")).duplicate


async def test_a_full_queue_refuses_and_keeps_nothing(world: World) -> None:
    for number in range(PENDING_MAX):
        await prompt(world.store, "s", f"m{number}")
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await prompt(world.store, "s", "one too many")
    assert refused.value.code == "queue-full"
    assert refused.value.retry_after_ms is not None
    assert await world.everything("s") == before


async def test_a_full_queue_still_knows_what_it_has(store: Store) -> None:
    for number in range(PENDING_MAX):
        await prompt(store, "s", f"m{number}")
    assert (await prompt(store, "s", "m0")).duplicate


async def test_a_claimed_message_leaves_room_in_the_queue(store: Store, slot: Slot) -> None:
    for number in range(PENDING_MAX):
        await prompt(store, "s", f"m{number}")
    await slot.acquire("s")
    assert not (await prompt(store, "s", "one more")).duplicate


@pytest.mark.parametrize(("say", "told"), [(prompt, "q[A] R"), (steer, "qs[A] R"), (inject, "qs[A]")])
async def test_running_follows_in_the_act_that_wakes(store: Store, say: object, told: str) -> None:
    assert callable(say)
    await say(store, "s", "A")
    assert await history(store, "s") == told


async def test_running_is_said_once(store: Store) -> None:
    await prompt(store, "s", "A")
    await steer(store, "s", "S")
    assert await history(store, "s") == "q[A] R qs[S]"


async def test_a_message_needs_no_worker(store: Store) -> None:
    await prompt(store, "s", "A")
    level = await store.level("s")
    assert level is not None
    assert (level.pending, level.reasons) == (1, ("1 queued",))


async def test_messages_sent_at_once_are_each_queued_once(store: Store) -> None:
    names = [f"m{number}" for number in range(10)]
    receipts = await asyncio.gather(*(prompt(store, "s", name) for name in names for _ in range(3)))
    events = {event.seq: event.data["messageId"] for event in await ledger(store, "s") if event.type == "inbox/queued"}
    assert sorted(events.values()) == names
    assert {receipt.cursor: receipt.message_id for receipt in receipts} == events
    assert sum(receipt.duplicate for receipt in receipts) == 20


async def test_a_hold_ends_with_the_next_waking_message_of_a_person(store: Store, slot: Slot) -> None:
    await held(store, slot)
    await inject(store, "s", "C")
    await store.submit("s", message("from a child", source="child"), None)
    assert not (await history(store, "s")).endswith("R")
    await prompt(store, "s", "B")
    assert (await history(store, "s")).endswith("q[B] released R")


@pytest.mark.parametrize("source", ["user", "system", "plugin", "child", "schedule"])
async def test_whoever_sends_a_waking_message_it_wakes(store: Store, source: str) -> None:
    await store.submit("s", message("A", source=source), BIRTH)
    assert await history(store, "s") == "q[A] R"


async def test_a_message_behind_a_hold_is_queued_and_wakes_nobody(store: Store, slot: Slot, rival: Slot) -> None:
    await held(store, slot)
    await store.submit("s", message("from a child", source="child"), None)
    level = await store.level("s")
    assert level is not None
    assert (level.status, level.held, level.pending) == (Status.IDLE, 1, 1)
    assert await rival.acquire("s") is None


async def held(store: Store, slot: Slot) -> None:
    """A session whose queue is held since its turn failed."""
    await store.create("s", CAREFUL)
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.settle(*slot.begin(), slot.end(), end="error")
    assert (await history(store, "s")).endswith("t1(error) held I")

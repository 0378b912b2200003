"""The end of a session: what it does to the turn and the queue, and that nothing is left once it is erased (M9)."""

import pytest

from mailslot_core import invariants
from mailslot_core.errors import Fenced, Refused
from mailslot_core.goal import Change
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Status, fold, indexes
from mailslot_core.store import Closing, Store, Swept
from mailslot_core.turn import Outcome, Then
from tests.conformance.dialogue import (
    BIRTH,
    LEASE_MS,
    Slot,
    ending,
    history,
    inject,
    ledger,
    message,
    next_round,
    prompt,
    say,
    set_goal,
    steer,
    sweep,
)
from tests.conformance.worlds import RedisWorld, World

pytestmark = pytest.mark.conformance

HOUR_MS = 3_600_000
NAME = "gone-for-good"
"""A session id that nothing else has in it, for whoever looks through the bytes of a server."""


@pytest.fixture
def steered() -> bool:
    return True


async def refusal(store: Store, message_id: str = "late", session_id: str = "s") -> str:
    with pytest.raises(Refused) as refused:
        await prompt(store, session_id, message_id)
    return refused.value.code


# -- closing ------------------------------------------------------------------------------------------------------


async def test_a_session_at_rest_is_closed_at_once(store: Store) -> None:
    await store.create("s", BIRTH)
    assert await store.close_session("s") == Closing(True, 2)
    assert await history(store, "s") == "closed"
    level = await store.level("s")
    assert level is not None
    assert (level.closed, level.status) == (True, Status.IDLE)
    assert await refusal(store) == "closed"


async def test_what_is_queued_is_cancelled_by_the_close(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await inject(store, "s", "C")
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await steer(store, "s", "S")
    closing = await store.close_session("s")
    assert (await history(store, "s")).endswith("qs[S] x[C] x[S] x[A] x[later] I closed")
    events = await ledger(store, "s")
    assert closing == Closing(True, events[-1].seq)
    assert {event.data["cause"] for event in events if event.type == "inbox/cancelled"} == {"closed"}
    assert await slot.acquire("s") is None
    await world.pass_ms(HOUR_MS)
    assert await sweep(store) == Swept()
    assert await ledger(store, "s") == events
    assert invariants.violations(events) == []
    assert await store.indexes("s") == indexes(fold("s", events))


async def test_a_held_session_is_closed_at_once(store: Store) -> None:
    await prompt(store, "s", "A")
    await store.cancel("s", cause="user", queue="hold")
    assert (await store.close_session("s")).closed
    assert (await history(store, "s")).endswith("held I(held 1) x[A] closed")
    with pytest.raises(Refused) as refused:
        await store.release("s")
    assert refused.value.code == "closed"


@pytest.mark.parametrize("end", ["completed", "error", "aborted"])
async def test_an_open_turn_is_stopped_and_the_session_is_closed_at_its_idle(
    store: Store, slot: Slot, end: str
) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await prompt(store, "s", "B")
    assert not (await store.close_session("s")).closed
    asked = next(event for event in await ledger(store, "s") if event.type == "cancel/requested")
    assert asked.data == {"cause": "user", "queue": "clear", "turn": 1, "closing": True}
    level = await store.level("s")
    assert level is not None
    assert (level.closed, level.status, level.pending) == (False, Status.RUNNING, 0)
    assert await refusal(store) == "closed"
    assert await refusal(store, "S") == "closed"
    assert (await slot.commit(slot.says("half", interrupted=True))).cancel == "user"
    assert (await slot.settle(slot.end(), end=end)).outcome is Outcome.IDLE
    assert (await history(store, "s")).endswith("cancel x[B] a(interrupted) s1 t1(aborted user) I closed")
    assert (await store.close_session("s")).closed
    assert invariants.violations(await ledger(store, "s")) == []


async def test_a_closing_session_brings_no_more_work(world: World, slot: Slot) -> None:
    """Neither a message, nor a goal, nor a round, nor the end of a hold; what was sent before is still a duplicate."""
    store = world.store
    first = await prompt(store, "s", "A")
    await slot.acquire("s")
    await store.close_session("s")
    before = await ledger(store, "s")
    assert await refusal(store) == "closed"
    for attempt in (lambda: set_goal(store, "s"), lambda: store.release("s")):
        with pytest.raises(Refused) as refused:
            await attempt()
        assert refused.value.code == "closed"
    assert (await prompt(store, "s", "A")).cursor == first.cursor
    assert (await store.cancel("s", cause="user")).outcome == "requested"
    assert await ledger(store, "s") == before


@pytest.mark.parametrize("open_turn", [False, True])
async def test_closing_twice_is_answered_as_once(store: Store, slot: Slot, open_turn: bool) -> None:
    await prompt(store, "s", "A")
    if open_turn:
        await slot.acquire("s")
    first = await store.close_session("s")
    before = await ledger(store, "s")
    assert await store.close_session("s") == first
    assert first.closed is not open_turn
    assert await ledger(store, "s") == before


async def test_a_closed_session_can_still_be_read(store: Store, slot: Slot) -> None:
    receipt = await prompt(store, "s", "A")
    await slot.run("s")
    await store.close_session("s")
    assert (await history(store, "s")).endswith("t1(completed) I closed")
    assert (await prompt(store, "s", "A")).cursor == receipt.cursor
    assert await store.message("s", "A") is not None
    assert await store.sessions(after="", limit=10) == ["s"]
    assert (await store.queue("s", after="", limit=10)).messages == ()
    assert (await store.cancel("s", cause="user")).outcome == "nothing_to_cancel"


@pytest.mark.parametrize("state", ["resting", "queued", "open"])
async def test_the_goal_of_a_closed_session_is_paused_and_stays_so(store: Store, slot: Slot, state: str) -> None:
    await set_goal(store, "s")
    if state != "resting":
        await store.goal_advance("s", await next_round(store, "s", "g1"))
    if state == "open":
        await slot.acquire("s")
    await store.close_session("s")
    if state == "open":
        await slot.settle()
    level = await store.level("s")
    assert level is not None
    assert level.goal is not None
    assert (level.closed, level.goal["phase"], level.goal["reason"]) == (True, "paused", {"kind": "closed"})
    assert [await store.resting_goals(partition) for partition in range(store.partitions)] == [[], []]
    assert not await store.goal_advance("s", await next_round(store, "s", "g2"))
    with pytest.raises(Refused) as refused:
        await store.goal_change("s", Change("resume"))
    assert refused.value.code == "closed"
    assert invariants.violations(await ledger(store, "s")) == []


async def test_a_dead_owners_turn_is_stopped_by_the_next_one_and_the_session_closed(
    world: World, slot: Slot, rival: Slot
) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    await store.close_session("s")
    await world.pass_ms(5)
    await sweep(store)
    await rival.acquire("s")
    assert rival.grant.cancel == "user"
    await rival.settle()
    assert (await history(store, "s")).endswith("x[A] t1(aborted user) I closed")


@pytest.mark.parametrize("options", [{"crashes_max": 1}], ids=["one crash"])
async def test_a_closing_session_whose_turn_is_given_up_is_closed(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    await store.close_session("s")
    await world.pass_ms(5)
    await sweep(store)
    assert await rival.acquire("s") is None
    assert (await history(store, "s")).endswith("cancel x[A] t1(aborted user) I closed")
    assert await store.dead(after="", limit=10) == []


async def test_nobody_cannot_be_closed(store: Store) -> None:
    for erase in (False, True):
        with pytest.raises(Refused) as refused:
            await store.close_session("s", erase=erase)
        assert refused.value.code == "not-found"
    assert await store.sessions(after="", limit=10) == []


# -- erasing ------------------------------------------------------------------------------------------------------


async def live(world: World, slot: Slot) -> None:
    """Something of everything that is kept of a session: lanes, times, goals, records, a dead letter, a hold."""
    store = world.store
    await set_goal(store, NAME)
    await prompt(store, NAME, "A")
    await slot.acquire(NAME)
    await slot.echo()
    await prompt(store, NAME, "dies")
    await slot.acquire(NAME, lease_ms=1)
    await world.pass_ms(5)
    await sweep(store)
    assert await slot.acquire(NAME) is None
    await say(store, NAME, "later", not_before=world.now_ms() + HOUR_MS, expires_at=world.now_ms() + 2 * HOUR_MS)
    await inject(store, NAME, "C")
    await prompt(store, NAME, "B")
    await store.cancel(NAME, cause="parent", queue="hold")


@pytest.mark.parametrize("options", [{"crashes_max": 1}], ids=["one crash"])
async def test_nothing_of_an_erased_session_is_kept(world: World, slot: Slot) -> None:
    """Looked for in every key of the server, by a second connection."""
    store = world.store
    await inject(store, "beside", "A")
    others = await ledger(store, "beside")
    await live(world, slot)
    assert [letter.session_id for letter in await store.dead(after="", limit=10)] == [NAME]
    assert await world.traces(NAME)
    events = await ledger(store, NAME)
    closing = await store.close_session(NAME, erase=True)
    assert (closing.closed, closing.erased) == (True, True)
    assert (closing.events, closing.messages) == (closing.cursor, 5)
    assert closing.cursor > events[-1].seq
    assert await world.traces(NAME) == []
    assert await store.level(NAME) is None
    assert await store.indexes(NAME) is None
    assert await store.message(NAME, "A") is None
    assert await store.dead(after="", limit=10) == []
    assert await store.sessions(after="", limit=10) == ["beside"]
    assert await store.events(NAME, after=0, limit=10) == []
    assert await ledger(store, "beside") == others
    with pytest.raises(Refused) as refused:
        await store.close_session(NAME, erase=True)
    assert refused.value.code == "not-found"


async def test_an_erased_session_leaves_the_sweeper_nothing(world: World, slot: Slot) -> None:
    store = world.store
    await say(store, NAME, "later", not_before=world.now_ms() + 10, expires_at=world.now_ms() + 20)
    await prompt(store, NAME, "A")
    await store.close_session(NAME, erase=True)
    await world.pass_ms(HOUR_MS)
    assert await sweep(store, forget_after_ms=0) == Swept()
    assert await slot.acquire(NAME) is None
    load = [await store.load(partition) for partition in range(store.partitions)]
    assert {(one.ready, one.active, one.leased, one.sessions, one.dead) for one in load} == {(0, 0, 0, 0, 0)}


async def test_a_session_of_an_erased_name_starts_anew(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.run("s")
    await store.close_session("s", erase=True)
    assert await refusal_without_creating(store) == "not-found"
    receipt = await store.submit("s", message("A", words="other words"), {**BIRTH, "agent": "gardener"})
    assert (receipt.cursor, receipt.duplicate) == (2, False)
    assert await history(store, "s") == "q[A] R"
    await slot.acquire("s")
    assert (slot.grant.turn, slot.grant.agent, slot.grant.attempt) == (1, "gardener", 1)
    await slot.settle(slot.start(), slot.admits("A"), slot.says("well"), slot.end())
    events = await ledger(store, "s")
    assert invariants.violations(events) == []
    assert await store.indexes("s") == indexes(fold("s", events))


async def refusal_without_creating(store: Store) -> str:
    with pytest.raises(Refused) as refused:
        await store.submit("s", message("B"), None)
    return refused.value.code


async def test_an_erase_asked_for_during_a_turn_is_finished_by_the_sweeper(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, NAME, "A")
    await slot.acquire(NAME)
    closing = await store.close_session(NAME, erase=True)
    assert (closing.closed, closing.erased) == (False, False)
    assert await sweep(store) == Swept()
    assert await store.level(NAME) is not None
    await slot.echo()
    assert (await history(store, NAME)).endswith("t1(aborted user) I closed")
    assert await sweep(store) == Swept(erased=1)
    assert await world.traces(NAME) == []
    assert await sweep(store) == Swept()


async def test_an_erase_may_be_asked_for_after_the_close_or_again(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, NAME, "A")
    await slot.acquire(NAME)
    await store.close_session(NAME)
    await store.close_session(NAME, erase=True)
    await store.close_session(NAME, erase=True)
    await slot.echo()
    assert (await store.close_session(NAME, erase=True)).erased
    assert await world.traces(NAME) == []


async def test_a_close_alone_erases_nothing(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.run("s")
    await store.close_session("s")
    before = await ledger(store, "s")
    await world.pass_ms(HOUR_MS)
    assert (await sweep(store)).erased == 0
    assert await ledger(store, "s") == before


async def test_a_zombie_of_an_erased_session_is_fenced(world: World, slot: Slot, rival: Slot) -> None:
    """And makes no new one of it."""
    store = world.store
    await prompt(store, NAME, "A")
    await slot.acquire(NAME, lease_ms=1)
    lease = slot.lease
    await world.pass_ms(5)
    await sweep(store)
    await rival.acquire(NAME)
    await rival.echo()
    await store.close_session(NAME, erase=True)
    with pytest.raises(Fenced):
        await store.commit(lease, 100, [])
    with pytest.raises(Fenced):
        await store.handback(lease, 101)
    assert (await store.renew([lease], LEASE_MS))[0].alive is False
    assert await world.traces(NAME) == []


async def test_a_slots_last_answer_is_not_given_again_for_a_session_that_was_erased(
    world: World, slot: Slot, rival: Slot
) -> None:
    """The lost answer of an acquire, and of a settle that handed the session out."""
    store = world.store
    await prompt(store, NAME, "A")
    await slot.acquire(NAME)
    partition, call = partition_of(NAME, store.partitions), slot.calls
    await store.close_session(NAME, erase=True)
    await store.settle(slot.lease, 2, [], ending("aborted"), then=Then.YIELD, hand_out=False, lease_ms=LEASE_MS)
    await sweep(store)
    assert await world.traces(NAME) == []
    assert await store.acquire(partition, slot.owner, call, LEASE_MS) is None
    assert await rival.acquire(NAME) is None


async def test_a_large_session_is_erased_piece_by_piece(redis: RedisWorld) -> None:
    """More message records than one call drops (ERASE_MAX)."""
    store = redis.store
    redis.look.config_set("hash-max-listpack-entries", 128)
    await prompt(store, NAME, "A")
    for number in range(4_500):
        redis.look.hset(redis.key(NAME, "messages"), f"m{number}", "\x10")
    await store.withdraw(NAME, "A")
    closing = await store.close_session(NAME, erase=True)
    assert (closing.erased, closing.messages) == (True, 4_501)
    assert await redis.traces(NAME) == []


async def test_an_erase_that_was_cut_short_is_finished_by_the_sweeper(redis: RedisWorld) -> None:
    """Whoever erased was killed after the close: the sweeper knows."""
    store = redis.store
    await prompt(store, NAME, "A")
    await store.close_session(NAME)
    redis.look.zadd(redis.partition_key(NAME, "erase"), {NAME: 1})
    assert await sweep(store) == Swept(erased=1)
    assert await redis.traces(NAME) == []

"""Delayed and expiring messages: what is not due is in nobody's way, what is over is never taken (M11)."""

import asyncio

import pytest

from mailslot_core import invariants
from mailslot_core.errors import Refused
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import MessageState, Status, fold, indexes
from mailslot_core.store import Swept
from mailslot_core.turn import Outcome
from tests.conformance.dialogue import (
    BIRTH,
    Slot,
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


@pytest.fixture
def steered() -> bool:
    return True


@pytest.mark.parametrize("ahead_ms", [-5_000, 0, 1])
async def test_a_message_is_due_at_once_unless_its_time_lies_ahead(world: World, ahead_ms: int) -> None:
    store = world.store
    await say(store, "s", "A", not_before=world.now_ms() + ahead_ms)
    assert await history(store, "s") == ("q[A, notBefore]" if ahead_ms > 0 else "q[A, notBefore] R")


async def test_a_time_of_0_is_long_over(world: World) -> None:
    store = world.store
    await store.submit("s", message("A", notBefore=0), BIRTH)
    assert await history(store, "s") == "q[A, notBefore] R"
    assert await store.indexes("s") == indexes(fold("s", await ledger(store, "s")))
    with pytest.raises(Refused) as refused:
        await store.submit("s", message("B", expiresAt=0), BIRTH)
    assert refused.value.code == "expired"


@pytest.mark.parametrize("delivery", ["queue", "steer", "inject"])
async def test_a_message_that_is_not_due_wakes_nobody_and_is_pending(world: World, slot: Slot, delivery: str) -> None:
    store = world.store
    await say(store, "s", "A", delivery, not_before=world.now_ms() + HOUR_MS)
    level = await store.level("s")
    assert level is not None
    assert (level.status, level.pending, level.held, level.conservation) == (Status.IDLE, 1, 0, 0)
    assert await slot.acquire("s") is None
    assert await sweep(store) == Swept()


async def test_a_message_that_is_not_due_is_in_nobodys_way(world: World, slot: Slot) -> None:
    """It blocks neither those behind it, nor the step boundary, nor the end of the turn, nor idle."""
    store = world.store
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await say(store, "s", "later S", "steer", not_before=world.now_ms() + HOUR_MS)
    await say(store, "s", "later C", "inject", not_before=world.now_ms() + HOUR_MS)
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await slot.commit(*slot.begin(), slot.says("well"), slot.end(), take=True)
    assert (await slot.settle()).outcome is Outcome.IDLE
    assert (await history(store, "s")).endswith("q[B] R T1 c[B] S1 u[B] a s1 t1(completed) I")


async def test_a_message_that_is_not_due_does_not_stand_in_a_goals_way(world: World) -> None:
    store = world.store
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await set_goal(store, "s")
    assert await store.goal_advance("s", await next_round(store, "s", "g1"))


async def test_a_goals_round_is_not_preempted_by_what_is_not_due(world: World, slot: Slot) -> None:
    store = world.store
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("T1 c[g1]")


async def test_when_its_time_comes_the_sweep_says_so_and_the_agent_runs(world: World, slot: Slot) -> None:
    """Trace 16."""
    store = world.store
    await say(store, "s", "A", not_before=world.now_ms() + 100)
    await world.pass_ms(99)
    assert await sweep(store) == Swept()
    await world.pass_ms(1)
    assert await sweep(store) == Swept(due=1)
    assert await sweep(store) == Swept()
    assert await store.wait_ready(1000) == partition_of("s", store.partitions)
    await slot.run("s")
    assert await history(store, "s") == "q[A, notBefore] due[A] R T1 c[A] S1 u[A] a s1 t1(completed) I"


async def test_a_message_takes_its_place_when_it_becomes_due(world: World, slot: Slot) -> None:
    """M4: the order of becoming due, not of queueing and not of clocks."""
    store = world.store
    await say(store, "s", "A", not_before=world.now_ms() + 10)
    await prompt(store, "s", "B")
    await world.pass_ms(10)
    await sweep(store)
    await prompt(store, "s", "C")
    for _ in range(3):
        await slot.run("s")
    claims = [event.data["messageIds"] for event in await ledger(store, "s") if event.type == "inbox/claimed"]
    assert claims == [["B"], ["A"], ["C"]]


async def test_messages_become_due_and_expire_in_the_order_of_their_times(world: World) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "last", not_before=now + 40)
    await say(store, "s", "third", not_before=now + 30)
    await say(store, "s", "gone", expires_at=now + 20)
    await say(store, "s", "fourth", not_before=now + 30)
    await say(store, "s", "first", not_before=now + 10, expires_at=now + HOUR_MS)
    await say(store, "s", "not yet", not_before=now + 51)
    await world.pass_ms(45)
    assert await sweep(store) == Swept(due=4, expired=1)
    assert (await history(store, "s")).endswith("due[first] expired[gone] due[third] due[fourth] due[last]")
    events = await ledger(store, "s")
    assert invariants.violations(events) == []
    assert await store.indexes("s") == indexes(fold("s", events))


async def test_running_follows_the_first_message_that_wakes(world: World) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "C", "inject", not_before=now + 10)
    await say(store, "s", "S", "steer", not_before=now + 20)
    await say(store, "s", "A", not_before=now + 30)
    await world.pass_ms(30)
    await sweep(store)
    assert (await history(store, "s")).endswith("due[C] due[S] R due[A]")


async def test_context_that_becomes_due_wakes_nobody(world: World, slot: Slot) -> None:
    store = world.store
    await say(store, "s", "C", "inject", not_before=world.now_ms() + 10)
    await world.pass_ms(10)
    assert await sweep(store) == Swept(due=1)
    assert await history(store, "s") == "qs[C, notBefore] due[C]"
    assert await slot.acquire("s") is None


async def test_what_becomes_due_behind_a_hold_waits_there(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await store.cancel("s", cause="user", queue="hold")
    await say(store, "s", "later", not_before=world.now_ms() + 10)
    await world.pass_ms(10)
    await sweep(store)
    level = await store.level("s")
    assert level is not None
    assert (level.status, level.hold, level.held) == (Status.IDLE, "cancel", 2)
    assert await slot.acquire("s") is None
    await store.release("s")
    assert (await history(store, "s")).endswith("q[later, notBefore] due[later] released R")


async def test_a_steer_that_becomes_due_joins_the_running_turn(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await say(store, "s", "S", "steer", not_before=world.now_ms() + 10)
    await world.pass_ms(10)
    await sweep(store)
    assert (await slot.echo()).outcome is Outcome.CONTINUE
    assert [claimed.message_id for claimed in slot.grant.batch] == ["S"]


@pytest.mark.parametrize("delivery", ["queue", "steer", "inject"])
async def test_a_message_whose_time_is_over_is_not_taken(world: World, slot: Slot, delivery: str) -> None:
    store = world.store
    await say(store, "s", "A", delivery, expires_at=world.now_ms() + 10)
    await world.pass_ms(9)
    assert await sweep(store) == Swept()
    await world.pass_ms(1)
    assert await sweep(store) == Swept(expired=1)
    assert (await history(store, "s")).endswith("expired[A]" if delivery == "inject" else "R expired[A] I")
    assert await slot.acquire("s") is None
    found = await store.message("s", "A")
    assert found is not None
    assert found.state is MessageState.EXPIRED


async def test_a_claimed_message_does_not_expire(world: World, slot: Slot) -> None:
    store = world.store
    await say(store, "s", "A", expires_at=world.now_ms() + 10)
    await slot.acquire("s")
    await world.pass_ms(20)
    assert await sweep(store) == Swept()
    await slot.echo()
    assert (await history(store, "s")).endswith("u[A] a s1 t1(completed) I")


async def test_a_message_may_expire_before_it_is_due_or_after(world: World) -> None:
    """Both times are over at the first sweep: it is expired, and never was due."""
    store, now = world.store, world.now_ms()
    await say(store, "s", "A", not_before=now + 10, expires_at=now + 20)
    await say(store, "s", "B", not_before=now + 5, expires_at=now + 40)
    await world.pass_ms(25)
    assert await sweep(store) == Swept(due=1, expired=1)
    await world.pass_ms(25)
    assert await sweep(store) == Swept(expired=1)
    assert (await history(store, "s")).endswith("due[B] R expired[A] expired[B] I")


async def test_a_message_that_expires_before_its_time_comes_is_never_due(world: World) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "A", not_before=now + HOUR_MS, expires_at=now + 10)
    await world.pass_ms(10)
    assert await sweep(store) == Swept(expired=1)
    await world.pass_ms(HOUR_MS)
    assert await sweep(store) == Swept()
    assert await history(store, "s") == "q[A, notBefore] expired[A]"


async def test_what_a_move_made_due_may_still_expire(world: World) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "A", not_before=now + 10, expires_at=now + 20)
    await store.move("s", "A")
    await world.pass_ms(20)
    assert await sweep(store) == Swept(expired=1)
    assert (await history(store, "s")).endswith("moved[A] R expired[A] I")


async def test_a_held_message_may_expire(world: World) -> None:
    store = world.store
    await say(store, "s", "A", expires_at=world.now_ms() + 10)
    await store.cancel("s", cause="user", queue="hold")
    await world.pass_ms(10)
    assert await sweep(store) == Swept(expired=1)
    level = await store.level("s")
    assert level is not None
    assert (level.hold, level.held, level.pending) == ("cancel", 0, 0)


async def test_other_words_keep_the_times(world: World) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "A", not_before=now + 10, expires_at=now + 20)
    await store.replace("s", "A", [{"type": "text", "text": "other words"}])
    await world.pass_ms(10)
    assert await sweep(store) == Swept(due=1)
    await world.pass_ms(10)
    assert await sweep(store) == Swept(expired=1)


@pytest.mark.parametrize("way", ["withdraw", "clear"])
async def test_a_message_that_left_is_neither_due_nor_expired_any_more(world: World, way: str) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "A", not_before=now + 10, expires_at=now + 20)
    if way == "withdraw":
        await store.withdraw("s", "A")
    else:
        await store.cancel("s", cause="user", queue="clear")
    before = await world.everything("s")
    await world.pass_ms(30)
    assert await sweep(store) == Swept()
    assert await world.everything("s") == before


async def test_a_delayed_message_sent_again_is_the_same_message_also_when_its_time_is_over(
    world: World, slot: Slot
) -> None:
    """The duplicate check comes before every other refusal (M3)."""
    store, now = world.store, world.now_ms()
    first = await say(store, "s", "A", not_before=now + 10, expires_at=now + 20)
    await world.pass_ms(30)
    assert (await say(store, "s", "A", not_before=now + 10, expires_at=now + 20)).cursor == first.cursor
    await sweep(store)
    again = await say(store, "s", "A", not_before=now + 10, expires_at=now + 20)
    assert (again.cursor, again.duplicate) == (first.cursor, True)
    with pytest.raises(Refused) as refused:
        await say(store, "s", "A", not_before=now + 11, expires_at=now + 20)
    assert refused.value.code == "conflict"


async def test_a_delayed_message_does_not_end_a_hold_and_a_due_one_does(world: World) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await store.cancel("s", cause="user", queue="hold")
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    assert "released" not in await history(store, "s")
    await say(store, "s", "now", not_before=world.now_ms())
    assert (await history(store, "s")).endswith("q[now, notBefore] released R")


async def test_what_time_changes_is_told_to_whoever_watches(world: World) -> None:
    store = world.store
    await say(store, "s", "A", not_before=world.now_ms() + 10)
    async with store.watch("s") as notices:
        await world.pass_ms(10)
        await sweep(store)
        async with asyncio.timeout(5):
            told = [(await anext(notices))["type"] for _ in range(2)]
    assert told == ["inbox/due", "agent/status"]


async def test_many_sessions_become_due_in_one_sweep(world: World) -> None:
    """More than one part of a sweep takes (SWEEP_MAX)."""
    store, now = world.store, world.now_ms()
    for number in range(230):
        await say(store, f"s{number}", "A", not_before=now + 10)
    await world.pass_ms(10)
    assert (await sweep(store)).due == 230
    assert sum([(await store.load(partition)).ready for partition in range(store.partitions)]) == 230


async def test_a_clock_that_went_back_makes_nothing_due_twice(world: World) -> None:
    store = world.store
    await say(store, "s", "A", not_before=world.now_ms() + 10)
    await say(store, "s", "B", not_before=world.now_ms() + 20)
    await world.pass_ms(10)
    await sweep(store)
    await world.set_back("s", HOUR_MS)
    assert await sweep(store) == Swept()
    await world.pass_ms(HOUR_MS + 10)
    assert await sweep(store) == Swept(due=1)
    events = await ledger(store, "s")
    assert invariants.violations(events) == []
    assert await store.indexes("s") == indexes(fold("s", events))


async def test_steers_and_context_that_become_due_enter_in_that_order(world: World, slot: Slot) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "S", "steer", not_before=now + 20)
    await say(store, "s", "C", "inject", not_before=now + 10)
    await steer(store, "s", "T")
    await inject(store, "s", "D")
    await world.pass_ms(20)
    await sweep(store)
    await slot.acquire("s")
    assert [claimed.message_id for claimed in slot.grant.batch] == ["T", "D", "C", "S"]


async def test_time_that_passes_by_itself_does_the_same(redis: RedisWorld) -> None:
    """On the server's own clock."""
    store, now = redis.store, redis.now_ms()
    await say(store, "s", "A", not_before=now + 300)
    await say(store, "s", "C", "inject", expires_at=now + 300)
    assert await history(store, "s") == "q[A, notBefore] qs[C]"
    await redis.pass_ms(301)
    assert await sweep(store) == Swept(due=1, expired=1)
    assert (await history(store, "s")).endswith("due[A] R expired[C]")


# -- at the moment of the claim -----------------------------------------------------------------------------------


async def test_what_is_over_is_not_claimed_although_no_sweep_came(world: World, slot: Slot) -> None:
    """A worker that comes back after an outage finds messages that nobody wants any more (M11)."""
    store, now = world.store, world.now_ms()
    await say(store, "s", "steer", "steer", expires_at=now + 10)
    await say(store, "s", "A", expires_at=now + 10)
    await say(store, "s", "B", expires_at=now + HOUR_MS)
    await world.pass_ms(20)
    await slot.acquire("s")
    assert [claimed.message_id for claimed in slot.grant.batch] == ["B"]
    told = await history(store, "s")
    assert told.endswith("q[B] expired[steer] expired[A] T1 c[B]")


async def test_an_agent_rests_when_all_it_would_claim_is_over(world: World, slot: Slot) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "A", expires_at=now + 10)
    await inject(store, "s", "context")
    await world.pass_ms(20)
    assert await slot.acquire("s") is None
    assert (await history(store, "s")).endswith("qs[context] expired[A] I")
    assert invariants.violations(await ledger(store, "s")) == []


async def test_a_steer_that_is_over_does_not_prolong_a_turn(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await say(store, "s", "S", "steer", expires_at=world.now_ms() + 10)
    await world.pass_ms(20)
    assert (await slot.echo()).outcome is Outcome.IDLE
    assert (await history(store, "s")).endswith("expired[S] t1(completed) I")


async def test_a_steer_that_is_over_is_not_claimed_at_a_step_boundary(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await say(store, "s", "S", "steer", expires_at=world.now_ms() + 10)
    await steer(store, "s", "T")
    await world.pass_ms(20)
    await slot.commit(*slot.begin(), slot.says("hello"), slot.end(), take=True)
    assert [claimed.message_id for claimed in slot.grant.batch] == ["T"]


async def test_a_follow_up_that_is_over_pushes_no_round_aside(world: World, slot: Slot) -> None:
    """People come first (G3), but not those who are gone."""
    store = world.store
    await set_goal(store, "s")
    assert await store.goal_advance("s", await next_round(store, "s"))
    await say(store, "s", "A", expires_at=world.now_ms() + 10)
    await world.pass_ms(20)
    await slot.acquire("s")
    (claimed,) = slot.grant.batch
    assert claimed.data["source"]["kind"] == "goal"

"""Cancelling: recorded once, for one turn; the first cause wins; against a completion there is one end and one only."""

import pytest

from mailslot_contracts.channels import control_channel
from mailslot_contracts.codec import decode
from mailslot_core.errors import Refused
from mailslot_core.session import Status
from mailslot_core.store import Store
from mailslot_core.turn import Cancelled, Outcome
from tests.conformance.dialogue import BIRTH, Slot, history, inject, ledger, prompt, set_goal, steer
from tests.conformance.worlds import RedisWorld, World
from tests.waiting import wait_until

pytestmark = pytest.mark.conformance


async def test_a_cancel_of_the_open_turn_is_recorded_and_its_owner_told(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    assert await store.cancel("s", cause="user") == Cancelled("requested", 1, ())
    recorded = (await ledger(store, "s"))[-1]
    assert (recorded.type, recorded.data) == ("cancel/requested", {"cause": "user", "queue": "keep", "turn": 1})
    assert (await slot.commit()).cancel == "user"


async def test_word_of_a_cancel_goes_to_the_worker_that_owns_the_turn(redis: RedisWorld) -> None:
    slot = Slot(redis.store, "worker-1/0")
    await prompt(redis.store, "s", "A")
    await slot.acquire("s")
    with redis.look.pubsub(ignore_subscribe_messages=True) as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(control_channel("worker-1"))
        await wait_until(
            lambda: redis.look.pubsub_numsub(control_channel("worker-1"))[0][1] == 1, 5, "the subscription"
        )
        await redis.store.cancel("s", cause="user")
        word = await wait_until(lambda: listening.get_message(timeout=0), 5, "word of the cancel")
    assert decode(word["data"]) == {"sessionId": "s", "epoch": 1, "turn": 1, "cause": "user"}


async def test_the_queue_is_kept_and_goes_on_after_the_abort(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await prompt(store, "s", "B")
    await inject(store, "s", "C")
    assert (await store.cancel("s", cause="user")).still_queued == ("C", "B")
    settled = await slot.settle(slot.says("half an ans", interrupted=True), slot.end(), end="aborted")
    assert settled.outcome is Outcome.TURN
    assert (await history(store, "s")).endswith("cancel a(interrupted) s1 t1(aborted user) T2 c[C,B]")


@pytest.mark.parametrize("state", ["never used", "idle", "queued"])
async def test_without_a_turn_there_is_nothing_to_cancel(world: World, slot: Slot, state: str) -> None:
    store = world.store
    await store.create("s", BIRTH)
    if state == "idle":
        await prompt(store, "s", "A")
        await slot.run("s")
    elif state == "queued":
        await prompt(store, "s", "B")
    before = await world.everything("s")
    queued = ("B",) if state == "queued" else ()
    assert await store.cancel("s", cause="user") == Cancelled("nothing_to_cancel", None, queued)
    assert await world.everything("s") == before


async def test_a_session_that_is_not_there_cannot_be_cancelled(store: Store) -> None:
    with pytest.raises(Refused) as refused:
        await store.cancel("s", cause="user")
    assert refused.value.code == "not-found"
    assert await store.level("s") is None


@pytest.mark.parametrize("turn", [0, 1, 3])
async def test_a_cancel_that_names_another_turn_than_the_open_one_changes_nothing(
    world: World, slot: Slot, turn: int
) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await slot.echo()
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await store.cancel("s", cause="user", turn=turn)
    assert refused.value.code == "not-open"
    assert await world.everything("s") == before
    assert (await store.cancel("s", cause="user", turn=2)).outcome == "requested"


async def test_the_first_cause_wins(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await store.cancel("s", cause="parent")
    before = await ledger(store, "s")
    assert await store.cancel("s", cause="user") == Cancelled("requested", 1, ())
    assert await ledger(store, "s") == before
    await slot.settle(end={"kind": "aborted", "cause": "hook"})
    assert (await history(store, "s")).endswith("cancel x[A] t1(aborted parent) I")


@pytest.mark.parametrize("end", ["completed", "max-tokens", "blocked", "error", "aborted"])
async def test_against_any_other_end_a_recorded_cancel_wins_and_the_turn_ends_once(
    store: Store, slot: Slot, end: str
) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await store.cancel("s", cause="user")
    await slot.settle(*slot.begin(), slot.says("hello"), slot.end(), end=end)
    told = await history(store, "s")
    assert told.endswith("t1(aborted user) I")
    assert told.count("t1(") == 1


async def test_a_cancel_does_not_let_a_steer_prolong_its_turn(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await steer(store, "s", "S")
    await store.cancel("s", cause="user")
    settled = await slot.settle(slot.says("hello"), slot.end())
    assert settled.outcome is Outcome.TURN
    assert (await history(store, "s")).endswith("t1(aborted user) T2 c[S]")


async def test_a_cancel_never_hits_the_next_turn(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await store.cancel("s", cause="user")
    await slot.echo()
    assert slot.grant.cancel is None
    await slot.echo()
    assert (await history(store, "s")).endswith("t2(completed) I")


async def test_a_message_sent_after_the_cancel_is_untouched_by_it(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await store.cancel("s", cause="user")
    await prompt(store, "s", "B")
    await slot.echo()
    await slot.echo()
    assert (await history(store, "s")).endswith("t1(aborted user) T2 c[B] S1 u[B] a s1 t2(completed) I")


async def test_an_abort_by_a_hook_has_its_cancel_too(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.settle(*slot.begin(), slot.end(), end={"kind": "aborted", "cause": "hook"})
    assert (await history(store, "s")).endswith("s1 cancel t1(aborted hook) I")


async def test_a_cancel_reaches_a_turn_whose_owner_is_dead(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    await world.pass_ms(3)
    for partition in range(store.partitions):
        await store.sweep(partition, forget_after_ms=1_000_000)
    assert (await store.cancel("s", cause="user")).outcome == "requested"
    await rival.acquire("s")
    assert rival.grant.cancel == "user"
    await rival.settle(end="completed")
    assert (await history(store, "s")).endswith("recovered(1, attempt 2, crash) x[A] t1(aborted user) I")


# -- and goals ----------------------------------------------------------------------------------------------------


async def test_a_users_cancel_pauses_an_active_goal_even_between_turns(store: Store) -> None:
    await set_goal(store, "s")
    assert await store.cancel("s", cause="user") == Cancelled("requested", None, ())
    level = await store.level("s")
    assert level is not None
    assert level.goal is not None
    assert (level.goal["phase"], level.goal["reason"]) == ("paused", {"kind": "cancelled"})
    assert (await history(store, "s")).endswith("goal(create) cancel goal(pause)")


async def test_another_cause_pauses_no_goal_between_turns(store: Store) -> None:
    await set_goal(store, "s")
    assert (await store.cancel("s", cause="parent")).outcome == "nothing_to_cancel"


async def test_a_second_cancel_by_a_user_pauses_a_goal_that_was_resumed_since(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await store.cancel("s", cause="parent")
    await set_goal(store, "s")
    assert (await store.cancel("s", cause="user")).outcome == "requested"
    await slot.echo()
    told = "cancel goal(create) cancel goal(pause) S1 u[A] a s1 t1(aborted parent) I"
    assert (await history(store, "s")).endswith(told)
    level = await store.level("s")
    assert level is not None
    assert level.status is Status.IDLE

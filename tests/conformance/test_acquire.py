"""Acquiring: the longest-ready session is leased and its turn is open; who has nothing to do is passed over."""

import asyncio

import pytest

from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Phase, Status
from mailslot_core.store import Lease, Store
from tests.conformance.dialogue import Slot, goal_round, history, inject, ledger, message, prompt, set_goal, steer
from tests.conformance.worlds import RedisWorld, World

pytestmark = pytest.mark.conformance


def together(store: Store, count: int) -> list[str]:
    """Sessions of one partition."""
    names = [f"s{number}" for number in range(20 * count)]
    return [name for name in names if partition_of(name, store.partitions) == 0][:count]


async def test_nothing_ready_is_nothing_granted(store: Store, slot: Slot) -> None:
    assert await slot.acquire("s") is None


async def test_a_grant_shows_the_open_turn_and_its_batch(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    grant = await slot.acquire("s")
    assert grant is not None
    assert grant.lease == Lease("s", 1, slot.owner)
    assert (grant.agent, grant.seq, grant.turn, grant.step, grant.phase) == ("default", 5, 1, 0, Phase.BOUNDARY)
    assert (grant.attempt, grant.cancel, grant.recovered, dict(grant.calls)) == (1, None, None, {})
    assert [(claimed.message_id, claimed.data) for claimed in grant.batch] == [("A", message("A").data)]


async def test_the_turn_starts_and_claims_in_the_act_that_leases(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    assert await history(store, "s") == "q[A] R T1 c[A]"
    started, claimed = (await ledger(store, "s"))[-2:]
    assert (started.epoch, claimed.epoch) == (1, 1)
    assert (started.data, claimed.data) == ({"turn": 1}, {"turn": 1, "messageIds": ["A"]})


async def test_a_turn_claims_all_that_waits_for_a_step_and_one_follow_up(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await inject(store, "s", "C")
    await prompt(store, "s", "B")
    await steer(store, "s", "S")
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("T1 c[C,S,A]")
    assert [claimed.message_id for claimed in slot.grant.batch] == ["C", "S", "A"]


async def test_a_steer_alone_opens_a_turn(store: Store, slot: Slot) -> None:
    await steer(store, "s", "S")
    await slot.acquire("s")
    assert await history(store, "s") == "qs[S] R T1 c[S]"


async def test_injected_context_alone_opens_none(store: Store, slot: Slot) -> None:
    await inject(store, "s", "C")
    assert await slot.acquire("s") is None
    assert await history(store, "s") == "qs[C]"


async def test_the_longest_ready_session_comes_first(world: World, slot: Slot) -> None:
    store = world.store
    names = together(store, 4)
    for name in reversed(names):
        await prompt(store, name, "A")
        await world.pass_ms(2)
    await prompt(store, names[-1], "B")
    granted = [await slot.acquire(names[0]) for _ in names]
    assert [grant.lease.session_id for grant in granted if grant] == list(reversed(names))


async def test_a_session_is_leased_to_one_owner(store: Store, slot: Slot, rival: Slot) -> None:
    await prompt(store, "s", "A")
    assert await slot.acquire("s") is not None
    assert await rival.acquire("s") is None
    await prompt(store, "s", "B")
    assert await rival.acquire("s") is None


async def test_owners_that_ask_at_once_get_different_sessions(store: Store) -> None:
    names = together(store, 5)
    for name in names:
        await prompt(store, name, "A")
    slots = [Slot(store, f"worker/{number}") for number in range(8)]
    grants = await asyncio.gather(*(slot.acquire(names[0]) for slot in slots))
    assert sorted(grant.lease.session_id for grant in grants if grant) == sorted(names)


async def test_the_epoch_rises_with_each_owner(store: Store, slot: Slot, rival: Slot) -> None:
    for number, owner in enumerate([slot, rival, slot], 1):
        await prompt(store, "s", f"m{number}")
        await owner.acquire("s")
        assert owner.lease.epoch == number
        await owner.echo()


async def test_events_of_others_carry_the_sessions_present_epoch(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await prompt(store, "s", "B")
    assert [event.epoch for event in await ledger(store, "s")] == [0, 0, 0, 1, 1, 1]


async def test_a_session_whose_reason_to_run_went_away_leaves_no_trace(world: World, slot: Slot) -> None:
    """A goal's message made it ready, a change of the goal took the message back: the bell rang for nothing."""
    store = world.store
    goal = await set_goal(store, "s")
    await store.goal_advance("s", goal_round(goal["goalId"], goal["revision"], 1, 0, "g1"))
    await store.cancel("s", cause="user")
    before = await ledger(store, "s")
    assert (await history(store, "s")).endswith("q[g1] R cancel goal(pause) x[g1 stale] I")
    assert await slot.acquire("s") is None
    assert await ledger(store, "s") == before
    load = await store.load(partition_of("s", store.partitions))
    assert (load.ready, load.leased) == (0, 0)


async def test_a_stale_entry_does_not_hide_those_behind_it(world: World, slot: Slot) -> None:
    store = world.store
    idle, ready = together(store, 2)
    await prompt(store, idle, "A")
    await slot.run(idle)
    await prompt(store, ready, "A")
    await world.plant_ready(idle)
    before = await ledger(store, idle)
    grant = await slot.acquire(ready)
    assert grant is not None
    assert grant.lease.session_id == ready
    assert await ledger(store, idle) == before


async def test_a_leased_session_that_stands_in_the_ready_queue_is_not_leased_again(
    world: World, slot: Slot, rival: Slot
) -> None:
    await prompt(world.store, "s", "A")
    await slot.acquire("s")
    await world.plant_ready("s")
    assert await rival.acquire("s") is None
    await slot.echo()


async def test_many_stale_entries_are_dropped_a_part_at_a_time_and_the_bell_goes_on(redis: RedisWorld) -> None:
    store, slot = redis.store, Slot(redis.store)
    names = together(store, 140)
    ready = names.pop()
    await prompt(store, ready, "A")
    while await store.wait_ready(1) is not None:
        pass
    await redis.plant_ready(*names)
    assert await slot.acquire(ready) is None
    assert await store.wait_ready(1000) == 0
    assert await slot.acquire(ready) is not None


# -- recovering -------------------------------------------------------------------------------------------------


async def test_a_new_owner_takes_up_what_the_dead_one_had_claimed(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await steer(store, "s", "S")
    await slot.acquire("s", lease_ms=1)
    await lapse(world)
    grant = await rival.acquire("s")
    assert grant is not None
    assert (grant.turn, grant.step, grant.attempt, grant.recovered) == (1, 0, 2, "crash")
    assert [claimed.message_id for claimed in grant.batch] == ["S", "A"]
    await rival.echo()
    assert (await history(store, "s")).count("c[") == 1
    assert (await history(store, "s")).endswith("recovered(1, attempt 2, crash) S1 u[S] u[A] a s1 t1(completed) I")


async def test_a_new_owner_sees_how_far_the_step_was(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    await slot.commit(*slot.begin(), slot.says("let me see", "c1", "c2"), slot.call("c1"))
    await lapse(world)
    grant = await rival.acquire("s")
    assert grant is not None
    assert (grant.step, grant.phase, grant.batch) == (1, Phase.ANSWERED, ())
    assert dict(grant.calls) == {"c1": "started", "c2": "asked"}


async def test_only_crashes_count_as_attempts(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.handback()
    seen = []
    for lease_ms in (1, 1, 600_000):
        await rival.acquire("s", lease_ms)
        seen.append((rival.grant.attempt, rival.grant.recovered))
        await lapse(world)
    assert seen == [(1, "handback"), (2, "crash"), (3, "crash")]
    await rival.handback()
    await slot.acquire("s")
    assert (slot.grant.attempt, slot.grant.recovered) == (3, "handback")


async def test_the_turn_after_a_recovered_one_was_not_recovered(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s", lease_ms=1)
    await lapse(world)
    await rival.acquire("s")
    await rival.echo()
    assert (rival.grant.turn, rival.grant.recovered, rival.grant.attempt) == (2, None, 1)


async def test_a_cancel_of_a_dead_owners_turn_is_shown_to_the_next(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    await store.cancel("s", cause="user")
    await lapse(world)
    await rival.acquire("s")
    assert rival.grant.cancel == "user"
    await rival.settle()
    assert (await history(store, "s")).endswith("x[A] t1(aborted user) I")


async def test_a_session_that_is_idle_is_not_in_the_load(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.run("s")
    level = await store.level("s")
    assert level is not None
    assert level.status is Status.IDLE
    load = await store.load(partition_of("s", store.partitions))
    assert (load.ready, load.active, load.leased, load.sessions) == (0, 0, 0, 1)


async def lapse(world: World) -> None:
    """Leases of 1 ms are over, and the sweeper has seen it."""
    await world.pass_ms(3)
    for partition in range(world.store.partitions):
        await world.store.sweep(partition, forget_after_ms=1_000_000)

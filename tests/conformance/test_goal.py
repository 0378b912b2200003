"""Goals: one compare-and-set for each change, one act for each round, people first."""

import asyncio
from typing import Any

import pytest

from mailslot_contracts.codec import decode
from mailslot_core.errors import Refused
from mailslot_core.goal import PHASES, Change
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Data, Status
from mailslot_core.store import IdleNotice, Store
from tests.conformance.dialogue import (
    BIRTH,
    CAREFUL,
    Slot,
    goal_round,
    history,
    inject,
    ledger,
    next_round,
    prompt,
    set_goal,
    steer,
)
from tests.conformance.worlds import RedisWorld, World

pytestmark = pytest.mark.conformance

REASON: Data = {"code": "stuck", "message": "no key"}
WAYS: dict[str | None, list[str]] = {
    "active": [],
    "paused": ["pause"],
    "blocked": ["block"],
    "complete": ["complete"],
}


async def goal_of(store: Store, session_id: str = "s") -> Data:
    level = await store.level(session_id)
    assert level is not None
    assert level.goal is not None
    return level.goal


async def operate(store: Store, operation: str, session_id: str = "s", **what: Any) -> Data:
    """An operation under the present revision."""
    goal = await goal_of(store, session_id)
    return await store.goal_change(session_id, Change(operation, (goal["goalId"], goal["revision"]), **what))


# -- changing -----------------------------------------------------------------------------------------------------


async def test_a_goal_is_made_and_its_session_with_it(store: Store) -> None:
    goal = await set_goal(store, "s", rounds=3)
    assert goal == {
        "goalId": "goal-1",
        "revision": 1,
        "objective": "keep the garden",
        "phase": "active",
        "rounds": 0,
        "budgets": {"rounds": 3},
        "spent": {"rounds": 0},
    }
    assert await history(store, "s") == "goal(create)"
    assert (await ledger(store, "s"))[-1].data == {"operation": "create", "goal": goal}
    assert await goal_of(store) == goal


async def test_a_goal_for_nobody_is_refused_when_no_session_may_be_made(store: Store) -> None:
    change = Change("create", goal_id="g", objective="o", budgets={"rounds": 1})
    with pytest.raises(Refused) as refused:
        await store.goal_change("s", change)
    assert refused.value.code == "not-found"
    assert await store.level("s") is None


@pytest.mark.parametrize("operation", sorted({operation for operation, _ in PHASES}))
@pytest.mark.parametrize("phase", [None, "active", "paused", "blocked", "complete"])
async def test_every_operation_does_in_every_phase_what_the_table_says(
    world: World, phase: str | None, operation: str
) -> None:
    store = world.store
    await store.create("s", BIRTH)
    if phase is not None:
        await set_goal(store, "s", goal_id="goal-0")
        for step in WAYS[phase]:
            await operate(store, step)
    expected, revision = None, 0
    if phase is not None:
        goal = await goal_of(store)
        revision = goal["revision"]
        expected = None if operation == "create" else (goal["goalId"], revision)
    change = Change(operation, expected, "goal-1", "keep the yard", {"rounds": 2}, REASON)
    if (operation, phase) in PHASES:
        changed = await store.goal_change("s", change)
        assert changed["revision"] == revision + 1
        level = await store.level("s")
        assert level is not None
        kept = None if level.goal is None else level.goal["phase"]
        assert kept == PHASES[operation, phase]
        return
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await store.goal_change("s", change)
    wanted = "goal-exists" if operation == "create" else "not-found" if phase is None else "not-allowed"
    assert refused.value.code == wanted
    assert await world.everything("s") == before


@pytest.mark.parametrize("expected", [("goal-1", 1), ("goal-1", 3), ("goal-0", 2)])
async def test_a_change_that_saw_another_revision_is_refused(world: World, expected: tuple[str, int]) -> None:
    store = world.store
    await set_goal(store, "s")
    await operate(store, "edit", objective="keep the yard")
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await store.goal_change("s", Change("pause", expected))
    assert refused.value.code == "revision"
    assert await world.everything("s") == before


async def test_of_two_changes_that_saw_the_same_one_is_made(store: Store) -> None:
    await set_goal(store, "s")
    changes = [Change("edit", ("goal-1", 1), objective=f"garden {number}") for number in range(4)]
    outcomes = await asyncio.gather(*(store.goal_change("s", change) for change in changes), return_exceptions=True)
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 3
    assert (await goal_of(store))["revision"] == 2


async def test_changes_that_name_no_revision_are_all_made(store: Store) -> None:
    await set_goal(store, "s")
    changes = [Change("edit", objective=f"garden {number}") for number in range(4)]
    await asyncio.gather(*(store.goal_change("s", change) for change in changes))
    assert (await goal_of(store))["revision"] == 5


async def test_an_edit_keeps_what_it_does_not_name(store: Store) -> None:
    await set_goal(store, "s", rounds=3)
    await operate(store, "edit", budgets={"turns": 9})
    goal = await operate(store, "edit", objective="keep the yard")
    assert (goal["objective"], goal["budgets"]) == ("keep the yard", {"rounds": 3, "turns": 9})


async def test_a_reason_stands_until_the_next_change(store: Store) -> None:
    await set_goal(store, "s")
    assert (await operate(store, "block", reason=REASON))["reason"] == REASON
    assert "reason" not in await operate(store, "resume")


async def test_a_goal_that_is_cleared_is_gone(store: Store) -> None:
    await set_goal(store, "s")
    await operate(store, "clear")
    level = await store.level("s")
    assert level is not None
    assert level.goal is None
    assert await store.resting_goals(partition_of("s", store.partitions)) == []
    assert (await set_goal(store, "s", goal_id="goal-2"))["phase"] == "active"


@pytest.mark.parametrize("operation", ["edit", "pause", "complete", "block", "clear"])
async def test_any_change_takes_the_queued_round_back_and_the_agent_rests(store: Store, operation: str) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await operate(store, operation, objective="keep the yard", reason=REASON)
    assert (await history(store, "s")).endswith(f"q[g1] R goal({operation}) x[g1 stale] I")
    indexes = await store.indexes("s")
    assert indexes is not None
    assert (indexes["goalMessage"], indexes["messages"]["g1"]["why"]) == (None, "stale")


async def test_a_round_that_was_claimed_is_not_taken_back(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await slot.acquire("s")
    await operate(store, "edit", objective="keep the yard")
    await slot.echo()
    assert (await history(store, "s")).endswith("c[g1] goal(edit) S1 u[g1] a s1 t1(completed) I")


@pytest.mark.parametrize("operation", ["create", "resume"])
async def test_a_goal_that_is_made_or_resumed_ends_a_hold(store: Store, slot: Slot, operation: str) -> None:
    await store.create("s", CAREFUL)
    if operation == "resume":
        await set_goal(store, "s")
        await operate(store, "pause")
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await slot.settle(*slot.begin(), slot.end(), end="error")
    assert (await history(store, "s")).endswith("held I(held 1)")
    await (set_goal(store, "s") if operation == "create" else operate(store, "resume"))
    assert (await history(store, "s")).endswith(f"goal({operation}) released R")


@pytest.mark.parametrize("end", ["clear", "complete"])
async def test_the_revision_of_one_goal_is_never_that_of_another(store: Store, end: str) -> None:
    old = await set_goal(store, "s")
    await operate(store, end)
    new = await set_goal(store, "s", goal_id="goal-2")
    assert (old["revision"], new["revision"]) == (1, 3)
    with pytest.raises(Refused) as refused:
        await store.goal_change("s", Change("complete", ("goal-2", old["revision"])))
    assert refused.value.code == "revision"
    assert await goal_of(store) == new


# -- rounds -------------------------------------------------------------------------------------------------------


async def test_an_idle_agent_with_an_active_goal_gets_its_next_round(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    for number in (1, 2):
        proposed = await next_round(store, "s", f"g{number}")
        assert await store.goal_advance("s", proposed)
        queued = next(e for e in reversed(await ledger(store, "s")) if e.type == "inbox/queued")
        assert queued.data == proposed.data
        await slot.run("s")
        assert (await goal_of(store))["rounds"] == number
    assert await history(store, "s") == (
        "goal(create) q[g1] R T1 c[g1] S1 u[g1] a s1 t1(completed) I q[g2] R T2 c[g2] S1 u[g2] a s1 t2(completed) I"
    )


async def test_a_round_is_queued_once(store: Store) -> None:
    await set_goal(store, "s")
    proposed = await next_round(store, "s")
    assert await store.goal_advance("s", proposed)
    before = await ledger(store, "s")
    assert not await store.goal_advance("s", proposed)
    assert await ledger(store, "s") == before


async def test_a_round_counts_when_it_is_admitted(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s"))
    assert (await goal_of(store))["rounds"] == 0
    await slot.acquire("s")
    assert (await goal_of(store))["rounds"] == 0
    await slot.commit(*slot.begin())
    goal = await goal_of(store)
    assert (goal["rounds"], goal["spent"]) == (1, {"rounds": 1})


@pytest.mark.parametrize(
    "why", ["goal", "revision", "round", "a round before", "idle", "running", "held", "paused", "no goal", "nobody"]
)
async def test_a_stale_notice_does_nothing(world: World, slot: Slot, why: str) -> None:
    store = world.store
    await store.create("s", CAREFUL)
    await set_goal(store, "s")
    await prompt(store, "s", "A")
    await slot.run("s")
    proposed = await next_round(store, "s")
    match why:
        case "goal":
            proposed = goal_round("goal-0", 1, 1, proposed.idle_seq)
        case "revision":
            proposed = goal_round("goal-1", 2, 1, proposed.idle_seq)
        case "round":
            proposed = goal_round("goal-1", 1, 2, proposed.idle_seq)
        case "a round before":
            proposed = goal_round("goal-1", 1, 0, proposed.idle_seq)
        case "idle":
            proposed = goal_round("goal-1", 1, 1, proposed.idle_seq - 1)
        case "running":
            await prompt(store, "s", "B")
        case "held":
            await prompt(store, "s", "B")
            await slot.acquire("s")
            await slot.settle(*slot.begin(), slot.end(), end="error")
            proposed = await next_round(store, "s")
        case "paused":
            await operate(store, "pause")
            proposed = await next_round(store, "s")
        case "no goal":
            await operate(store, "clear")
    session_id = "nobody's" if why == "nobody" else "s"
    before = await world.everything("s")
    assert not await store.goal_advance(session_id, proposed)
    assert await world.everything("s") == before


async def test_injected_context_does_not_stand_in_a_rounds_way(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await inject(store, "s", "C")
    assert await store.goal_advance("s", await next_round(store, "s", "g1"))
    await slot.run("s")
    assert (await history(store, "s")).endswith("q[g1] R T1 c[C,g1] S1 u[C] u[g1] a s1 t1(completed) I")


async def test_a_goal_whose_rounds_are_spent_is_blocked(store: Store, slot: Slot) -> None:
    await set_goal(store, "s", rounds=1)
    await store.goal_advance("s", await next_round(store, "s"))
    await slot.run("s")
    assert await store.goal_advance("s", await next_round(store, "s"))
    goal = await goal_of(store)
    assert (goal["phase"], goal["rounds"], goal["reason"]["code"]) == ("blocked", 1, "budget-rounds")
    assert (await history(store, "s")).endswith("I goal(block)")
    assert not await store.goal_advance("s", await next_round(store, "s"))


async def test_people_come_first(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await prompt(store, "s", "H")
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("q[g1] R q[H] x[g1 preempted] T1 c[H]")
    await slot.echo()
    goal = await goal_of(store)
    assert (goal["phase"], goal["revision"], goal["rounds"]) == ("active", 1, 0)
    assert await store.goal_advance("s", await next_round(store, "s", "g1'"))


async def test_a_persons_steer_joins_the_round(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await steer(store, "s", "S")
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("T1 c[S,g1]")


@pytest.mark.parametrize("end", ["error", "aborted", "max-tokens"])
@pytest.mark.parametrize("whose", ["the goal's", "a person's"])
async def test_any_turn_that_does_not_complete_pauses_the_goal(store: Store, slot: Slot, end: str, whose: str) -> None:
    await set_goal(store, "s")
    if whose == "the goal's":
        await store.goal_advance("s", await next_round(store, "s"))
    else:
        await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.settle(*slot.begin(), slot.end(), end=end)
    goal = await goal_of(store)
    assert (goal["phase"], goal["reason"], goal["revision"]) == ("paused", {"kind": end}, 2)


async def test_a_round_that_a_hook_rejects_pauses_the_goal(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await slot.acquire("s")
    await slot.settle(slot.rejects("g1"), end="blocked")
    goal = await goal_of(store)
    assert (goal["phase"], goal["reason"], goal["revision"]) == ("paused", {"kind": "rejected"}, 2)


async def test_a_round_that_is_never_admitted_is_not_counted(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s"))
    await slot.acquire("s")
    await slot.settle(end="error")
    assert (await goal_of(store))["rounds"] == 0


@pytest.mark.parametrize("fate", ["admitted", "rejected"])
async def test_a_round_of_a_goal_that_is_gone_is_nothing_to_the_next_goal(store: Store, slot: Slot, fate: str) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await slot.acquire("s")
    await operate(store, "clear")
    goal = await set_goal(store, "s", goal_id="goal-2")
    if fate == "admitted":
        await slot.commit(*slot.begin())
    else:
        await slot.commit(slot.rejects("g1"))
    assert await goal_of(store) == goal
    assert goal["rounds"] == 0


async def test_a_goal_completed_inside_its_round_is_not_paused_by_the_rounds_end(store: Store, slot: Slot) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s"))
    await slot.acquire("s")
    await operate(store, "complete")
    await slot.settle(*slot.begin(), slot.end(), end="error")
    assert (await goal_of(store))["phase"] == "complete"


# -- who rests ----------------------------------------------------------------------------------------------------


async def test_who_rests_with_an_active_goal_can_be_found(store: Store, slot: Slot) -> None:
    for name in ("resting", "running", "paused", "without"):
        await store.create(name, BIRTH)
        if name != "without":
            await set_goal(store, name)
    await prompt(store, "running", "A")
    await operate(store, "pause", "paused")
    found = [notice for partition in range(store.partitions) for notice in await store.resting_goals(partition)]
    assert found == [IdleNotice("resting", "goal-1", 1, 0)]
    await slot.run("running")
    level = await store.level("running")
    assert level is not None
    assert level.status is Status.IDLE
    notices = await store.resting_goals(partition_of("running", store.partitions))
    assert IdleNotice("running", "goal-1", 1, level.idle_cursor) in notices


async def test_each_idle_of_an_active_goal_is_a_notice_in_its_partitions_stream(redis: RedisWorld) -> None:
    store, slot = redis.store, Slot(redis.store)
    await set_goal(store, "s")
    await prompt(store, "s", "A")
    await slot.run("s")
    await operate(store, "pause")
    await prompt(store, "s", "B")
    await slot.run("s")
    await operate(store, "resume")
    entries = redis.look.xrange(redis.partition_key("s", "idle"))
    notices = [decode(dict(fields or {})[b"data"]) for _, fields in entries or []]  # type: ignore[arg-type]
    idles = [event.seq for event in await ledger(store, "s") if event.data.get("status") == "idle"]
    assert notices == [
        {"sessionId": "s", "goalId": "goal-1", "revision": revision, "idleSeq": idle}
        for revision, idle in [(1, 0), (1, idles[0]), (3, idles[1])]
    ]

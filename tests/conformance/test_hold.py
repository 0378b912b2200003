"""A hold is a fact: what begins it, what ends it, what does not, and that nothing behind it wakes (S7, C2, T7)."""

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from mailslot_core import invariants
from mailslot_core.errors import Refused
from mailslot_core.goal import Change
from mailslot_core.session import Status
from mailslot_core.store import Store
from mailslot_core.turn import Cancelled, Outcome
from tests.conformance.dialogue import (
    BIRTH,
    CAREFUL,
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
    text,
)
from tests.conformance.worlds import World

pytestmark = pytest.mark.conformance

HOUR_MS = 3_600_000


@pytest.fixture
def steered() -> bool:
    return True


async def held(store: Store) -> None:
    """An idle session with follow-up B behind a hold."""
    await prompt(store, "s", "B")
    await store.cancel("s", cause="user", queue="hold")
    assert (await history(store, "s")).endswith("I(held 1)")


async def hold_of(store: Store) -> str | None:
    level = await store.level("s")
    assert level is not None
    return level.hold


# -- what a cancel does to the queue ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "told", "still_queued"),
    [
        ("keep", "cancel", ("S", "C", "B", "later", "later S")),
        ("hold", "cancel held", ("S", "C", "B", "later", "later S")),
        ("clear", "cancel x[S] x[C] x[B] x[later] x[later S]", ()),
    ],
)
async def test_in_the_act_of_the_cancel_the_queue_is_kept_held_or_cleared(
    world: World, slot: Slot, queue: str, told: str, still_queued: tuple[str, ...]
) -> None:
    """C2: both lanes, delayed messages included."""
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await prompt(store, "s", "B")
    await steer(store, "s", "S")
    await inject(store, "s", "C")
    await say(store, "s", "later S", "steer", not_before=world.now_ms() + HOUR_MS)
    before = await history(store, "s")
    assert await store.cancel("s", cause="user", queue=queue) == Cancelled("requested", 1, still_queued)
    assert await history(store, "s") == f"{before} {told}"
    causes = {event.data["cause"] for event in await ledger(store, "s") if event.type == "inbox/cancelled"}
    assert causes <= {"cancel"}
    settled = await slot.settle()
    assert settled.outcome is (Outcome.TURN if queue == "keep" else Outcome.IDLE)
    assert invariants.violations(await ledger(store, "s")) == []


@pytest.mark.parametrize(
    ("queue", "told"), [("hold", "cancel held I(held 1)"), ("clear", "cancel x[C] x[B] I"), ("keep", "")]
)
async def test_without_a_turn_a_cancel_still_holds_or_clears(store: Store, slot: Slot, queue: str, told: str) -> None:
    """S6: the agent rests in the same act; a worker that answers the doorbell leaves no trace."""
    await prompt(store, "s", "B")
    await inject(store, "s", "C")
    outcome = (await store.cancel("s", cause="user", queue=queue)).outcome
    assert outcome == ("requested" if told else "nothing_to_cancel")
    assert await history(store, "s") == f"q[B] R qs[C] {told}".strip()
    assert (await slot.acquire("s") is None) is bool(told)


@pytest.mark.parametrize("queue", ["hold", "clear"])
async def test_an_empty_queue_is_neither_held_nor_cleared(world: World, queue: str) -> None:
    store = world.store
    await store.create("s", BIRTH)
    before = await world.everything("s")
    assert await store.cancel("s", cause="user", queue=queue) == Cancelled("nothing_to_cancel", None, ())
    assert await world.everything("s") == before


@pytest.mark.parametrize("queue", ["hold", "clear"])
async def test_what_waits_for_its_time_can_be_cancelled_and_held_alone(world: World, queue: str) -> None:
    store = world.store
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    assert (await store.cancel("s", cause="user", queue=queue)).outcome == "requested"
    told = {"hold": "cancel held", "clear": "cancel x[later]"}[queue]
    assert await history(store, "s") == f"q[later, notBefore] {told}"


async def test_a_second_cancel_may_clear_what_the_first_one_kept(store: Store, slot: Slot) -> None:
    """The first cause still names the turn's end (C3)."""
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await prompt(store, "s", "B")
    await store.cancel("s", cause="parent")
    assert (await store.cancel("s", cause="user", queue="clear")).still_queued == ()
    await slot.settle()
    assert (await history(store, "s")).endswith("cancel cancel x[B] x[A] t1(aborted parent) I")


@pytest.mark.parametrize("queue", ["hold", "clear"])
async def test_a_named_turn_that_is_not_open_leaves_the_queue_alone(world: World, slot: Slot, queue: str) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await store.cancel("s", cause="user", queue=queue, turn=2)
    assert refused.value.code == "not-open"
    assert await world.everything("s") == before
    assert (await store.cancel("s", cause="user", queue=queue, turn=1)).outcome == "requested"


async def test_what_is_sent_after_a_clearing_cancel_is_untouched_by_it(store: Store, slot: Slot) -> None:
    """C5."""
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await store.cancel("s", cause="user", queue="clear")
    await prompt(store, "s", "B")
    assert (await slot.settle()).outcome is Outcome.TURN
    assert [claimed.message_id for claimed in slot.grant.batch] == ["B"]


@pytest.mark.parametrize("queue", ["keep", "hold", "clear"])
async def test_a_cancel_reaches_a_dead_owners_turn_and_its_queue(
    world: World, slot: Slot, rival: Slot, queue: str
) -> None:
    """C1: from any node, in any state."""
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s", lease_ms=1)
    await world.pass_ms(5)
    assert (await store.cancel("s", cause="user", queue=queue)).outcome == "requested"
    for partition in range(store.partitions):
        await store.sweep(partition, forget_after_ms=HOUR_MS)
    await rival.acquire("s")
    assert rival.grant.cancel == "user"
    outcome = (await rival.settle()).outcome
    assert outcome is (Outcome.TURN if queue == "keep" else Outcome.IDLE)
    assert (await history(store, "s")).count("t1(aborted user)") == 1


@pytest.mark.parametrize("queue", ["keep", "hold", "clear"])
async def test_a_users_cancel_pauses_an_active_goal_whatever_it_does_to_the_queue(store: Store, queue: str) -> None:
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    cancelled = await store.cancel("s", cause="user", queue=queue)
    assert cancelled == Cancelled("requested", None, ())
    level = await store.level("s")
    assert level is not None
    assert level.goal is not None
    assert (level.goal["phase"], level.status, level.pending) == ("paused", Status.IDLE, 0)
    events = await ledger(store, "s")
    assert invariants.violations(events) == []


# -- what holds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("end", ["error", "blocked", "completed", "max-tokens", "aborted"])
async def test_a_careful_session_holds_after_a_failure_also_with_an_empty_queue(
    store: Store, slot: Slot, end: str, waits: bool
) -> None:
    """T7: `inbox/held{cause: failure}` follows `turn/end` in its act."""
    await store.create("s", CAREFUL)
    await prompt(store, "s", "A")
    await slot.acquire("s")
    if waits:
        await prompt(store, "s", "B")
    settled = await slot.settle(*slot.begin(), slot.end(), end=end)
    fails = end in ("error", "blocked")
    assert settled.outcome is (Outcome.TURN if waits and not fails else Outcome.IDLE)
    assert await hold_of(store) == ("failure" if fails else None)
    if fails:
        assert (await history(store, "s")).endswith(f"t1({end}) held {'I(held 1)' if waits else 'I'}")
        kinds = [(event.type, event.time) for event in await ledger(store, "s")][-3:]
        assert [kind for kind, _ in kinds] == ["turn/end", "inbox/held", "agent/status"]
        assert len({time for _, time in kinds}) == 1


async def test_an_idle_behind_a_hold_says_how_many_wait(world: World) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await steer(store, "s", "S")
    await inject(store, "s", "C")
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await store.cancel("s", cause="user", queue="hold")
    assert (await ledger(store, "s"))[-1].data == {"status": "idle", "held": 2}
    level = await store.level("s")
    assert level is not None
    assert (level.hold, level.held, level.pending, level.reasons) == ("cancel", 2, 4, ())


async def test_a_hold_is_one_fact(store: Store, slot: Slot) -> None:
    """Also with an empty queue, when a turn is open."""
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await store.cancel("s", cause="parent", queue="hold")
    await store.cancel("s", cause="user", queue="hold")
    assert (await history(store, "s")).endswith("T1 c[A] cancel held")
    await slot.settle()
    assert (await history(store, "s")).endswith("x[A] t1(aborted parent) I")
    assert await hold_of(store) == "cancel"


async def test_a_hold_stops_steers_at_the_boundary_and_at_the_end(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await steer(store, "s", "S")
    await store.cancel("s", cause="user", queue="hold")
    granted = await slot.commit(slot.says("well", interrupted=True), slot.end(), take=True)
    assert granted.batch == ()
    assert (await slot.settle()).outcome is Outcome.IDLE
    assert (await history(store, "s")).endswith("t1(aborted user) I(held 1)")


# -- what ends a hold, and what does not --------------------------------------------------------------------------

ENDS: Final[dict[str, Callable[[World], Awaitable[object]]]] = {
    "a person's follow-up": lambda world: prompt(world.store, "s", "N"),
    "a person's steer": lambda world: steer(world.store, "s", "N"),
    "a backend's message": lambda world: world.store.submit("s", message("N", source="system"), None),
    "a plugin's message": lambda world: world.store.submit("s", message("N", source="plugin"), None),
    "a message that was due before": lambda world: say(world.store, "s", "N", not_before=world.now_ms()),
    "steer this one": lambda world: world.store.move("s", "B"),
    "steer this context": lambda world: world.store.move("s", "C"),
    "release": lambda world: world.store.release("s"),
    "a new goal": lambda world: set_goal(world.store, "s"),
}
CAUSES: Final = {"steer this one": "move", "steer this context": "move", "release": "release", "a new goal": "goal"}

LEAVES: Final[dict[str, Callable[[World], Awaitable[object]]]] = {
    "injected context": lambda world: inject(world.store, "s", "N"),
    "a delayed message": lambda world: say(world.store, "s", "N", not_before=world.now_ms() + HOUR_MS),
    "a child's notice": lambda world: world.store.submit("s", message("N", source="child"), None),
    "a schedule's message": lambda world: world.store.submit("s", message("N", source="schedule"), None),
    "a goal's round": lambda world: world.store.submit("s", message("N", source="goal"), None),
    "other words": lambda world: world.store.replace("s", "B", text("other words")),
    "a withdrawal": lambda world: world.store.withdraw("s", "B"),
    "a cancel that clears": lambda world: world.store.cancel("s", cause="user", queue="clear"),
    "the same message again": lambda world: prompt(world.store, "s", "B"),
}


@pytest.mark.parametrize("what", ENDS)
async def test_a_hold_ends_with(world: World, slot: Slot, what: str) -> None:
    """S7; a release with messages waiting appends `running` right after it (S2)."""
    store = world.store
    await inject(store, "s", "C")
    await held(store)
    await ENDS[what](world)
    assert await hold_of(store) is None
    released = next(event for event in await ledger(store, "s") if event.type == "inbox/released")
    assert released.data == {"cause": CAUSES.get(what, "submit")}
    assert (await history(store, "s")).endswith("released R")
    granted = await slot.acquire("s")
    assert granted is not None
    assert "B" in [claimed.message_id for claimed in granted.batch]


@pytest.mark.parametrize("what", LEAVES)
async def test_a_hold_does_not_end_with(world: World, slot: Slot, what: str) -> None:
    store = world.store
    await held(store)
    await LEAVES[what](world)
    assert await hold_of(store) == "cancel"
    level = await store.level("s")
    assert level is not None
    assert level.status is Status.IDLE
    assert await slot.acquire("s") is None


async def test_a_hold_ends_when_a_goal_is_resumed(store: Store) -> None:
    await set_goal(store, "s")
    await held(store)
    await store.goal_change("s", Change("resume"))
    assert (await history(store, "s")).endswith("goal(resume) released R")


@pytest.mark.parametrize("operation", ["edit", "pause", "clear", "complete"])
async def test_a_hold_does_not_end_when_a_goal_is_changed_otherwise(store: Store, operation: str) -> None:
    await set_goal(store, "s")
    await prompt(store, "s", "B")
    await store.cancel("s", cause="parent", queue="hold")
    await store.goal_change("s", Change(operation, objective="another" if operation == "edit" else None))
    assert await hold_of(store) == "cancel"


async def test_no_round_is_queued_behind_a_hold(store: Store) -> None:
    """G2."""
    await set_goal(store, "s")
    await inject(store, "s", "C")
    await store.cancel("s", cause="parent", queue="hold")
    assert not await store.goal_advance("s", await next_round(store, "s", "g1"))
    await store.release("s")
    assert await store.goal_advance("s", await next_round(store, "s", "g1"))


async def test_a_release_with_nothing_behind_it_wakes_nobody(store: Store, slot: Slot) -> None:
    await store.create("s", CAREFUL)
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.settle(*slot.begin(), slot.end(), end="error")
    cursor = await store.release("s")
    assert (await history(store, "s")).endswith("held I released")
    assert cursor == (await ledger(store, "s"))[-1].seq


async def test_a_release_while_a_turn_is_open_lets_the_queue_go_on(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await store.cancel("s", cause="user", queue="hold")
    await store.release("s")
    assert (await slot.settle()).outcome is Outcome.TURN


async def test_a_hold_survives_its_worker_and_is_there_for_whoever_looks(world: World, slot: Slot, rival: Slot) -> None:
    """T14: held survives a restart and is visible."""
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s", lease_ms=1)
    await store.cancel("s", cause="user", queue="hold")
    await world.pass_ms(5)
    for partition in range(store.partitions):
        await store.sweep(partition, forget_after_ms=HOUR_MS)
    await rival.acquire("s")
    await rival.settle()
    level = await store.level("s")
    assert level is not None
    assert (level.hold, level.held, level.status) == ("cancel", 1, Status.IDLE)
    found = await store.message("s", "B")
    assert found is not None
    assert found.held

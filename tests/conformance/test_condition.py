"""What a sender may make its submit depend on, and how much may wait; a duplicate comes before it all (M3, M8, U5)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mailslot_contracts.codec import frame
from mailslot_core.errors import Refused
from mailslot_core.inbox import Submission
from mailslot_core.store import Store
from tests.conformance.dialogue import BIRTH, Slot, history, inject, message, prompt, say, sweep, text
from tests.conformance.worlds import PENDING_MAX, World

pytestmark = pytest.mark.conformance

HOUR_MS = 3_600_000


@pytest.fixture
def steered() -> bool:
    return True


STATES = ("nobody", "new", "queued", "open", "rested", "held", "context", "later", "held, open")
BUSY = {"queued", "open", "held", "held, open"}
IDLE = {"nobody", "new", "rested", "held", "context", "later"}


async def settle_in(world: World, slot: Slot, state: str) -> None:
    """Bring the session into the state. Turn 1 is over where it is `rested`."""
    store = world.store
    if state != "nobody":
        await store.create("s", BIRTH)
    if state in ("queued", "open", "rested", "held", "held, open"):
        await prompt(store, "s", "A")
    if state in ("open", "rested", "held, open"):
        await slot.acquire("s")
    if state == "rested":
        await slot.echo()
    if state == "held, open":
        await prompt(store, "s", "B")
    if state.startswith("held"):
        await store.cancel("s", cause="parent", queue="hold")
    if state == "context":
        await inject(store, "s", "C")
    if state == "later":
        await say(store, "s", "A", not_before=world.now_ms() + HOUR_MS)


def conditional(delivery: str = "queue", **conditions: Any) -> Submission:
    return replace(message("N", delivery), **conditions)


async def outcome(store: Store, submission: Submission) -> str:
    try:
        await store.submit("s", submission, BIRTH)
    except Refused as refused:
        return refused.code
    return "queued"


@pytest.mark.parametrize("state", STATES)
async def test_if_busy_refuses_unless_the_agent_is_idle_and_nothing_would_run(
    world: World, slot: Slot, state: str
) -> None:
    await settle_in(world, slot, state)
    assert await outcome(world.store, conditional(if_busy=True)) == ("busy" if state in BUSY else "queued")


@pytest.mark.parametrize("state", STATES)
async def test_if_idle_refuses_instead_of_opening_a_turn(world: World, slot: Slot, state: str) -> None:
    await settle_in(world, slot, state)
    assert await outcome(world.store, conditional("steer", if_idle=True)) == ("idle" if state in IDLE else "queued")


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("state", STATES)
async def test_expect_turn_refuses_unless_that_turn_is_the_open_one(
    world: World, slot: Slot, state: str, turn: int
) -> None:
    await settle_in(world, slot, state)
    fits = turn == 1 and "open" in state
    wanted = "queued" if fits else "turn-mismatch"
    assert await outcome(world.store, conditional("steer", expect_turn=turn)) == wanted


@pytest.mark.parametrize("conditions", [{"if_busy": True}, {"if_idle": True}, {"expect_turn": 9}], ids=str)
async def test_a_refused_condition_makes_no_session(store: Store, conditions: dict[str, Any]) -> None:
    if "if_busy" in conditions:
        await prompt(store, "s", "A")
    before = await store.sessions(after="", limit=10)
    with pytest.raises(Refused):
        await store.submit("s", conditional("steer", **conditions), BIRTH)
    assert await store.sessions(after="", limit=10) == before


@pytest.mark.parametrize("conditions", [{"if_busy": True}, {"if_idle": True}, {"expect_turn": 9}], ids=str)
async def test_a_duplicate_is_answered_before_any_condition(
    store: Store, slot: Slot, conditions: dict[str, Any]
) -> None:
    """Also once the session is closed (M3)."""
    first = await store.submit("s", message("N", "steer"), BIRTH)
    again = await store.submit("s", conditional("steer", **conditions), BIRTH)
    await slot.run("s")
    await store.close_session("s")
    after_all = await store.submit("s", conditional("steer", **conditions), BIRTH)
    assert [(r.cursor, r.duplicate) for r in (again, after_all)] == [(first.cursor, True)] * 2


async def test_of_those_who_ask_for_an_idle_agent_at_once_one_gets_it(store: Store) -> None:
    """U5: exclusivity is decided inside the submit."""
    await store.create("s", BIRTH)
    sent = [replace(message(f"m{number}"), if_busy=True) for number in range(10)]
    outcomes = await asyncio.gather(*(outcome(store, submission) for submission in sent))
    assert sorted(outcomes) == ["busy"] * 9 + ["queued"]


async def test_a_steer_for_a_turn_that_ended_meanwhile_hits_no_other(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    assert await outcome(store, replace(message("S", "steer"), expect_turn=1)) == "queued"
    await slot.echo()
    await slot.echo()
    assert slot.grant.turn == 2
    assert await outcome(store, replace(message("T", "steer"), expect_turn=1)) == "turn-mismatch"


# -- how much may wait ------------------------------------------------------------------------------------------------

SIZE = len(frame(message("m0").data))


async def test_delayed_held_and_injected_messages_take_room_as_well(world: World) -> None:
    store = world.store
    for number in range(0, PENDING_MAX, 3):
        await prompt(store, "s", f"m{number}")
        await inject(store, "s", f"m{number + 1}")
        await say(store, "s", f"m{number + 2}", not_before=world.now_ms() + HOUR_MS)
    await store.cancel("s", cause="user", queue="hold")
    assert await outcome(store, conditional()) == "queue-full"
    await store.withdraw("s", "m2")
    assert await outcome(store, conditional()) == "queued"


@pytest.mark.parametrize("options", [{"pending_bytes_max": 3 * 1024 * 1024}], ids=["3 MiB"])
async def test_the_bytes_that_wait_are_bounded(world: World, slot: Slot) -> None:
    store, mib = world.store, 1024 * 1024
    for number in range(2):
        await prompt(store, "s", f"m{number}", "x" * mib)
    with pytest.raises(Refused) as refused:
        await prompt(store, "s", "large", "x" * mib)
    assert refused.value.code == "queue-full"
    assert refused.value.retry_after_ms is not None
    await prompt(store, "s", "small")
    with pytest.raises(Refused) as refused:
        await store.replace("s", "small", text("x" * mib))
    assert refused.value.code == "queue-full"
    assert (await prompt(store, "s", "m0", "x" * mib)).duplicate
    await store.replace("s", "m0", text("short"))
    assert not (await prompt(store, "s", "large", "x" * mib)).duplicate
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("q[small] replaced[m0] q[large] T1 c[m0]")


@pytest.mark.parametrize("way", ["claim", "withdraw", "clear", "move then claim", "expire"])
async def test_the_bytes_of_what_left_the_queue_are_free_again(world: World, slot: Slot, way: str) -> None:
    store = world.store
    await say(store, "s", "A", expires_at=world.now_ms() + HOUR_MS)
    await store.replace("s", "A", text("other words"))
    if way == "withdraw":
        await store.withdraw("s", "A")
    elif way == "clear":
        await store.cancel("s", cause="user", queue="clear")
    elif way == "expire":
        await world.pass_ms(HOUR_MS)
        await sweep(store)
    else:
        if way.startswith("move"):
            await store.move("s", "A")
        await slot.acquire("s")
    found = await store.indexes("s")
    assert found is not None
    assert found["waitingBytes"] == 0


async def test_the_bytes_that_wait_are_those_of_the_ledger(store: Store) -> None:
    await prompt(store, "s", "m0")
    await inject(store, "s", "longer name")
    found = await store.indexes("s")
    assert found is not None
    assert found["waitingBytes"] == SIZE + len(frame(message("longer name", "inject").data))


async def test_a_full_queue_lets_other_words_in(store: Store) -> None:
    for number in range(PENDING_MAX):
        await prompt(store, "s", f"m{number}")
    await store.replace("s", "m3", text("other words"))
    await store.move("s", "m3")

"""A turn that crashed too often is given up, its letter names what died, and what died can live again (R5, M5)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mailslot_core import invariants
from mailslot_core.errors import Refused
from mailslot_core.inbox import Receipt
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Lane, MessageState, Status, fold, indexes
from mailslot_core.store import DeadLetter, DeadMessage, LetterId, Store, Swept
from mailslot_core.turn import Then
from tests.conformance.dialogue import (
    CAREFUL,
    LEASE_MS,
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
    text,
)
from tests.conformance.worlds import World

pytestmark = pytest.mark.conformance

ONE_CRASH = pytest.mark.parametrize("options", [{"crashes_max": 1}], ids=["one crash"])
HOUR_MS = 3_600_000


@pytest.fixture
def steered() -> bool:
    return True


async def crash(world: World, *slots: Slot) -> None:
    """The leases of these slots run out, and the sweeper has seen it."""
    await world.store.renew([slot.lease for slot in slots], 1)
    await world.pass_ms(1)
    await sweep(world.store)


async def letters(store: Store) -> list[DeadLetter]:
    return await store.dead(after="", limit=100)


async def states(store: Store) -> list[tuple[str, MessageState | None]]:
    (letter,) = await letters(store)
    return [(name, state) for name, state in letter.messages]


async def refusal(attempt: Awaitable[object]) -> str:
    with pytest.raises(Refused) as refused:
        await attempt
    return refused.value.code


async def died(world: World, slot: Slot, session_id: str = "s", message_id: str = "A") -> str:
    """A session that rests after its only message died; the id of the letter."""
    await prompt(world.store, session_id, message_id)
    await slot.acquire(session_id)
    await crash(world, slot)
    assert await slot.acquire(session_id) is None
    return (await letters(world.store))[-1].letter_id


# -- the budget ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"crashes_max": n} for n in (1, 2, 3)], ids=["1", "2", "3"])
async def test_a_turn_is_given_up_at_its_last_crash_and_not_before(
    world: World, slot: Slot, options: dict[str, int]
) -> None:
    store, crashes = world.store, options["crashes_max"]
    await prompt(store, "s", "A")
    await slot.acquire("s")
    for attempt in range(2, crashes + 1):
        await crash(world, slot)
        await slot.acquire("s")
        assert slot.grant.attempt == attempt
        assert await letters(store) == []
    await crash(world, slot)
    assert await slot.acquire("s") is None
    (letter,) = await letters(store)
    assert (letter.turn, letter.reason, letter.attempts) == (1, "interrupted", crashes)
    assert letter.messages == (DeadMessage("A", MessageState.DEAD),)
    assert (await history(store, "s")).endswith("dead[A] t1(interrupted) I")
    dead = next(event for event in await ledger(store, "s") if event.type == "inbox/dead")
    assert dead.data == {"messageId": "A", "reason": "interrupted", "attempts": crashes}


async def test_three_crashes_are_the_budget_unless_it_is_set(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    for _ in range(2):
        await crash(world, slot)
        assert await slot.acquire("s") is not None
    await crash(world, slot)
    assert await slot.acquire("s") is None
    assert len(await letters(store)) == 1


@pytest.mark.parametrize("options", [{"crashes_max": 2}], ids=["two crashes"])
async def test_handbacks_do_not_count(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    for _ in range(5):
        await slot.handback()
        await slot.acquire("s")
    await crash(world, slot)
    await slot.acquire("s")
    await slot.handback()
    await slot.acquire("s")
    assert (slot.grant.attempt, slot.grant.recovered) == (2, "handback")
    await slot.echo()
    assert await letters(store) == []


@pytest.mark.parametrize("options", [{"crashes_max": 2}], ids=["two crashes"])
async def test_each_turn_has_its_own_budget(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await crash(world, slot)
    await slot.acquire("s")
    await slot.echo()
    await crash(world, slot)
    await slot.acquire("s")
    assert (slot.grant.turn, slot.grant.attempt) == (2, 2)
    assert await letters(store) == []


@ONE_CRASH
@pytest.mark.parametrize("died_at", ["boundary", "open", "answered", "calling"])
async def test_a_turn_is_closed_in_this_order(world: World, slot: Slot, died_at: str) -> None:
    """Results for open calls, `step/end`, what was not admitted, `turn/end` (R5)."""
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    facts = [slot.start(), slot.admits("A"), slot.says("let me see", "c2", "c1")]
    at = {"boundary": 0, "open": 2, "answered": 3, "calling": 4}[died_at]
    await slot.commit(*[*facts, slot.call("c1")][:at])
    await steer(store, "s", "S")
    before = await history(store, "s")
    await crash(world, slot)
    await slot.acquire("s")
    told = {
        "boundary": "dead[A] t1(interrupted)",
        "open": "s1 t1(interrupted)",
        "answered": "tr[c1] tr[c2] s1 t1(interrupted)",
        "calling": "tr[c1] tr[c2] s1 t1(interrupted)",
    }
    assert await history(store, "s") == f"{before} {told[died_at]} T2 c[S]"
    events = await ledger(store, "s")
    codes = {event.data["callId"]: event.data["error"]["code"] for event in events if event.type == "tool/result"}
    unknown, not_started = "TOOL_OUTCOME_UNKNOWN", "ABORTED_BEFORE_DISPATCH"
    wanted = {"answered": {"c1": not_started, "c2": not_started}, "calling": {"c1": unknown, "c2": not_started}}
    assert codes == wanted.get(died_at, {})
    assert invariants.violations(events) == []
    assert await store.indexes("s") == indexes(fold("s", events))


@ONE_CRASH
async def test_the_session_goes_on_with_its_next_message_in_the_same_acquire(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await crash(world, slot)
    granted = await slot.acquire("s")
    assert granted is not None
    assert (granted.turn, granted.attempt, granted.recovered, granted.cancel) == (2, 1, None, None)
    assert [claimed.message_id for claimed in granted.batch] == ["B"]
    assert (await history(store, "s")).endswith("dead[A] t1(interrupted) T2 c[B]")
    await slot.echo()
    assert await states(store) == [("A", MessageState.DEAD)]


@ONE_CRASH
async def test_a_session_that_rests_after_giving_up_does_not_hide_those_behind_it(world: World, slot: Slot) -> None:
    store = world.store
    near = [name for name in (f"s{n}" for n in range(20)) if partition_of(name, store.partitions) == 0][:2]
    await prompt(store, near[0], "A")
    await slot.acquire(near[0])
    await crash(world, slot)
    await world.tick()
    await prompt(store, near[1], "A")
    granted = await slot.acquire(near[0])
    assert granted is not None
    assert granted.lease.session_id == near[1]
    assert (await history(store, near[0])).endswith("dead[A] t1(interrupted) I")


@ONE_CRASH
async def test_a_settle_that_hands_out_gives_up_as_an_acquire_does(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    poisoned, healthy = [name for name in (f"s{n}" for n in range(20)) if partition_of(name, store.partitions) == 0][:2]
    await prompt(store, poisoned, "A")
    await prompt(store, poisoned, "B")
    await slot.acquire(poisoned)
    await prompt(store, healthy, "A")
    await rival.acquire(healthy)
    await crash(world, slot)
    await rival.echo(hand_out=True)
    assert (rival.lease.session_id, rival.grant.turn) == (poisoned, 2)
    assert (await history(store, poisoned)).endswith("dead[A] t1(interrupted) T2 c[B]")
    assert len(await letters(store)) == 1


@ONE_CRASH
async def test_an_answer_that_was_lost_gives_nothing_up_twice(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await crash(world, slot)
    granted = await slot.acquire("s")
    before = await ledger(store, "s")
    again = await store.acquire(partition_of("s", store.partitions), slot.owner, slot.calls, LEASE_MS)
    assert again == granted
    assert await ledger(store, "s") == before
    assert len(await letters(store)) == 1


@ONE_CRASH
@pytest.mark.parametrize("admitted", [False, True])
async def test_a_cancel_wins_and_nothing_is_dead(world: World, slot: Slot, admitted: bool) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    if admitted:
        await slot.commit(*slot.begin())
    await store.cancel("s", cause="parent")
    await crash(world, slot)
    assert await slot.acquire("s") is None
    assert (await history(store, "s")).endswith(f"cancel {'s1' if admitted else 'x[A]'} t1(aborted parent) I")
    assert await letters(store) == []


@ONE_CRASH
async def test_a_letter_of_a_turn_that_had_admitted_all_holds_nothing_to_redrive(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await crash(world, slot)
    assert await slot.acquire("s") is None
    (letter,) = await letters(store)
    assert letter.messages == (DeadMessage("A", MessageState.ADMITTED),)
    assert await refusal(store.redrive(letter.letter_id)) == "not-dead"


@ONE_CRASH
async def test_a_careful_session_holds_its_queue_after_giving_up(world: World, slot: Slot) -> None:
    store = world.store
    await store.create("s", CAREFUL)
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await crash(world, slot)
    assert await slot.acquire("s") is None
    assert (await history(store, "s")).endswith("dead[A] t1(interrupted) held I(held 1)")


@ONE_CRASH
async def test_giving_up_pauses_a_goal(world: World, slot: Slot) -> None:
    """G4: any turn that does not complete."""
    store = world.store
    await set_goal(store, "s")
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await crash(world, slot)
    assert await slot.acquire("s") is None
    assert (await history(store, "s")).endswith("dead[A] t1(interrupted) goal(pause) I")
    level = await store.level("s")
    assert level is not None
    assert level.goal is not None
    assert level.goal["reason"] == {"kind": "interrupted"}


@ONE_CRASH
async def test_who_was_thought_dead_cannot_write_into_a_turn_that_was_given_up(
    world: World, slot: Slot, rival: Slot
) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    zombie = slot.lease
    await crash(world, slot)
    await rival.acquire("s")
    before = await ledger(store, "s")
    answers = await store.renew([zombie], LEASE_MS)
    assert not answers[0].alive
    with pytest.raises(Exception, match="no longer owns"):
        await store.commit(zombie, 100, [])
    assert await ledger(store, "s") == before


# -- letters --------------------------------------------------------------------------------------------------------


@ONE_CRASH
async def test_a_letter_names_turn_messages_and_reason(world: World, slot: Slot) -> None:
    store = world.store
    await inject(store, "s", "C")
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await world.pass_ms(500)
    await crash(world, slot)
    assert await slot.acquire("s") is None
    (letter,) = await letters(store)
    assert letter == DeadLetter(
        letter_id=letter.letter_id,
        session_id="s",
        turn=1,
        reason="interrupted",
        attempts=1,
        time=world.now_ms(),
        messages=(DeadMessage("C", MessageState.DEAD), DeadMessage("A", MessageState.DEAD)),
    )
    assert LetterId.read(letter.letter_id).partition == partition_of("s", store.partitions)


@ONE_CRASH
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_letters_come_in_pages_oldest_first_over_all_partitions(world: World, slot: Slot, limit: int) -> None:
    store = world.store
    kept = [await died(world, slot, f"s{number}") for number in range(6)]
    assert {LetterId.read(name).partition for name in kept} == {0, 1}
    paged, after = list[str](), ""
    while page := await store.dead(after=after, limit=limit):
        assert len(page) <= limit
        paged += [letter.letter_id for letter in page]
        assert len(paged) <= len(kept)
        after = paged[-1]
    assert paged == kept


@ONE_CRASH
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_letters_of_one_moment_come_in_pages_without_gaps(world: World, limit: int) -> None:
    """Several in each partition, at one time of the clock: the partition is part of a letter's name."""
    store = world.store
    names = [f"s{number}" for number in range(8)]
    slots = [Slot(store, f"worker-{name}/0") for name in names]
    for name, slot in zip(names, slots, strict=True):
        await prompt(store, name, "A")
        await slot.acquire(name)
    await crash(world, *slots)
    for partition in range(store.partitions):
        assert await store.acquire(partition, "worker-9/0", 1, LEASE_MS) is None
    kept = [letter.letter_id for letter in await letters(store)]
    assert len(set(kept)) == len(names)
    assert {LetterId.read(name)[::2] for name in kept} == {(world.now_ms(), 0), (world.now_ms(), 1)}
    paged = list[str]()
    while page := await store.dead(after=paged[-1] if paged else "", limit=limit):
        paged += [letter.letter_id for letter in page]
        assert len(paged) <= len(kept)
    assert paged == kept


@ONE_CRASH
async def test_a_letter_tells_what_became_of_its_messages(world: World, slot: Slot) -> None:
    store = world.store
    letter_id = await died(world, slot)
    seen = [await states(store)]
    await store.redrive(letter_id)
    seen.append(await states(store))
    await slot.acquire("s")
    seen.append(await states(store))
    await slot.echo()
    seen.append(await states(store))
    assert [found for _, found in (pairs[0] for pairs in seen)] == ["dead", "queued", "claimed", "admitted"]
    await world.pass_ms(100)
    assert await sweep(store, forget_after_ms=200) == Swept()
    assert await states(store) == [("A", MessageState.ADMITTED)]


@ONE_CRASH
async def test_letters_are_counted_in_the_load(world: World, slot: Slot) -> None:
    store = world.store
    await died(world, slot)
    assert (await store.load(partition_of("s", store.partitions))).dead == 1


@ONE_CRASH
async def test_a_dead_message_outlives_the_window_of_other_records(world: World, slot: Slot) -> None:
    """It may be redriven as long as it is dead; once it is not, letter and record are forgotten like others."""
    store = world.store
    letter_id = await died(world, slot)
    await prompt(store, "s", "B")
    await slot.run("s")
    await world.pass_ms(HOUR_MS)
    assert await sweep(store, forget_after_ms=1) == Swept(forgotten=1)
    assert await store.message("s", "B") is None
    assert await states(store) == [("A", MessageState.DEAD)]
    assert (await prompt(store, "s", "A")).duplicate
    await store.redrive(letter_id)
    assert await sweep(store, forget_after_ms=1) == Swept()
    assert await letters(store) == []
    await slot.run("s")
    await world.pass_ms(HOUR_MS)
    assert await sweep(store, forget_after_ms=1) == Swept(forgotten=1)
    assert await store.message("s", "A") is None
    assert await refusal(store.redrive(letter_id)) == "not-found"


@ONE_CRASH
async def test_a_letter_without_anything_dead_is_forgotten_after_the_window(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await crash(world, slot)
    assert await slot.acquire("s") is None
    assert len(await letters(store)) == 1
    await world.pass_ms(HOUR_MS)
    await sweep(store, forget_after_ms=2 * HOUR_MS)
    assert len(await letters(store)) == 1
    await sweep(store, forget_after_ms=HOUR_MS)
    assert await letters(store) == []


# -- redrive --------------------------------------------------------------------------------------------------------


@ONE_CRASH
async def test_a_dead_message_is_queued_again_under_its_id_and_conserved(world: World, slot: Slot) -> None:
    store = world.store
    letter_id = await died(world, slot)
    (receipt,) = await store.redrive(letter_id)
    events = await ledger(store, "s")
    assert receipt == Receipt("A", events[-2].seq, duplicate=False)
    assert events[-2].data == {**message("A").data, "redrive": True}
    assert (await history(store, "s")).endswith("dead[A] t1(interrupted) I q[A] R")
    level = await store.level("s")
    assert level is not None
    assert (level.pending, level.conservation, level.status) == (1, 0, Status.RUNNING)
    await slot.run("s")
    found = await store.indexes("s")
    assert found is not None
    assert (found["queued"], found["settled"]["dead"], found["settled"]["admitted"]) == (2, 1, 1)
    record = await store.message("s", "A")
    assert record is not None
    assert (record.state, record.turn, record.step, record.why) == (MessageState.ADMITTED, 2, 1, None)
    events = await ledger(store, "s")
    assert invariants.violations(events) == []
    assert found == indexes(fold("s", events))


@ONE_CRASH
async def test_every_dead_message_of_a_letter_lives_again_in_its_lane(world: World, slot: Slot) -> None:
    store = world.store
    await inject(store, "s", "C")
    await steer(store, "s", "S")
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await crash(world, slot)
    await prompt(store, "s", "B")
    await slot.acquire("s")
    (letter,) = await letters(store)
    receipts = await store.redrive(letter.letter_id)
    assert [receipt.message_id for receipt in receipts] == ["C", "S", "A"]
    assert (await history(store, "s")).endswith("T2 c[B] qs[C] qs[S] q[A]")


@ONE_CRASH
async def test_a_message_that_was_made_to_steer_lives_again_as_one(world: World, slot: Slot) -> None:
    """Its next life begins in the lane to which it had moved, in the ledger and in every index alike (L1)."""
    store = world.store
    await prompt(store, "s", "A")
    await store.move("s", "A")
    await slot.acquire("s")
    await crash(world, slot)
    await slot.acquire("s")
    (letter,) = await letters(store)
    await store.redrive(letter.letter_id)
    record = await store.message("s", "A")
    assert record is not None
    assert (record.state, record.lane, record.wake) == (MessageState.QUEUED, Lane.NEXT_STEP, True)
    events = await store.events("s", after=record.cursor - 1, limit=1)
    assert (events[0].data["lane"], events[0].data["wake"]) == ("next-step", True)


@ONE_CRASH
async def test_a_message_that_was_redriven_is_not_dead_to_a_second_redrive(world: World, slot: Slot) -> None:
    store = world.store
    letter_id = await died(world, slot)
    await store.redrive(letter_id)
    for _ in range(2):
        before = await world.everything("s")
        assert await refusal(store.redrive(letter_id)) == "not-dead"
        assert await world.everything("s") == before
        await slot.run("s")


@ONE_CRASH
async def test_of_those_who_redrive_at_once_one_does(world: World, slot: Slot) -> None:
    """All of them may have read that the message is dead; the act looks again."""
    store = world.store
    letter_id = await died(world, slot)
    answers = await asyncio.gather(*(store.redrive(letter_id) for _ in range(5)), return_exceptions=True)
    assert sorted(answer.code if isinstance(answer, Refused) else "done" for answer in answers) == [
        "done",
        *["not-dead"] * 4,
    ]
    assert (await history(store, "s")).endswith("t1(interrupted) I q[A] R")


@ONE_CRASH
async def test_a_redriven_message_that_dies_again_has_another_letter(world: World, slot: Slot) -> None:
    store = world.store
    first = await died(world, slot)
    await store.redrive(first)
    await slot.acquire("s")
    await crash(world, slot)
    assert await slot.acquire("s") is None
    found = await letters(store)
    assert [(letter.turn, letter.messages) for letter in found] == [
        (1, (DeadMessage("A", MessageState.DEAD),)),
        (2, (DeadMessage("A", MessageState.DEAD),)),
    ]
    await store.redrive(first)
    assert await refusal(store.redrive(found[1].letter_id)) == "not-dead"
    assert invariants.violations(await ledger(store, "s")) == []


@ONE_CRASH
async def test_after_a_redrive_the_first_submit_is_still_a_duplicate(world: World, slot: Slot) -> None:
    store = world.store
    letter_id = await died(world, slot)
    assert (await prompt(store, "s", "A")).duplicate
    (redriven,) = await store.redrive(letter_id)
    again = await prompt(store, "s", "A")
    assert (again.cursor, again.duplicate) == (redriven.cursor, True)
    await slot.run("s")
    assert (await prompt(store, "s", "A")).duplicate
    assert await refusal(prompt(store, "s", "A", "other words")) == "conflict"


@ONE_CRASH
async def test_a_redriven_message_has_its_latest_words_and_no_times(world: World, slot: Slot) -> None:
    store, now = world.store, world.now_ms()
    await say(store, "s", "A", not_before=now + 10, expires_at=now + HOUR_MS)
    await store.replace("s", "A", text("the latest words"))
    await world.pass_ms(10)
    await sweep(store)
    await slot.acquire("s")
    await crash(world, slot)
    assert await slot.acquire("s") is None
    await world.pass_ms(2 * HOUR_MS)
    (letter,) = await letters(store)
    (receipt,) = await store.redrive(letter.letter_id)
    queued = (await ledger(store, "s"))[receipt.cursor - 1].data
    assert queued == {**message("A").data, "content": text("the latest words"), "redrive": True}
    await sweep(store)
    await slot.acquire("s")
    assert slot.grant.batch[0].data["content"] == text("the latest words")
    events = await ledger(store, "s")
    assert await store.indexes("s") == indexes(fold("s", events))


@ONE_CRASH
async def test_a_redrive_ends_a_hold(world: World, slot: Slot) -> None:
    """A person asked for it."""
    store = world.store
    await store.create("s", CAREFUL)
    letter_id = await died(world, slot)
    await store.redrive(letter_id)
    assert (await history(store, "s")).endswith("held I q[A] released R")


@ONE_CRASH
async def test_a_dead_round_of_a_goal_is_not_redriven(world: World, slot: Slot) -> None:
    """The goal is resumed instead; a message that died beside it is redriven alone."""
    store = world.store
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await slot.acquire("s")
    await crash(world, slot)
    assert await slot.acquire("s") is None
    (letter,) = await letters(store)
    before = await world.everything("s")
    assert await refusal(store.redrive(letter.letter_id)) == "not-allowed"
    assert await world.everything("s") == before


@ONE_CRASH
async def test_what_died_beside_a_goals_round_is_redriven_alone(world: World, slot: Slot) -> None:
    store = world.store
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await steer(store, "s", "S")
    await slot.acquire("s")
    await crash(world, slot)
    assert await slot.acquire("s") is None
    (letter,) = await letters(store)
    receipts = await store.redrive(letter.letter_id)
    assert [receipt.message_id for receipt in receipts] == ["S"]
    assert await refusal(store.redrive(letter.letter_id)) == "not-allowed"


ELSEWHERE: dict[str, Callable[[str], str]] = {
    "no such letter": lambda letter_id: letter_id.replace(letter_id.split("-")[0], "1"),
    "no such number": lambda letter_id: "-".join([letter_id.split("-")[0], "9", letter_id.split("-")[2]]),
    "another partition": lambda letter_id: letter_id[:-1] + str(1 - int(letter_id[-1])),
    "no such partition": lambda letter_id: letter_id[:-1] + "99",
}


@ONE_CRASH
@pytest.mark.parametrize("where", ELSEWHERE)
async def test_a_letter_that_is_not_there_is_not_found(world: World, slot: Slot, where: str) -> None:
    letter_id = await died(world, slot)
    assert await refusal(world.store.redrive(ELSEWHERE[where](letter_id))) == "not-found"


@pytest.mark.parametrize("letter_id", ["", "x", "1-2", "1-2-3-4", "1--2-3"])
async def test_a_name_that_no_letter_can_have_is_no_letters_and_no_place(store: Store, letter_id: str) -> None:
    assert await refusal(store.redrive(letter_id)) == "not-found"
    if letter_id:
        assert await refusal(store.dead(after=letter_id, limit=10)) == "bad-input"


@ONE_CRASH
async def test_a_redrive_goes_on_in_a_session_that_runs(world: World, slot: Slot) -> None:
    store = world.store
    letter_id = await died(world, slot)
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await store.redrive(letter_id)
    settled = await slot.echo(then=Then.TAKE)
    assert settled.grant is not None
    assert [claimed.message_id for claimed in settled.grant.batch] == ["A"]

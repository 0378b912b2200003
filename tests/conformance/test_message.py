"""A queued message can be read, replaced, withdrawn and moved until it is claimed; its record is its own (M6, M7)."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from mailslot_core.errors import Refused
from mailslot_core.session import Lane, MessageState, Status
from mailslot_core.store import Grant, Place, QueuePage, Record, Store, Waiting
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
    text,
)
from tests.conformance.worlds import World

pytestmark = pytest.mark.conformance

HOUR_MS = 3_600_000


@pytest.fixture
def steered() -> bool:
    return True


async def record(store: Store, message_id: str) -> Record:
    found = await store.message("s", message_id)
    assert found is not None
    return found


# -- replace ------------------------------------------------------------------------------------------------------


async def test_other_words_enter_in_the_old_place(store: Store, slot: Slot) -> None:
    for name in ("A", "B", "C"):
        await prompt(store, "s", name)
    changed = await store.replace("s", "B", text("other words"))
    assert (changed.state, changed.cursor) == (MessageState.QUEUED, 4)
    assert (await ledger(store, "s"))[-1].data == {"messageId": "B", "content": text("other words")}
    await slot.acquire("s")
    await slot.echo()
    (claimed,) = slot.grant.batch
    assert claimed.data == {**message("B").data, "content": text("other words")}
    assert (await history(store, "s")).startswith("q[A] R q[B] q[C] replaced[B] T1 c[A] ")


async def test_the_last_of_several_replacements_counts(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    for words in ("one", "two", "three"):
        await store.replace("s", "A", text(words))
    await slot.acquire("s")
    assert slot.grant.batch[0].data["content"] == text("three")


async def test_a_replaced_message_is_still_recognised_by_its_first_body(store: Store) -> None:
    """M3: the body is that of the first submit; a later replace does not change it."""
    first = await prompt(store, "s", "A")
    await store.replace("s", "A", text("other words"))
    again = await prompt(store, "s", "A")
    assert (again.cursor, again.duplicate) == (first.cursor, True)
    with pytest.raises(Refused) as refused:
        await prompt(store, "s", "A", "other words")
    assert refused.value.code == "conflict"


async def test_replacing_wakes_nobody_and_ends_no_hold(store: Store) -> None:
    await inject(store, "s", "C")
    await store.replace("s", "C", text("other words"))
    assert await history(store, "s") == "qs[C] replaced[C]"
    await prompt(store, "s", "A")
    await store.cancel("s", cause="user", queue="hold")
    await store.replace("s", "A", text("other words"))
    assert (await history(store, "s")).endswith("I(held 1) replaced[A]")


# -- withdraw -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["queue", "steer", "inject"])
async def test_a_withdrawn_message_is_never_claimed(store: Store, slot: Slot, delivery: str) -> None:
    await say(store, "s", "A", delivery)
    await prompt(store, "s", "B")
    taken_back = await store.withdraw("s", "A")
    assert (taken_back.state, taken_back.why) == (MessageState.CANCELLED, "withdrawn")
    await slot.acquire("s")
    assert [claimed.message_id for claimed in slot.grant.batch] == ["B"]


async def test_the_last_reason_to_run_is_withdrawn_and_the_agent_rests_in_the_same_act(
    store: Store, slot: Slot
) -> None:
    """S6: a worker that answers the doorbell finds nothing and leaves no trace."""
    await prompt(store, "s", "A")
    await steer(store, "s", "S")
    await store.withdraw("s", "S")
    await store.withdraw("s", "A")
    assert await history(store, "s") == "q[A] R qs[S] x[S] x[A] I"
    assert await slot.acquire("s") is None
    assert await history(store, "s") == "q[A] R qs[S] x[S] x[A] I"


async def test_a_withdrawal_beside_an_open_turn_leaves_the_agent_running(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await steer(store, "s", "S")
    await store.withdraw("s", "S")
    assert (await slot.echo()).outcome is Outcome.IDLE
    assert (await history(store, "s")).endswith("qs[S] x[S] S1 u[A] a s1 t1(completed) I")


async def test_a_goals_round_that_is_withdrawn_pauses_the_goal(store: Store) -> None:
    """G4."""
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await store.withdraw("s", "g1")
    assert (await history(store, "s")).endswith("q[g1] R x[g1] goal(pause) I")
    level = await store.level("s")
    assert level is not None
    assert level.goal is not None
    assert level.goal["reason"] == {"kind": "withdrawn"}


async def test_a_withdrawal_leaves_a_hold_in_force(store: Store) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await store.cancel("s", cause="user", queue="hold")
    await store.withdraw("s", "A")
    level = await store.level("s")
    assert level is not None
    assert (level.hold, level.held, level.pending) == ("cancel", 1, 1)


# -- move: "steer this one" -----------------------------------------------------------------------------------------


async def test_a_moved_message_stands_last_in_the_next_step(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await steer(store, "s", "S")
    moved = await store.move("s", "A")
    assert (moved.lane, moved.cursor) == (Lane.NEXT_STEP, 2)
    await steer(store, "s", "T")
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("qs[S] moved[A] qs[T] T1 c[S,A,T,B]")
    assert (await ledger(store, "s"))[5].data == {"messageId": "A", "lane": "next-step"}


async def test_a_follow_up_that_is_moved_joins_the_running_turn(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await prompt(store, "s", "B")
    await store.move("s", "B")
    settled = await slot.echo()
    assert settled.outcome is Outcome.CONTINUE
    await slot.echo()
    assert (await history(store, "s")).endswith("moved[B] S1 u[A] a s1 c[B] S2 u[B] a s2 t1(completed) I")


async def test_a_move_ends_a_hold(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await store.cancel("s", cause="user", queue="hold")
    await store.move("s", "B")
    assert (await history(store, "s")).endswith("I(held 2) moved[B] released R")
    assert (await ledger(store, "s"))[-2].data == {"cause": "move"}
    await slot.acquire("s")
    assert [claimed.message_id for claimed in slot.grant.batch] == ["B", "A"]


@pytest.mark.parametrize("delivery", ["queue", "steer"])
async def test_a_move_makes_a_delayed_message_due(world: World, slot: Slot, delivery: str) -> None:
    store = world.store
    await say(store, "s", "A", delivery, not_before=world.now_ms() + 1000)
    moved = await store.move("s", "A")
    assert (moved.due, moved.lane) == (True, Lane.NEXT_STEP)
    assert (await history(store, "s")).endswith("moved[A] R")
    await slot.acquire("s")
    await world.pass_ms(1000)
    assert (await sweep(store)).due == 0
    await slot.echo()
    assert "due[A]" not in await history(store, "s")


async def test_injected_context_that_is_moved_wakes_nobody_and_takes_a_new_place(store: Store, slot: Slot) -> None:
    await inject(store, "s", "C")
    await inject(store, "s", "D")
    moved = await store.move("s", "C")
    assert (moved.wake, moved.lane) == (False, Lane.NEXT_STEP)
    assert await history(store, "s") == "qs[C] qs[D] moved[C]"
    await prompt(store, "s", "A")
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("c[D,C,A]")


async def test_a_goals_round_that_is_moved_joins_the_persons_turn(store: Store, slot: Slot) -> None:
    """It steers now, so no follow-up takes its place (G3)."""
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s", "g1"))
    await store.move("s", "g1")
    await prompt(store, "s", "H")
    await prompt(store, "s", "J")
    await slot.acquire("s")
    assert (await history(store, "s")).endswith("q[g1] R moved[g1] q[H] q[J] T1 c[g1,H]")


# -- against the claim ----------------------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[Store], Awaitable[Record]]] = {
    "replace": lambda store: store.replace("s", "A", text("other words")),
    "withdraw": lambda store: store.withdraw("s", "A"),
    "move": lambda store: store.move("s", "A"),
}


DONE = {"replace": "inbox/replaced", "withdraw": "inbox/cancelled", "move": "inbox/moved"}


@pytest.mark.parametrize("change", CHANGES)
async def test_against_a_claim_one_wins_and_the_other_hears_of_it(
    store: Store, slot: Slot, change: str, rng: random.Random
) -> None:
    """Both at once, again and again: whoever comes second is told, and the ledger says what was answered."""
    told = set()
    for _ in range(20):
        await prompt(store, "s", "A")
        acts = [answer_to(CHANGES[change](store)), slot.acquire("s")]
        rng.shuffle(acts)
        answers = await asyncio.gather(*acts)
        code = next(answer for answer in answers if isinstance(answer, str))
        kinds = [event.type for event in await ledger(store, "s")]
        claimed = kinds.index("inbox/claimed") if "inbox/claimed" in kinds else len(kinds)
        assert (DONE[change] in kinds[:claimed]) == (code == "done")
        assert DONE[change] not in kinds[claimed:]
        assert code in ("done", "already-claimed")
        told.add(code)
        if any(isinstance(answer, Grant) for answer in answers):
            await slot.echo()
        await store.close_session("s", erase=True)
    assert told == {"done", "already-claimed"}


async def answer_to(change: Awaitable[Record]) -> str:
    try:
        await change
    except Refused as refused:
        return refused.code
    return "done"


@pytest.mark.parametrize("change", CHANGES)
async def test_who_comes_after_the_claim_is_told_and_who_came_before_is_not_undone(
    store: Store, slot: Slot, change: str
) -> None:
    await prompt(store, "s", "A")
    changed = await CHANGES[change](store)
    granted = await slot.acquire("s")
    assert (granted is None) == (changed.state is MessageState.CANCELLED)
    if granted is not None:
        with pytest.raises(Refused) as refused:
            await CHANGES[change](store)
        assert refused.value.code == "already-claimed"


# -- the record of a message ------------------------------------------------------------------------------------------


async def test_a_record_tells_each_state_of_a_message_and_never_how_a_turn_ended(world: World, slot: Slot) -> None:
    store = world.store
    receipt = await prompt(store, "s", "A")
    queued = Record("A", MessageState.QUEUED, Lane.NEXT_TURN, True, True, False, receipt.cursor, None, None, None)
    assert await record(store, "A") == queued
    await slot.acquire("s")
    assert await record(store, "A") == queued._replace(state=MessageState.CLAIMED)
    await slot.commit(*slot.begin())
    admitted = queued._replace(state=MessageState.ADMITTED, turn=1, step=1)
    assert await record(store, "A") == admitted
    await slot.settle(slot.end(), end="error")
    assert await record(store, "A") == admitted


async def test_a_record_tells_why_a_message_was_not_admitted(world: World, slot: Slot) -> None:
    store = world.store
    names = ("refused", "failed", "aborted", "cleared")
    for name in names:
        await prompt(store, "s", name)
    await slot.acquire("s")
    await slot.settle(slot.rejects("refused", "off topic"), end="blocked")
    await slot.settle(end="error")
    await store.cancel("s", cause="user", queue="clear")
    await slot.settle()
    told = {name: await record(store, name) for name in names}
    assert {name: (str(r.state), r.turn, r.step, r.why) for name, r in told.items()} == {
        "refused": ("rejected", 1, None, "off topic"),
        "failed": ("rejected", 2, None, "bad-request"),
        "aborted": ("cancelled", None, None, "cancel"),
        "cleared": ("cancelled", None, None, "cancel"),
    }


async def test_a_record_of_an_expired_message_gives_no_reason(world: World) -> None:
    store = world.store
    await say(store, "s", "A", expires_at=world.now_ms() + 50)
    await world.pass_ms(50)
    await sweep(store)
    found = await record(store, "A")
    assert (found.state, found.turn, found.why) == (MessageState.EXPIRED, None, None)


async def test_a_record_says_that_its_message_waits_behind_a_hold_or_for_its_time(world: World) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await inject(store, "s", "C")
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await store.cancel("s", cause="user", queue="hold")
    told = {name: await record(store, name) for name in ("A", "C", "later")}
    assert {name: (r.due, r.held) for name, r in told.items()} == {
        "A": (True, True),
        "C": (True, False),
        "later": (False, False),
    }


async def test_nobody_has_no_record(store: Store) -> None:
    assert await store.message("s", "A") is None
    await prompt(store, "s", "A")
    assert await store.message("s", "B") is None


async def test_a_record_is_there_for_its_window(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.run("s")
    await world.pass_ms(10)
    assert await record(store, "A")
    await sweep(store, forget_after_ms=5)
    assert await store.message("s", "A") is None


# -- the queue --------------------------------------------------------------------------------------------------------


async def test_the_queue_is_shown_as_it_would_be_taken(world: World, slot: Slot) -> None:
    """Claimed, next step, next turns, and last what is not due; each with its present content."""
    store = world.store
    await prompt(store, "s", "claimed")
    await inject(store, "s", "claimed too")
    await slot.acquire("s")
    await say(store, "s", "later", not_before=world.now_ms() + HOUR_MS)
    await say(store, "s", "later still", "inject", not_before=world.now_ms() + 5)
    await prompt(store, "s", "B")
    await steer(store, "s", "S")
    await prompt(store, "s", "C")
    await inject(store, "s", "D")
    await store.replace("s", "B", text("other words"))
    page = await store.queue("s", after="", limit=100)
    assert page.next is None
    names = [waiting.record.message_id for waiting in page.messages]
    assert names == ["claimed", "claimed too", "S", "D", "B", "C", "later", "later still"]
    assert page.messages[4] == Waiting(await record(store, "B"), {**message("B").data, "content": text("other words")})
    assert [waiting.record for waiting in page.messages] == [await record(store, name) for name in names]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
async def test_the_queue_comes_in_pages_without_gaps(world: World, slot: Slot, limit: int) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await inject(store, "s", "A2")
    await slot.acquire("s")
    for number in range(2):
        await say(store, "s", f"later{number}", not_before=world.now_ms() + HOUR_MS)
        await steer(store, "s", f"S{number}")
        await prompt(store, "s", f"B{number}")
    whole = await store.queue("s", after="", limit=100)
    assert len(whole.messages) == 8
    paged, after = list[Waiting](), ""
    while True:
        page = await store.queue("s", after=after, limit=limit)
        assert len(page.messages) <= limit
        paged += page.messages
        if page.next is None:
            break
        assert len(page.messages) == limit
        assert page.next != after
        after = page.next
    assert tuple(paged) == whole.messages


async def test_a_page_goes_on_where_it_ended_though_what_it_ended_with_has_left(store: Store, slot: Slot) -> None:
    for name in ("A", "B", "C", "D"):
        await prompt(store, "s", name)
    page = await store.queue("s", after="", limit=2)
    assert page.next is not None
    await store.withdraw("s", "B")
    await slot.acquire("s")
    rest = await store.queue("s", after=page.next, limit=10)
    assert [waiting.record.message_id for waiting in rest.messages] == ["C", "D"]


async def test_a_page_of_large_messages_is_cut_and_says_so(store: Store) -> None:
    sent = [f"m{number}" for number in range(12)]
    for name in sent:
        await prompt(store, "s", name, "x" * 1_000_000)
    pages = [await store.queue("s", after="", limit=1_000)]
    while pages[-1].next is not None:
        pages.append(await store.queue("s", after=pages[-1].next, limit=1_000))
    assert len(pages) > 1
    assert [waiting.record.message_id for page in pages for waiting in page.messages] == sent


async def test_an_empty_queue_is_an_empty_page(store: Store) -> None:
    await store.create("s", BIRTH)
    assert await store.queue("s", after="", limit=10) == QueuePage((), None)
    level = await store.level("s")
    assert level is not None
    assert level.status is Status.IDLE


async def test_nobody_has_no_queue(store: Store) -> None:
    with pytest.raises(Refused) as refused:
        await store.queue("s", after="", limit=10)
    assert refused.value.code == "not-found"


@pytest.mark.parametrize("after", ["1", "a-b", "1-2-3", "-1-2", "1-", "1-²", f"1-{'9' * 30}"])
async def test_a_place_that_no_page_ended_with_is_refused(store: Store, after: str) -> None:
    await prompt(store, "s", "A")
    with pytest.raises(Refused) as refused:
        await store.queue("s", after=after, limit=10)
    assert refused.value.code == "bad-input"


def test_a_place_is_read_as_it_is_written() -> None:
    assert Place.read(str(Place(2, 17))) == Place(2, 17)

"""Committing and settling: facts come in an order the grammar allows, a steer is never lost at the edge of a turn."""

import asyncio
from typing import Any

import pytest

from mailslot_core.errors import Refused
from mailslot_core.inbox import Submission
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Lane, Phase, Status
from mailslot_core.store import Store
from mailslot_core.turn import Draft, Outcome, Then
from tests.conformance.dialogue import (
    BIRTH,
    CAREFUL,
    LEASE_MS,
    Slot,
    ending,
    history,
    inject,
    ledger,
    message,
    prompt,
    steer,
    text,
)
from tests.conformance.worlds import World, redis_world
from tests.servers import Server

pytestmark = pytest.mark.conformance


# -- taking at a boundary ---------------------------------------------------------------------------------------


async def test_at_a_boundary_all_that_waits_for_a_step_is_claimed_and_nothing_else(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin(), slot.says("well"), slot.end())
    await inject(store, "s", "C")
    await prompt(store, "s", "B")
    await steer(store, "s", "S")
    await slot.take()
    assert [claimed.message_id for claimed in slot.grant.batch] == ["C", "S"]
    assert (await ledger(store, "s"))[-1].data == {"turn": 1, "step": 2, "messageIds": ["C", "S"]}


async def test_taking_where_nothing_waits_appends_nothing(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    before = await ledger(store, "s")
    await slot.take()
    assert await ledger(store, "s") == before


async def test_a_commit_may_take_in_the_same_act(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin(), slot.says("well", "c1"), slot.call("c1"))
    await steer(store, "s", "S")
    await slot.commit(slot.result("c1"), slot.end(), take=True)
    assert (await history(store, "s")).endswith("tr[c1] s1 c[S]")


async def test_nothing_is_taken_inside_a_step(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await steer(store, "s", "S")
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await slot.take()
    assert refused.value.code == "grammar"
    assert await world.everything("s") == before


async def test_a_cancelled_turn_takes_nothing_more(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await steer(store, "s", "S")
    await store.cancel("s", cause="user")
    await slot.take()
    assert [claimed.message_id for claimed in slot.grant.batch] == ["A"]


# -- committing -------------------------------------------------------------------------------------------------


async def test_facts_are_kept_in_their_order_and_under_the_owners_epoch(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    drafts = [*slot.begin(), slot.retry(), slot.spends(12, 3), slot.says("let me see", "c1")]
    await slot.commit(*drafts)
    more = [slot.call("c1"), slot.result("c1"), slot.end()]
    await slot.commit(*more)
    kept = (await ledger(store, "s"))[-8:]
    assert [(event.type, event.data) for event in kept] == [(draft.type, draft.data) for draft in [*drafts, *more]]
    assert {event.epoch for event in kept} == {1}


async def test_a_commit_answers_with_the_turn_as_it_is_then(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    grant = await slot.commit(*slot.begin(), slot.says("let me see", "c1", "c2"), slot.call("c1"))
    assert (grant.step, grant.phase, grant.batch, dict(grant.calls)) == (
        1,
        Phase.ANSWERED,
        (),
        {"c1": "started", "c2": "asked"},
    )
    await store.cancel("s", cause="user")
    assert (await slot.commit(slot.result("c1"))).cancel == "user"


async def test_a_message_that_a_hook_added_is_admitted(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.settle(slot.start(), slot.admits("from the hook"), slot.admits("A"), slot.says("hello"), slot.end())
    assert (await history(store, "s")).endswith("S1 u[from the hook] u[A] a s1 t1(completed) I")
    level = await store.level("s")
    assert level is not None
    assert level.conservation == 0


async def test_usage_is_added_up(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin(), slot.spends(10, 1, 0.25), slot.spends(5, 2, 0.5), slot.spends(1, 1))
    level = await store.level("s")
    assert level is not None
    assert level.usage == {"inputTokens": 16, "outputTokens": 4, "cost": 0.75}


async def test_what_a_caller_does_to_its_data_afterwards_does_not_change_the_ledger(store: Store, slot: Slot) -> None:
    data: dict[str, Any] = {**message("A").data, "content": text("as it was sent")}
    await store.submit("s", Submission("A", Lane.NEXT_TURN, True, data, "f"), BIRTH)
    data["content"][0]["text"] = "another"
    assert (await ledger(store, "s"))[1].data["content"] == text("as it was sent")
    await slot.acquire("s")
    assert slot.grant.batch[0].data["content"] == text("as it was sent")


def allowed(slot: Slot) -> list[Draft]:
    """A whole step that asks for two calls."""
    return [*slot.begin(), slot.says("let me see", "c1", "c2")]


def at(turn: int, step: int, **data: Any) -> dict[str, Any]:
    return {"turn": turn, "step": step, **data}


NONSENSE: dict[str, list[Draft]] = {
    "a step that does not come next": [Draft("step/start", at(1, 2))],
    "a step of another turn": [Draft("step/start", at(2, 1))],
    "a message outside a step": [Draft("user/message", at(1, 0, messageId="A", content=[], source={}))],
    "an answer outside a step": [Draft("assistant/message", at(1, 0, content=[], model="m"))],
    "the end of a step that is not open": [Draft("step/end", at(1, 0))],
    "a call outside an answer": [Draft("tool/call", at(1, 0, callId="c1", name="n", arguments={}))],
    "an act of the store": [Draft("turn/end", {"turn": 1, "reason": {"kind": "completed"}})],
    "a status": [Draft("agent/status", {"status": "idle"})],
    "a message of its own making": [Draft("inbox/queued", dict(message("X").data))],
    "a type that nobody knows": [Draft("unheard/of", at(1, 0))],
    "a rejection of what it did not claim": [Draft("inbox/rejected", {"messageId": "X", "turn": 1, "reason": "r"})],
    "a rejection of what waits": [Draft("inbox/rejected", {"messageId": "B", "turn": 1, "reason": "r"})],
}

NONSENSE_IN_A_STEP: dict[str, list[Draft]] = {
    "a second step": [Draft("step/start", at(1, 2))],
    "a message that waits": [Draft("user/message", at(1, 1, messageId="B", content=[], source={}))],
    "a message admitted before": [Draft("user/message", at(1, 1, messageId="A", content=[], source={}))],
    "a rejection": [Draft("inbox/rejected", {"messageId": "A", "turn": 1, "reason": "r"})],
    "a call before the answer": [Draft("tool/call", at(1, 1, callId="c1", name="n", arguments={}))],
    "a result before the answer": [Draft("tool/result", at(1, 1, callId="c1", content=""))],
    "a retry in another step": [Draft("llm/retry", at(1, 2, attempt=1, delayMs=1, code="c", message="m"))],
    "the end of another step": [Draft("step/end", at(1, 2))],
}

NONSENSE_AFTER_AN_ANSWER: dict[str, list[Draft]] = {
    "a second answer": [Draft("assistant/message", at(1, 1, content=[], model="m"))],
    "a message between a call and its result": [Draft("user/message", at(1, 1, messageId="X", content=[], source={}))],
    "a call that was not asked for": [Draft("tool/call", at(1, 1, callId="c3", name="n", arguments={}))],
    "a result that nobody waits for": [Draft("tool/result", at(1, 1, callId="c3", content=""))],
    "a call made twice": [Draft("tool/call", at(1, 1, callId="c1", name="n", arguments={}))] * 2,
    "a result given twice": [Draft("tool/result", at(1, 1, callId="c1", content=""))] * 2,
    "an end with open calls": [Draft("step/end", at(1, 1))],
    "a retry after the answer": [Draft("llm/retry", at(1, 1, attempt=1, delayMs=1, code="c", message="m"))],
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_at_a_boundary_nothing_is_kept_of(world: World, slot: Slot, what: str) -> None:
    await prompt(world.store, "s", "A")
    await prompt(world.store, "s", "B")
    await slot.acquire("s")
    await refuses(world, slot, [], NONSENSE[what])


@pytest.mark.parametrize("what", NONSENSE_IN_A_STEP)
async def test_in_a_step_nothing_is_kept_of(world: World, slot: Slot, what: str) -> None:
    await prompt(world.store, "s", "A")
    await prompt(world.store, "s", "B")
    await slot.acquire("s")
    await refuses(world, slot, list(slot.begin()), NONSENSE_IN_A_STEP[what])


@pytest.mark.parametrize("what", NONSENSE_AFTER_AN_ANSWER)
async def test_after_an_answer_nothing_is_kept_of(world: World, slot: Slot, what: str) -> None:
    await prompt(world.store, "s", "A")
    await slot.acquire("s")
    await refuses(world, slot, allowed(slot), NONSENSE_AFTER_AN_ANSWER[what])


async def refuses(world: World, slot: Slot, before: list[Draft], nonsense: list[Draft]) -> None:
    """Refused after what may come before it, in one act with it and in an act of its own; the turn can go on."""
    kept = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await slot.commit(*before, *nonsense)
    assert refused.value.code == "grammar"
    assert await world.everything("s") == kept
    await slot.commit(*before)
    kept = await world.everything("s")
    for attempt in (slot.commit(*nonsense), slot.settle(*nonsense)):
        with pytest.raises(Refused) as refused:
            await attempt
        assert refused.value.code == "grammar"
        assert await world.everything("s") == kept
    await slot.commit()


# -- settling -----------------------------------------------------------------------------------------------------


async def test_idle_is_said_in_the_act_that_ends_the_last_turn(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    settled = await slot.echo()
    assert (settled.outcome, settled.grant) == (Outcome.IDLE, None)
    assert (await history(store, "s")).endswith("t1(completed) I")
    level = await store.level("s")
    assert level is not None
    assert (level.status, level.turn, level.reasons, level.idle_cursor) == (Status.IDLE, None, (), level.cursor)


async def test_a_settle_hands_out_the_sessions_next_turn(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    settled = await slot.echo()
    assert settled.outcome is Outcome.TURN
    assert (slot.grant.turn, slot.grant.step, [claimed.message_id for claimed in slot.grant.batch]) == (2, 0, ["B"])
    assert (await history(store, "s")).endswith("t1(completed) T2 c[B]")


async def test_two_follow_ups_never_share_a_turn(store: Store, slot: Slot) -> None:
    for name in ("A", "B", "C"):
        await prompt(store, "s", name)
    await slot.run("s")
    claims = [event.data["messageIds"] for event in await ledger(store, "s") if event.type == "inbox/claimed"]
    assert claims == [["A"], ["B"], ["C"]]


@pytest.mark.parametrize("end", ["completed", "max-tokens"])
async def test_a_turn_that_could_complete_goes_on_while_a_steer_waits(store: Store, slot: Slot, end: str) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await inject(store, "s", "C")
    await steer(store, "s", "S")
    settled = await slot.settle(slot.says("well"), slot.end(), end=end)
    assert settled.outcome is Outcome.CONTINUE
    assert [claimed.message_id for claimed in slot.grant.batch] == ["C", "S"]
    assert (await history(store, "s")).endswith("a s1 c[C,S]")


async def test_injected_context_does_not_prolong_a_turn(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await inject(store, "s", "C")
    assert (await slot.echo()).outcome is Outcome.IDLE
    level = await store.level("s")
    assert level is not None
    assert level.pending == 1


@pytest.mark.parametrize("end", ["error", "aborted"])
async def test_a_steer_that_waits_at_another_end_opens_the_next_turn(store: Store, slot: Slot, end: str) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await steer(store, "s", "S")
    assert (await slot.settle(*slot.begin(), slot.end(), end=end)).outcome is Outcome.TURN
    assert [claimed.message_id for claimed in slot.grant.batch] == ["S", "B"]


async def test_a_worker_may_end_its_turn_and_leave_the_rest_to_others(store: Store, slot: Slot, rival: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    settled = await slot.echo(then=Then.YIELD)
    assert (settled.outcome, settled.grant) == (Outcome.RELEASED, None)
    assert (await history(store, "s")).endswith("t1(completed)")
    await rival.acquire("s")
    assert (rival.grant.turn, rival.grant.recovered) == (2, None)


async def test_who_asks_for_it_is_handed_the_next_ready_session(store: Store, slot: Slot) -> None:
    near = [name for name in (f"s{n}" for n in range(20)) if partition_of(name, store.partitions) == 0][:2]
    for name in near:
        await prompt(store, name, "A")
    await slot.acquire(near[0])
    first = slot.lease.session_id
    settled = await slot.echo(hand_out=True)
    assert settled.outcome is Outcome.IDLE
    assert {first, slot.lease.session_id} == set(near)
    assert (await slot.echo(hand_out=True)).grant is None


async def test_a_session_that_was_left_may_be_handed_out_again_at_once(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    settled = await slot.echo(then=Then.YIELD, hand_out=True)
    assert settled.outcome is Outcome.RELEASED
    assert (slot.lease.session_id, slot.lease.epoch, slot.grant.turn) == ("s", 2, 2)


async def test_a_turns_end_tells_why_and_what_it_cost(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    usage = {"inputTokens": 7, "outputTokens": 2}
    await slot.settle(*slot.begin(), slot.end(), end="error", usage=usage)
    ended = next(event for event in await ledger(store, "s") if event.type == "turn/end")
    assert ended.data == {"turn": 1, "reason": ending("error").reason, "usage": usage}


@pytest.mark.parametrize("end", ["completed", "max-tokens", "blocked"])
async def test_a_turn_cannot_end_well_with_messages_it_did_not_admit(world: World, slot: Slot, end: str) -> None:
    await prompt(world.store, "s", "A")
    await slot.acquire("s")
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await slot.settle(end=end)
    assert refused.value.code == "grammar"
    assert await world.everything("s") == before


@pytest.mark.parametrize("end", ["interrupted", "unheard-of"])
async def test_a_worker_cannot_end_a_turn_as(world: World, slot: Slot, end: str) -> None:
    await prompt(world.store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin(), slot.end())
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await slot.settle(end=end)
    assert refused.value.code == "grammar"
    assert await world.everything("s") == before


async def test_a_turn_cannot_end_inside_a_step(world: World, slot: Slot) -> None:
    await prompt(world.store, "s", "A")
    await slot.acquire("s")
    before = await world.everything("s")
    with pytest.raises(Refused) as refused:
        await slot.settle(*slot.begin())
    assert refused.value.code == "grammar"
    assert await world.everything("s") == before


@pytest.mark.parametrize(
    ("end", "told", "state", "why"),
    [
        ("error", "rej[S] rej[A] t1(error)", "rejected", "bad-request"),
        ("aborted", "cancel x[S] x[A] t1(aborted hook)", "cancelled", "cancel"),
    ],
)
async def test_what_a_turn_claimed_and_did_not_admit_is_settled_before_its_end(
    store: Store, slot: Slot, end: str, told: str, state: str, why: str
) -> None:
    await prompt(store, "s", "A")
    await steer(store, "s", "S")
    await slot.acquire("s")
    await slot.settle(end=end)
    assert (await history(store, "s")).endswith(f"T1 c[S,A] {told} I")
    indexes = await store.indexes("s")
    assert indexes is not None
    assert {(record["state"], record["why"]) for record in indexes["messages"].values()} == {(state, why)}


async def test_a_batch_that_a_hook_rejected_ends_blocked(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    assert (await slot.settle(slot.rejects("A", "the hook said no"), end="blocked")).outcome is Outcome.TURN
    assert (await history(store, "s")).endswith("c[A] rej[A] t1(blocked) T2 c[B]")
    indexes = await store.indexes("s")
    assert indexes is not None
    assert (indexes["messages"]["A"]["turn"], indexes["messages"]["A"]["why"]) == (1, "the hook said no")


async def test_a_hook_may_reject_a_part_of_a_batch(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await steer(store, "s", "S")
    await slot.acquire("s")
    await slot.settle(slot.rejects("S"), slot.start(), slot.admits("A"), slot.says("hello"), slot.end())
    assert (await history(store, "s")).endswith("c[S,A] rej[S] S1 u[A] a s1 t1(completed) I")


@pytest.mark.parametrize("end", ["error", "blocked"])
async def test_a_careful_session_holds_its_queue_after_a_failure(store: Store, slot: Slot, end: str) -> None:
    await store.create("s", CAREFUL)
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    settled = await slot.settle(*slot.begin(), slot.end(), end=end)
    assert settled.outcome is Outcome.IDLE
    assert (await history(store, "s")).endswith(f"t1({end}) held I(held 1)")
    level = await store.level("s")
    assert level is not None
    assert (level.held, level.pending, level.status) == (1, 1, Status.IDLE)


@pytest.mark.parametrize("end", ["completed", "max-tokens", "aborted"])
async def test_a_careful_session_holds_nothing_after_another_end(store: Store, slot: Slot, end: str) -> None:
    await store.create("s", CAREFUL)
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.settle(*slot.begin(), slot.end(), end=end)
    assert "held" not in await history(store, "s")


async def test_a_messages_record_never_says_how_the_turn_ended(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.settle(*slot.begin(), slot.end(), end="error")
    indexes = await store.indexes("s")
    assert indexes is not None
    record = indexes["messages"]["A"]
    assert (record["state"], record["turn"], record["step"], record["why"]) == ("admitted", 1, 1, None)


async def test_thousands_of_messages_can_be_claimed_at_once(server: Server) -> None:
    """Lua's `unpack` gives up at 8,000 values; an act that fails after its first write leaves a broken session."""
    many = 9_000
    async with redis_world(server, pending_max=2 * many) as world:
        store, slot = world.store, Slot(world.store)
        await asyncio.gather(*(inject(store, "s", f"c{number}") for number in range(many)))
        await prompt(store, "s", "A")
        await slot.acquire("s")
        await steer(store, "s", "S")
        await slot.take()
        assert len(slot.grant.batch) == many + 2
        settled = await slot.settle(*slot.begin(), slot.says("so much"), slot.end())
        assert settled.outcome is Outcome.IDLE
        level = await store.level("s")
        assert level is not None
        assert (level.pending, level.conservation) == (0, 0)


async def test_a_lease_of_the_handed_out_session_is_as_long_as_asked_for(world: World, slot: Slot) -> None:
    store = world.store
    near = [name for name in (f"s{n}" for n in range(20)) if partition_of(name, store.partitions) == 0][:2]
    for name in near:
        await prompt(store, name, "A")
    await slot.acquire(near[0])
    done = [*slot.begin(), slot.says("hello"), slot.end()]
    options: dict[str, Any] = {"then": Then.TAKE, "hand_out": True, "lease_ms": 1}
    await store.settle(slot.lease, slot.next_call(), done, ending("completed"), **options)
    await world.pass_ms(3)
    swept = await store.sweep(0, forget_after_ms=LEASE_MS)
    assert swept.lapsed == 1

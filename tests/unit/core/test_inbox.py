"""The life of one message: queued once, changed only while it waits, one end and no other."""

from collections.abc import Callable

import pytest

from mailslot_core import inbox, invariants
from mailslot_core.errors import Refused
from mailslot_core.inbox import DOOR_SOURCES, Submission
from mailslot_core.session import MessageState, Session, indexes
from tests.conformance.dialogue import message, text
from tests.unit.core.agent import NOW_MS, ROOM, Agent

CHANGES: dict[str, Callable[[Agent, str], object]] = {
    "withdraw": lambda agent, name: agent.withdraw(name),
    "replace": lambda agent, name: agent.replace(name),
    "move": lambda agent, name: agent.move(name),
}


def code_of(attempt: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        attempt()
    return refused.value.code


# -- submit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delivery", "told"), [("queue", "q[A] R"), ("steer", "qs[A] R"), ("inject", "qs[A]")])
def test_a_message_is_queued_and_wakes_if_it_wakes(delivery: str, told: str) -> None:
    agent = Agent()
    assert agent.say("A", delivery).cursor == 1
    assert agent.told == told


def test_a_closed_session_takes_nothing() -> None:
    agent = Agent()
    agent.do(lambda act: act.append("session/closed", {"cause": "user"}))
    assert code_of(lambda: agent.prompt("A")) == "closed"
    assert len(agent.events) == 1


def test_a_full_queue_takes_nothing_more() -> None:
    agent = Agent()
    for number in range(ROOM.messages_max):
        agent.inject(f"m{number}")
    assert code_of(lambda: agent.prompt("A")) == "queue-full"
    agent.withdraw("m0")
    agent.prompt("A")


@pytest.mark.parametrize("source", ["user", "system", "plugin", "schedule", "child", "goal"])
def test_who_may_end_a_hold(source: str) -> None:
    data = {**message("A").data, "source": {"kind": source}}
    said = message("A")
    submission = Submission("A", said.lane, said.wake, data, "f")
    assert submission.from_door == (source in {"user", "system", "plugin"}) == (source in DOOR_SOURCES)
    agent = Agent()
    agent.hold()
    agent.submit(submission)
    assert agent.told == ("held q[A] released R" if submission.from_door else "held q[A]")


@pytest.mark.parametrize("delivery", ["inject", "queue, later"])
def test_what_does_not_wake_ends_no_hold(delivery: str) -> None:
    agent = Agent()
    agent.hold()
    if delivery == "inject":
        agent.inject("A")
    else:
        agent.prompt("A", notBefore=NOW_MS + 1)
    assert "released" not in agent.told


# -- withdraw, replace, move --------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("state", ["unknown", "claimed", "admitted", "rejected", "cancelled", "expired", "dead"])
def test_only_a_message_that_waits_can_be_changed(change: str, state: str) -> None:
    agent = Agent()
    if state != "unknown":
        reach(agent, state)
    before = agent.told
    wanted = {"unknown": "not-found", "claimed": "already-claimed"}.get(state, "already-settled")
    assert code_of(lambda: CHANGES[change](agent, "A")) == wanted
    assert agent.told == before


def reach(agent: Agent, state: str) -> None:
    """Bring message A into the state."""
    agent.prompt("A", **({"expiresAt": NOW_MS + 5} if state == "expired" else {}))
    if state == "cancelled":
        agent.withdraw("A")
    elif state == "expired":
        agent.sweep(after_ms=5)
    else:
        agent.take()
    if state == "admitted":
        agent.echo()
    elif state == "rejected":
        agent.settle(end="error")
    elif state == "dead":
        agent.give_up()
    assert agent.session.messages["A"].state == state


def test_the_last_reason_to_run_is_withdrawn_and_the_agent_rests() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.steer("S")
    agent.withdraw("A")
    assert agent.told == "q[A] R qs[S] x[A]"
    agent.withdraw("S")
    assert agent.told == "q[A] R qs[S] x[A] x[S] I"
    assert not agent.take()


def test_a_withdrawal_beside_an_open_turn_leaves_it_running() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.prompt("B")
    agent.withdraw("B")
    assert agent.told.endswith("q[B] x[B]")


def test_a_goals_message_that_is_withdrawn_pauses_the_goal() -> None:
    agent = Agent()
    agent.set_goal()
    agent.next_round("g1")
    agent.withdraw("g1")
    assert agent.told.endswith("q[g1] R x[g1] goal(pause) I")
    assert agent.session.goal is not None
    assert agent.session.goal["reason"] == {"kind": "withdrawn"}


def test_new_words_keep_their_place() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.prompt("B")
    CHANGES["replace"](agent, "A")
    record = agent.session.messages["A"]
    assert (record.place, record.queued_seq, record.body_seq) == (1, 1, 4)
    assert agent.events[-1].data == {"messageId": "A", "content": text("other words")}
    agent.take()
    assert agent.told.endswith("replaced[A] T1 c[A]")


def test_a_follow_up_that_is_moved_steers_at_the_place_of_its_move() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.prompt("B")
    agent.steer("S")
    CHANGES["move"](agent, "B")
    agent.take()
    assert agent.told == "q[A] R q[B] qs[S] moved[B] T1 c[S,B,A]"


def test_a_move_ends_a_hold_and_makes_due() -> None:
    agent = Agent()
    agent.hold()
    agent.prompt("A", notBefore=NOW_MS + 1000)
    CHANGES["move"](agent, "A")
    assert agent.told == "held q[A, notBefore] moved[A] released R"


# -- times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("not_before", "due"), [(None, True), (NOW_MS - 1, True), (NOW_MS, True), (NOW_MS + 1, False)])
def test_a_message_is_due_at_once_unless_its_time_lies_ahead(not_before: int | None, due: bool) -> None:
    agent = Agent()
    agent.prompt("A", **({} if not_before is None else {"notBefore": not_before}))
    assert agent.session.messages["A"].due is due
    assert ("R" in agent.told.split()) is due


def test_a_time_of_0_is_no_time() -> None:
    """1970 is long over: the index says no time, as a store that keeps 0 for none says."""
    agent = Agent()
    agent.prompt("A", notBefore=0)
    assert indexes(agent.session)["messages"]["A"]["notBefore"] is None
    assert agent.told == "q[A, notBefore] R"


def test_a_message_that_is_not_due_is_in_nobodys_way() -> None:
    agent = Agent()
    agent.prompt("A", notBefore=NOW_MS + 1000)
    agent.steer("S", notBefore=NOW_MS + 1000)
    agent.prompt("B")
    agent.take()
    agent.echo()
    assert agent.told.endswith("q[B] R T1 c[B] S1 u[B] a s1 t1(completed) I")
    assert agent.session.pending == 2


def test_a_sweep_before_its_time_changes_nothing() -> None:
    agent = Agent()
    agent.prompt("A", notBefore=NOW_MS + 1000, expiresAt=NOW_MS + 2000)
    agent.sweep(after_ms=999)
    assert agent.told == "q[A, notBefore]"


def test_a_message_whose_time_came_takes_its_place_then_and_wakes() -> None:
    agent = Agent()
    agent.prompt("A", notBefore=NOW_MS + 1000)
    agent.prompt("B")
    agent.take()
    agent.prompt("C")
    agent.sweep(after_ms=1000)
    agent.prompt("D")
    assert [m.message_id for m in agent.session.lane(agent.session.messages["A"].lane)] == ["C", "A", "D"]
    agent.sweep()
    assert agent.told.count("due[A]") == 1


def test_running_follows_the_first_message_that_becomes_due() -> None:
    agent = Agent()
    agent.prompt("A", notBefore=NOW_MS + 2000)
    agent.prompt("B", notBefore=NOW_MS + 1000)
    agent.sweep(after_ms=5000)
    assert agent.told.endswith("due[B] R due[A]")
    assert invariants.violations(agent.events) == []


def test_a_sweep_tells_what_time_has_changed_in_the_order_of_the_times() -> None:
    """Due times and expiry in one order; at one time, the one queued first."""
    agent = Agent()
    agent.prompt("last", notBefore=NOW_MS + 40)
    agent.prompt("third", notBefore=NOW_MS + 30)
    agent.prompt("gone", expiresAt=NOW_MS + 20)
    agent.prompt("fourth", notBefore=NOW_MS + 30)
    agent.prompt("first", notBefore=NOW_MS + 10, expiresAt=NOW_MS + 1000)
    agent.prompt("never", notBefore=NOW_MS + 41)
    agent.sweep(after_ms=40)
    assert agent.told.endswith("due[first] expired[gone] due[third] due[fourth] due[last]")
    assert invariants.violations(agent.events) == []


@pytest.mark.parametrize(
    ("times", "alarm"),
    [
        ({}, None),
        ({"notBefore": NOW_MS - 5}, None),
        ({"notBefore": NOW_MS + 5}, NOW_MS + 5),
        ({"expiresAt": NOW_MS + 7}, NOW_MS + 7),
        ({"notBefore": NOW_MS + 5, "expiresAt": NOW_MS + 7}, NOW_MS + 5),
        ({"notBefore": NOW_MS - 5, "expiresAt": NOW_MS + 7}, NOW_MS + 7),
    ],
)
def test_a_message_knows_when_time_changes_it(times: dict[str, int], alarm: int | None) -> None:
    agent = Agent()
    agent.prompt("A", **times)
    assert agent.session.messages["A"].alarm == alarm


def test_what_was_made_due_by_hand_may_still_expire() -> None:
    agent = Agent()
    agent.prompt("A", notBefore=NOW_MS + 5, expiresAt=NOW_MS + 10)
    agent.move("A")
    agent.sweep(after_ms=7)
    assert agent.told == "q[A, notBefore] moved[A] R"
    agent.sweep(after_ms=3)
    assert agent.told.endswith("expired[A] I")


def test_what_becomes_due_behind_a_hold_wakes_nobody() -> None:
    agent = Agent()
    agent.hold()
    agent.prompt("A", notBefore=NOW_MS + 1000)
    agent.sweep(after_ms=1000)
    assert agent.told == "held q[A, notBefore] due[A]"


def test_a_message_that_expires_was_never_claimed_and_the_agent_rests() -> None:
    agent = Agent()
    agent.prompt("A", expiresAt=NOW_MS + 10)
    agent.sweep(after_ms=10)
    assert agent.told == "q[A] R expired[A] I"


def test_a_claimed_message_does_not_expire() -> None:
    agent = Agent()
    agent.prompt("A", expiresAt=NOW_MS + 10)
    agent.take()
    agent.sweep(after_ms=10)
    assert "expired" not in agent.told


def test_a_message_both_due_and_expired_is_expired() -> None:
    agent = Agent()
    agent.prompt("A", notBefore=NOW_MS + 5, expiresAt=NOW_MS + 10)
    agent.sweep(after_ms=20)
    assert agent.told == "q[A, notBefore] expired[A]"


def test_a_goals_message_that_expires_pauses_the_goal() -> None:
    agent = Agent()
    agent.set_goal()
    agent.next_round("g1")
    agent.session.messages["g1"].expires_at = NOW_MS + 10
    agent.sweep(after_ms=10)
    assert agent.told.endswith("expired[g1] goal(pause) I")


# -- release --------------------------------------------------------------------------------------------------------


def test_a_hold_that_is_there_can_be_released_once() -> None:
    agent = Agent()
    agent.hold()
    agent.submit_from_child("A")
    agent.do(inbox.release)
    assert agent.told == "held q[A] released R"
    assert agent.events[-2].data == {"cause": "release"}
    assert code_of(lambda: agent.do(inbox.release)) == "not-held"


# -- clear ----------------------------------------------------------------------------------------------------------


def test_clearing_cancels_both_lanes_and_what_is_not_due_in_the_order_they_would_come() -> None:
    agent = Agent()
    agent.prompt("later", notBefore=NOW_MS + 1000)
    agent.prompt("A")
    agent.inject("C")
    agent.take()
    agent.prompt("B")
    agent.steer("S")
    assert agent.do(lambda act: inbox.clear(act, "cancel")) == ["S", "B", "later"]
    assert {m.state for m in agent.session.messages.values()} == {MessageState.CLAIMED, MessageState.CANCELLED}


def test_a_messages_record_has_no_room_for_a_turns_outcome() -> None:
    fields = set(type(next(iter(settled().messages.values()))).__dataclass_fields__)
    assert fields == {
        *("message_id", "lane", "wake", "queued_seq", "body_seq", "place", "due", "goal_id"),
        *("not_before", "expires_at", "state", "turn", "step", "why", "size"),
    }


def settled() -> Session:
    agent = Agent()
    reach(agent, "admitted")
    return agent.session

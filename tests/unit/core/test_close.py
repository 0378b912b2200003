"""Closing is one act; `session/closed` follows when the agent rests (M9). And a turn that crashed too often ends."""

import pytest

from mailslot_core import invariants, turn
from mailslot_core.session import Status, fold, indexes
from mailslot_core.turn import Then
from tests.unit.core.agent import NOW_MS, Agent, careful
from tests.unit.core.test_inbox import code_of


def test_an_idle_session_is_closed_at_once() -> None:
    agent = Agent()
    assert agent.close()
    assert agent.told == "closed"
    assert agent.events[-1].data == {"cause": "closed"}


@pytest.mark.parametrize("held", [False, True])
def test_what_waits_is_cancelled_delayed_messages_included(held: bool) -> None:
    agent = Agent()
    agent.prompt("later", notBefore=NOW_MS + 1000)
    agent.prompt("A")
    agent.steer("S")
    agent.inject("C")
    if held:
        agent.cancel("hold")
    before = agent.told
    assert agent.close()
    assert agent.told == f"{before} x[S] x[C] x[A] x[later] {'' if held else 'I '}closed"
    assert {event.data["cause"] for event in agent.events if event.type == "inbox/cancelled"} == {"closed"}
    assert agent.session.conservation == agent.session.pending == 0


@pytest.mark.parametrize("end", ["completed", "error", "blocked", "aborted"])
def test_an_open_turn_is_stopped_and_the_session_closed_when_it_rests(end: str) -> None:
    agent = careful()
    agent.prompt("A")
    agent.take()
    agent.prompt("B")
    assert not agent.close()
    assert agent.told.endswith("q[B] cancel x[B]")
    asked = {"cause": "user", "queue": "clear", "turn": 1, "closing": True}
    assert [event.data for event in agent.events if event.type == "cancel/requested"] == [asked]
    assert agent.session.closing
    agent.settle(*agent.begin(), agent.says(), agent.end(), end=end)
    assert agent.told.endswith("t1(aborted user) I closed")
    assert (agent.session.closed, agent.session.closing, agent.session.status) == (True, False, Status.IDLE)
    assert invariants.violations(agent.events) == []
    assert indexes(fold("s", agent.events)) == indexes(agent.session)


def test_a_closing_session_takes_nothing_and_its_turn_is_still_the_workers() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.close()
    before = agent.told
    assert code_of(lambda: agent.prompt("B")) == "closed"
    assert code_of(agent.set_goal) == "closed"
    assert agent.told == before
    agent.commit(*agent.begin(), agent.says())


def test_closing_twice_changes_nothing() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    assert not agent.close()
    before = agent.told
    assert not agent.close()
    assert agent.told == before
    agent.echo()
    before = agent.told
    assert agent.close()
    assert agent.told == before


def test_the_first_cause_of_a_turns_cancel_stays_when_the_session_is_closed() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.cancel(cause="parent")
    agent.close()
    agent.settle()
    assert agent.told.endswith("cancel cancel x[A] t1(aborted parent) I closed")


@pytest.mark.parametrize("state", ["resting", "queued", "open"])
def test_a_goal_is_paused_by_the_close(state: str) -> None:
    agent = Agent()
    agent.set_goal()
    if state == "queued":
        agent.next_round("g1")
    elif state == "open":
        agent.prompt("A")
        agent.take()
    agent.close()
    assert agent.session.goal is not None
    assert (agent.session.goal["phase"], agent.session.goal["reason"]) == ("paused", {"kind": "closed"})
    if state == "open":
        agent.settle()
    assert agent.session.closed
    assert agent.told.count("goal(pause)") == 1
    assert code_of(lambda: agent.change_goal("resume")) == "closed"
    assert invariants.violations(agent.events) == []


# -- giving up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "reason", "crashes_max", "last"),
    [
        (1, "crash", 1, True),
        (1, "crash", 2, False),
        (2, "crash", 3, False),
        (3, "crash", 3, True),
        (4, "crash", 3, True),
        (3, "handback", 3, False),
        (9, "resume", 1, False),
    ],
)
def test_a_turn_is_spent_at_its_last_crash_alone(attempt: int, reason: str, crashes_max: int, last: bool) -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.session.attempt = attempt
    assert turn.spent(agent.session, reason, crashes_max) is last


def test_no_turn_is_spent_when_none_is_open() -> None:
    assert not turn.spent(Agent().session, "crash", 1)


@pytest.mark.parametrize("cancelled", [False, True])
def test_giving_up_says_whether_anything_died(cancelled: bool) -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    if cancelled:
        agent.cancel()
    assert agent.give_up() is not cancelled
    assert agent.told.endswith("x[A] t1(aborted user)" if cancelled else "dead[A] t1(interrupted)")


def test_a_closing_session_whose_turn_is_given_up_is_closed() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.commit(*agent.begin())
    agent.close()
    assert not agent.give_up()
    assert agent.rest()
    assert agent.told.endswith("cancel s1 t1(aborted user) I closed")


def test_calls_without_a_result_get_one_before_the_step_ends() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.commit(*agent.begin(), agent.says("c2", "c1", "c3"), agent.call("c1"), agent.call("c3"), agent.result("c3"))
    agent.give_up()
    assert agent.told.endswith("tr[c3] tr[c1] tr[c2] s1 t1(interrupted)")
    codes = {e.data["callId"]: e.data["error"]["code"] for e in agent.events if "error" in e.data}
    assert codes == {"c1": "TOOL_OUTCOME_UNKNOWN", "c2": "ABORTED_BEFORE_DISPATCH"}


def test_the_next_message_has_its_turn_after_one_was_given_up() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.prompt("B")
    agent.take()
    agent.give_up()
    agent.do(lambda act: turn.proceed(act, Then.TAKE))
    assert agent.told.endswith("dead[A] t1(interrupted) T2 c[B]")
    assert invariants.violations(agent.events) == []

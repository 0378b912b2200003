"""Goals as a table: which operation may follow which phase, when a round may be queued, what pauses a goal."""

from collections.abc import Callable
from typing import Any

import pytest

from mailslot_core import goal, inbox, invariants, turn
from mailslot_core.errors import Refused
from mailslot_core.goal import PHASES, Change
from mailslot_core.session import Data, Status
from tests.unit.core.agent import Agent, careful

OPERATIONS = sorted({operation for operation, _ in PHASES})
IN_PHASE: dict[str | None, list[str]] = {
    None: [],
    "active": ["create"],
    "paused": ["create", "pause"],
    "blocked": ["create", "block"],
    "complete": ["create", "complete"],
}


def in_phase(phase: str | None) -> Agent:
    agent = Agent()
    for operation in IN_PHASE[phase]:
        if operation == "create":
            agent.set_goal(rounds=3)
        else:
            agent.change_goal(operation, reason={"code": "stuck", "message": "no key"})
    return agent


def code_of(attempt: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        attempt()
    return refused.value.code


# Semantics G1 and the picture of goal.py: what each operation may follow.
MAY_FOLLOW: dict[str, dict[str | None, str | None]] = {
    "create": {None: "active", "complete": "active"},
    "edit": {"active": "active", "paused": "paused", "blocked": "blocked"},
    "pause": {"active": "paused"},
    "resume": {"paused": "active", "blocked": "active"},
    "complete": {"active": "complete", "paused": "complete", "blocked": "complete"},
    "block": {"active": "blocked"},
    "clear": {"active": None, "paused": None, "blocked": None, "complete": None},
}


@pytest.mark.parametrize("phase", list(IN_PHASE))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_follows_the_phases_it_may(operation: str, phase: str | None) -> None:
    agent = in_phase(phase)
    before = agent.session.goal
    what: dict[str, Any] = {"goal_id": "goal-2", "objective": "keep the yard", "budgets": {"rounds": 1}}

    def attempt() -> Data:
        return agent.change_goal(operation, **what)

    if phase not in MAY_FOLLOW[operation]:
        wanted = "goal-exists" if operation == "create" else "not-found" if phase is None else "not-allowed"
        assert code_of(attempt) == wanted
        assert agent.session.goal == before
        return
    changed = attempt()
    assert (agent.session.goal or {"phase": None})["phase"] == MAY_FOLLOW[operation][phase]
    assert changed["revision"] == (before["revision"] + 1 if before else 1)


def test_an_old_revision_is_refused_and_none_at_all_is_the_present_one() -> None:
    agent = in_phase("paused")
    for expected in [("goal-1", 1), ("goal-1", 3), ("goal-2", 2)]:
        assert code_of(lambda expected=expected: agent.change_goal("resume", expected=expected)) == "revision"  # type: ignore[misc]
    agent.change_goal("resume", expected=("goal-1", 2))
    agent.change_goal("pause")


def test_a_closed_session_changes_no_goal() -> None:
    agent = in_phase("active")
    agent.do(lambda act: act.append("session/closed", {"cause": "user"}))
    assert code_of(lambda: agent.change_goal("pause")) == "closed"


def test_a_goal_without_objective_or_budgets_is_a_mistake_of_the_caller() -> None:
    for change in (
        Change("create"),
        Change("create", None, "g", "o", {}),
        Change("create", None, "g", None, {"rounds": 1}),
    ):
        agent = Agent()
        with pytest.raises(ValueError, match="goal_id, objective and budgets"):
            agent.do(lambda act, change=change: goal.change(act, change))  # type: ignore[misc]
        assert agent.events == []


# -- rounds -------------------------------------------------------------------------------------------------------


def test_a_round_is_queued_on_an_idle_agent_and_wakes_it() -> None:
    agent = in_phase("active")
    assert agent.next_round("g1")
    assert agent.told == "goal(create) q[g1] R"
    assert not agent.next_round("g2")


@pytest.mark.parametrize("phase", ["paused", "blocked", "complete"])
def test_no_round_is_queued_for_a_goal_that_is(phase: str) -> None:
    assert not in_phase(phase).next_round("g1")


@pytest.mark.parametrize("why", ["running", "held", "closed", "held and injected"])
def test_no_round_is_queued_on_an_agent_that_is(why: str) -> None:
    agent = in_phase("active")
    if why == "running":
        agent.prompt("A")
    elif why == "closed":
        agent.do(lambda act: act.append("session/closed", {"cause": "user"}))
    else:
        agent.hold()
        agent.inject("C")
    assert not agent.next_round("g1")


def test_the_rounds_are_counted_to_the_budget_and_then_the_goal_is_blocked() -> None:
    agent = in_phase("active")
    for number in (1, 2, 3):
        assert agent.next_round(f"g{number}")
        agent.take()
        agent.echo()
    assert agent.next_round("g4")
    assert agent.told.endswith("t3(completed) I goal(block)")
    assert agent.session.goal is not None
    assert agent.session.goal["reason"] == {"code": "budget-rounds", "message": "all 3 rounds are spent"}
    assert invariants.violations(agent.events) == []


@pytest.mark.parametrize(
    ("budgets", "rounds", "code"), [({"rounds": 2}, 1, None), ({"rounds": 2}, 2, "budget-rounds"), ({}, 99, None)]
)
def test_which_budget_is_spent(budgets: dict[str, int], rounds: int, code: str | None) -> None:
    assert goal.spent_budget({"budgets": budgets, "rounds": rounds}) == code


def test_a_rounds_text_names_the_objective_and_the_round() -> None:
    said = goal.round_text({"objective": "keep the garden", "rounds": 1, "budgets": {"rounds": 3}})
    assert "keep the garden" in said
    assert "round 2 of at most 3" in said


# -- pausing ------------------------------------------------------------------------------------------------------


def ended(agent: Agent, end: str) -> None:
    agent.prompt("A")
    agent.take()
    agent.settle(*agent.begin(), agent.end(), end=end)


def given_up(agent: Agent) -> None:
    agent.prompt("A")
    agent.take()
    agent.give_up()


def round_withdrawn(agent: Agent) -> None:
    agent.next_round("g1")
    agent.withdraw("g1")


def round_rejected(agent: Agent) -> None:
    agent.next_round("g1")
    agent.take()
    agent.commit(agent.rejects("g1"))


PAUSES: dict[str, Callable[[Agent], object]] = {
    "error": lambda agent: ended(agent, "error"),
    "aborted": lambda agent: ended(agent, "aborted"),
    "max-tokens": lambda agent: ended(agent, "max-tokens"),
    "blocked": lambda agent: ended(agent, "blocked"),
    "interrupted": given_up,
    "cancelled": lambda agent: agent.cancel(),
    "withdrawn": round_withdrawn,
    "rejected": round_rejected,
}


@pytest.mark.parametrize("kind", PAUSES)
def test_what_pauses_an_active_goal(kind: str) -> None:
    agent = in_phase("active")
    PAUSES[kind](agent)
    assert agent.session.goal is not None
    assert (agent.session.goal["phase"], agent.session.goal["reason"]) == ("paused", {"kind": kind})
    assert invariants.violations(agent.events) == []


@pytest.mark.parametrize("phase", ["blocked", "complete"])
def test_what_is_not_active_is_not_paused(phase: str) -> None:
    agent = in_phase(phase)
    ended(agent, "error")
    assert agent.session.goal is not None
    assert agent.session.goal["phase"] == phase


def test_neither_a_completed_turn_nor_a_parents_cancel_pauses_a_goal() -> None:
    agent = in_phase("active")
    ended(agent, "completed")
    assert agent.cancel(cause="parent").outcome == "nothing_to_cancel"
    assert agent.session.goal is not None
    assert agent.session.goal["phase"] == "active"


def test_a_preempted_round_is_not_counted_and_pauses_nothing() -> None:
    agent = in_phase("active")
    agent.next_round("g1")
    agent.prompt("A")
    agent.prompt("B")
    agent.take()
    assert agent.told.endswith("x[g1 preempted] T1 c[A]")
    agent.echo()
    agent.echo()
    assert agent.session.goal is not None
    assert (agent.session.goal["phase"], agent.session.goal["rounds"]) == ("active", 0)
    assert agent.next_round("g1'")


def test_a_change_makes_a_queued_round_stale_and_the_agent_rests() -> None:
    agent = in_phase("active")
    agent.next_round("g1")
    agent.change_goal("edit", objective="keep the yard")
    assert agent.told.endswith("goal(edit) x[g1 stale] I")
    assert agent.session.status is Status.IDLE


@pytest.mark.parametrize("operation", ["create", "resume"])
def test_a_goal_made_or_resumed_ends_a_hold_and_wakes_for_what_waited(operation: str) -> None:
    agent = careful()
    if operation == "resume":
        agent.set_goal()
        agent.change_goal("pause")
    agent.prompt("A")
    agent.prompt("B")
    agent.take()
    agent.settle(*agent.begin(), agent.end(), end="error")
    agent.set_goal() if operation == "create" else agent.change_goal("resume")
    assert agent.told.endswith(f"held I(held 1) goal({operation}) released R")


def test_a_goals_message_that_was_moved_is_no_follow_up_to_make_way() -> None:
    """Steering with a round: it joins the next turn beside a person's follow-up."""
    agent = in_phase("active")
    agent.next_round("g1")
    agent.do(lambda act: inbox.move(act, "g1"))
    agent.prompt("A")
    agent.do(turn.take)
    assert agent.session.claimed == ["g1", "A"]

"""A durable objective that goes on when the agent rests.

                create                 complete
      (none) -----------> [ACTIVE] ---------------> [COMPLETE]
                           |  ^  |  block
                     pause |  |  +--------> [BLOCKED]
                           v  | resume          | resume
                        [PAUSED] <--------------+ (to ACTIVE)

Rule 1: every change is one `goal/change` with revision + 1, made by compare-and-set on {goalId, revision} (G1).
Rule 2: a round is a message. It counts when it is admitted (G3), and is recognised by its own id, never by a turn (U9).
Rule 3: a round is queued only on an idle, unheld agent whose goal is active and within budget, in one act (G2).
Rule 4: any turn that does not complete, and any cancel by a user, pauses the goal (G4). Resume is explicit.
Rule 5: any change of the goal makes its queued message stale (G3).
Rule 6: a new goal's revision counts on from the last one of the session, so that one revision never means two states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mailslot_core import activity
from mailslot_core.errors import Refused
from mailslot_core.session import Act, Data, Session, Status

ACTIVE, PAUSED, BLOCKED, COMPLETE = "active", "paused", "blocked", "complete"

# (operation, phase before) -> phase after; `None` is the phase of no goal. What is not here is refused.
PHASES: dict[tuple[str, str | None], str | None] = {
    ("create", None): ACTIVE,
    ("create", COMPLETE): ACTIVE,
    ("edit", ACTIVE): ACTIVE,
    ("edit", PAUSED): PAUSED,
    ("edit", BLOCKED): BLOCKED,
    ("pause", ACTIVE): PAUSED,
    ("resume", PAUSED): ACTIVE,
    ("resume", BLOCKED): ACTIVE,
    ("complete", ACTIVE): COMPLETE,
    ("complete", PAUSED): COMPLETE,
    ("complete", BLOCKED): COMPLETE,
    ("block", ACTIVE): BLOCKED,
    ("clear", ACTIVE): None,
    ("clear", PAUSED): None,
    ("clear", BLOCKED): None,
    ("clear", COMPLETE): None,
}


@dataclass(frozen=True, slots=True)
class Change:
    """What a caller wants done to a goal. `expected` is the {goalId, revision} it saw, None to create."""

    operation: str
    expected: tuple[str, int] | None = None
    goal_id: str | None = None
    objective: str | None = None
    budgets: Data | None = None
    reason: Data | None = None


def check(session: Session, change: Change) -> str | None:
    """The phase after the change; refuses an old revision and an operation that the phase does not allow."""
    goal = session.goal
    phase = goal["phase"] if goal else None
    if change.operation == "create" and goal is not None and phase != COMPLETE:
        raise Refused("goal-exists", f"session {session.session_id} has goal {goal['goalId']}, which is {phase}")
    if change.operation != "create":
        if goal is None:
            raise Refused("not-found", f"session {session.session_id} has no goal")
        if change.expected is not None and change.expected != (goal["goalId"], goal["revision"]):
            raise Refused("revision", f"goal {goal['goalId']} is at revision {goal['revision']}")
    if (change.operation, phase) not in PHASES:
        raise Refused("not-allowed", f"cannot {change.operation} a goal that is {phase}")
    return PHASES[change.operation, phase]


def next_goal(session: Session, change: Change) -> dict[str, Any]:
    """The goal record after a change; for `clear` the last record, with its revision counted on."""
    phase = check(session, change)
    if change.operation == "create":
        if change.goal_id is None or change.objective is None or not change.budgets:
            raise ValueError("a goal is created with goal_id, objective and budgets")
        return {
            "goalId": change.goal_id,
            "revision": session.goal_revision + 1,
            "objective": change.objective,
            "phase": ACTIVE,
            "rounds": 0,
            "budgets": dict(change.budgets),
            "spent": {"rounds": 0},
        }
    goal = dict(session.goal or {})
    goal["revision"] += 1
    goal["phase"] = phase or goal["phase"]
    if change.objective is not None:
        goal["objective"] = change.objective
    if change.budgets:
        goal["budgets"] = {**goal["budgets"], **change.budgets}
    goal.pop("reason", None)
    if change.reason:
        goal["reason"] = dict(change.reason)
    return goal


def record(act: Act, operation: str, goal: Data) -> None:
    """Append the change; a queued goal message becomes stale in the same act (semantics G3)."""
    act.append("goal/change", {"operation": operation, "goal": goal})
    if act.session.goal_message is not None:
        act.append("inbox/cancelled", {"messageId": act.session.goal_message, "cause": "stale"})


def change(act: Act, wanted: Change) -> Data:
    """Carry out one operation through a door and return the goal (semantics G1, S7)."""
    goal = next_goal(act.session, wanted)
    act.session.check_open()
    record(act, wanted.operation, goal)
    if wanted.operation in ("create", "resume"):
        activity.release(act, "goal")
    activity.rest(act)
    return goal


def is_active(session: Session) -> bool:
    """There is a goal, and it goes on."""
    return session.goal is not None and session.goal["phase"] == ACTIVE


def pause(act: Act, reason: str) -> None:
    """Pause an active goal inside another act, with the reason's kind (semantics G4, C1)."""
    goal = act.session.goal
    if goal is not None and goal["phase"] == ACTIVE:
        wanted = Change("pause", reason={"kind": reason})
        record(act, "pause", next_goal(act.session, wanted))


@dataclass(frozen=True, slots=True)
class Round:
    """One continuation message in the making: the idle it answers and its `inbox/queued` data."""

    goal_id: str
    revision: int
    round: int
    idle_seq: int
    message_id: str
    data: Data


def may_advance(session: Session, proposed: Round) -> bool:
    """Whether this round may be queued now (semantics G2). A stale notice is answered no."""
    goal = session.goal
    return (
        goal is not None
        and not session.closed
        and session.status is Status.IDLE
        and session.hold is None
        and not activity.waking(session)
        and (goal["goalId"], goal["revision"], goal["phase"]) == (proposed.goal_id, proposed.revision, ACTIVE)
        and goal["rounds"] + 1 == proposed.round
        and session.idle_seq == proposed.idle_seq
        and proposed.message_id not in session.messages
    )


def spent_budget(goal: Data) -> str | None:
    """Code of the first budget that is spent, None while the goal may go on (semantics G5)."""
    limit = goal["budgets"].get("rounds")
    return "budget-rounds" if limit is not None and goal["rounds"] >= limit else None


def advance(act: Act, proposed: Round) -> bool:
    """Queue the next round, or block the goal when its budget is spent; true if something was appended (G2, G5)."""
    if not may_advance(act.session, proposed):
        return False
    goal = act.session.goal or {}
    code = spent_budget(goal)
    if code is not None:
        reason = {"code": code, "message": f"all {goal['rounds']} rounds are spent"}
        record(act, "block", next_goal(act.session, Change("block", reason=reason)))
        return True
    act.append("inbox/queued", proposed.data)
    activity.wake(act)
    return True


def round_text(goal: Data) -> str:
    """What a round's message says to the agent."""
    return (
        f"Continue working towards this objective:\n\n{goal['objective']}\n\n"
        f"This is round {goal['rounds'] + 1} of at most {goal['budgets']['rounds']}. "
        "Do the next useful piece of work and say what you did."
    )

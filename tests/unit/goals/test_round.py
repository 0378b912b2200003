"""A notice proposes the next round of a goal that rests, and nothing once anything has happened since."""

from typing import Any

import pytest

from mailslot_contracts.events import parse_event
from mailslot_core.session import Status
from mailslot_core.store import IdleNotice, Level
from mailslot_services.goal_continuation.round import proposal

GOAL: dict[str, Any] = {
    "goalId": "garden",
    "revision": 3,
    "objective": "keep the garden",
    "phase": "active",
    "rounds": 4,
    "budgets": {"rounds": 25},
    "spent": {"rounds": 4},
}
NOTICE = IdleNotice("s", goal_id="garden", revision=3, idle_seq=40)


def level(**changes: Any) -> Level:
    found: dict[str, Any] = {
        "session_id": "s",
        "agent": "default",
        "status": Status.IDLE,
        "cursor": 41,
        "idle_cursor": 40,
        "reasons": (),
        "turn": None,
        "pending": 0,
        "held": 0,
        "conservation": 0,
        "goal": GOAL,
        "usage": {},
    }
    return Level(**{**found, **changes})


def test_the_round_after_the_last_admitted_one_is_proposed() -> None:
    proposed = proposal(level(), NOTICE)
    assert proposed is not None
    assert (proposed.goal_id, proposed.revision, proposed.round, proposed.idle_seq) == ("garden", 3, 5, 40)
    assert proposed.data["source"] == {"kind": "goal", "goalId": "garden", "revision": 3, "round": 5}


def test_a_round_is_a_follow_up_that_wakes_and_says_the_objective() -> None:
    proposed = proposal(level(), NOTICE)
    assert proposed is not None
    assert (proposed.data["lane"], proposed.data["wake"]) == ("next-turn", True)
    assert proposed.data["messageId"] == proposed.message_id
    (block,) = proposed.data["content"]
    assert block["type"] == "text"
    assert "keep the garden" in block["text"]


def test_a_rounds_message_is_an_event_of_the_contract() -> None:
    proposed = proposal(level(), NOTICE)
    assert proposed is not None
    envelope = {
        "v": 1,
        "seq": 41,
        "sessionId": "s",
        "type": "inbox/queued",
        "time": 0,
        "epoch": 1,
        "data": dict(proposed.data),
    }
    assert parse_event(envelope).data.wire() == proposed.data


def test_two_services_propose_the_same_message() -> None:
    first, second = proposal(level(), NOTICE), proposal(level(cursor=44), NOTICE)
    assert first == second


def test_a_round_that_is_tried_again_after_another_idle_is_another_message() -> None:
    first = proposal(level(), NOTICE)
    again = proposal(level(idle_cursor=52), NOTICE._replace(idle_seq=52))
    assert first is not None
    assert again is not None
    assert first.round == again.round
    assert first.message_id != again.message_id


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("the session is gone", None),
        ("the goal was cleared", level(goal=None)),
        ("another goal was made", level(goal={**GOAL, "goalId": "other"})),
        ("the goal was edited", level(goal={**GOAL, "revision": 4})),
        ("the goal was paused", level(goal={**GOAL, "phase": "paused"})),
        ("the goal is complete", level(goal={**GOAL, "phase": "complete"})),
        ("the agent runs again", level(status=Status.RUNNING)),
        ("the agent ran and rests again", level(idle_cursor=48)),
    ],
)
def test_a_stale_notice_proposes_nothing(what: str, seen: Level | None) -> None:
    assert proposal(seen, NOTICE) is None, what


def test_a_goal_made_on_an_agent_that_never_ran_answers_idle_zero() -> None:
    proposed = proposal(level(idle_cursor=0, cursor=2), NOTICE._replace(idle_seq=0))
    assert proposed is not None
    assert proposed.idle_seq == 0

"""Another life for a dead message: the same id, and conservation holds (R5, M5)."""

from dataclasses import replace

import pytest

from mailslot_core import invariants
from mailslot_core.inbox import Room, redrivable, revived
from mailslot_core.session import Lane, fold, indexes
from tests.conformance.dialogue import message
from tests.unit.core.agent import Agent
from tests.unit.core.test_inbox import code_of, reach


def dead(*names: str) -> Agent:
    """An agent whose turn was given up with these messages in it: steers, and the last one a follow-up."""
    agent = Agent()
    for name in names[:-1]:
        agent.steer(name)
    agent.prompt(names[-1])
    agent.take()
    agent.give_up()
    agent.rest()
    return agent


def test_a_dead_message_lives_again_under_its_id() -> None:
    agent = dead("S", "A")
    receipts = agent.redrive("S", "A")
    assert agent.told.endswith("dead[S] dead[A] t1(interrupted) I qs[S] R q[A]")
    assert [receipt.message_id for receipt in receipts] == ["S", "A"]
    queued = [agent.events[receipt.cursor - 1] for receipt in receipts]
    assert [(event.data["messageId"], event.data["redrive"]) for event in queued] == [("S", True), ("A", True)]
    assert agent.session.conservation == 0
    agent.take()
    agent.echo()
    assert agent.session.settled == {**dict.fromkeys(agent.session.settled, 0), "dead": 2, "admitted": 2}
    assert invariants.violations(agent.events) == []
    assert indexes(fold("s", agent.events)) == indexes(agent.session)


@pytest.mark.parametrize("state", ["queued", "claimed", "admitted", "rejected", "cancelled", "expired"])
def test_only_a_dead_message_lives_again(state: str) -> None:
    agent = Agent()
    if state == "queued":
        agent.prompt("A")
    else:
        reach(agent, state)
    before = agent.told
    assert code_of(lambda: agent.redrive("A")) == "not-dead"
    assert agent.told == before


def test_a_redrive_of_which_one_message_is_not_dead_changes_nothing() -> None:
    agent = dead("S", "A")
    agent.redrive("S")
    before = agent.told
    assert code_of(lambda: agent.redrive("A", "S")) == "not-dead"
    assert agent.told == before


def test_a_redrive_needs_room_for_all_of_it() -> None:
    agent = dead("S", "A")
    assert code_of(lambda: agent.redrive("S", "A", room=Room(1, 10_000))) == "queue-full"
    assert code_of(lambda: agent.redrive("S", "A", room=Room(100, 10))) == "queue-full"
    agent.redrive("S", "A", room=Room(2, 10_000))


def test_a_closed_session_redrives_nothing() -> None:
    agent = dead("A")
    agent.close()
    assert code_of(lambda: agent.redrive("A")) == "closed"


def test_who_redrives_ends_a_hold_as_who_submits() -> None:
    agent = dead("A")
    agent.hold()
    agent.redrive("A")
    assert agent.told.endswith("held q[A] released R")
    assert agent.events[-2].data == {"cause": "redrive"}


def test_another_life_has_no_times() -> None:
    data = {**message("A").data, "notBefore": 1, "expiresAt": 2, "metadata": {"k": 1}}
    found = revived(data, Lane.NEXT_TURN, wake=True)
    assert found == {**message("A").data, "metadata": {"k": 1}, "redrive": True}
    assert "expiresAt" in data


def test_another_life_begins_in_the_lane_to_which_the_message_had_moved() -> None:
    found = revived(message("A").data, Lane.NEXT_STEP, wake=True)
    assert (found["lane"], found["wake"]) == ("next-step", True)


def test_a_goals_round_is_not_redriven_but_what_died_beside_it_is() -> None:
    person, source = message("A"), {"kind": "goal", "goalId": "g", "revision": 1, "round": 1}
    goals = replace(message("g1"), data={**message("g1").data, "source": source})
    assert redrivable("1-0-0", [person, goals]) == [person]
    assert code_of(lambda: redrivable("1-0-0", [goals])) == "not-allowed"
    assert code_of(lambda: redrivable("1-0-0", [])) == "not-dead"

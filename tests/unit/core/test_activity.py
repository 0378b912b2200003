"""Whether the agent runs, rests or is held: said once, in the act that made it so."""

import pytest

from mailslot_core import activity, invariants
from mailslot_core.session import Status
from tests.unit.core.agent import NOW_MS, Agent


@pytest.mark.parametrize(
    ("deliveries", "held", "waking"),
    [
        ([], False, 0),
        (["queue"], False, 1),
        (["steer"], False, 1),
        (["inject"], False, 0),
        (["queue", "steer", "inject", "queue"], False, 3),
        (["queue", "steer"], True, 0),
    ],
)
def test_what_wakes(deliveries: list[str], held: bool, waking: int) -> None:
    agent = Agent()
    for number, delivery in enumerate(deliveries):
        agent.say(f"m{number}", delivery)
    if held:
        agent.hold()
    assert activity.waking(agent.session) == waking
    assert (agent.session.status is Status.RUNNING) == bool(waking or held)


def test_waking_twice_says_running_once() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.do(activity.wake)
    assert agent.told == "q[A] R"


@pytest.mark.parametrize("why", ["idle already", "a waking message", "an open turn"])
def test_an_agent_does_not_rest_with(why: str) -> None:
    agent = Agent()
    if why != "idle already":
        agent.prompt("A")
    if why == "an open turn":
        agent.take()
    before = agent.told
    assert agent.do(activity.rest) is (why == "idle already")
    assert agent.told == before


def test_injected_context_does_not_keep_an_agent_from_resting() -> None:
    agent = Agent()
    agent.inject("C")
    agent.prompt("A")
    agent.withdraw("A")
    assert agent.told.endswith("x[A] I")


def test_a_hold_is_one_fact() -> None:
    agent = Agent()
    agent.hold()
    agent.hold("failure")
    assert agent.told == "held"
    assert agent.session.hold == "cancel"


def test_an_idle_behind_a_hold_says_how_many_wait() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.steer("S")
    agent.inject("C")
    agent.prompt("later", notBefore=NOW_MS + 1000)
    agent.cancel("hold")
    assert agent.told.endswith("cancel held I(held 2)")
    assert agent.events[-1].data == {"status": "idle", "held": 2}


def test_an_idle_without_a_hold_says_no_number() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.withdraw("A")
    assert agent.events[-1].data == {"status": "idle"}


@pytest.mark.parametrize("waits", [False, True])
def test_a_release_wakes_for_what_waited(waits: bool) -> None:
    agent = Agent()
    agent.hold()
    if waits:
        agent.submit_from_child("A")
    agent.do(lambda act: activity.release(act, "release"))
    assert agent.told == ("held q[A] released R" if waits else "held released")
    agent.do(lambda act: activity.release(act, "release"))
    assert agent.told.count("released") == 1


@pytest.mark.parametrize(
    ("setting", "reasons"),
    [("idle", []), ("queued", ["2 queued"]), ("open", ["turn 1", "1 queued"]), ("open alone", ["turn 1"])],
)
def test_a_running_agent_says_why(setting: str, reasons: list[str]) -> None:
    agent = Agent()
    if setting != "idle":
        agent.prompt("A")
    if setting in ("queued", "open"):
        agent.steer("S")
    if setting == "open":
        agent.withdraw("S")
        agent.prompt("B")
    if setting.startswith("open"):
        agent.take()
    assert activity.reasons(agent.session) == reasons
    assert invariants.violations(agent.events) == []

"""Each numbered check finds the ledger that breaks it, and says where; a sound ledger breaks none."""

from collections.abc import Callable
from typing import Any

import pytest

from mailslot_core import inbox, invariants, turn
from mailslot_core.session import Event
from mailslot_core.turn import Then
from tests.conformance.dialogue import BIRTH, message
from tests.unit.core.agent import NOW_MS, Agent

Damage = Callable[[list[Event]], list[Event]]


def sound() -> list[Event]:
    """A life with something of everything."""
    agent = Agent(born=BIRTH)
    agent.set_goal(rounds=5)
    agent.inject("C")
    agent.prompt("A")
    agent.take()
    agent.commit(*agent.begin(), agent.says("c1"), agent.call("c1"))
    agent.steer("S")
    agent.recover()
    agent.commit(agent.result("c1"), agent.end())
    agent.settle()
    agent.echo()
    agent.next_round("g1")
    agent.take()
    agent.cancel()
    agent.echo()
    agent.prompt("B")
    agent.take()
    agent.settle(agent.rejects("B"), end="blocked")
    return agent.events


def ended() -> list[Event]:
    """A life with times, a hold, a death, another life, and an end: A is aborted, B was delayed, E expires, H dies."""
    agent = Agent(born=BIRTH)
    agent.prompt("B", notBefore=NOW_MS + 10)
    agent.prompt("A")
    agent.take()
    agent.prompt("H")
    agent.inject("E", expiresAt=NOW_MS + 20)
    agent.cancel("hold")
    agent.settle()
    agent.sweep(after_ms=25)
    agent.do(inbox.release)
    agent.take()
    agent.recover()
    agent.give_up()
    agent.do(lambda act: turn.proceed(act, Then.TAKE))
    agent.redrive("H")
    agent.close()
    agent.settle()
    return agent.events


def test_a_sound_ledger_breaks_nothing() -> None:
    assert invariants.violations(sound()) == []
    assert invariants.violations(ended()) == []
    assert invariants.violations([]) == []


def at(events: list[Event], kind: str, number: int = 0) -> int:
    """Where the event of the kind stands."""
    return [place for place, event in enumerate(events) if event.type == kind][number]


def dropped(kind: str, number: int = 0) -> Damage:
    return lambda events: renumbered([e for place, e in enumerate(events) if place != at(events, kind, number)])


def repeated(kind: str, number: int = 0) -> Damage:
    def damage(events: list[Event]) -> list[Event]:
        place = at(events, kind, number)
        return renumbered([*events[: place + 1], events[place], *events[place + 1 :]])

    return damage


def changed(kind: str, number: int = 0, **data: Any) -> Damage:
    def damage(events: list[Event]) -> list[Event]:
        place = at(events, kind, number)
        event = events[place]
        return [*events[:place], event._replace(data={**event.data, **data}), *events[place + 1 :]]

    return damage


def inserted(after: str, kind: str, data: dict[str, Any], number: int = 0) -> Damage:
    def damage(events: list[Event]) -> list[Event]:
        place = at(events, after, number) + 1
        fact = events[place - 1]._replace(type=kind, data=data)
        return renumbered([*events[:place], fact, *events[place:]])

    return damage


def moved(kind: str, to: int, number: int = 0) -> Damage:
    """The event stands `to` places later (or earlier)."""

    def damage(events: list[Event]) -> list[Event]:
        place = at(events, kind, number)
        others = [*events[:place], *events[place + 1 :]]
        return renumbered([*others[: place + to], events[place], *others[place + to :]])

    return damage


def stamped(time: int, epoch: int) -> Damage:
    return lambda events: [*events[:-1], events[-1]._replace(time=time, epoch=epoch)]


def renumbered(events: list[Event]) -> list[Event]:
    return [event._replace(seq=number) for number, event in enumerate(events, 1)]


GOAL = {"goalId": "goal-1", "revision": 9, "objective": "o", "phase": "paused", "rounds": 0, "budgets": {}, "spent": {}}

# check -> (damage, what the check says of it)
BREAKS: dict[str, list[tuple[Damage, str]]] = {
    "1 seq": [
        (lambda events: events[1:], "seq 2 stands at place 1"),
        (lambda events: [*events[:3], *events[4:]], "seq 5 stands at place 4"),
    ],
    "2 time": [(stamped(0, 9), "time goes back")],
    "3 epoch": [(stamped(NOW_MS, -1), "epoch goes back")],
    "4 turns": [
        (dropped("turn/start"), "ends at seq"),
        (dropped("turn/end"), "turn 2 starts"),
        (changed("turn/start", turn=2), "turn 2 starts"),
        (repeated("turn/end"), "which is not open"),
        (changed("turn/recovered", turn=2), "is recovered"),
        (moved("step/end", 1, 1), "inside a step"),
    ],
    "5 steps": [
        (dropped("step/start"), "stands outside a step"),
        (dropped("step/end"), "step 2 starts"),
        (changed("step/start", step=2), "step 2 starts"),
        (dropped("tool/result"), "open calls ['c1']"),
        (repeated("tool/result"), "answers no open call"),
        (changed("tool/call", callId="c9"), "was not asked for"),
        (repeated("assistant/message"), "after its answer"),
        (moved("user/message", 1, 1), "after its answer"),
        (inserted("step/end", "llm/retry", {}), "stands outside a step"),
    ],
    "6 lives": [
        (inserted("user/message", "inbox/cancelled", {"messageId": "C", "cause": "cancel"}), "C is settled twice"),
        (inserted("inbox/queued", "inbox/queued", dict(message("C").data)), "C is queued twice"),
        (changed("inbox/rejected", messageId="nobody"), "nobody is settled twice"),
    ],
    "7 admissions": [
        (changed("user/message", turn=2), "by a turn that did not claim it"),
        (changed("inbox/claimed", messageIds=["C"]), "A is admitted"),
        (changed("inbox/claimed", messageIds=["C", "X"]), "X is claimed"),
        (repeated("inbox/claimed"), "without being queued"),
    ],
    "8 status": [
        (repeated("agent/status"), "status is running again"),
        (dropped("agent/status", 1), "status is running again"),
    ],
    "9 idle": [
        (lambda events: dropped("agent/status", -1)(dropped("agent/status", -2)(events)), "a waking message waits"),
        (moved("agent/status", -1, 1), "is open while the agent is idle"),
    ],
    "11 aborts": [(dropped("cancel/requested"), "no cancel names it")],
    "12 claims": [
        (changed("inbox/claimed", messageIds=["A", "C"]), "where ['C', 'A'] was next"),
        (
            lambda events: inserted("inbox/queued", "inbox/queued", dict(message("Z").data), 1)(
                changed("inbox/claimed", messageIds=["C", "A", "Z"])(events)
            ),
            "where ['C', 'A'] was next",
        ),
    ],
    "13 steers": [
        (inserted("step/end", "inbox/queued", dict(message("T", "steer").data), 1), "while a steer waits"),
    ],
    "14 goals": [
        (changed("goal/change", 1, goal=GOAL), "is at revision 9"),
        (changed("goal/change", goal={**GOAL, "revision": 2, "phase": "active"}), "is at revision 2"),
        (dropped("goal/change", 1), "its goal goes on"),
    ],
}
ENDED_BREAKS: dict[str, list[tuple[Damage, str]]] = {
    "15 closed": [
        (inserted("session/closed", "inbox/queued", dict(message("N").data)), "comes to a session that is closed"),
        (inserted("session/closed", "inbox/held", {"cause": "cancel"}), "comes to a session that is closed"),
        (inserted("cancel/requested", "inbox/queued", dict(message("N", "inject").data), 1), "that is closing"),
        (moved("session/closed", -1), "comes to a session that is closed"),
        (moved("session/closed", -3), "with 1 messages left"),
    ],
    "16 holds": [
        (moved("inbox/held", -4), "['A'] is claimed"),
        (dropped("inbox/released"), "['H'] is claimed"),
    ],
    "17 times": [
        (changed("inbox/queued", notBefore=NOW_MS + 26), "inbox/due of message B"),
        (changed("inbox/queued", 3, expiresAt=NOW_MS + 26), "inbox/expired of message E"),
        (changed("inbox/due", messageId="H"), "inbox/due of message H"),
        (repeated("inbox/due"), "inbox/due of message B"),
        (changed("inbox/due", messageId="A"), "inbox/due of message A"),
        (changed("inbox/queued", expiresAt=NOW_MS + 1), "['B'] is claimed"),
    ],
    "18 lives": [
        (changed("inbox/queued", 4, redrive=False), "and was dead"),
        (changed("inbox/queued", redrive=True), "and was not dead"),
        (
            lambda events: changed("inbox/queued", 4, messageId="A")(
                changed("inbox/cancelled", 1, messageId="A")(events)
            ),
            "message A is queued at seq 25 and was not dead",
        ),
    ],
    "19 leftovers": [
        (dropped("inbox/cancelled"), "ends at seq 11 with ['A'] claimed"),
    ],
}
CASES = [
    pytest.param(ledger, damage, said, id=f"{check}: {said}")
    for ledger, all_breaks in ((sound, BREAKS), (ended, ENDED_BREAKS))
    for check, breaks in all_breaks.items()
    for damage, said in breaks
]


@pytest.mark.parametrize(("ledger", "damage", "said"), CASES)
def test_a_broken_ledger_is_found(ledger: Callable[[], list[Event]], damage: Damage, said: str) -> None:
    found = invariants.violations(damage(ledger()))
    assert any(said in sentence for sentence in found), found


def test_conservation_is_looked_at() -> None:
    """Check 10: no ledger that passes the checks before can break it, so the count itself is broken."""
    agent = Agent()
    agent.prompt("A")
    agent.session.queued += 1
    assert invariants._conserves(agent.session, agent.events[0], "") == "conservation is 1 at seq 1"


def test_what_is_not_settled_is_named() -> None:
    agent = Agent()
    for name in ("A", "B"):
        agent.prompt(name)
    agent.take()
    agent.inject("C")
    agent.echo(then="yield")
    assert invariants.unsettled(agent.session) == ["B", "C"]

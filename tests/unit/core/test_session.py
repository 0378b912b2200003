"""Folding: each event changes the indexes it should and no other, a gap is refused, what is unknown is passed over."""

from typing import Any

import pytest

from mailslot_core.session import FOLD, Act, Event, MessageState, Phase, Session, apply, fold, indexes
from tests.conformance.dialogue import BIRTH, message
from tests.unit.core.agent import NOW_MS, Agent

ALWAYS = {"seq", "time"}


def busy() -> Agent:
    """An agent in the middle of a step, with one message claimed and one queued."""
    agent = Agent(born=BIRTH)
    agent.prompt("A")
    agent.steer("S")
    agent.take()
    agent.commit(*list(agent.begin())[:2], agent.says("c1"))
    agent.prompt("B")
    return agent


GOAL = {"goalId": "g", "revision": 1, "phase": "active", "rounds": 0, "budgets": {"rounds": 2}, "spent": {"rounds": 0}}

# An event on a busy agent, and the indexes that it changes beside seq and time.
CHANGES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("session/created", {**BIRTH, "agent": "x", "onFailure": "hold"}, {"agent", "born", "onFailure"}),
    ("inbox/queued", dict(message("N").data), {"lanes", "messages", "queued", "waitingBytes"}),
    ("inbox/queued", {**message("N").data, "notBefore": NOW_MS + 9}, {"later", "messages", "queued", "waitingBytes"}),
    ("inbox/claimed", {"turn": 1, "messageIds": ["B"]}, {"claimed", "claims", "lanes", "messages", "waitingBytes"}),
    ("inbox/replaced", {"messageId": "B", "content": []}, {"messages", "waitingBytes"}),
    ("inbox/moved", {"messageId": "B", "lane": "next-step"}, {"lanes", "messages"}),
    ("inbox/due", {"messageId": "B"}, {"messages"}),
    ("inbox/cancelled", {"messageId": "B", "cause": "withdrawn"}, {"lanes", "messages", "settled", "waitingBytes"}),
    ("inbox/rejected", {"messageId": "A", "turn": 1, "reason": "no"}, {"claimed", "messages", "settled"}),
    ("inbox/expired", {"messageId": "B"}, {"lanes", "messages", "settled", "waitingBytes"}),
    ("inbox/dead", {"messageId": "A", "reason": "r", "attempts": 3}, {"claimed", "messages", "settled"}),
    ("inbox/held", {"cause": "cancel"}, {"hold"}),
    ("inbox/released", {"cause": "submit"}, set()),
    ("user/message", {"messageId": "A", "turn": 1, "step": 1}, {"claimed", "messages", "settled"}),
    ("user/message", {"messageId": "from a hook", "turn": 1, "step": 1}, set()),
    ("agent/status", {"status": "idle"}, {"status", "idleSeq"}),
    ("turn/start", {"turn": 2}, {"turn", "step", "phase", "claims"}),
    ("turn/recovered", {"turn": 1, "attempt": 2, "reason": "crash"}, {"attempt"}),
    ("turn/end", {"turn": 1, "reason": {"kind": "unheard-of"}}, {"phase"}),
    ("step/start", {"turn": 1, "step": 2}, {"step", "phase"}),
    ("step/end", {"turn": 1, "step": 1}, {"phase"}),
    ("assistant/message", {"toolCalls": [{"callId": "c2"}]}, {"calls"}),
    ("tool/call", {"callId": "c1"}, {"calls"}),
    ("tool/result", {"callId": "c1"}, {"calls"}),
    ("cancel/requested", {"cause": "user", "queue": "keep", "turn": 1}, {"cancel"}),
    ("cancel/requested", {"cause": "user", "queue": "keep", "turn": 2}, set()),
    ("cancel/requested", {"cause": "user", "queue": "keep"}, set()),
    ("cancel/requested", {"cause": "user", "queue": "clear", "turn": 1, "closing": True}, {"cancel", "closing"}),
    ("goal/change", {"operation": "create", "goal": GOAL}, {"goal", "goalRevision"}),
    ("usage/recorded", {"inputTokens": 3, "outputTokens": 1, "cost": 0.5}, {"usage"}),
    ("session/closed", {"cause": "user"}, {"closed"}),
    ("llm/retry", {"turn": 1, "step": 1, "delayMs": 500}, {"retryAt"}),
    ("unheard/of", {"anything": 1}, set()),
]


@pytest.mark.parametrize(("kind", "data", "changed"), CHANGES, ids=[kind for kind, _, _ in CHANGES])
def test_an_event_changes_its_indexes_and_no_others(kind: str, data: dict[str, Any], changed: set[str]) -> None:
    agent = busy()
    before = indexes(agent.session)
    apply(agent.session, Event(agent.session.seq + 1, kind, agent.now + 1, 1, data))
    after = indexes(agent.session)
    assert {name for name in after if after[name] != before[name]} == changed | ALWAYS


def test_every_event_that_changes_an_index_is_in_the_table_above() -> None:
    assert set(FOLD) == {kind for kind, _, _ in CHANGES} - {"unheard/of"}


@pytest.mark.parametrize("seq", [0, 1, 3])
def test_a_ledger_with_a_gap_is_not_folded(seq: int) -> None:
    events = [
        Event(1, "session/created", NOW_MS, 0, BIRTH),
        Event(seq, "agent/status", NOW_MS, 0, {"status": "running"}),
    ]
    with pytest.raises(ValueError, match="gap"):
        fold("s", events)


def test_folding_a_whole_life_gives_the_indexes_that_the_acts_left() -> None:
    agent = busy()
    agent.commit(agent.result("c1"), agent.end())
    agent.cancel("hold")
    agent.settle()
    assert indexes(fold("s", agent.events)) == indexes(agent.session)


def test_a_message_the_hook_added_settles_nothing() -> None:
    agent = busy()
    counted = dict(agent.session.settled)
    apply(agent.session, Event(agent.session.seq + 1, "user/message", agent.now, 1, {"messageId": "hook"}))
    assert agent.session.settled == counted
    assert agent.session.conservation == 0


def test_a_settled_message_never_changes() -> None:
    """A hook may add a message under an id whose record was dropped long ago; the ledger still knows that id."""
    agent = busy()
    agent.commit(agent.result("c1"), agent.end())
    agent.commit(*agent.begin())
    record = agent.session.messages["A"]
    before = (record.state, record.turn, record.step, dict(agent.session.settled))
    apply(
        agent.session,
        Event(agent.session.seq + 1, "user/message", agent.now, 1, {"messageId": "A", "turn": 9, "step": 9}),
    )
    assert (record.state, record.turn, record.step, dict(agent.session.settled)) == before


def test_conservation_sees_a_message_that_was_lost() -> None:
    session = busy().session
    assert session.conservation == 0
    session.queued += 1
    assert session.conservation == 1


def test_a_round_is_counted_where_it_is_admitted() -> None:
    agent = Agent()
    agent.set_goal(rounds=2)
    agent.next_round("g1")
    agent.take()
    agent.commit(*agent.begin())
    assert agent.session.goal is not None
    assert (agent.session.goal["rounds"], agent.session.goal["spent"]) == (1, {"rounds": 1})
    created = agent.events[0].data["goal"]
    assert created["rounds"] == 0, "the fact that was appended stays as it was"


def test_time_in_the_ledger_never_goes_back() -> None:
    agent = Agent(born=BIRTH)
    agent.now -= 5_000
    agent.prompt("A")
    assert {event.time for event in agent.events} == {NOW_MS}


def test_an_act_appends_at_the_sessions_end_and_under_its_epoch() -> None:
    session = Session("s")
    act = Act(session, now=7, epoch=3)
    first, second = act.append("a", {}), act.append("b", {})
    assert [first, second] == act.events == [Event(1, "a", 7, 3, {}), Event(2, "b", 7, 3, {})]


def test_a_new_session_is_idle_and_empty() -> None:
    session = Session("s")
    assert (session.status, session.open, session.phase, session.pending) == ("idle", False, Phase.CLOSED, 0)
    assert set(session.settled) == {state.value for state in MessageState} - {"queued", "claimed"}

"""Turns: the grammar of their facts, what they claim, how they end, how they are cancelled, recovered and given up."""

from typing import Any

import pytest

from mailslot_core import invariants, turn
from mailslot_core.errors import Refused
from mailslot_core.session import MessageState, Phase
from mailslot_core.turn import ENDS, GRAMMAR, LEFTOVER, Draft, Outcome, Then
from tests.conformance.dialogue import text
from tests.unit.core.agent import NOW_MS, Agent, careful

# Semantics T3, read off the rule itself: what may come at a boundary, in a step, and after the model's answer.
MAY_COME: dict[Phase, set[str]] = {
    Phase.CLOSED: set(),
    Phase.BOUNDARY: {"step/start", "usage/recorded", "inbox/rejected"},
    Phase.OPEN: {"user/message", "llm/retry", "usage/recorded", "assistant/message", "step/end"},
    Phase.ANSWERED: {"tool/call", "tool/result", "usage/recorded", "step/end"},
}
STORES_OWN = {
    "turn/start",
    "turn/end",
    "turn/recovered",
    "inbox/queued",
    "inbox/claimed",
    "agent/status",
    "goal/change",
}


def in_phase(phase: Phase) -> Agent:
    agent = Agent()
    agent.prompt("A")
    if phase is not Phase.CLOSED:
        agent.take()
    if phase in (Phase.OPEN, Phase.ANSWERED):
        agent.commit(Draft("step/start", agent.place))
    if phase is Phase.ANSWERED:
        agent.commit(agent.says("c1"))
    return agent


def fact(agent: Agent, kind: str) -> Draft:
    """A fact of the kind that names all it should."""
    kinds: dict[str, dict[str, Any]] = {
        "user/message": {"messageId": "A", "content": text("hello"), "source": {"kind": "user"}},
        "inbox/rejected": {"messageId": "A", "reason": "no"},
        "llm/retry": {"attempt": 1, "delayMs": 1, "code": "c", "message": "m"},
        "usage/recorded": {"attempt": 1, "model": "m", "inputTokens": 1, "outputTokens": 1},
        "assistant/message": {"content": text("well"), "model": "m"},
        "tool/call": {"callId": "c1", "name": "n", "arguments": {}},
        "tool/result": {"callId": "c1", "content": ""},
    }
    coming = agent.session.step + (1 if kind == "step/start" else 0)
    return Draft(kind, {"turn": agent.session.turn, "step": coming, **kinds.get(kind, {})})


@pytest.mark.parametrize("kind", sorted({*GRAMMAR, *STORES_OWN}))
@pytest.mark.parametrize("phase", list(Phase))
def test_a_fact_stands_where_the_rule_lets_it(phase: Phase, kind: str) -> None:
    agent = in_phase(phase)
    if kind == "step/end" and phase is Phase.ANSWERED:
        agent.commit(agent.result("c1"))
    before = agent.told
    if kind in MAY_COME[phase]:
        agent.commit(fact(agent, kind))
        assert agent.events[-1].type == kind
        return
    with pytest.raises(Refused) as refused:
        agent.commit(fact(agent, kind))
    assert refused.value.code == "grammar"
    assert agent.told == before


@pytest.mark.parametrize("field", ["turn", "step"])
@pytest.mark.parametrize("kind", sorted(set(GRAMMAR)))
def test_a_fact_names_the_turn_and_step_that_are_open(kind: str, field: str) -> None:
    phase = next(phase for phase in Phase if kind in MAY_COME[phase])
    agent = in_phase(phase)
    named = fact(agent, kind)
    wrong = Draft(kind, {**named.data, field: named.data[field] + 1})
    if (kind, field) == ("inbox/rejected", "step"):
        agent.commit(wrong)  # a rejection has no step
        return
    with pytest.raises(Refused):
        agent.commit(wrong)


def test_a_batch_with_one_wrong_fact_is_refused_whole() -> None:
    agent = in_phase(Phase.BOUNDARY)
    before = agent.told
    with pytest.raises(Refused):
        agent.commit(*agent.begin(), agent.says("c1"), agent.end())
    assert agent.told == before


# -- taking -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "claimed"),
    [
        (["A"], "c[A]"),
        (["A", "B"], "c[A]"),
        (["S!", "A", "T!"], "c[S!,T!,A]"),
        (["C?", "S!"], "c[C?,S!]"),
        (["C?", "A"], "c[C?,A]"),
        (["C?"], None),
        ([], None),
    ],
)
def test_a_turn_claims_what_waits_for_a_step_and_one_follow_up(waiting: list[str], claimed: str | None) -> None:
    """`!` marks a steer, `?` injected context."""
    agent = Agent()
    for name in waiting:
        agent.say(name, {"!": "steer", "?": "inject"}.get(name[-1], "queue"))
    before = agent.told
    assert agent.take() is (claimed is not None)
    assert agent.told == (f"{before} T1 {claimed}" if claimed else before)


def test_a_turn_is_not_opened_twice_nor_behind_a_hold() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.prompt("B")
    assert not agent.take()
    agent.echo(then=Then.YIELD)
    agent.hold()
    assert not agent.take()


def test_nothing_is_claimed_for_a_step_behind_a_hold_or_after_a_cancel() -> None:
    for stop in (Agent.hold, Agent.cancel):
        agent = Agent()
        agent.prompt("A")
        agent.take()
        agent.steer("S")
        stop(agent)
        assert not agent.take_step()
        assert agent.session.claimed == ["A"]


# -- ending -------------------------------------------------------------------------------------------------------


def test_every_kind_of_end_has_a_rule_for_what_is_left_over() -> None:
    assert set(LEFTOVER) == {"completed", "max-tokens", "blocked", "aborted", "error", "interrupted"}
    assert set(LEFTOVER) - ENDS == {"interrupted"}


@pytest.mark.parametrize("end", sorted(LEFTOVER))
def test_what_becomes_of_a_claimed_message_that_was_not_admitted(end: str) -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    settle = agent.give_up if end == "interrupted" else lambda: agent.settle(end=end)
    if LEFTOVER[end] is None:
        with pytest.raises(Refused):
            settle()
        return
    settle()
    message = agent.session.messages["A"]
    wanted = {"aborted": ("cancelled", "cancel"), "error": ("rejected", "bad-request")}
    assert (message.state, message.why) == wanted.get(end, ("dead", "interrupted"))
    told = {"aborted": "x[A] t1(aborted hook) I", "error": "rej[A] t1(error) I"}
    assert agent.told.endswith(told.get(end, "dead[A] t1(interrupted)"))


@pytest.mark.parametrize(
    ("waiting", "end", "then", "outcome"),
    [
        ("", "completed", Then.TAKE, Outcome.IDLE),
        ("", "completed", Then.YIELD, Outcome.IDLE),
        ("B", "completed", Then.TAKE, Outcome.TURN),
        ("B", "completed", Then.YIELD, Outcome.RELEASED),
        ("S", "completed", Then.YIELD, Outcome.CONTINUE),
        ("S", "max-tokens", Then.TAKE, Outcome.CONTINUE),
        ("S", "blocked", Then.TAKE, Outcome.TURN),
        ("S", "error", Then.TAKE, Outcome.TURN),
        ("S", "aborted", Then.YIELD, Outcome.RELEASED),
        ("C", "completed", Then.TAKE, Outcome.IDLE),
    ],
)
def test_what_a_settle_comes_to(waiting: str, end: str, then: Then, outcome: Outcome) -> None:
    """B is a follow-up, S a steer, C injected context."""
    agent = Agent()
    agent.prompt("A")
    agent.take()
    if waiting:
        agent.say(waiting, {"B": "queue", "S": "steer", "C": "inject"}[waiting])
    assert agent.settle(*agent.begin(), agent.says(), agent.end(), end=end, then=then) is outcome
    assert invariants.violations(agent.events) == []


@pytest.mark.parametrize("end", ["error", "blocked", "completed", "max-tokens", "aborted"])
def test_a_careful_agent_holds_after_failures_alone_even_an_empty_queue(end: str) -> None:
    agent = careful()
    agent.prompt("A")
    agent.take()
    agent.settle(*agent.begin(), agent.end(), end=end)
    assert ("held" in agent.told.split()) is (end in ("error", "blocked"))
    assert agent.told.split()[-1] == "I"


# -- cancelling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "told", "still_queued"),
    [
        ("keep", "cancel", ("S", "B", "later")),
        ("hold", "cancel held", ("S", "B", "later")),
        ("clear", "cancel x[S] x[B] x[later]", ()),
    ],
)
def test_a_cancel_says_what_happens_to_the_queue(queue: str, told: str, still_queued: tuple[str, ...]) -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.prompt("B")
    agent.steer("S")
    agent.prompt("later", notBefore=NOW_MS + 1000)
    before = agent.told
    cancelled = agent.cancel(queue)
    assert (cancelled.outcome, cancelled.turn, cancelled.still_queued) == ("requested", 1, still_queued)
    assert agent.told == f"{before} {told}"
    assert agent.session.messages["A"].state is MessageState.CLAIMED


@pytest.mark.parametrize(
    ("queue", "told"), [("keep", ""), ("hold", " cancel held I(held 1)"), ("clear", " cancel x[A] I")]
)
def test_a_cancel_without_a_turn_still_does_to_the_queue_what_it_says(queue: str, told: str) -> None:
    agent = Agent()
    agent.prompt("A")
    outcome = agent.cancel(queue).outcome
    assert outcome == ("requested" if told else "nothing_to_cancel")
    assert agent.told == f"q[A] R{told}"
    assert invariants.violations(agent.events) == []


@pytest.mark.parametrize("queue", ["keep", "hold", "clear"])
def test_where_there_is_nothing_there_is_nothing_to_cancel(queue: str) -> None:
    agent = Agent()
    assert agent.cancel(queue).outcome == "nothing_to_cancel"
    assert agent.events == []


def test_a_later_cancel_may_still_clear_the_queue_and_the_first_cause_stays() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.prompt("B")
    agent.cancel("keep", cause="parent")
    agent.cancel("clear", cause="user")
    agent.settle()
    assert agent.told.endswith("cancel cancel x[B] x[A] t1(aborted parent) I")


def test_a_message_after_a_clearing_cancel_is_untouched() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.cancel("clear")
    agent.prompt("B")
    assert agent.settle() is Outcome.TURN
    assert agent.session.claimed == ["B"]


def test_a_turn_that_is_not_open_cannot_be_cancelled_by_its_number() -> None:
    agent = Agent()
    agent.prompt("A")
    with pytest.raises(Refused) as refused:
        agent.cancel(turn_number=1)
    assert refused.value.code == "not-open"


# -- recovering and giving up ---------------------------------------------------------------------------------------


def test_only_crashes_count() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    for reason, attempt in [("handback", 1), ("crash", 2), ("resume", 2), ("crash", 3), ("handback", 3)]:
        agent.recover(reason)
        assert agent.session.attempt == attempt
    agent.echo()
    agent.prompt("B")
    agent.take()
    assert agent.session.attempt == 1


def test_a_turn_is_given_up_in_this_order() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.commit(*agent.begin(), agent.says("c1", "c2"), agent.call("c1"))
    agent.recover()
    agent.give_up()
    assert agent.told.endswith("tc[c1] recovered(1, attempt 2, crash) tr[c1] tr[c2] s1 t1(interrupted)")
    results = [event.data["error"]["code"] for event in agent.events if event.type == "tool/result"]
    assert results == ["TOOL_OUTCOME_UNKNOWN", "ABORTED_BEFORE_DISPATCH"]


def test_the_dead_of_a_turn_that_was_given_up_know_how_often_it_was_tried() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.recover()
    agent.recover()
    agent.give_up()
    assert agent.told.endswith("dead[A] t1(interrupted)")
    assert agent.events[-2].data == {"messageId": "A", "reason": "interrupted", "attempts": 3}
    assert agent.do(lambda act: turn.proceed(act, Then.TAKE)) is Outcome.IDLE


def test_a_cancel_wins_over_giving_up() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.take()
    agent.cancel()
    agent.give_up()
    assert agent.told.endswith("cancel x[A] t1(aborted user)")


def test_a_careful_agent_holds_after_giving_up() -> None:
    agent = careful()
    agent.prompt("A")
    agent.take()
    agent.give_up()
    assert agent.told.endswith("t1(interrupted) held")

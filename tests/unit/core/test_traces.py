"""All golden traces of semantics section 11 come out of the pure acts, event by event."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailslot_core import invariants
from mailslot_core.goal import Change, Round, advance, change
from mailslot_core.inbox import Submission
from mailslot_core.session import Lane, fold, indexes
from mailslot_core.turn import GRAMMAR, Draft
from tests.unit.core.agent import Agent

FOLDER = Path(__file__).parents[3] / "contracts" / "vectors"
VECTORS: list[dict[str, Any]] = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]


class Player:
    """Plays a history: the act that begins with the next event that is not there yet, until all are."""

    def __init__(self) -> None:
        self.agent = Agent()
        self.drafts: list[Draft] = []

    def play(self, history: list[dict[str, Any]]) -> None:
        for event in history:
            if event["seq"] <= len(self.agent.events) + len(self.drafts):
                continue  # an act before has appended it
            kind, data = event["type"], event["data"]
            if kind in GRAMMAR and self.agent.session.open:
                self.drafts.append(Draft(kind, data))
            elif kind in ("turn/end", "inbox/claimed"):
                end = data.get("reason", "completed")
                self.agent.settle(*self.written(), end=end)
            else:
                if self.drafts:
                    self.agent.commit(*self.written())
                ACTS[kind](self.agent, data)

    def written(self) -> list[Draft]:
        drafts, self.drafts = self.drafts, []
        return drafts


def queued(agent: Agent, data: dict[str, Any]) -> None:
    message_id, source = data["messageId"], data["source"]
    if source["kind"] == "goal":
        place = source["goalId"], source["revision"], source["round"], agent.session.idle_seq
        assert agent.do(lambda act: advance(act, Round(*place, message_id, data)))
        return
    agent.now = min(agent.now, data.get("notBefore", agent.now + 1) - 1)
    agent.submit(Submission(message_id, Lane(data["lane"]), data["wake"], data, "f"))


def goal_changed(agent: Agent, data: dict[str, Any]) -> None:
    goal = data["goal"]
    wanted = Change(data["operation"], None, goal["goalId"], goal["objective"], goal["budgets"])
    agent.do(lambda act: change(act, wanted))


def cancelled(agent: Agent, data: dict[str, Any]) -> None:
    """A withdrawal, or what a turn that was aborted before its first step leaves behind."""
    if data["cause"] == "withdrawn":
        agent.withdraw(data["messageId"])
    elif agent.session.open:
        agent.settle(end="completed")
    else:
        assert agent.take(), "a goal's message made way for a person's"


ACTS: dict[str, Callable[[Agent, dict[str, Any]], Any]] = {
    "inbox/queued": queued,
    "inbox/cancelled": cancelled,
    "inbox/due": lambda agent, data: agent.sweep(after_ms=60_000),
    "turn/start": lambda agent, data: agent.take(),
    "turn/recovered": lambda agent, data: agent.recover(data["reason"]),
    "cancel/requested": lambda agent, data: agent.cancel(data["queue"], cause=data["cause"]),
    "goal/change": goal_changed,
}


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{vector['id']:02d}" for vector in VECTORS])
def test_a_golden_trace_comes_out_event_by_event(vector: dict[str, Any]) -> None:
    player = Player()
    player.play(vector["history"])
    agent = player.agent
    assert agent.told == " ".join(vector["pattern"])
    kept = [{"seq": event.seq, "type": event.type, "data": event.data} for event in agent.events]
    assert kept == vector["history"]
    assert invariants.violations(agent.events) == []
    assert invariants.unsettled(agent.session) == []
    assert indexes(fold("s", agent.events)) == indexes(agent.session)

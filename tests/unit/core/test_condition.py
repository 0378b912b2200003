"""What may not be queued: a closed session, a time that is over, the sender's own conditions, and no room."""

from dataclasses import replace
from typing import Any, Final

import pytest

from mailslot_contracts.codec import frame
from mailslot_core.errors import Refused
from mailslot_core.inbox import Room, Submission
from mailslot_core.session import fold, indexes
from tests.conformance.dialogue import message
from tests.unit.core.agent import NOW_MS, ROOM, Agent
from tests.unit.core.test_inbox import code_of


def submission(delivery: str = "queue", *, times: dict[str, int] | None = None, **conditions: Any) -> Submission:
    said = message("N", delivery)
    return replace(said, data={**said.data, **(times or {})}, **conditions)


def settings() -> dict[str, Agent]:
    """An agent in each of the states that conditions tell apart. Turn 1 is over where it is `rested`."""
    made = {name: Agent() for name in ("new", "queued", "open", "rested", "held", "context", "later", "held, open")}
    made["queued"].prompt("A")
    for name in ("open", "rested", "held, open"):
        made[name].prompt("A")
        made[name].take()
    made["rested"].echo()
    made["held, open"].hold()
    made["held"].hold()
    made["held"].submit_from_child("A")
    made["context"].inject("C")
    made["later"].prompt("A", notBefore=NOW_MS + 1000)
    return made


@pytest.mark.parametrize("state", list(settings()))
def test_if_busy_refuses_unless_the_agent_is_idle_and_nothing_waits_that_would_run(state: str) -> None:
    """A held follow-up counts; injected context and what is not due do not (U5)."""
    agent = settings()[state]
    before = agent.told
    if state in {"queued", "open", "held", "held, open"}:
        assert code_of(lambda: agent.submit(submission(if_busy=True))) == "busy"
        assert agent.told == before
    else:
        agent.submit(submission(if_busy=True))
        assert agent.told.startswith(f"{before} q[N]".strip())


@pytest.mark.parametrize("state", list(settings()))
def test_if_idle_refuses_where_a_steer_would_open_a_turn_at_an_idle_agent(state: str) -> None:
    agent = settings()[state]
    if state in {"queued", "open", "held, open"}:
        agent.submit(submission("steer", if_idle=True))
    else:
        assert code_of(lambda: agent.submit(submission("steer", if_idle=True))) == "idle"


@pytest.mark.parametrize("state", list(settings()))
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_expect_turn_refuses_unless_that_turn_is_the_open_one(state: str, turn: int) -> None:
    agent = settings()[state]
    if turn == 1 and "open" in state:
        agent.submit(submission("steer", expect_turn=turn))
    else:
        assert code_of(lambda: agent.submit(submission("steer", expect_turn=turn))) == "turn-mismatch"


@pytest.mark.parametrize(
    ("expires_at", "expired"),
    [(NOW_MS + 1, False), (NOW_MS, True), (NOW_MS - 1, True), (0, True), (None, False)],
)
def test_a_message_whose_time_is_over_is_not_queued(expires_at: int | None, expired: bool) -> None:
    agent = Agent()
    said = submission(times={} if expires_at is None else {"expiresAt": expires_at})
    if expired:
        assert code_of(lambda: agent.submit(said)) == "expired"
        assert agent.events == []
    else:
        agent.submit(said)


def test_a_time_is_over_by_the_ledgers_time_when_the_clock_went_back() -> None:
    """The fold sees only the event's time, which never goes back (M11, L1)."""
    agent = Agent()
    agent.inject("C")
    agent.now -= 5_000
    assert code_of(lambda: agent.submit(submission(times={"expiresAt": NOW_MS}))) == "expired"


# Refusals in the order in which they are looked at, and what brings each about at an idle agent with a held queue.
FAULTS: Final[dict[str, dict[str, Any]]] = {
    "closed": {},
    "expired": {"times": {"expiresAt": NOW_MS}},
    "busy": {"if_busy": True},
    "idle": {"if_idle": True},
    "turn-mismatch": {"expect_turn": 7},
    "queue-full": {},
}


@pytest.mark.parametrize("first", list(FAULTS))
def test_of_several_refusals_the_first_in_this_order_is_told(first: str) -> None:
    order = list(FAULTS)
    faults = {name: value for fault in order[order.index(first) :] for name, value in FAULTS[fault].items()}
    agent = settings()["held"]
    if first == "closed":
        agent.close()
    full = Room(len(agent.session.waiting), ROOM.bytes_max)
    assert code_of(lambda: agent.submit(submission("steer", **faults), full)) == first


# -- room ---------------------------------------------------------------------------------------------------------


def test_the_bytes_of_queued_bodies_are_counted_as_they_stand_in_the_ledger() -> None:
    agent = Agent()
    agent.prompt("A")
    agent.inject("C")
    agent.prompt("later", notBefore=NOW_MS + 1000)
    agent.replace("C", "much longer words than before")
    told = [event for event in agent.events if event.type in ("inbox/queued", "inbox/replaced")]
    bodies = {event.data["messageId"]: len(frame(event.data)) for event in told}
    assert agent.session.waiting_bytes == sum(bodies.values())
    agent.take()
    assert agent.session.waiting_bytes == bodies["later"]
    agent.withdraw("later")
    assert agent.session.waiting_bytes == 0
    assert indexes(fold("s", agent.events)) == indexes(agent.session)


def test_a_queue_that_is_full_by_bytes_takes_what_still_fits() -> None:
    agent = Agent()
    room = Room(100, 2 * len(frame(message("N").data)))
    agent.submit(message("A"), room)
    assert code_of(lambda: agent.submit(message("B", words="longer than the others"), room)) == "queue-full"
    agent.submit(message("B"), room)
    assert code_of(lambda: agent.submit(message("C", words=""), room)) == "queue-full"
    agent.withdraw("A")
    agent.submit(message("C"), room)


def test_a_refusal_for_lack_of_room_says_when_to_come_back() -> None:
    agent = Agent()
    with pytest.raises(Refused) as refused:
        agent.submit(message("A"), Room(0, 1000))
    assert refused.value.retry_after_ms is not None


def test_new_words_must_fit_and_shorter_ones_always_do() -> None:
    """Even in a queue that is longer than it may be: a goal's round is queued whatever waits."""
    agent = Agent()
    agent.prompt("A", metadata={"long": "x" * 200})
    agent.prompt("B")
    small = Room(1, agent.session.waiting_bytes - 1)
    assert code_of(lambda: agent.replace("B", "x" * 200, small)) == "queue-full"
    agent.replace("B", "", small)

"""The ledgers of the interval vectors are legal, and what they say of an interval is what the core finds in them.

The core knows no runs. It folds the ledger and says where a message was first queued, where the agent was next idle,
and what had become of the message by then; the vectors' `result` has to agree.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from mailslot_core import invariants
from mailslot_core.session import Event, Message, MessageState, Session, fold

FOLDER = Path(__file__).parents[3] / "contracts" / "vectors" / "intervals"
VECTORS: list[dict[str, Any]] = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]
each_vector = pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])

WHY = {MessageState.CANCELLED: "cause", MessageState.REJECTED: "reason", MessageState.DEAD: "reason"}


def ledger_of(vector: dict[str, Any]) -> list[Event]:
    return [Event(e["seq"], e["type"], e["time"], e["epoch"], e["data"]) for e in vector["ledger"]]


def record(session: Session, message: Message) -> dict[str, Any]:
    """What became of a message, as the protocol writes it, from the core's indexes."""
    waits = message.state is MessageState.QUEUED and message.wake and message.due and session.hold is not None
    told: dict[str, Any] = {"messageId": message.message_id, "state": "held" if waits else str(message.state)}
    if message.state is MessageState.ADMITTED:
        told |= {"turn": message.turn, "step": message.step}
    return told | ({WHY[message.state]: message.why} if message.state in WHY else {})


@each_vector
def test_the_ledger_of_an_interval_is_legal(vector: dict[str, Any]) -> None:
    assert {envelope["sessionId"] for envelope in vector["ledger"]} == {vector["sessionId"]}
    assert invariants.violations(ledger_of(vector)) == []


@each_vector
def test_an_interval_goes_from_its_messages_first_queueing_through_the_next_idle(vector: dict[str, Any]) -> None:
    ledger = ledger_of(vector)
    first = next(e.seq for e in ledger if e.type == "inbox/queued" and e.data["messageId"] == vector["messageId"])
    idles = [event.seq for event in ledger if fold("s", ledger[: event.seq]).idle_seq == event.seq]
    last = next(seq for seq in idles if seq > first)
    result = vector["result"]
    assert (result["from"], result["to"]) == (first, last)
    assert result["events"] == list(range(first, last + 1))


@each_vector
def test_what_became_of_the_message_is_what_the_core_knows_at_the_end_of_the_interval(vector: dict[str, Any]) -> None:
    session = fold("s", ledger_of(vector)[: vector["result"]["to"]])
    assert record(session, session.messages[vector["messageId"]]) == vector["result"]["message"]


@each_vector
def test_what_is_delivered_is_of_the_ledger_or_of_another_session_and_lacks_nothing(vector: dict[str, Any]) -> None:
    delivered = [envelope for envelope in vector["delivered"] if envelope is not None]
    own = [envelope for envelope in delivered if envelope["sessionId"] == vector["sessionId"]]
    assert all(envelope == vector["ledger"][envelope["seq"] - 1] for envelope in own)
    of_the_interval = [envelope["seq"] for envelope in own if envelope["seq"] in vector["result"]["events"]]
    assert list(dict.fromkeys(of_the_interval)) == vector["result"]["events"], "each first comes in its order"

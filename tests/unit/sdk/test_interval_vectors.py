"""Hostile orders give the same interval: `contracts/vectors/intervals`, which the core and the other SDKs read too.

Each is told twice: envelope by envelope to an `Interval`, and through a whole run, whose server cuts the connection,
repeats itself, leaves gaps and comes late as the vector says, and afterwards tells the truth.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from mailslot import Event, RunResult, Settings
from mailslot.event import read_event
from mailslot.interval import Interval
from mailslot.operation import Address, draft
from mailslot.run import owned_run
from mailslot.step import Answer, Exchange, Fault, Give, Open, Read, Terms
from tests.unit.sdk.driving import STREAM, frame, level, receipt

FOLDER = Path(__file__).parents[3] / "contracts" / "vectors" / "intervals"
VECTORS: list[dict[str, Any]] = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]
each_vector = pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])


def told(result: RunResult, vector: dict[str, Any]) -> dict[str, Any]:
    """A result as a vector writes it; its events have to be those of the ledger, not only their numbers."""
    wire = result.wire()
    kept = [read_event(vector["ledger"][event["seq"] - 1], vector["sessionId"]) for event in wire["events"]]
    assert list(result.events) == kept
    assert (wire.pop("sessionId"), wire.pop("messageId")) == (vector["sessionId"], vector["messageId"])
    return {**wire, "events": [event["seq"] for event in wire["events"]]}


@each_vector
def test_a_hostile_order_gives_the_interval_that_the_ledger_has(vector: dict[str, Any]) -> None:
    interval = Interval(vector["sessionId"], vector["messageId"])
    taken = [envelope for envelope in vector["delivered"] if envelope is not None and interval.feed_envelope(envelope)]
    assert told(interval.result(), vector) == vector["result"]
    assert [envelope["seq"] for envelope in taken] == vector["result"]["events"]


@each_vector
def test_what_is_told_twice_in_order_gives_the_same(vector: dict[str, Any]) -> None:
    interval = Interval(vector["sessionId"], vector["messageId"])
    for envelope in (*vector["ledger"], *vector["ledger"]):
        interval.feed_envelope(envelope)
    assert told(interval.result(), vector) == vector["result"]


class Server:
    """Delivers as the vector says, a connection at a time, and what the ledger has once that is used up."""

    def __init__(self, vector: dict[str, Any]) -> None:
        own = [each for each in vector["delivered"] if each is None or each["sessionId"] == vector["sessionId"]]
        parts = groupby(own, key=lambda each: each is None)
        self._vector = vector
        self._hostile = [list(part) for is_cut, part in parts if not is_cut]
        self._reads: Iterator[Answer] = iter(())

    def answer(self, step: object) -> Answer:
        match step:
            case Exchange(request=request):
                return receipt(self._vector["messageId"]) if request.method == "POST" else level("s", 0)
            case Open(request=request):
                self._reads = self._connection(int(request.query["after"]))
                return STREAM
            case Read():
                return next(self._reads)
            case _:
                return None

    def _connection(self, after: int) -> Iterator[Answer]:
        part = self._hostile.pop(0) if self._hostile else self._vector["ledger"][after:]
        yield from (frame(envelope) for envelope in part)
        yield Fault("the connection was cut")


def run_against(server: Server, vector: dict[str, Any]) -> tuple[list[Event], RunResult]:
    given: list[Any] = []
    terms = Terms(Settings(), clock=lambda: 0.0, chance=lambda: 0.5)
    operation = owned_run(terms, Address(vector["sessionId"]), draft("hello", message_id=vector["messageId"]))
    answer: Answer = None
    while True:
        try:
            step = operation.send(answer)
        except StopIteration:
            break
        given += [step.item] if isinstance(step, Give) else []
        answer = server.answer(step)
    return [item for item in given if isinstance(item, Event)], given[-1]


@each_vector
def test_a_run_over_a_hostile_stream_gives_the_interval_that_the_ledger_has(vector: dict[str, Any]) -> None:
    events, result = run_against(Server(vector), vector)
    assert told(result, vector) == vector["result"]
    assert [event.seq for event in events] == vector["result"]["events"]

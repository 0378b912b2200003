"""What belongs to a run, and what is reported of it. The golden traces are data: `contracts/vectors`."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslot import Event, MessageRecord, RunResult
from mailslot.event import read_event
from mailslot.interval import Interval, finish_reason, is_idle, text_of
from mailslot_contracts.results import RunResult as PromisedResult
from tests.unit.sdk.driving import envelope, history

VECTORS = [
    json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parents[3] / "contracts" / "vectors").glob("*.json"))
]
RUNS = [(vector, run) for vector in VECTORS for run in vector["runs"]]
RUN_IDS = [f"{vector['id']:02}-{run['messageId']}" for vector, run in RUNS]


def events_of(vector: Mapping[str, Any], *, shift: int = 0) -> list[Event]:
    return [Event(e["seq"] + shift, e["type"], 0, 1, e["data"]) for e in vector["history"]]


def events(*pairs: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(seq, kind, 0, 1, data) for seq, (kind, data) in enumerate(pairs, 1)]


def run_over(message_id: str, given: Iterable[Event], *, whole: bool = False) -> RunResult:
    interval = Interval("s", message_id, whole=whole)
    for event in given:
        interval.feed(event)
    return interval.result()


def queued(message_id: str) -> tuple[str, dict[str, Any]]:
    return ("inbox/queued", {"messageId": message_id, "lane": "next-turn", "wake": True})


def said(text: str) -> tuple[str, dict[str, Any]]:
    return ("assistant/message", {"turn": 1, "step": 1, "content": [{"type": "text", "text": text}]})


IDLE = ("agent/status", {"status": "idle"})
RUNNING = ("agent/status", {"status": "running"})


def test_there_are_vectors_to_replay() -> None:
    assert len(VECTORS) == 16
    assert len(RUNS) > 16


@pytest.mark.parametrize(("vector", "run"), RUNS, ids=RUN_IDS)
def test_every_golden_trace_gives_the_run_it_promises(vector: dict[str, Any], run: dict[str, Any]) -> None:
    result = run_over(run["messageId"], events_of(vector))
    assert (result.from_seq, result.to_seq) == (run["from"], run["to"])
    assert result.final_response == run["finalResponse"]
    assert result.finish_reason == run["finishReason"]
    assert [event.seq for event in result.events] == list(range(run["from"], run["to"] + 1))


@pytest.mark.parametrize(("vector", "run"), RUNS, ids=RUN_IDS)
def test_a_result_is_written_as_the_contract_says(vector: dict[str, Any], run: dict[str, Any]) -> None:
    wire = run_over(run["messageId"], events_of(vector)).wire()
    promised = PromisedResult.model_validate(json.loads(json.dumps(wire)), by_alias=True, by_name=False)
    assert promised.final_response == run["finalResponse"]
    assert promised.message is not None
    assert promised.message.wire() == wire["message"]
    assert wire["message"]["messageId"] == run["messageId"]


STATES = {
    (1, "A"): MessageRecord("A", "admitted", turn=1, step=1),
    (3, "S"): MessageRecord("S", "admitted", turn=1, step=2),
    (5, "A"): MessageRecord("A", "rejected", reason="..."),
    (6, "A"): MessageRecord("A", "admitted", turn=1, step=1),
    (7, "B"): MessageRecord("B", "admitted", turn=2, step=1),
    (8, "B"): MessageRecord("B", "cancelled", cause="cancel"),
    (9, "B"): MessageRecord("B", "held"),
    (10, "A"): MessageRecord("A", "admitted", turn=1, step=1),
    (13, "A"): MessageRecord("A", "cancelled", cause="withdrawn"),
    (15, "A"): MessageRecord("A", "cancelled", cause="cancel"),
}


@pytest.mark.parametrize(("place", "expected"), STATES.items(), ids=[f"{i:02}-{m}" for i, m in STATES])
def test_the_messages_own_record_is_what_happened_to_the_message(
    place: tuple[int, str], expected: MessageRecord
) -> None:
    vector = next(vector for vector in VECTORS if vector["id"] == place[0])
    record = run_over(place[1], events_of(vector)).message
    if record.reason is not None:
        record = dataclasses.replace(record, reason="...")
    assert record == expected


def test_a_message_that_is_not_due_is_queued_at_the_idle_and_not_held() -> None:
    given = events(queued("A"), RUNNING, queued("later"), IDLE)
    assert run_over("later", given).message == MessageRecord("later", "queued")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (("inbox/expired", {"messageId": "A"}), MessageRecord("A", "expired")),
        (
            ("inbox/dead", {"messageId": "A", "reason": "gave up", "attempts": 3}),
            MessageRecord("A", "dead", reason="gave up"),
        ),
        (("inbox/rejected", {"messageId": "other", "turn": 1, "reason": "no"}), MessageRecord("A", "queued")),
    ],
)
def test_other_ends_of_a_message(end: tuple[str, dict[str, Any]], expected: MessageRecord) -> None:
    assert run_over("A", events(queued("A"), RUNNING, end, IDLE)).message == expected


def test_a_dead_message_that_is_redriven_is_queued_again() -> None:
    dead = ("inbox/dead", {"messageId": "A", "reason": "gave up", "attempts": 3})
    redriven = ("inbox/queued", {"messageId": "A", "redrive": True})
    assert run_over("A", events(queued("A"), dead, redriven, IDLE)).message.state == "queued"


def test_an_idle_that_was_published_late_does_not_end_the_run() -> None:
    given = events(queued("yesterday"), said("yesterday"), IDLE, queued("A"), RUNNING, said("today"), IDLE, RUNNING)
    result = run_over("A", given)
    assert (result.from_seq, result.to_seq) == (4, 7)
    assert result.final_response == "today"


def test_everything_before_its_own_receipt_is_skipped() -> None:
    interval = Interval("s", "A")
    before = events(queued("B"), RUNNING, said("not yours"), ("turn/end", {"reason": {"kind": "completed"}}), IDLE)
    assert [interval.feed(event) for event in before] == [False] * 5
    assert not interval.done


def test_nothing_after_the_end_belongs_to_it() -> None:
    interval = Interval("s", "A")
    given = events(queued("A"), RUNNING, IDLE, said("later"))
    assert [interval.feed(event) for event in given] == [True, True, True, False]
    assert interval.result().final_response == ""


def test_an_empty_later_message_does_not_erase_what_was_said() -> None:
    given = events(queued("A"), said("the answer"), said(""), said(" \n"), ("assistant/message", {"content": []}), IDLE)
    assert run_over("A", given).final_response == "the answer"


def test_other_peoples_messages_in_the_interval_are_part_of_it() -> None:
    given = events(queued("A"), RUNNING, said("to A"), queued("B"), said("to B"), IDLE)
    result = run_over("A", given)
    assert result.final_response == "to B"
    assert [event.type for event in result.events].count("inbox/queued") == 2


def test_without_a_turn_there_is_no_finish_reason_and_no_text() -> None:
    result = run_over(
        "A", events(queued("A"), RUNNING, ("inbox/cancelled", {"messageId": "A", "cause": "cancel"}), IDLE)
    )
    assert (result.finish_reason, result.final_response) == (None, "")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [({"kind": "completed"}, "completed"), ({"kind": "paused-by-moon"}, "paused-by-moon"), ({}, None), (None, None)],
)
def test_the_kind_of_the_last_turn_end_is_passed_on_as_it_is(reason: object, expected: str | None) -> None:
    first = ("turn/end", {"turn": 1, "reason": {"kind": "max-tokens"}})
    last = ("turn/end", {"turn": 2, "reason": reason})
    assert finish_reason(events(first, last)) == expected


def test_unknown_events_are_kept() -> None:
    given = events(queued("A"), ("weather/changed", {"to": "rain"}), IDLE)
    assert run_over("A", given).events[1].data == {"to": "rain"}


def test_a_run_that_is_not_over_has_no_result() -> None:
    interval = Interval("s", "A")
    interval.feed(events(queued("A"))[0])
    with pytest.raises(ValueError, match="not over"):
        interval.result()


def test_idle_to_idle_owns_what_came_before_its_message_too() -> None:
    given = events(said("while it came in"), queued("B"), IDLE, queued("A"), RUNNING, IDLE, said("after"))
    result = run_over("A", given, whole=True)
    assert (result.from_seq, result.to_seq) == (1, 6)
    assert result.final_response == "while it came in"


def test_the_turn_that_took_the_message_is_known_by_its_number() -> None:
    interval = Interval("s", "A")
    given = events(
        queued("A"),
        ("turn/start", {"turn": 4}),
        ("inbox/claimed", {"turn": 4, "messageIds": ["other"]}),
        ("turn/start", {"turn": 5}),
        ("inbox/claimed", {"turn": 5, "messageIds": ["context", "A"]}),
        ("turn/start", {"turn": 6}),
        ("inbox/claimed", {"turn": 6, "messageIds": ["later"]}),
    )
    turns = []
    for event in given:
        interval.feed(event)
        turns.append(interval.turn)
    assert turns == [None, None, None, None, 5, 5, 5]


@given(st.lists(st.sampled_from(["idle", "running", "mine", "theirs", "said", "end"]), max_size=30))
def test_a_run_begins_at_its_receipt_and_ends_at_the_first_idle_after_it(kinds: list[str]) -> None:
    table = {
        "idle": IDLE,
        "running": RUNNING,
        "theirs": queued("theirs"),
        "said": said("x"),
        "end": ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
    }
    pairs = [
        queued("mine") if kind == "mine" and kinds.index("mine") == at else table.get(kind, RUNNING)
        for at, kind in enumerate(kinds)
    ]
    interval = Interval("s", "mine")
    mine = [event for event in events(*pairs) if interval.feed(event)]
    if "mine" not in kinds:
        assert mine == []
        return
    assert mine[0].seq == kinds.index("mine") + 1
    assert [event.seq for event in mine] == list(range(mine[0].seq, mine[0].seq + len(mine)))
    assert not any(is_idle(event) for event in mine[:-1])
    assert interval.done == is_idle(mine[-1])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("bare", "bare"),
        ([{"type": "text", "text": "a"}, {"type": "image", "url": "…"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "text"}, {"type": "hologram", "text": "no"}], ""),
        (None, ""),
    ],
)
def test_the_text_of_a_content_is_its_text_blocks(content: object, text: str) -> None:
    assert text_of(content) == text


def test_an_envelope_becomes_an_event_and_back_without_loss() -> None:
    for value in history("m", 5, "\u2028 héllo 🙂"):
        assert read_event(value, "s").envelope("s") == value
    odd = envelope(1, "new/type", {"unknown": [1, 2.5, None, {"deep": True}]})
    assert read_event(odd, "s").data == odd["data"]

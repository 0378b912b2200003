"""The other bodies of the REST door: strict on the way in, exact and open on the way out."""

from typing import Any

import pytest

from mailslot_contracts import protocol
from mailslot_contracts.door import Answer, read
from mailslot_contracts.events import parse_event
from mailslot_contracts.problems import Code, ContractError
from mailslot_contracts.protocol import (
    Cancel,
    CancelAnswer,
    CloseAnswer,
    EraseAnswer,
    EventPage,
    IdleAnswer,
    LevelPage,
    SessionAnswer,
    SessionCreate,
)
from mailslot_contracts.records import DeadLetter, DeadPage, MessageRecord, QueuedMessage, QueuePage, Redriven
from mailslot_contracts.results import RunResult
from mailslot_contracts.status import Level

LEVEL: dict[str, Any] = {
    "sessionId": "s",
    "status": "running",
    "reasons": ["turn 4", "2 queued"],
    "cursor": 31,
    "turn": 4,
    "pending": 3,
    "held": 0,
    "usage": {"inputTokens": 1, "outputTokens": 2},
    "conservation": 0,
}
EVENT = {
    "v": 1, "seq": 1, "sessionId": "s", "type": "new/thing", "time": 5, "epoch": 0, "data": {"a": None}, "extra": None,
}  # fmt: skip

QUEUED: dict[str, Any] = {
    "messageId": "m",
    "state": "queued",
    "delivery": "queue",
    "cursor": 3,
    "due": False,
    "content": [{"type": "text", "text": "x"}],
    "source": {"kind": "user"},
    "notBefore": 7,
    "expiresAt": 9,
    "metadata": {"a": None},
}
LETTER: dict[str, Any] = {
    "letterId": "L-1",
    "sessionId": "s",
    "turn": 2,
    "reason": "the turn crashed 3 times",
    "attempts": 3,
    "time": 5,
    "messages": [{"messageId": "m", "state": "dead"}],
}


def test_a_session_needs_nothing_to_be_made() -> None:
    assert read(SessionCreate, {}).created() == {
        "agent": "default",
        "onFailure": "continue",
        "depth": 0,
        "metadata": {},
    }


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (None, "must be an object"),
        ({"sessionId": ""}, "sessionId must not be empty"),
        ({"sessionId": "a" * 201}, "201 bytes"),
        ({"sessionId": "a\x00"}, r"U\+0000"),
        ({"agent": ""}, "must not be empty"),
        ({"agent": 5}, "agent: must be text"),
        ({"onFailure": "explode"}, "onFailure"),
        ({"metadata": "x"}, "metadata: must be an object"),
        ({"parent": "p"}, "parent: is not a field"),
        ({"depth": 3}, "depth: is not a field"),
    ],
)
def test_a_session_is_not_made_from_bad_input(body: object, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        read(SessionCreate, body)


def test_a_session_may_be_made_to_hold_after_a_failure() -> None:
    assert read(SessionCreate, {"onFailure": "hold"}).created()["onFailure"] == "hold"


@pytest.mark.parametrize("queue", ["keep", "hold", "clear"])
def test_a_cancel_says_what_happens_to_the_queue(queue: str) -> None:
    assert read(Cancel, {"queue": queue}).queue == queue


def test_a_cancel_keeps_the_queue_and_comes_from_a_user_unless_it_says_otherwise() -> None:
    assert read(Cancel, {}).wire() == {"queue": "keep", "cause": "user"}
    assert read(Cancel, {"turn": 4, "cause": "parent"}).turn == 4


@pytest.mark.parametrize(
    "body", [{"queue": "all"}, {"turn": 0}, {"turn": "4"}, {"cause": "boredom"}, {"messageId": "m"}, []]
)
def test_a_cancel_is_not_made_from_bad_input(body: object) -> None:
    with pytest.raises(ContractError):
        read(Cancel, body)


def test_a_level_is_written_without_what_is_absent() -> None:
    assert read(Level, LEVEL).wire() == LEVEL
    resting = {**LEVEL, "status": "idle", "reasons": []}
    del resting["turn"]
    assert read(Level, resting).wire() == resting
    held = {**resting, "held": 2, "hold": "cancel", "closed": True}
    assert read(Level, held).wire() == held


def test_an_answer_may_have_more_than_a_reader_knows() -> None:
    assert read(Level, {**LEVEL, "region": "eu"}) == read(Level, LEVEL)


def test_the_last_page_says_that_it_is_the_last() -> None:
    page = read(EventPage, {"events": [EVENT], "next": None})
    assert page.wire() == {"events": [EVENT], "next": None}
    assert read(LevelPage, {"sessions": [LEVEL], "next": "s"}).wire() == {"sessions": [LEVEL], "next": "s"}
    assert read(QueuePage, {"messages": [QUEUED], "next": None}).wire() == {"messages": [QUEUED], "next": None}
    assert read(DeadPage, {"letters": [LETTER], "next": None}).wire() == {"letters": [LETTER], "next": None}
    pages: list[tuple[type[Answer], Any]] = [
        (EventPage, {"events": []}),
        (QueuePage, {"messages": []}),
        (DeadPage, {"letters": []}),
    ]
    for page_of, body in pages:
        with pytest.raises(ContractError, match="next: is missing"):
            read(page_of, body)


def test_a_page_of_parsed_events_is_written_as_they_came() -> None:
    queued = {**EVENT, "type": "turn/start", "data": {"turn": 1, "new": None}}
    assert EventPage(events=(parse_event(queued),), next=2).wire() == {"events": [queued], "next": 2}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (SessionAnswer, {"sessionId": "s", "cursor": 0}),
        (CancelAnswer, {"outcome": "requested", "turn": 4, "stillQueued": ["m"]}),
        (CancelAnswer, {"outcome": "nothing_to_cancel", "stillQueued": []}),
        (CloseAnswer, {"sessionId": "s", "closed": False, "cursor": 4}),
        (
            EraseAnswer,
            {"sessionId": "s", "erased": True, "stores": {"ledger": {"erased": True, "events": 4, "messages": 1}}},
        ),
        (QueuedMessage, QUEUED),
        (DeadLetter, LETTER),
        (Redriven, {"receipts": [{"messageId": "m", "cursor": 9, "duplicate": False, "durability": "fsync"}]}),
        (IdleAnswer, {"status": "idle", "cursor": 9}),
        (IdleAnswer, {"status": "running", "cursor": 9, "reasons": ["turn 1"]}),
    ],
)
def test_an_answer_comes_back_as_it_was_sent(model: type[Answer], body: dict[str, Any]) -> None:
    assert read(model, body).wire() == body


def test_a_batch_takes_up_to_a_thousand_prompts_and_reads_none_of_them() -> None:
    items = [{"content": "x"}, {"wrong": True}, 5]
    assert protocol.check_batch(items) == items
    protocol.check_batch([{}] * 1000)
    with pytest.raises(ContractError, match="1001 prompts; the limit is 1000") as caught:
        protocol.check_batch([{}] * 1001)
    assert caught.value.code is Code.TOO_LARGE


@pytest.mark.parametrize("body", [None, {}, "x", []])
def test_what_is_no_list_of_prompts_is_no_batch(body: object) -> None:
    with pytest.raises(ContractError, match="a batch must"):
        protocol.check_batch(body)


def test_no_answer_of_the_door_tells_how_a_turn_ended() -> None:
    absent = {"result", "finish_reason", "final_response", "stop_reason", "kind", "output"}
    answers: list[type[Answer]] = [SessionAnswer, Level, CancelAnswer, EventPage, IdleAnswer, CloseAnswer, EraseAnswer]
    answers += [QueuePage, Redriven]
    for model in answers:
        assert not {*absent, "reason"} & set(model.model_fields)
    records: list[type[Answer]] = [MessageRecord, QueuedMessage]
    for model in records:
        assert not absent & set(model.model_fields)


def test_a_run_result_claims_no_success() -> None:
    assert set(RunResult.model_fields) == {
        "session_id",
        "message_id",
        "final_response",
        "events",
        "from_seq",
        "to_seq",
        "finish_reason",
        "message",
    }
    sent = {"sessionId": "s", "messageId": "m", "finalResponse": "", "events": [EVENT], "from": 1, "to": 2}
    assert read(RunResult, sent).wire() == sent
    with pytest.raises(ContractError, match="status: is not a field"):
        read(RunResult, {**sent, "status": "ok"})


@pytest.mark.parametrize(
    "record",
    [
        {"messageId": "m", "state": "held"},
        {"messageId": "m", "state": "admitted", "turn": 1, "step": 2},
        {"messageId": "m", "state": "cancelled", "cause": "cancel"},
        {"messageId": "m", "state": "dead", "reason": "gave up"},
    ],
)
def test_a_run_result_may_show_the_messages_own_record(record: dict[str, Any]) -> None:
    """U4: an observation, without causal claim."""
    sent = {"sessionId": "s", "messageId": "m", "finalResponse": "", "events": [EVENT], "from": 1, "to": 2}
    assert read(RunResult, sent | {"message": record}).wire() == sent | {"message": record}
    with pytest.raises(ContractError, match=r"message\.finishReason: is not a field"):
        read(RunResult, sent | {"message": record | {"finishReason": "completed"}})
    with pytest.raises(ContractError, match=r"message\.state"):
        read(RunResult, sent | {"message": record | {"state": "answered"}})

"""Operations on what waits, on a session's end and on what is dead: what is asked, what is read, what is sent again."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from mailslot import BadAnswer, Closing, DeadMessage, OutcomeUnknown, Refused, Settings
from mailslot import inbox as box
from mailslot import operation as ops
from mailslot.operation import Address, draft
from mailslot.step import Fault, Operation, Response, Terms
from tests.unit.sdk.driving import good, level, play, receipt, refused

CUT = Fault("cut")
TERMS = Terms(Settings(attempts_max=3), chance=lambda: 1.0)
RECORD: dict[str, Any] = {"messageId": "m", "state": "queued", "delivery": "steer", "cursor": 4, "due": True}
QUEUED: dict[str, Any] = {**RECORD, "content": [{"type": "text", "text": "x"}], "source": {"kind": "user"}}
LETTER: dict[str, Any] = {
    "letterId": "5-1-0", "sessionId": "s", "turn": 2, "reason": "crashed", "attempts": 3, "time": 5,
    "messages": [{"messageId": "m", "state": "dead"}, {"messageId": "n"}],
}  # fmt: skip
RECEIPT = {"messageId": "m", "cursor": 9, "duplicate": False, "durability": "fsync"}


def at(session_id: str = "s") -> Address:
    return Address(session_id)


# -- what a prompt can say ----------------------------------------------------------------------------------------


def test_options_of_a_prompt_have_their_names_on_the_wire_and_are_left_out_when_not_given() -> None:
    said = json.loads(
        draft(
            "hi", message_id="m", delivery="steer", not_before=5, expires_at=6, if_busy="reject", if_idle="reject",
            expect_turn=2,
        ).body
    )  # fmt: skip
    assert said == {
        "messageId": "m", "content": "hi", "delivery": "steer", "notBefore": 5, "expiresAt": 6, "ifBusy": "reject",
        "ifIdle": "reject", "expectTurn": 2,
    }  # fmt: skip
    assert json.loads(draft("hi", message_id="m").body).keys() == {"messageId", "content", "delivery"}
    assert json.loads(draft("hi", not_before=0).body)["notBefore"] == 0


@pytest.mark.parametrize("code", ["busy", "idle", "turn-mismatch", "closed"])
def test_a_prompt_that_does_not_fit_the_agents_state_is_refused_and_not_tried_again(code: str) -> None:
    played = play(ops.prompt(TERMS, at(), draft("hi", message_id="m")), [refused(409, code, retryable=code == "busy")])
    assert isinstance(played.error, Refused)
    assert (played.error.code, played.error.retryable, len(played.requests)) == (code, code == "busy", 1)


def test_a_prompt_whose_time_was_over_before_any_attempt_could_be_kept_is_refused() -> None:
    played = play(ops.prompt(TERMS, at(), draft("hi", message_id="m", expires_at=1)), [refused(400, "expired")])
    assert isinstance(played.error, Refused)
    assert played.error.code == "expired"


# -- what is asked and read ---------------------------------------------------------------------------------------


def test_a_level_says_why_the_queue_is_on_hold_and_whether_the_session_is_closed() -> None:
    standing = play(ops.level(TERMS, at()), [level("s", 3, hold="failure", closed=True)]).result
    assert (standing.hold, standing.closed) == ("failure", True)
    standing = play(ops.level(TERMS, at()), [level("s", 3)]).result
    assert (standing.hold, standing.closed) == (None, False)


def test_a_queue_is_read_page_by_page() -> None:
    later = {**QUEUED, "messageId": "n", "due": False, "notBefore": 7, "metadata": {"a": None}, "redrive": True}
    pages = [good({"messages": [QUEUED], "next": "1-4"}), good({"messages": [later], "next": None})]
    played = play(box.queue(TERMS, at("a/b")), pages)
    assert [request.path for request in played.requests] == ["/v1/sessions/a%2Fb/messages"] * 2
    assert [request.query.get("after") for request in played.requests] == [None, "1-4"]
    first, second = played.result
    assert (first.message_id, first.state, first.delivery, first.cursor, first.due) == ("m", "queued", "steer", 4, True)
    assert (first.content, first.source, first.not_before) == (QUEUED["content"], QUEUED["source"], None)
    assert (second.not_before, second.metadata, second.redrive, second.due) == (7, {"a": None}, True, False)


CALLS: list[tuple[Callable[[], Operation[Any]], str, str, Any, dict[str, Any]]] = [
    (lambda: box.message(TERMS, at(), "a/b"), "GET", "/v1/sessions/s/messages/a%2Fb", None, RECORD),
    (lambda: box.replace(TERMS, at(), "m", "y"), "PATCH", "/v1/sessions/s/messages/m", {"content": "y"}, RECORD),
    (lambda: box.move(TERMS, at(), "m"), "PATCH", "/v1/sessions/s/messages/m", {"delivery": "steer"}, RECORD),
    (lambda: box.withdraw(TERMS, at(), ".."), "DELETE", "/v1/sessions/s/messages/%2E%2E", None, RECORD),
    (lambda: box.release(TERMS, at()), "POST", "/v1/sessions/s/release", None, {"sessionId": "s", "cursor": 7}),
    (lambda: box.close(TERMS, at()), "POST", "/v1/sessions/s/close", None, {"closed": False, "cursor": 7}),
    (lambda: box.erase(TERMS, at(), 2.5), "DELETE", "/v1/sessions/s", None, {"erased": False, "stores": {}}),
    (lambda: box.redrive(TERMS, "5-1-0"), "POST", "/v1/dead/5-1-0/redrive", None, {"receipts": [RECEIPT]}),
]


@pytest.mark.parametrize(
    ("make", "method", "path", "body", "answer"), CALLS, ids=[f"{row[1]} {row[2]}" for row in CALLS]
)
def test_each_operation_is_one_request(
    make: Callable[[], Operation[Any]], method: str, path: str, body: Any, answer: dict[str, Any]
) -> None:
    played = play(make(), [good(answer)])
    (request,) = played.requests
    assert (request.method, request.path) == (method, path)
    assert (None if request.body is None else json.loads(request.body)) == body
    assert played.error is None


def test_answers_become_values() -> None:
    assert play(box.close(TERMS, at()), [good({"closed": True, "cursor": 7}, 202)]).result == Closing(True, 7)
    assert play(box.release(TERMS, at()), [good({"sessionId": "s", "cursor": 7})]).result == 7
    stores = {"ledger": {"erased": True, "events": 4, "messages": 1}, "other": {"erased": True}}
    erasure = play(box.erase(TERMS, at(), None), [good({"erased": True, "stores": stores})]).result
    assert erasure.erased
    assert (erasure.stores["ledger"].events, erasure.stores["other"].events) == (4, None)
    (redriven,) = play(box.redrive(TERMS, "5-1-0"), [good({"receipts": [RECEIPT]}, 202)]).result
    assert (redriven.message_id, redriven.cursor) == ("m", 9)


def test_dead_letters_are_given_page_by_page() -> None:
    pages = [good({"letters": [LETTER], "next": "5-1-0"}), good({"letters": [], "next": None})]
    played = play(box.dead(TERMS), pages)
    (letter,) = played.given
    assert (letter.letter_id, letter.session_id, letter.turn, letter.attempts) == ("5-1-0", "s", 2, 3)
    assert letter.messages == (DeadMessage("m", "dead"), DeadMessage("n", None))
    assert played.requests[1].query["after"] == "5-1-0"


def test_a_session_that_was_erased_is_made_anew_with_its_agent() -> None:
    address = Address("s", "poet", made=True)
    play(box.erase(TERMS, address, None), [good({"erased": True, "stores": {}})])
    played = play(
        ops.prompt(TERMS, address, draft("hi", message_id="m")),
        [good({"sessionId": "s", "cursor": 1}, 201), receipt("m")],
    )
    assert [request.path for request in played.requests] == ["/v1/sessions", "/v1/sessions/s/prompt"]


@pytest.mark.parametrize(
    "answer",
    [
        good({}),
        good({"messages": {}, "next": None}),
        good({"messages": ["m"], "next": None}),
        good({"messages": [RECORD], "next": None}),
        good({"messages": [QUEUED], "next": 5}),
    ],
)
def test_a_queue_that_is_none_is_a_bad_answer(answer: Response) -> None:
    assert isinstance(play(box.queue(TERMS, at()), [answer]).error, BadAnswer)


# -- what is sent again -------------------------------------------------------------------------------------------

SAFE: dict[str, tuple[Callable[[], Operation[Any]], dict[str, Any]]] = {
    "replace": (lambda: box.replace(TERMS, at(), "m", "y"), RECORD),
    "withdraw": (lambda: box.withdraw(TERMS, at(), "m"), RECORD),
    "close": (lambda: box.close(TERMS, at()), {"closed": True, "cursor": 7}),
    "erase": (lambda: box.erase(TERMS, at(), None), {"erased": True, "stores": {}}),
    "redrive": (lambda: box.redrive(TERMS, "5-1-0"), {"receipts": []}),
}
UNSAFE: dict[str, Callable[[], Operation[Any]]] = {
    "move": lambda: box.move(TERMS, at(), "m"),
    "release": lambda: box.release(TERMS, at()),
    "cancel and clear": lambda: ops.cancel(TERMS, at(), queue="clear", turn=4, wait_s=None),
    "cancel and hold": lambda: ops.cancel(TERMS, at(), queue="hold", turn=4, wait_s=None),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_may_be_done_twice_is_asked_for_again(name: str) -> None:
    make, answer = SAFE[name]
    played = play(make(), [CUT, good(answer)])
    assert played.error is None
    assert played.requests[0] == played.requests[1]


@pytest.mark.parametrize("name", SAFE)
def test_a_refusal_after_a_lost_answer_is_an_unknown_outcome(name: str) -> None:
    make, _ = SAFE[name]
    assert isinstance(play(make(), [CUT, refused(409, "already-settled")]).error, OutcomeUnknown)
    assert isinstance(play(make(), [refused(409, "already-settled")]).error, Refused)


@pytest.mark.parametrize("name", UNSAFE)
def test_what_would_come_too_late_the_second_time_is_not_repeated(name: str) -> None:
    played = play(UNSAFE[name](), [CUT])
    assert isinstance(played.error, OutcomeUnknown)
    assert len(played.requests) == 1

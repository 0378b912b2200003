"""What a client does with the answers it gets, and with those it does not get. No connection is made here."""

import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from mailslot import (
    BadAnswer,
    Budgets,
    CursorExpired,
    OutcomeUnknown,
    Refused,
    RunTimeout,
    Settings,
    TransportLost,
)
from mailslot import operation as ops
from mailslot.ids import new_id
from mailslot.operation import Address, draft, segment
from mailslot.retry import Repeat, asked, backoff_s, judge
from mailslot.step import Answer, Exchange, Fault, Operation, Request, Response, Terms
from tests.unit.sdk.driving import good, level, play, receipt, refused

CUT = Fault("cut")
UNREACHED = Fault("refused", sent=False)
ATTEMPTS = 3
TERMS = Terms(Settings(attempts_max=ATTEMPTS), chance=lambda: 1.0)


def prompted(*answers: Answer, address: Address | None = None) -> Any:
    return play(ops.prompt(TERMS, address or Address("s"), draft("hi", message_id="m")), answers)


def body_of(request: Request) -> Any:
    assert request.body is not None
    return json.loads(request.body)


# -- a prompt -----------------------------------------------------------------------------------------------------


def test_a_receipt_comes_from_the_servers_answer_only() -> None:
    played = prompted(receipt("m", 12))
    assert (played.result.message_id, played.result.cursor) == ("m", 12)
    assert (played.result.duplicate, played.result.durability) == (False, "memory")
    assert len(played.requests) == 1
    assert played.requests[0].path == "/v1/sessions/s/prompt"
    assert body_of(played.requests[0]) == {"messageId": "m", "content": "hi", "delivery": "queue"}


@pytest.mark.parametrize(
    "lost",
    [
        CUT,
        UNREACHED,
        refused(503, "outcome-unknown", messageId="m"),
        refused(503, "store-refused", retryable=True),
        refused(429, "queue-full", retryable=True),
        Response(502, {}, b"bad gateway"),
        Response(504, {"content-type": "text/html"}, b"<html>"),
    ],
)
def test_a_prompt_whose_answer_is_lost_is_sent_again_with_the_same_id_and_body(lost: Answer) -> None:
    played = prompted(lost, receipt("m", duplicate=True))
    assert played.result.duplicate
    assert len(played.requests) == 2
    assert played.requests[0].body == played.requests[1].body


def test_every_prompt_has_an_id_before_its_first_attempt() -> None:
    first, second = draft("hi"), draft("hi")
    assert first.message_id != second.message_id
    assert uuid.UUID(first.message_id).version == 7
    assert json.loads(first.body)["messageId"] == first.message_id


def test_ids_are_in_order_of_time_and_never_the_same() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(uuid.UUID(one).version == 7 and uuid.UUID(one).variant == uuid.RFC_4122 for one in ids)
    assert [one[:11] for one in ids] == sorted(one[:11] for one in ids)


@pytest.mark.parametrize("last", [CUT, UNREACHED, refused(503, "store-refused"), refused(409, "closed")])
def test_a_prompt_that_may_be_kept_is_never_called_refused(last: Answer) -> None:
    played = prompted(CUT, last, last)
    assert isinstance(played.error, OutcomeUnknown)
    assert played.error.message_id == "m"
    assert "same message id" in str(played.error)


@pytest.mark.parametrize("code", ["bad-input", "conflict", "too-large"])
def test_a_refusal_that_depends_on_the_request_alone_settles_a_lost_attempt_too(code: str) -> None:
    status = {"bad-input": 400, "conflict": 422, "too-large": 413}[code]
    played = prompted(CUT, refused(status, code))
    assert isinstance(played.error, Refused)
    assert played.error.code == code


def test_a_prompt_that_never_left_is_no_unknown_outcome() -> None:
    played = prompted(*[UNREACHED] * ATTEMPTS)
    assert isinstance(played.error, TransportLost)
    assert not played.error.reached
    assert len(played.requests) == ATTEMPTS


@pytest.mark.parametrize(
    ("status", "code"), [(400, "bad-input"), (404, "not-found"), (409, "closed"), (422, "conflict")]
)
def test_a_final_refusal_is_not_tried_again(status: int, code: str) -> None:
    played = prompted(refused(status, code, title="no", retryable=False))
    assert isinstance(played.error, Refused)
    assert (played.error.code, played.error.status, str(played.error)) == (code, status, f"it is {code}")
    assert played.error.problem["type"] == f"urn:mailslot:problem:{code}"
    assert len(played.requests) == 1


def test_a_queue_that_stays_full_is_a_refusal_that_may_work_later() -> None:
    played = prompted(*[refused(429, "queue-full", retryable=True, retryAfterMs=250)] * ATTEMPTS)
    assert isinstance(played.error, Refused)
    assert (played.error.code, played.error.retryable, played.error.retry_after_ms) == ("queue-full", True, 250)
    assert played.pauses == [0.25, 0.25]


@pytest.mark.parametrize(
    "content", ["\ud800", [{"type": "text", "text": "\udfff"}], [{"type": "text", "text": float("nan")}]]
)
def test_content_that_is_not_text_is_refused_before_it_is_sent(content: Any) -> None:
    with pytest.raises(Refused) as caught:
        draft(content)
    assert (caught.value.code, caught.value.status) == ("bad-input", None)


def test_content_nested_without_end_is_refused_before_it_is_sent() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Refused, match="nested too deeply"):
        draft([{"type": "text", "text": deep}])


def test_text_of_every_kind_is_sent_as_it_is() -> None:
    text = "\u2028 \x00 héllo 🙂 \r\n"
    assert json.loads(draft(text).body)["content"] == text


# -- waiting before the next attempt ------------------------------------------------------------------------------


def test_waits_double_up_to_a_limit_and_a_random_part_is_waited() -> None:
    settings = Settings(backoff_first_ms=100, backoff_max_ms=1000)
    assert [backoff_s(settings, n, 1.0) for n in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff_s(settings, 3, 0.5) == 0.2
    assert backoff_s(settings, 10_000, 1.0) == 1.0


@pytest.mark.parametrize(
    ("headers", "more", "expected"),
    [
        ({"retry-after": "2"}, {}, 2.0),
        ({"retry-after": "2"}, {"retryAfterMs": 1500}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, 0.1),
        ({"retry-after": "-4"}, {"retryAfterMs": -4}, 0.1),
    ],
)
def test_retry_after_is_honoured(headers: dict[str, str], more: dict[str, Any], expected: float) -> None:
    played = prompted(refused(429, "rate-limited", headers, retryable=True, **more), receipt("m"))
    assert played.pauses == [expected]


def test_a_server_that_asks_for_too_much_patience_is_a_refusal_at_once() -> None:
    played = prompted(refused(429, "rate-limited", {"retry-after": "3600"}, retryable=True))
    assert isinstance(played.error, Refused)
    assert played.error.retry_after_ms == 3_600_000
    assert len(played.requests) == 1


# -- what is not safe to repeat -----------------------------------------------------------------------------------

UNSAFE: list[tuple[str, Callable[[], Operation[Any]]]] = [
    ("cancel", lambda: ops.cancel(TERMS, Address("s"), queue="keep", turn=None, wait_s=None)),
    ("goal set", lambda: ops.set_goal(TERMS, Address("s"), "win", None)),
    ("goal pause", lambda: ops.patch_goal(TERMS, Address("s"), {"operation": "pause"}, None)),
    ("goal clear", lambda: ops.clear_goal(TERMS, Address("s"), None)),
]


@pytest.mark.parametrize("make", [make for _, make in UNSAFE], ids=[name for name, _ in UNSAFE])
def test_what_could_act_twice_is_not_repeated_when_its_answer_is_lost(make: Callable[[], Operation[Any]]) -> None:
    for lost in (CUT, refused(503, "outcome-unknown"), Response(502, {}, b"")):
        played = play(make(), [lost])
        assert isinstance(played.error, OutcomeUnknown), lost
        assert played.error.message_id is None
        assert len(played.requests) == 1


@pytest.mark.parametrize("make", [make for _, make in UNSAFE], ids=[name for name, _ in UNSAFE])
def test_what_certainly_was_not_done_is_tried_again(make: Callable[[], Operation[Any]]) -> None:
    played = play(make(), [UNREACHED, refused(503, "store-refused"), refused(404, "not-found")])
    assert isinstance(played.error, Refused)
    assert len(played.requests) == 3


def test_a_cancel_that_names_its_turn_can_be_repeated_because_it_cannot_hit_another() -> None:
    answer = good({"outcome": "requested", "turn": 4, "stillQueued": ["b"]}, 202)
    played = play(ops.cancel(TERMS, Address("s"), queue="keep", turn=4, wait_s=2.5), [CUT, answer])
    assert (played.result.outcome, played.result.turn, played.result.still_queued) == ("requested", 4, ("b",))
    assert body_of(played.requests[0]) == {"queue": "keep", "turn": 4}
    assert played.requests[0].query == {"wait": "2.5"}


# -- answers that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        good({}),
        good({"messageId": "m", "cursor": "12", "duplicate": False, "durability": "memory"}),
        good({"messageId": "m", "cursor": True, "duplicate": False, "durability": "memory"}),
        Response(200, {}, b"<html>welcome to the hotel wifi</html>"),
        Response(200, {}, b"[]"),
        Response(200, {}, b'{"messageId": NaN}'),
        Response(200, {}, b"\xff\xfe"),
        Response(404, {"content-type": "text/html"}, b"no such page"),
        Response(307, {"location": "https://elsewhere"}, b""),
    ],
)
def test_what_does_not_speak_the_protocol_is_a_bad_answer(answer: Response) -> None:
    assert isinstance(prompted(answer).error, BadAnswer)


def test_unknown_fields_of_an_answer_are_skipped() -> None:
    value = {"messageId": "m", "cursor": 1, "duplicate": False, "durability": "fsync", "mood": "good"}
    assert prompted(good(value)).result.durability == "fsync"


def test_an_expired_cursor_is_its_own_error_everywhere() -> None:
    played = play(asked(TERMS, Request("GET", "/x")), [refused(410, "cursor-expired", oldest=5, newest=9)])
    assert isinstance(played.error, CursorExpired)
    assert (played.error.oldest, played.error.newest) == (5, 9)


@pytest.mark.parametrize("seed", range(20))
def test_no_answer_of_a_server_breaks_the_table(seed: int) -> None:
    rng = random.Random(seed)
    status = rng.choice([200, 204, 301, 400, 404, 408, 409, 410, 418, 429, 500, 502, 503, 504, 599])
    body = rng.randbytes(rng.randrange(20))
    kind = rng.choice(["application/problem+json", "application/json", "text/html", ""])
    try:
        verdict = judge(Response(status, {"content-type": kind, "retry-after": rng.choice(["", "1", "x"])}, body))
    except BadAnswer:
        return
    assert verdict.after_ms >= 0


# -- sessions -----------------------------------------------------------------------------------------------------


def test_a_session_with_an_agent_is_made_before_it_is_first_written_to_and_only_once() -> None:
    address = Address("s", "poet")
    first = prompted(good({"sessionId": "s", "cursor": 1}, 201), receipt("m"), address=address)
    assert [request.path for request in first.requests] == ["/v1/sessions", "/v1/sessions/s/prompt"]
    assert body_of(first.requests[0]) == {"sessionId": "s", "agent": "poet"}
    second = prompted(receipt("m"), address=address)
    assert [request.path for request in second.requests] == ["/v1/sessions/s/prompt"]


def test_a_session_that_has_another_agent_is_refused_and_nothing_is_sent_to_it() -> None:
    played = prompted(refused(409, "session-exists"), address=Address("s", "poet"))
    assert isinstance(played.error, Refused)
    assert played.error.code == "session-exists"
    assert [request.path for request in played.requests] == ["/v1/sessions"]


@pytest.mark.parametrize(
    ("session_id", "expected"),
    [
        ("plain", "plain"),
        ("a/b", "a%2Fb"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("v1.2", "v1.2"),
        ("a?b#c%", "a%3Fb%23c%25"),
        ("héllo 🙂", "h%C3%A9llo%20%F0%9F%99%82"),
    ],
)
def test_any_session_id_stays_one_piece_of_the_path(session_id: str, expected: str) -> None:
    assert segment(session_id) == expected


@pytest.mark.parametrize("session_id", ["", "\ud800"])
def test_an_id_that_can_be_none_is_refused_before_it_is_sent(session_id: str) -> None:
    with pytest.raises(Refused, match="an id"):
        segment(session_id)


def test_levels_are_read_page_by_page() -> None:
    one, two = (json.loads(level(name, 3).body) for name in ("a", "b"))
    played = play(
        ops.levels(TERMS, "idle"),
        [good({"sessions": [one], "next": "a"}), good({"sessions": [two], "next": None})],
    )
    assert [found.session_id for found in played.given] == ["a", "b"]
    assert [dict(request.query) for request in played.requests] == [
        {"limit": "100", "status": "idle"},
        {"limit": "100", "status": "idle", "after": "a"},
    ]


def test_a_level_says_everything_that_the_server_says() -> None:
    goal = {"goalId": "g", "revision": 2, "objective": "win", "phase": "paused", "rounds": 1}
    goal |= {"budgets": {"rounds": 5, "cost": 2}, "spent": {"rounds": 1, "cost": 0.5}, "reason": {"kind": "user"}}
    answer = level("s", 9, "running", reasons=["turn 4", "2 queued"], turn=4, pending=3, held=1, goal=goal)
    found = play(ops.level(TERMS, Address("s")), [answer]).result
    assert (found.status, found.reasons, found.cursor, found.turn) == ("running", ("turn 4", "2 queued"), 9, 4)
    assert (found.pending, found.held, found.conservation) == (3, 1, 0)
    assert found.goal.phase == "paused"
    assert found.goal.reason.kind == "user"
    assert (found.goal.budgets, found.goal.spent) == (Budgets(rounds=5, cost=2.0), Budgets(rounds=1, cost=0.5))


# -- idle ---------------------------------------------------------------------------------------------------------


def rest(status: str, cursor: int, *reasons: str) -> Response:
    return good({"status": status, "cursor": cursor, "reasons": list(reasons)})


def test_waiting_for_idle_polls_until_there_is_one() -> None:
    played = play(ops.rest(TERMS, Address("s"), 7), [rest("running", 8, "turn 4"), CUT, rest("idle", 12)])
    assert played.result == 12
    assert [found.reasons for found in played.given] == [("turn 4",)]
    assert played.requests[0].query["after"] == "7"


def test_an_idle_that_is_not_after_the_cursor_is_not_the_one_waited_for() -> None:
    assert play(ops.rest(TERMS, Address("s"), 7), [rest("idle", 5), rest("idle", 7), rest("idle", 8)]).result == 8


def test_waiting_for_idle_gives_up_in_time_and_says_why_it_was_not_idle() -> None:
    now = [0.0]

    def tick() -> None:
        now[0] += 1.5

    terms = Terms(Settings(), clock=lambda: now[0]).within(4)
    played = play(ops.rest(terms, Address("s"), None), [rest("running", 8, "turn 4", "1 queued")] * 9, tick)
    assert isinstance(played.error, RunTimeout)
    assert "turn 4, 1 queued" in str(played.error)
    polls = [step for step in played.steps if isinstance(step, Exchange)]
    assert [step.request.query["timeout"] for step in polls] == ["4.000", "1.000"]


# -- goals --------------------------------------------------------------------------------------------------------


def goal(revision: int = 1, phase: str = "active") -> Response:
    return good(
        {
            "goalId": "g",
            "revision": revision,
            "objective": "win",
            "phase": phase,
            "rounds": 0,
            "budgets": {"rounds": 25},
            "spent": {},
        }
    )


def test_a_goal_is_set_with_the_budgets_that_are_given() -> None:
    played = play(ops.set_goal(TERMS, Address("s"), "win", Budgets(rounds=3, wall_seconds=60)), [goal()])
    assert played.requests[0].method == "PUT"
    assert body_of(played.requests[0]) == {"objective": "win", "budgets": {"rounds": 3, "wallSeconds": 60}}
    assert played.result.budgets.rounds == 25


def test_a_change_of_a_goal_names_the_revision_that_was_seen() -> None:
    played = play(ops.patch_goal(TERMS, Address("s"), {"operation": "pause"}, 4), [goal(5, "paused")])
    assert played.requests[0].headers == {"if-match": '"4"'}
    assert (played.result.revision, played.result.phase) == (5, "paused")


def test_no_goal_is_none() -> None:
    assert play(ops.goal(TERMS, Address("s")), [refused(404, "not-found")]).result is None


def test_blocking_says_only_what_is_given() -> None:
    assert ops.goal_block(None, None) == {"operation": "block"}
    assert ops.goal_block("stuck", "no key") == {"operation": "block", "code": "stuck", "message": "no key"}


def test_reads_that_fail_for_good_are_lost_and_not_unknown() -> None:
    played = play(asked(TERMS, Request("GET", "/x"), repeat=Repeat.SAFE), [CUT] * ATTEMPTS)
    assert isinstance(played.error, TransportLost)
    assert played.error.reached

"""Every code has one status, one title and one answer to "can I try again?"."""

import json

import pytest

from mailslot_contracts import problems
from mailslot_contracts.problems import CODES, BadInput, Code, Problem

# Protocol section 1, as written there; the codes that it gives only as a status are those of contracts/README.md.
STATUS = {
    400: {"bad-input", "expired"},
    401: {"unauthorized"},
    403: {"forbidden"},
    404: {"not-found"},
    405: {"method-not-allowed"},
    409: {
        "already-claimed", "already-settled", "already-answered", "not-open", "not-held", "not-dead", "busy", "idle",
        "turn-mismatch", "closed", "goal-exists", "session-exists", "not-allowed",
    },
    410: {"cursor-expired"},
    412: {"revision"},
    413: {"too-large"},
    422: {"conflict"},
    429: {"queue-full", "rate-limited"},
    500: {"internal"},
    503: {"store-refused", "outcome-unknown"},
}  # fmt: skip


def test_every_code_of_the_protocol_has_its_status() -> None:
    found: dict[int, set[str]] = {}
    for code, row in CODES.items():
        found.setdefault(row.status, set()).add(code.value)
    assert found == STATUS
    assert set(CODES) == set(Code)


def test_only_what_may_succeed_unchanged_is_retryable() -> None:
    retryable = {code.value for code, row in CODES.items() if row.retryable}
    assert retryable == {"busy", "queue-full", "rate-limited", "store-refused", "outcome-unknown"}


def test_titles_are_one_line_and_differ() -> None:
    titles = [row.title for row in CODES.values()]
    assert len(set(titles)) == len(titles)
    assert all(title and "\n" not in title and len(title) < 80 for title in titles)


@pytest.mark.parametrize("code", Code)
def test_a_problem_has_the_members_of_rfc_9457_and_ours(code: Code) -> None:
    problem = Problem.of(code, "session s is so and so")
    row = CODES[code]
    assert problem.wire() == {
        "type": f"urn:mailslot:problem:{code.value}",
        "title": row.title,
        "status": row.status,
        "detail": "session s is so and so",
        "code": code.value,
        "retryable": row.retryable,
    }
    assert Problem.of(code.value, "session s is so and so") == problem


def test_an_unknown_outcome_carries_the_message_id_to_repeat_with() -> None:
    wire = Problem.of("outcome-unknown", "the answer was lost", message_id="m-1").wire()
    assert wire["messageId"] == "m-1"


def test_a_full_queue_says_when_to_come_back() -> None:
    assert Problem.of(Code.QUEUE_FULL, "full", retry_after_ms=1000).wire()["retryAfterMs"] == 1000


def test_an_expired_cursor_says_what_can_be_read() -> None:
    wire = Problem.of(Code.CURSOR_EXPIRED, "gone", oldest=5, newest=9).wire()
    assert (wire["oldest"], wire["newest"]) == (5, 9)


def test_a_code_that_is_not_in_the_table_makes_no_problem() -> None:
    with pytest.raises(ValueError, match="made-up"):
        Problem.of("made-up", "?")


def test_every_error_of_the_contracts_knows_its_problem() -> None:
    errors = [
        BadInput("a: is missing"),
        problems.BadValue("value.a", "must be a finite number"),
        problems.BadId("sessionId", "must not be empty"),
        problems.VersionError(2, 1),
        problems.CodecError("damaged"),
        problems.CodecVersionError(9, 1),
        problems.CodecTooLarge("too much"),
        problems.TooLarge("content", 5, 4, "bytes"),
    ]
    for error in errors:
        problem = error.problem()
        assert problem.detail == str(error)
        assert problem.status == (413 if "TooLarge" in type(error).__name__ else 400)


def test_a_reader_skips_members_it_does_not_know() -> None:
    wire = {**Problem.of(Code.BUSY, "busy").wire(), "instance": "/v1/x"}
    assert Problem.model_validate_json(json.dumps(wire)).code is Code.BUSY

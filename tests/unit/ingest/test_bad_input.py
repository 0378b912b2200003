"""What a door does not take it refuses with a code and a sentence, and keeps nothing (issue: bad input)."""

import json
from typing import Any

import pytest

from mailslot_contracts import CODES, Code, Problem
from mailslot_core.errors import OutcomeUnknown, StoreUnavailable
from mailslot_core.memory import MemoryStore
from tests.unit.ingest.served import House, in_process

DEEP = b'{"content": "a", "metadata": {"a": ' + b"[" * 100 + b"]" * 100 + b"}}"
LONG_ID = "x" * 201

PROMPTS: list[tuple[str, bytes, Code]] = [
    ("no body", b"", Code.BAD_INPUT),
    ("no JSON", b"hello", Code.BAD_INPUT),
    ("two values", b'{"content": "a"} {}', Code.BAD_INPUT),
    ("a list", b"[]", Code.BAD_INPUT),
    ("null", b"null", Code.BAD_INPUT),
    ("a missing field", b"{}", Code.BAD_INPUT),
    ("an unknown field", b'{"content": "a", "contnet": "b"}', Code.BAD_INPUT),
    ("a later field", b'{"content": "a", "priority": 1}', Code.BAD_INPUT),
    ("empty content", b'{"content": ""}', Code.BAD_INPUT),
    ("white content", b'{"content": " \\n\\t"}', Code.BAD_INPUT),
    ("no blocks", b'{"content": []}', Code.BAD_INPUT),
    ("content of a wrong type", b'{"content": 7}', Code.BAD_INPUT),
    ("null content", b'{"content": null}', Code.BAD_INPUT),
    ("an unknown block", b'{"content": [{"type": "smell", "text": "a"}]}', Code.BAD_INPUT),
    ("an unknown delivery", b'{"content": "a", "delivery": "pigeon"}', Code.BAD_INPUT),
    ("delivery of a wrong type", b'{"content": "a", "delivery": 1}', Code.BAD_INPUT),
    ("a source that is not the sender's", b'{"content": "a", "source": {"kind": "goal"}}', Code.BAD_INPUT),
    ("metadata of a wrong type", b'{"content": "a", "metadata": [1]}', Code.BAD_INPUT),
    ("text for a boolean", b'{"content": "a", "createSession": "no"}', Code.BAD_INPUT),
    ("invalid UTF-8", b'{"content": "\xff"}', Code.BAD_INPUT),
    ("a lone surrogate", b'{"content": "\\ud800"}', Code.BAD_INPUT),
    ("a lone surrogate in metadata", b'{"content": "a", "metadata": {"\\udfff": 1}}', Code.BAD_INPUT),
    ("NaN", b'{"content": "a", "metadata": {"a": NaN}}', Code.BAD_INPUT),
    ("infinity", b'{"content": "a", "metadata": {"a": 1e999}}', Code.BAD_INPUT),
    ("an integer of 65 bits", b'{"content": "a", "metadata": {"a": 18446744073709551616}}', Code.BAD_INPUT),
    ("deep nesting", DEEP, Code.BAD_INPUT),
    ("NUL in an id", b'{"content": "a", "messageId": "a\\u0000b"}', Code.BAD_INPUT),
    ("a newline in an id", b'{"content": "a", "messageId": "a\\nb"}', Code.BAD_INPUT),
    ("a line separator in an id", b'{"content": "a", "messageId": "a\\u2028b"}', Code.BAD_INPUT),
    ("an empty id", b'{"content": "a", "messageId": ""}', Code.BAD_INPUT),
    ("an id over the limit", b'{"content": "a", "messageId": "%s"}' % LONG_ID.encode(), Code.BAD_INPUT),
    ("an id over the limit in bytes", json.dumps({"content": "a", "messageId": "é" * 101}).encode(), Code.BAD_INPUT),
    ("content over the limit", b'{"content": "%s"}' % (b"x" * (1024 * 1024 + 1)), Code.TOO_LARGE),
    ("metadata over the limit", b'{"content": "a", "metadata": {"a": "%s"}}' % (b"x" * 16_384), Code.TOO_LARGE),
]


def problem_in(response: Any, code: Code) -> Problem:
    """The problem that an answer holds, once it was checked against the table."""
    assert response.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate(response.json())
    assert problem.code == code, problem
    assert response.status_code == problem.status == CODES[code].status
    assert problem.retryable == CODES[code].retryable
    assert problem.title == CODES[code].title
    assert problem.detail
    return problem


async def ledger(house: House, session_id: str) -> list[Any]:
    return list(await house.store.events(session_id, after=0, limit=1000))


@pytest.mark.parametrize(("what", "body", "code"), PROMPTS, ids=[row[0] for row in PROMPTS])
async def test_a_prompt_that_is_none_is_refused_and_keeps_nothing(what: str, body: bytes, code: Code) -> None:
    async with in_process() as house:
        problem_in(await house.client.post("/v1/sessions/s/prompt", content=body), code)
        assert await house.store.sessions(after="", limit=10) == []


async def test_a_refused_prompt_changes_nothing_in_a_session_that_is_there() -> None:
    async with in_process() as house:
        await house.prompt("s")
        before = await ledger(house, "s")
        for _, body, code in PROMPTS:
            problem_in(await house.client.post("/v1/sessions/s/prompt", content=body), code)
        assert await ledger(house, "s") == before


PATHS = [
    ("%FF", Code.BAD_INPUT),
    ("a%00b", Code.BAD_INPUT),
    ("a%0Ab", Code.BAD_INPUT),
    ("%C2%85", Code.BAD_INPUT),
    ("%E2%80%A8", Code.BAD_INPUT),
    ("%ED%A0%80", Code.BAD_INPUT),
    ("x" * 201, Code.BAD_INPUT),
]


@pytest.mark.parametrize(("segment", "code"), PATHS)
async def test_a_session_id_that_no_key_may_hold_is_refused_on_every_address(segment: str, code: Code) -> None:
    async with in_process() as house:
        for method, tail, body in [
            ("GET", "", None),
            ("POST", "/prompt", {"content": "a"}),
            ("POST", "/prompts", [{"content": "a"}]),
            ("GET", "/events", None),
            ("GET", "/idle", None),
            ("POST", "/cancel", None),
            ("PUT", "/goal", {"objective": "a"}),
            ("GET", "/goal", None),
            ("PATCH", "/goal", {"operation": "pause"}),
            ("DELETE", "/goal", None),
            ("DELETE", "", None),
            ("POST", "/close", None),
            ("POST", "/release", None),
            ("GET", "/messages", None),
            ("GET", "/messages/m", None),
            ("PATCH", "/messages/m", {"content": "a"}),
            ("DELETE", "/messages/m", None),
        ]:
            problem_in(await house.client.request(method, f"/v1/sessions/{segment}{tail}", json=body), code)
        assert await house.store.sessions(after="", limit=10) == []


async def test_a_session_id_may_hold_what_is_no_control_character() -> None:
    async with in_process() as house:
        for name, segment in [("a/b", "a%2Fb"), ("é ☂", "%C3%A9%20%E2%98%82"), ("100%", "100%25"), ("?#", "%3F%23")]:
            assert (await house.client.post(f"/v1/sessions/{segment}/prompt", json={"content": "a"})).status_code == 202
            assert (await house.client.get(f"/v1/sessions/{segment}")).json()["sessionId"] == name


REQUESTS = [
    ("POST", "/v1/sessions", b'{"sessionId": "a\\u0000"}', Code.BAD_INPUT),
    ("POST", "/v1/sessions", b'{"onFailure": "panic"}', Code.BAD_INPUT),
    ("POST", "/v1/sessions", b'{"agent": ""}', Code.BAD_INPUT),
    ("POST", "/v1/sessions", b'{"parent": "p"}', Code.BAD_INPUT),
    ("GET", "/v1/sessions?limit=0", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions?limit=1001", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions?limit=ten", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions?status=busy", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions?after=a%00", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions?limmit=1", None, Code.BAD_INPUT),
    ("POST", "/v1/sessions/s/prompt?wait=1", b'{"content": "a"}', Code.BAD_INPUT),
    ("GET", "/v1/sessions?limit=1&limit=2", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions/nobody", None, Code.NOT_FOUND),
    ("GET", "/v1/sessions/nobody/events", None, Code.NOT_FOUND),
    ("GET", "/v1/sessions/nobody/idle", None, Code.NOT_FOUND),
    ("GET", "/v1/sessions/nobody/goal", None, Code.NOT_FOUND),
    ("POST", "/v1/sessions/nobody/cancel", None, Code.NOT_FOUND),
    ("PATCH", "/v1/sessions/nobody/goal", b'{"operation": "pause"}', Code.NOT_FOUND),
    ("POST", "/v1/sessions/nobody/prompt", b'{"content": "a", "createSession": false}', Code.NOT_FOUND),
    ("GET", "/v1/sessions/s/events?after=-1", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions/s/events?after=1.5", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions/s/events?after=99999999999999999999", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions/s/events?deltas=maybe", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions/s/events?types=", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions/s/idle?timeout=61", None, Code.BAD_INPUT),
    ("GET", "/v1/sessions/s/idle?timeout=nan", None, Code.BAD_INPUT),
    ("POST", "/v1/sessions/s/cancel", b'{"queue": "shuffle"}', Code.BAD_INPUT),
    ("POST", "/v1/sessions/s/cancel", b'{"turn": 0}', Code.BAD_INPUT),
    ("POST", "/v1/sessions/s/cancel", b'{"turn": 7}', Code.NOT_OPEN),
    ("POST", "/v1/sessions/s/cancel?wait=forever", None, Code.BAD_INPUT),
    ("POST", "/v1/sessions/s/prompts", b"{}", Code.BAD_INPUT),
    ("POST", "/v1/sessions/s/prompts", b"[]", Code.BAD_INPUT),
    ("POST", "/v1/sessions/s/prompts", b"[%s]" % b",".join([b'{"content": "a"}'] * 1001), Code.TOO_LARGE),
    ("PUT", "/v1/sessions/s/goal", b"{}", Code.BAD_INPUT),
    ("PUT", "/v1/sessions/s/goal", b'{"objective": " "}', Code.BAD_INPUT),
    ("PUT", "/v1/sessions/s/goal", b'{"objective": "a", "budgets": {"rounds": 0}}', Code.BAD_INPUT),
    ("PUT", "/v1/sessions/s/goal", b'{"objective": "%s"}' % (b"x" * 65_537), Code.TOO_LARGE),
    ("GET", "/v1/sessions/s/goal", None, Code.NOT_FOUND),
    ("GET", "/v1/sessions/s/", None, Code.NOT_FOUND),
    ("GET", "/v1/sessions//events", None, Code.NOT_FOUND),
    ("GET", "/v2/sessions", None, Code.NOT_FOUND),
    ("PUT", "/v1/sessions/s/prompt", None, Code.METHOD_NOT_ALLOWED),
    ("DELETE", "/v1/sessions", None, Code.METHOD_NOT_ALLOWED),
]


@pytest.mark.parametrize(("method", "address", "body", "code"), REQUESTS)
async def test_a_request_that_is_none_is_refused_and_keeps_nothing(
    method: str, address: str, body: bytes | None, code: Code
) -> None:
    async with in_process() as house:
        await house.prompt("s")
        before = await ledger(house, "s")
        problem_in(await house.client.request(method, address, content=body), code)
        assert await ledger(house, "s") == before
        assert await house.store.sessions(after="", limit=10) == ["s"]


HEADERS = [
    ("GET", "/v1/sessions/s/events", {"Last-Event-ID": "five"}),
    ("PATCH", "/v1/sessions/s/goal", {"If-Match": '"a"'}),
    ("POST", "/v1/sessions/s/prompt", {"Idempotency-Key": "x" * 201}),
    ("POST", "/v1/sessions/s/prompt", {"Idempotency-Key": ""}),
]


@pytest.mark.parametrize(("method", "address", "headers"), HEADERS)
async def test_a_header_that_is_none_is_refused(method: str, address: str, headers: dict[str, str]) -> None:
    async with in_process() as house:
        await house.prompt("s")
        body = {"content": "a"} if method == "POST" else {"operation": "pause"}
        problem_in(await house.client.request(method, address, headers=headers, json=body), Code.BAD_INPUT)


async def test_a_body_over_the_limit_is_refused_before_its_first_byte_is_read() -> None:
    async with in_process(body_bytes_max=1024) as house:
        asked = 0

        async def body() -> Any:
            nonlocal asked
            for _ in range(4):
                asked += 1
                yield b"x" * 512

        headers = {"Content-Length": "2048"}
        problem_in(await house.client.post("/v1/sessions/s/prompt", content=body(), headers=headers), Code.TOO_LARGE)
        assert house.metric("submit_seconds_count", door="http") == 0


async def test_a_body_that_turns_out_too_long_is_refused_without_being_kept() -> None:
    async with in_process(body_bytes_max=1024) as house:

        async def body() -> Any:
            for _ in range(100):
                yield b" " * 512

        problem_in(await house.client.post("/v1/sessions/s/prompt", content=body()), Code.TOO_LARGE)


async def test_a_body_at_the_limit_is_taken() -> None:
    async with in_process(body_bytes_max=1024) as house:
        body = b'{"content": "a"}'.ljust(1024)
        assert (await house.client.post("/v1/sessions/s/prompt", content=body)).status_code == 202
        problem_in(await house.client.post("/v1/sessions/s/prompt", content=body + b" "), Code.TOO_LARGE)


async def test_the_same_id_with_another_body_is_a_conflict() -> None:
    async with in_process() as house:
        await house.prompt("s", "one", messageId="m")
        before = await ledger(house, "s")
        problem_in(await house.prompt("s", "two", messageId="m"), Code.CONFLICT)
        problem_in(await house.prompt("s", "one", messageId="m", delivery="steer"), Code.CONFLICT)
        problem_in(await house.prompt("s", "one", messageId="m", metadata={"a": 1}), Code.CONFLICT)
        assert await ledger(house, "s") == before


async def test_a_full_queue_is_refused_with_the_time_to_come_again() -> None:
    async with in_process(MemoryStore(pending_max=2)) as house:
        for _ in range(2):
            assert (await house.prompt("s")).status_code == 202
        before = await ledger(house, "s")
        response = await house.prompt("s")
        problem = problem_in(response, Code.QUEUE_FULL)
        assert problem.retry_after_ms == 1000
        assert response.headers["retry-after"] == "1"
        assert await ledger(house, "s") == before


class _Broken(MemoryStore):
    """A store whose submit fails as it is told to."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def submit(self, *_: Any) -> Any:
        raise self.error


async def test_a_store_that_refuses_is_503_and_says_that_nothing_was_kept() -> None:
    async with in_process(_Broken(StoreUnavailable("the store refused: read only"))) as house:
        response = await house.prompt("s")
        assert problem_in(response, Code.STORE_REFUSED).retry_after_ms
        assert "retry-after" in response.headers


async def test_a_lost_answer_is_503_with_the_message_id_to_repeat() -> None:
    async with in_process(_Broken(OutcomeUnknown("the answer was lost"))) as house:
        assert problem_in(await house.prompt("s", messageId="mine"), Code.OUTCOME_UNKNOWN).message_id == "mine"
        assert problem_in(await house.prompt("s"), Code.OUTCOME_UNKNOWN).message_id


async def test_a_defect_is_answered_without_its_cause() -> None:
    async with in_process(_Broken(ZeroDivisionError("secret"))) as house:
        response = await house.prompt("s")
        problem_in(response, Code.INTERNAL)
        assert "secret" not in response.text
        assert house.metric("requests_total", route="/v1/sessions/{sid}/prompt", method="POST", status="500") == 1


async def test_an_address_says_which_methods_it_has() -> None:
    async with in_process() as house:
        response = await house.client.post("/v1/sessions/s/goal")
        assert response.headers["allow"] == "DELETE, GET, PATCH, PUT"

"""One JSON-RPC connection on a line and a way to the dispatcher that do what a test says: order, limits, the end."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from mailslot.errors import Refused, TransportLost
from mailslot.rpc.connection import Connection, Limits, Notice
from mailslot.rpc.frame import Invalid
from mailslot.rpc.method import RestCall
from mailslot.step import Response
from tests.waiting import pace

PATIENCE_S: Final = 10.0
LATE_S: Final = 0.02
SOON: Final = Limits(end_s=0.1, last_words_s=PATIENCE_S)

Asking = Callable[[RestCall], Awaitable[Response]]


def answered(value: object, status: int = 200) -> Response:
    return Response(status, {}, json.dumps(value).encode())


class Ends:
    """Both ends of a line, and a way to a dispatcher."""

    def __init__(self, asking: Asking | None = None) -> None:
        self.ended = asyncio.Event()
        self.inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.asking = asking or self.level
        self.notices: asyncio.Queue[Notice | Exception] = asyncio.Queue()
        self.take = asyncio.Event()
        self.take.set()

    async def frames(self) -> AsyncGenerator[bytes | str | Invalid, None]:
        while (found := await self.inbox.get()) is not None:
            yield found

    async def send(self, data: bytes) -> None:
        await self.take.wait()
        self.sent.put_nowait(json.loads(data))

    async def level(self, call: RestCall) -> Response:
        return answered({"sessionId": "s", "cursor": 1, "messageId": call.message_id})

    async def ask(self, call: RestCall) -> Response:
        return await self.asking(call)

    async def follow(self, session_id: str, after: int, *, deltas: bool) -> AsyncGenerator[Notice, None]:
        while True:
            found = await self.notices.get()
            if isinstance(found, Exception):
                raise found
            yield found

    def say(self, call_id: object, method: str, **params: Any) -> None:
        self.inbox.put_nowait(json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}))

    def end(self) -> None:
        """Nothing more comes in than what was said."""
        self.inbox.put_nowait(None)
        self.ended.set()

    async def next(self) -> Any:
        return await asyncio.wait_for(self.sent.get(), PATIENCE_S)

    def rest(self) -> list[Any]:
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]


@asynccontextmanager
async def serving(ends: Ends, limits: Limits | None = None) -> AsyncGenerator[Connection, None]:
    connection = Connection(ends, ends, server="test", limits=limits)
    task = asyncio.create_task(connection.serve())
    ends.say(0, "initialize")
    assert "result" in await ends.next()
    try:
        yield connection
    finally:
        ends.end()
        await asyncio.wait_for(task, PATIENCE_S)


async def never(_: RestCall) -> Response:
    return await asyncio.Future[Response]()


@pytest.mark.parametrize("count", [1, 10, 64, 65, 200, 1_000])
async def test_however_many_calls_are_under_way_the_end_comes_and_each_has_its_answer(count: int) -> None:
    """More of them than are carried out at once: those were not begun, and are said not to be done."""
    ends = Ends(never)
    connection = Connection(ends, ends, server="test", limits=SOON)
    serving_task = asyncio.create_task(connection.serve())
    ends.say(0, "initialize")
    for number in range(count):
        ends.say(1 + number, "session/prompt", sessionId=f"s{number}", content="x", messageId=f"m{number}")
    ends.end()
    await asyncio.wait_for(serving_task, PATIENCE_S)
    answers = {each["id"]: each for each in ends.rest()}
    assert sorted(answers) == list(range(count + 1))
    codes = [answers[1 + number]["error"]["data"]["code"] for number in range(count)]
    begun = min(count, Limits().calls_max)
    assert codes.count("outcome-unknown") == begun
    assert codes.count("transport-lost") == count - begun
    for number in range(count):
        data = answers[1 + number]["error"]["data"]
        assert data["code"] == "transport-lost" or data["messageId"] == f"m{number}"
        assert data["retryable"]


async def test_an_unknown_outcome_of_what_is_no_message_is_not_said_to_be_safe_to_repeat() -> None:
    ends = Ends(never)
    connection = Connection(ends, ends, server="test", limits=SOON)
    serving_task = asyncio.create_task(connection.serve())
    ends.say(0, "initialize")
    ends.say(1, "session/cancel", sessionId="s")
    ends.say(2, "session/prompt", sessionId="t", content="x")
    ends.end()
    await asyncio.wait_for(serving_task, PATIENCE_S)
    cancel, prompt = (each["error"]["data"] for each in ends.rest()[1:])
    assert (cancel["code"], cancel["retryable"], cancel.get("messageId")) == ("outcome-unknown", False, None)
    assert (prompt["code"], prompt["retryable"]) == ("outcome-unknown", True)
    assert prompt["messageId"]


async def test_shutdown_is_answered_after_a_call_that_takes_too_long_was_cut_off() -> None:
    ends = Ends(never)
    connection = Connection(ends, ends, server="test", limits=SOON)
    serving_task = asyncio.create_task(connection.serve())
    ends.say(0, "initialize")
    ends.say(1, "session/status", sessionId="s")
    ends.say(2, "shutdown")
    await asyncio.wait_for(serving_task, PATIENCE_S)
    assert [each["id"] for each in ends.rest()] == [0, 1, 2]


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
async def test_an_id_that_cannot_be_sent_back_spoils_no_other_answer(number: str) -> None:
    ends = Ends()
    async with serving(ends):
        wrong = f'{{"jsonrpc":"2.0","id":{number},"method":"session/status","params":{{"sessionId":"s"}}}}'
        ends.inbox.put_nowait(f"[{wrong},{wrong.replace(number, '7')}]")
        first, second = await ends.next()
        assert (first["id"], first["error"]["code"]) == (None, -32600)
        assert (second["id"], second["result"]["cursor"]) == (7, 1)


async def test_a_defect_on_the_way_is_an_answer_and_the_next_call_is_carried_out() -> None:
    async def broken(call: RestCall) -> Response:
        if "broken" in call.request.path:
            raise RuntimeError("a secret")
        return answered({} if "strange" in call.request.path else {"cursor": 1})

    ends = Ends(broken)
    async with serving(ends):
        ends.say(1, "session/status", sessionId="broken")
        ends.say(2, "session/prompt", sessionId="strange", content="x")
        ends.say(3, "session/subscribe", sessionId="strange")
        ends.say(4, "session/status", sessionId="s")
        answers = {(found := await ends.next())["id"]: found for _ in range(4)}
        assert [answers[number]["error"]["code"] for number in (1, 2, 3)] == [-32603] * 3
        assert "secret" not in json.dumps(answers)
        assert "result" in answers[4]


@pytest.mark.parametrize("error", [RuntimeError("x"), TransportLost("x"), Refused("unauthorized", "x", status=401)])
async def test_a_subscription_that_cannot_go_on_ends_the_connection_and_says_why(error: Exception) -> None:
    ends = Ends()
    async with serving(ends) as connection:
        ends.say(1, "session/subscribe", sessionId="s")
        assert "result" in await ends.next()
        assert (await ends.next())["method"] == "session.status"
        ends.notices.put_nowait(error)
        await asyncio.wait_for(connection._lost.wait(), PATIENCE_S)
        assert connection.why.startswith("session s cannot be followed")


async def test_a_session_that_is_gone_is_a_gap_in_which_nothing_is_kept() -> None:
    ends = Ends()
    async with serving(ends):
        ends.say(1, "session/subscribe", sessionId="s")
        ends.notices.put_nowait(Refused("not-found", "x", status=404))
        frames = [await ends.next() for _ in range(3)]
        assert frames[2]["method"] == "session.gap"
        assert frames[2]["params"] == {"sessionId": "s", "oldest": 0, "newest": 0}
        ends.say(2, "session/status", sessionId="s")
        assert "result" in await ends.next()


async def test_pipelined_subscriptions_are_never_more_than_the_limit() -> None:
    gate = asyncio.Event()

    async def slow(_: RestCall) -> Response:
        await gate.wait()
        return answered({"cursor": 1})

    ends = Ends(slow)
    async with serving(ends, Limits(subscriptions_max=10)) as connection:
        for number in range(50):
            ends.say(1 + number, "session/subscribe", sessionId=f"s{number}")
        gate.set()
        answers: list[Any] = []
        while len(answers) < 50:
            if "id" in (found := await ends.next()):
                answers.append(found)
        assert sum("result" in each for each in answers) == 10
        assert len(connection._subscriptions) == 10


async def test_a_reader_that_takes_every_frame_late_is_no_reader_that_takes_none() -> None:
    """Many subscriptions wait for one line: what counts is how long the line takes for a frame, not for the queue."""
    ends = Ends()
    taken = 0

    async def late(data: bytes) -> None:
        nonlocal taken
        await pace(LATE_S)
        taken += 1
        ends.sent.put_nowait(json.loads(data))

    ends.send = late  # type: ignore[method-assign]
    async with serving(ends, Limits(send_s=0.2)) as connection:
        for number in range(30):
            ends.say(1 + number, "session/subscribe", sessionId=f"s{number}")
        for _ in range(60):
            await ends.next()
        assert connection.why == ""
        assert taken > 0.2 / LATE_S


@pytest.mark.parametrize("version", ["1", 0, True, None])
async def test_a_version_that_is_none_is_refused(version: object) -> None:
    ends = Ends()
    connection = Connection(ends, ends, server="test")
    serving_task = asyncio.create_task(connection.serve())
    ends.say(1, "initialize", protocolVersion=version)
    assert (await ends.next())["error"]["code"] == -32602
    ends.say(2, "initialize")
    assert "result" in await ends.next()
    ends.end()
    await asyncio.wait_for(serving_task, PATIENCE_S)


@pytest.mark.parametrize("after", [2**63, 10**30])
async def test_a_cursor_that_no_ledger_has_is_refused(after: int) -> None:
    ends = Ends()
    async with serving(ends):
        ends.say(1, "session/subscribe", sessionId="s", after=after)
        assert (await ends.next())["error"]["code"] == -32602


async def test_a_message_id_of_null_is_an_id_that_is_made_here() -> None:
    asked: list[RestCall] = []

    async def noted(call: RestCall) -> Response:
        asked.append(call)
        return answered({"messageId": call.message_id})

    ends = Ends(noted)
    async with serving(ends):
        ends.say(1, "session/prompt", sessionId="s", content="x", messageId=None)
        made = (await ends.next())["result"]["messageId"]
        assert made == asked[0].message_id
        assert json.loads(asked[0].request.body or b"")["messageId"] == made

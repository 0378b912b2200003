"""The JSON-RPC door on a WebSocket: every frame has its answer, order holds, and nobody is told more than is known."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mailslot.rpc.connection import Limits
from mailslot_services.ingest import rpc
from mailslot_services.ingest.admission import created
from tests.echo_worker import EchoWorker
from tests.unit.ingest.served import PATIENCE_S, House, on_socket
from tests.waiting import wait_until

SUBSCRIPTIONS_MAX = Limits().subscriptions_max


class Client:
    """Speaks JSON-RPC as any program would, by hand."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.notices: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)

    async def send(self, method: str, /, **params: Any) -> int:
        """Send a call; its id."""
        number = next(self._numbers)
        await self.socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        return number

    async def next(self) -> Any:
        """The next frame, whatever it is."""
        return json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE_S))

    async def answer(self) -> Any:
        """The next frame that is no notification; those are kept."""
        while "method" in (found := await self.next()):
            self.notices.append(found)
        return found

    async def call(self, method: str, /, **params: Any) -> Any:
        """The answer to one call."""
        number = await self.send(method, **params)
        found = await self.answer()
        assert found["id"] == number
        return found

    async def result(self, method: str, /, **params: Any) -> Any:
        """The result of one call."""
        found = await self.call(method, **params)
        assert "result" in found, found
        return found["result"]

    async def notified(self, count: int) -> list[dict[str, Any]]:
        """So many notifications from the beginning."""
        while len(self.notices) < count:
            found = await self.next()
            assert "method" in found, found
            self.notices.append(found)
        return self.notices[:count]

    async def raw(self, frame: str | bytes) -> Any:
        """The answer to something."""
        await self.socket.send(frame)
        return await self.answer()


def url_of(house: House) -> str:
    return str(house.client.base_url).rstrip("/").replace("http", "ws", 1) + rpc.PATH


@asynccontextmanager
async def client_of(house: House, *, initialized: bool = True, **options: Any) -> AsyncIterator[Client]:
    async with connect(url_of(house), proxy=None, **options) as socket:
        client = Client(socket)
        if initialized:
            await client.result("initialize", protocolVersion=1)
        yield client


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with on_socket() as served:
        yield served


@pytest.fixture
async def client(house: House) -> AsyncIterator[Client]:
    async with client_of(house) as made:
        yield made


def seqs(notices: list[dict[str, Any]], session_id: str = "s") -> list[int]:
    params = [notice["params"] for notice in notices]
    return [each["seq"] for each in params if each["sessionId"] == session_id and "seq" in each]


# -- what calls come to -------------------------------------------------------------------------------------------


async def test_a_prompt_is_answered_with_its_message_id_and_nothing_else(client: Client, house: House) -> None:
    result = await client.result("session/prompt", sessionId="s", content="hello", messageId="m-1")
    assert result == {"messageId": "m-1"}
    assert (await house.level("s"))["pending"] == 1


async def test_a_steer_and_an_inject_go_to_the_next_step(client: Client) -> None:
    await client.result("session/prompt", sessionId="s", content="hello")
    for method in ("session/steer", "session/inject"):
        assert set(await client.result(method, sessionId="s", content="x")) == {"messageId"}
    queue = (await client.result("session/queue", sessionId="s"))["messages"]
    assert [message["delivery"] for message in queue] == ["steer", "inject", "queue"]


async def test_every_verb_of_the_inbox_does_what_it_does_on_the_rest_door(client: Client) -> None:
    assert (await client.result("session/new", sessionId="s"))["sessionId"] == "s"
    for name in ("a", "b"):
        await client.result("session/prompt", sessionId="s", content=name, messageId=name)
    await client.result("session/replace", sessionId="s", messageId="a", content="other")
    assert (await client.result("session/withdraw", sessionId="s", messageId="b"))["state"] == "cancelled"
    assert (await client.result("session/message", sessionId="s", messageId="a"))["state"] == "queued"
    cancelled = await client.result("session/cancel", sessionId="s", queue="hold")
    assert cancelled["stillQueued"] == ["a"]
    assert (await client.result("session/status", sessionId="s"))["held"] == 1
    await client.result("session/release", sessionId="s")
    assert (await client.result("session/close", sessionId="s"))["sessionId"] == "s"
    assert (await client.result("dead/list"))["letters"] == []


async def test_a_goal_is_set_changed_by_its_revision_and_cleared(client: Client) -> None:
    await client.result("session/new", sessionId="s")
    goal = await client.result("goal/set", sessionId="s", objective="keep the garden")
    stale = await client.call("goal/edit", sessionId="s", objective="x", revision=goal["revision"] + 7)
    assert stale["error"]["data"]["code"] == "revision"
    paused = await client.result("goal/pause", sessionId="s", revision=goal["revision"])
    assert paused["phase"] == "paused"
    assert (await client.result("goal/get", sessionId="s"))["revision"] == paused["revision"]
    await client.result("goal/clear", sessionId="s")
    assert (await client.call("goal/get", sessionId="s"))["error"]["data"]["code"] == "not-found"


async def test_a_refusal_carries_the_problem_that_the_rest_door_gives(client: Client, house: House) -> None:
    await house.prompt("s", "x", messageId="m")
    rest = (await house.client.delete("/v1/sessions/s/messages/none")).json()
    error = (await client.call("session/withdraw", sessionId="s", messageId="none"))["error"]
    assert error == {"code": -32000, "message": rest["detail"], "data": rest}


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/promt", {}, -32601),
        ("session.finished", {}, -32601),
        ("session/prompt", {}, -32602),
        ("session/prompt", {"sessionId": "s"}, -32602),
        ("session/prompt", {"sessionId": "s", "content": "x", "misspelt": 1}, -32602),
        ("session/prompt", {"sessionId": "s", "content": 7}, -32602),
        ("session/cancel", {"sessionId": "s", "queue": "burn"}, -32602),
        ("session/subscribe", {"sessionId": "s", "after": -1}, -32602),
        ("session/subscribe", {"sessionId": "s", "after": True}, -32602),
        ("session/subscribe", {"sessionId": "s", "deltas": 1}, -32602),
        ("session/subscribe", {}, -32602),
        ("session/subscribe", {"sessionId": "nobody"}, -32000),
        ("session/status", {"sessionId": "nobody"}, -32000),
    ],
)
async def test_what_makes_no_sense_is_refused_and_keeps_nothing(
    client: Client, house: House, method: str, params: dict[str, Any], code: int
) -> None:
    error = (await client.call(method, **params))["error"]
    assert error["code"] == code
    assert code == -32601 or error["data"]["detail"] == error["message"]
    assert (await house.client.get("/v1/sessions")).json()["sessions"] == []
    assert await client.result("session/new", sessionId="after")


# -- frames -------------------------------------------------------------------------------------------------------


async def test_nothing_is_done_before_initialize(house: House) -> None:
    async with client_of(house, initialized=False) as client:
        error = (await client.call("session/prompt", sessionId="s", content="x"))["error"]
        assert error["code"] == -32600
        assert "initialize" in error["message"]
        assert (await client.result("initialize"))["protocolVersion"] == 1
        assert (await client.call("initialize"))["error"]["code"] == -32600
        assert (await house.client.get("/v1/sessions")).json()["sessions"] == []


async def test_malformed_and_binary_frames_are_answered_and_the_connection_goes_on(client: Client) -> None:
    wrong: list[tuple[str | bytes, int]] = [("{", -32700), ("[]", -32600), (b"\x00\xff", -32600), ("{}", -32600)]
    for frame, code in wrong:
        found = await client.raw(frame)
        assert (found["id"], found["error"]["code"]) == (None, code)
    assert await client.result("session/new", sessionId="s")


async def test_a_frame_over_the_limit_closes_the_socket_with_its_own_code() -> None:
    async with on_socket(body_bytes_max=2_048) as house, client_of(house) as client:
        await client.socket.send(json.dumps("x" * 3_000))
        with pytest.raises(ConnectionClosed) as closed:
            await client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_batch_is_answered_as_one_list_in_order_without_its_notifications(client: Client) -> None:
    def call(number: int | None, method: str, **params: Any) -> dict[str, Any]:
        told = {} if number is None else {"id": number}
        return {"jsonrpc": "2.0", **told, "method": method, "params": params}

    batch = [
        call(1, "session/prompt", sessionId="s", content="one", messageId="a"),
        call(None, "session/prompt", sessionId="s", content="two", messageId="b"),
        {"jsonrpc": "2.0", "id": 3},
        7,
        call(5, "session/nothing"),
        call(6, "session/status", sessionId="s"),
    ]
    answers = await client.raw(json.dumps(batch))
    assert [each["id"] for each in answers] == [1, 3, None, 5, 6]
    assert [each.get("error", {}).get("code") for each in answers] == [None, -32600, -32600, -32601, None]
    assert answers[-1]["result"]["pending"] == 2


async def test_a_batch_of_notifications_alone_is_not_answered(client: Client, house: House) -> None:
    said = {"jsonrpc": "2.0", "method": "session/prompt", "params": {"sessionId": "s", "content": "x"}}
    await client.socket.send(json.dumps([said, said]))
    found = await client.call("session/status", sessionId="s")
    assert found["result"]["pending"] == 2


async def test_text_with_line_separators_and_split_characters_comes_back_whole(client: Client) -> None:
    text = "a\u2028b\u2029c\x85d\r\n 😀 ü"
    frame = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"sessionId": "s", "content": text}},
        ensure_ascii=False,
    )
    data = frame.encode()

    async def fragments() -> AsyncIterator[str]:
        for character in frame:
            yield character

    assert len(data) > len(frame)
    await client.socket.send(fragments())
    assert "result" in await client.answer()
    (message,) = (await client.result("session/queue", sessionId="s"))["messages"]
    assert message["content"] == [{"type": "text", "text": text}]


# -- order --------------------------------------------------------------------------------------------------------


async def test_prompts_for_one_session_that_do_not_wait_are_queued_in_the_order_they_were_sent(
    client: Client, house: House
) -> None:
    for number in range(200):
        await client.send("session/prompt", sessionId="s", content="x", messageId=f"m-{number:03}")
    for _ in range(200):
        assert "result" in await client.answer()
    page = (await client.result("session/queue", sessionId="s", limit=1000))["messages"]
    assert [message["messageId"] for message in page] == [f"m-{number:03}" for number in range(200)]


async def test_a_slow_session_does_not_hold_up_another(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, level = asyncio.Event(), house.store.level

    async def held(session_id: str) -> Any:
        if session_id == "slow":
            await gate.wait()
        return await level(session_id)

    monkeypatch.setattr(house.store, "level", held)
    async with client_of(house) as client:
        await client.result("session/new", sessionId="slow")
        slow = await client.send("session/status", sessionId="slow")
        behind = await client.send("session/prompt", sessionId="slow", content="x")
        assert (await client.call("session/new", sessionId="quick"))["result"]["sessionId"] == "quick"
        gate.set()
        assert [(await client.answer())["id"], (await client.answer())["id"]] == [slow, behind]


# -- subscriptions ------------------------------------------------------------------------------------------------


async def test_a_subscription_begins_with_the_level_and_has_every_event_once_in_order(
    client: Client, house: House
) -> None:
    await client.result("session/prompt", sessionId="s", content="hello")
    assert (await client.result("session/subscribe", sessionId="s"))["cursor"] == 3
    await EchoWorker(house.store).answer_all()
    newest = (await house.level("s"))["cursor"]
    notices = await client.notified(newest + 1)
    assert notices[0]["method"] == "session.status"
    assert "seq" not in notices[0]["params"]
    assert seqs(notices) == list(range(1, newest + 1))
    by_type = {notice["params"]["type"]: notice["method"] for notice in notices[1:]}
    assert by_type.pop("agent/status") == "session.status"
    assert set(by_type.values()) == {"session.event"}


async def test_a_subscription_goes_on_after_its_cursor(client: Client) -> None:
    await client.result("session/prompt", sessionId="s", content="hello")
    await client.result("session/subscribe", sessionId="s", after=2)
    assert seqs(await client.notified(2)) == [3]


async def test_the_answer_to_subscribe_comes_before_its_first_notification_in_a_batch_too(house: House) -> None:
    await house.prompt("s")
    async with client_of(house) as client:
        batch = [
            {"jsonrpc": "2.0", "id": number, "method": "session/subscribe", "params": {"sessionId": "s"}}
            for number in range(3)
        ]
        await client.socket.send(json.dumps(batch))
        first = await client.next()
        assert [each["id"] for each in first] == [0, 1, 2]
        assert (await client.next())["method"] == "session.status"


async def test_after_unsubscribe_nothing_comes_and_nobody_reads_the_session(client: Client, house: House) -> None:
    await client.result("session/new", sessionId="s")
    await client.result("session/subscribe", sessionId="s")
    await client.result("session/unsubscribe", sessionId="s")
    client.notices.clear()
    await client.result("session/prompt", sessionId="s", content="x")
    await client.result("session/status", sessionId="s")
    assert client.notices == []
    assert await client.result("session/unsubscribe", sessionId="s") == {"sessionId": "s"}


async def test_a_second_subscription_to_a_session_takes_the_place_of_the_first(client: Client) -> None:
    await client.result("session/prompt", sessionId="s", content="x")
    await client.result("session/subscribe", sessionId="s")
    await client.notified(4)
    client.notices.clear()
    await client.result("session/subscribe", sessionId="s", after=1)
    assert seqs(await client.notified(3)) == [2, 3]
    await client.result("session/prompt", sessionId="s", content="y")
    assert seqs(await client.notified(4)) == [2, 3, 4]


async def test_a_cursor_beyond_the_ledger_is_a_gap(client: Client) -> None:
    await client.result("session/new", sessionId="s")
    await client.result("session/subscribe", sessionId="s", after=99)
    notices = await client.notified(2)
    assert notices[1] == {
        "jsonrpc": "2.0",
        "method": "session.gap",
        "params": {"sessionId": "s", "oldest": 1, "newest": 1},
    }
    assert await client.result("session/status", sessionId="s")


async def test_a_client_that_leaves_leaves_nothing_behind(house: House) -> None:
    await house.prompt("s")
    async with client_of(house) as client:
        await client.result("session/subscribe", sessionId="s")
        assert house.metric("rpc_connections") == 1
    await wait_until(lambda: house.metric("rpc_connections") == 0, PATIENCE_S, "the connection to end")
    await wait_until(lambda: house.metric("event_readers") == 0, PATIENCE_S, "the reader to end")


async def test_ten_thousand_subscriptions_are_each_answered_and_those_over_the_limit_refused() -> None:
    async with on_socket(poll_ms=1_000) as house, client_of(house, max_queue=None) as client:
        for number in range(SUBSCRIPTIONS_MAX):
            await house.store.create(f"s{number}", created())

        async def ask() -> None:
            for number in range(10_000):
                await client.send("session/subscribe", sessionId=f"s{number}")

        asking = asyncio.create_task(ask())
        answers = [await client.answer() for _ in range(10_000)]
        await asking
        refused = [each["error"]["data"]["code"] for each in answers if "error" in each]
        assert refused == ["rate-limited"] * (10_000 - SUBSCRIPTIONS_MAX)
        assert await client.result("session/status", sessionId="s0")
        assert (await client.call("session/subscribe", sessionId="s0"))["result"]["cursor"] == 1


async def test_a_reader_that_stops_reading_loses_no_event_once_it_goes_on(rng: random.Random) -> None:
    """A buffer of 16 events, some thousand events, and a client that looks away: it is caught up with, in order."""
    async with on_socket(sse_buffer_events_max=16, sse_buffer_bytes_max=65_536) as house:
        await house.client.post("/v1/sessions", json={"sessionId": "s"})
        async with client_of(house, max_queue=1) as client:
            await client.result("session/subscribe", sessionId="s")
            for number in range(40):
                batch = [{"content": "x" * rng.randint(1, 30_000)} for _ in range(25)]
                answer = await house.client.post("/v1/sessions/s/prompts", json=batch)
                assert answer.status_code == 202, number
            newest = (await house.level("s"))["cursor"]
            assert seqs(await client.notified(newest + 1)) == list(range(1, newest + 1))


async def test_a_reader_that_takes_nothing_for_too_long_is_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "LIMITS", Limits(send_s=0.2))
    await house.client.post("/v1/sessions", json={"sessionId": "s"})
    async with client_of(house, max_queue=1) as client:
        await client.result("session/subscribe", sessionId="s")
        for _ in range(40):  # some 40 MB: more than every buffer in between
            await house.prompt("s", "x" * 1_000_000)
        await wait_until(lambda: house.metric("rpc_connections") == 0, PATIENCE_S, "the connection to be given up")
        with pytest.raises(ConnectionClosed):
            await client.notified(1_000)


# -- the end ------------------------------------------------------------------------------------------------------


async def test_shutdown_is_answered_last_and_the_socket_closes(client: Client) -> None:
    for number in range(20):
        await client.send("session/prompt", sessionId="s", content="x", messageId=f"m{number}")
    last = await client.send("shutdown")
    answers = [await client.answer() for _ in range(21)]
    assert answers[-1] == {"jsonrpc": "2.0", "id": last, "result": None}
    assert all("result" in each for each in answers)
    with pytest.raises(ConnectionClosed) as closed:
        await client.next()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


async def test_a_defect_of_a_handler_is_an_internal_error_and_no_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("a secret")

    async with client_of(house) as client:
        await client.result("session/new", sessionId="s")
        with monkeypatch.context() as patched:
            patched.setattr(house.store, "level", broken)
            error = (await client.call("session/status", sessionId="s"))["error"]
        assert error["code"] == -32603
        assert "secret" not in json.dumps(error)
        assert await client.result("session/status", sessionId="s")


async def test_a_service_that_ends_closes_its_sockets() -> None:
    async with on_socket() as house:
        socket = await connect(url_of(house), proxy=None)
        await Client(socket).result("initialize")
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(socket.recv(), PATIENCE_S)


# -- who may come in ----------------------------------------------------------------------------------------------


async def test_a_page_of_an_origin_that_is_not_listed_is_refused() -> None:
    async with on_socket(origins="https://good.example") as house:
        async with client_of(house, origin="https://good.example") as client:
            assert await client.result("session/new", sessionId="s")
        with pytest.raises(InvalidStatus) as refused:
            await connect(url_of(house), proxy=None, origin="https://evil.example")  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403


async def test_a_socket_without_the_token_is_refused_before_it_opens() -> None:
    async with on_socket(token="secret") as house:
        for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url_of(house), proxy=None, additional_headers=shown)
            assert refused.value.response.status_code == 401
        async with client_of(house, additional_headers={"Authorization": "Bearer secret"}) as client:
            assert await client.result("session/new", sessionId="s")

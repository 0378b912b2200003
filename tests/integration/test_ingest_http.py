"""The HTTP door on a real server: receipts are true, whatever the server does (issue: bad input; M1, T3, T15)."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import redis

from mailslot_core.redis.store import RedisStore
from mailslot_core.store import Store
from tests.echo_worker import EchoWorker
from tests.servers import Server, running
from tests.unit.ingest.served import PATIENCE_S, House, in_process, on_socket, settings, stream
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

CALL_MS: Final = 400


@asynccontextmanager
async def house_on(server: Server, **changes: Any) -> AsyncIterator[House]:
    """An ingest on a server, spoken to without a socket."""
    async with RedisStore.connect(settings(redis_url=server.url, **changes)) as store, in_process(store) as house:
        yield house


def ledger_length(server: Server, session_id: str) -> int:
    """How many events a session has, seen from outside."""
    with server.client() as outside:
        (key,) = outside.keys(f"mailslot:*:s:{session_id}:ledger")
        return int(outside.xlen(key))


async def test_a_conversation_over_http_is_in_the_stream_in_order(store: Store) -> None:
    async with on_socket(store) as house:
        await house.prompt("s", "hello")
        async with stream(house, "s") as events:
            assert [frame.id for frame in await events.take(4)] == [None, 1, 2, 3]
            await EchoWorker(store).answer_all()
            last = (await house.level("s"))["cursor"]
            frames = await events.take(last - 3)
            assert [frame.id for frame in frames] == list(range(4, last + 1))
            assert (await house.client.get("/v1/sessions/s/idle")).json() == {"status": "idle", "cursor": last}


async def test_streams_see_every_seq_once_while_many_write(store: Store, rng: random.Random) -> None:
    total = 150
    async with on_socket(store) as house:
        await house.prompt("s", delivery="inject")

        async def write(count: int) -> None:
            for _ in range(count):
                await house.prompt("s", delivery="inject")

        async def follow(cuts: list[int]) -> list[int]:
            seen: list[int] = []
            for cut in [*cuts, total]:
                headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
                async with stream(house, "s", headers=headers) as events:
                    await events.take(1)
                    while len(seen) < cut:
                        (frame,) = await events.take(1)
                        assert frame.id is not None
                        seen.append(frame.id)
            return seen

        followers = [follow(sorted(rng.sample(range(1, total), 4))) for _ in range(4)]
        *found, _, _ = await asyncio.gather(*followers, write(74), write(74))
        assert found == [list(range(1, total + 1))] * 4


async def test_goals_and_lists_over_http(store: Store) -> None:
    async with in_process(store) as house:
        made = (await house.client.put("/v1/sessions/s/goal", json={"objective": "tidy"})).json()
        assert (await house.client.get("/v1/sessions/s/goal")).json() == made
        stale = await house.client.patch(
            "/v1/sessions/s/goal", json={"operation": "pause"}, headers={"If-Match": '"7"'}
        )
        assert stale.status_code == 412
        paused = await house.client.patch(
            "/v1/sessions/s/goal", json={"operation": "pause"}, headers={"If-Match": '"1"'}
        )
        assert paused.json()["phase"] == "paused"
        names = [level["sessionId"] for level in (await house.client.get("/v1/sessions")).json()["sessions"]]
        assert names == ["s"]


async def test_hostile_content_comes_back_as_it_was_sent(store: Store) -> None:
    texts = ["a\u2028b\u2029", "a\x00b", "\r\n\r\ndata: x\n\n", "\U0010ffff", "x" * 65_537, "\x7f\x80\x9f"]
    async with on_socket(store) as house:
        for text in texts:
            assert (await house.prompt("s", text, delivery="inject")).status_code == 202
        async with stream(house, "s", "?types=inbox/queued") as events:
            await events.take(1)
            found = [frame.data["data"]["content"][0]["text"] for frame in await events.take(len(texts))]
        assert found == texts


Damage = Callable[[redis.Redis, str], object]

DAMAGES: dict[str, Damage] = {
    "a status that is none": lambda outside, key: outside.hset(key, "status", "exploded"),
    "a number that is none": lambda outside, key: outside.hset(key, "seq", "many"),
    "bytes that are no value": lambda outside, key: outside.hset(key, "claimed", b"\xc1\xff"),
    "a value that is cut off": lambda outside, key: outside.hset(key, "goal", b"\x93\x01"),
    "another type of key": lambda outside, key: (outside.delete(key), outside.set(key, "x")),
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_a_damaged_session_is_left_out_of_the_list_and_named_in_the_log(
    clean_server: Server, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    async with house_on(clean_server) as house:
        for name in ("a", "b", "c"):
            await house.prompt(name)
        with clean_server.client() as outside:
            (key,) = outside.keys("mailslot:*:s:b:state")
            DAMAGES[what](outside, key)
        for query in ("", "?status=running"):
            response = await house.client.get(f"/v1/sessions{query}")
            assert response.status_code == 200
            assert [level["sessionId"] for level in response.json()["sessions"]] == ["a", "c"]
        warned = [record for record in caplog.records if getattr(record, "session", None) == "b"]
        assert {record.levelname for record in warned} == {"WARNING"}
        assert (await house.client.get("/metrics")).status_code == 200
        assert (await house.client.get("/v1/sessions/b")).json()["code"] == "internal"


# -- the server's faults ------------------------------------------------------------------------------------


async def refused(house: House, server: Server) -> dict[str, Any]:
    """A prompt that the store does not take: the problem, once it is known that nothing was kept."""
    before = ledger_length(server, "s")
    response = await house.prompt("s", messageId="refused")
    assert response.status_code == 503
    assert ledger_length(server, "s") == before
    found: dict[str, Any] = response.json()
    return found


async def test_a_server_that_is_read_only_refuses_and_nothing_is_kept(clean_server: Server) -> None:
    async with house_on(clean_server) as house:
        await house.prompt("s")
        with clean_server.client() as outside:
            outside.replicaof("127.0.0.1", "1")
            try:
                problem = await refused(house, clean_server)
            finally:
                outside.replicaof("NO", "ONE")
        assert (problem["code"], problem["retryable"]) == ("store-refused", True)
        assert (await house.prompt("s", messageId="refused")).json()["duplicate"] is False


async def test_a_server_that_is_full_refuses_and_nothing_is_kept(clean_server: Server) -> None:
    async with house_on(clean_server) as house:
        await house.prompt("s")
        with clean_server.client() as outside:
            outside.config_set("maxmemory", "1")
            try:
                problem = await refused(house, clean_server)
                assert (await house.client.get("/v1/sessions/s")).status_code == 200
            finally:
                outside.config_set("maxmemory", "0")
        assert problem["code"] == "store-refused"
        assert (await house.prompt("s", messageId="refused")).json()["duplicate"] is False


async def test_a_server_that_is_gone_refuses_and_comes_back() -> None:
    with running("redis70", aof="always") as server:
        async with house_on(server, call_timeout_ms=CALL_MS) as house:
            await house.prompt("s")
            server.kill()
            response = await house.prompt("s", messageId="m")
            assert (response.status_code, response.json()["retryable"]) == (503, True)
            assert (await house.client.get("/readyz")).status_code == 503
            assert (await house.client.get("/healthz")).status_code == 200
            assert (await house.client.get("/v1/sessions/s")).json()["code"] in ("store-refused", "outcome-unknown")
            server.start()

            async def answers() -> bool:
                return (await house.prompt("s", messageId="m")).status_code == 202

            await wait_until(answers, PATIENCE_S, "prompts to be taken again")
            assert (await house.client.get("/readyz")).status_code == 200


async def test_a_reply_that_is_lost_is_an_unknown_outcome_and_the_id_repeats_it() -> None:
    with running("redis70") as server:
        async with house_on(server, call_timeout_ms=CALL_MS) as house:
            await house.prompt("s")
            server.freeze()
            try:
                response = await house.prompt("s")
            finally:
                server.thaw()
            problem = response.json()
            assert (response.status_code, problem["code"]) == (503, "outcome-unknown")
            again = await house.prompt("s", messageId=problem["messageId"])
            assert again.status_code == 202
            events = await house.store.events("s", after=0, limit=100)
            queued = [event.data["messageId"] for event in events if event.type == "inbox/queued"]
            assert queued.count(problem["messageId"]) == 1


async def test_a_stream_outlives_a_server_that_is_restarted() -> None:
    with running("redis70", aof="always") as server:
        wanted = settings(redis_url=server.url, call_timeout_ms=CALL_MS)
        async with RedisStore.connect(wanted) as store, on_socket(store) as house:
            await house.prompt("s")
            async with stream(house, "s") as events:
                await events.take(4)
                server.kill()
                server.start()

                async def taken() -> bool:
                    return (await house.prompt("s", messageId="m")).status_code == 202

                await wait_until(taken, PATIENCE_S, "a prompt to be taken")
                (frame,) = await events.take(1)
                assert (frame.id, frame.data["data"]["messageId"]) == (4, "m")

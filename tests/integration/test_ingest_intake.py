"""The broker door loses nothing and is stuck on nothing (issue: broker door; semantics M3; T8, T20)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgpack
import pytest
import redis
from faststream.redis import RedisBroker
from starlette.applications import Starlette

from mailslot_contracts import INTAKE, INTAKE_DEAD, INTAKE_GROUP, encode
from mailslot_core.errors import StoreUnavailable
from mailslot_core.redis.store import RedisStore
from mailslot_core.store import Store
from mailslot_services.broker import make_broker
from mailslot_services.ingest import create_app
from mailslot_services.ingest.limit import RETRIES, IntakeLimits
from tests.echo_worker import EchoWorker
from tests.servers import Server, running
from tests.unit.ingest.served import settings
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PATIENCE_S: Final = 20.0
"""FastStream waits 5 s after an error; everything else comes at once."""

QUICK: Final = IntakeLimits(recover_ms=20, dead_ms=400, lost_ms=100, gone_ms=3_600_000)


@dataclass
class Door:
    """A running broker door, and a look at the server from outside."""

    app: Starlette
    store: Store
    server: Server
    outside: redis.Redis

    def put(self, session_id: str, content: object = "hello", **fields: object) -> str:
        """Put an entry as a backend without FastStream would; its id."""
        return self.put_raw(data=json.dumps({"sessionId": session_id, "content": content, **fields}))

    def put_raw(self, **fields: str | bytes) -> str:
        entry_id: bytes = self.outside.xadd(INTAKE, fields)  # type: ignore[arg-type, assignment]
        return entry_id.decode()

    async def messages(self, session_id: str, count: int) -> list[str]:
        """The ids of the session's messages in order, once there are so many."""

        async def found() -> list[str]:
            if await self.store.level(session_id) is None:
                return []
            events = await self.store.events(session_id, after=0, limit=1000)
            ids = [event.data["messageId"] for event in events if event.type == "inbox/queued"]
            return ids if len(ids) >= count else []

        return await wait_until(found, PATIENCE_S, f"{count} messages in session {session_id}")

    async def dead(self, count: int) -> list[dict[str, bytes]]:
        """The dead entries, once there are so many."""

        def found() -> list[dict[str, bytes]]:
            entries: Any = self.outside.xrange(INTAKE_DEAD)
            letters = [{name.decode(): value for name, value in fields.items()} for _, fields in entries]
            return letters if len(letters) >= count else []

        return await wait_until(found, PATIENCE_S, f"{count} dead entries")

    async def handled(self) -> None:
        """Every entry is acknowledged and deleted."""

        def nothing_left() -> bool:
            pending: Any = self.outside.xpending(INTAKE, INTAKE_GROUP)
            return pending["pending"] == 0 and self.outside.xlen(INTAKE) == 0

        await wait_until(nothing_left, PATIENCE_S, "every entry to be acknowledged and deleted")

    def metric(self, name: str, **labels: str) -> float:
        registry = self.app.state.door.metrics.registry
        return float(registry.get_sample_value(f"mailslot_ingest_{name}", labels) or 0)

    async def complaints(self) -> list[str]:
        """What readiness finds wrong."""
        found = await asyncio.gather(*(check() for check in self.app.state.door.checks))
        return [sentence for sentence in found if sentence is not None]


@asynccontextmanager
async def door(
    server: Server, limits: IntakeLimits = QUICK, store: Store | None = None, **changes: Any
) -> AsyncIterator[Door]:
    """A broker door on a server, with a store of its own unless one is given."""
    wanted = settings(redis_url=server.url, **changes)
    async with RedisStore.connect(wanted) as connected:
        used = store or connected
        app = create_app(used, wanted, broker=make_broker(wanted), limits=limits)
        with server.client() as outside:
            async with app.router.lifespan_context(app):
                yield Door(app, used, server, outside)


def consumers(outside: redis.Redis) -> dict[str, int]:
    """Pending entries by consumer."""
    found: Any = outside.xinfo_consumers(INTAKE, INTAKE_GROUP)
    return {each["name"].decode(): each["pending"] for each in found}


# -- taking -------------------------------------------------------------------------------------------------


async def test_what_redis_cli_puts_in_becomes_a_message_and_the_entry_is_gone(clean_server: Server) -> None:
    async with door(clean_server) as it:
        words = ["redis-cli", "-p", str(clean_server.port), "XADD", INTAKE, "*", "data"]
        done = await asyncio.to_thread(
            subprocess.run,
            [*words, '{"sessionId": "s", "content": "hello"}'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert await it.messages("s", 1) == [f"intake-{done.stdout.strip()}"]
        await it.handled()


async def test_an_entry_is_read_however_its_body_is_written(clean_server: Server) -> None:
    async with door(clean_server) as it:
        writers: list[Callable[[object], Any]] = [json.dumps, msgpack.packb, encode]
        for number, write in enumerate(writers):
            it.put_raw(data=write({"sessionId": "s", "content": "a", "messageId": f"m{number}"}))
        assert await it.messages("s", 3) == ["m0", "m1", "m2"]
        await it.handled()


async def test_an_entry_names_the_agent_of_a_session_that_is_not_there_yet(clean_server: Server) -> None:
    async with door(clean_server) as it:
        it.put("s", agent="writer")
        await it.messages("s", 1)
        level = await it.store.level("s")
        assert level
        assert level.agent == "writer"


async def test_what_was_put_in_before_the_first_start_is_taken(clean_server: Server) -> None:
    with clean_server.client() as outside:
        for number in range(3):
            body = json.dumps({"sessionId": "s", "content": "a", "messageId": f"m{number}"})
            outside.xadd(INTAKE, {"data": body})
    async with door(clean_server) as it:
        assert await it.messages("s", 3) == ["m0", "m1", "m2"]


async def test_entries_of_a_session_become_messages_in_their_order(clean_server: Server) -> None:
    async with door(clean_server) as it:
        with it.outside.pipeline(transaction=False) as pipe:
            for number in range(700):
                body = {"sessionId": f"s{number % 7}", "content": "a", "messageId": f"m{number}"}
                pipe.xadd(INTAKE, {"data": json.dumps(body)})
            pipe.execute()
        for number in range(7):
            assert await it.messages(f"s{number}", 100) == [f"m{each}" for each in range(number, 700, 7)]
        await it.handled()


# -- answering ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def publisher(server: Server) -> AsyncIterator[RedisBroker]:
    async with RedisBroker(server.url, logger=None) as broker:  # type: ignore[arg-type]
        yield broker


async def request(broker: RedisBroker, body: object) -> object:
    response = await broker.request(body, stream=INTAKE, timeout=PATIENCE_S)
    return await response.decode()


async def test_a_faststream_request_is_answered_with_the_message_id_alone(clean_server: Server) -> None:
    async with door(clean_server) as it, publisher(clean_server) as broker:
        body = {"sessionId": "s", "content": "a", "messageId": "m"}
        for _ in range(2):
            assert await request(broker, body) == {"messageId": "m"}
        assert await it.messages("s", 1) == ["m"]
        assert it.metric("intake_entries_total", outcome="duplicate") == 1


async def test_a_faststream_request_that_is_refused_is_answered_with_the_problem(clean_server: Server) -> None:
    async with door(clean_server) as it, publisher(clean_server) as broker:
        await request(broker, {"sessionId": "s", "content": "a", "messageId": "m"})
        for body, code in [
            ({"sessionId": "s", "content": "b", "messageId": "m"}, "conflict"),
            ({"sessionId": "x", "content": "b", "createSession": False}, "not-found"),
        ]:
            answer: Any = await request(broker, body)
            assert (answer["code"], answer["retryable"]) == (code, False)
        await it.handled()
        assert it.outside.xlen(INTAKE_DEAD) == 0


async def test_an_entry_takes_the_options_of_a_prompt_and_its_sender_is_told_the_refusal(clean_server: Server) -> None:
    later = 4_000_000_000_000
    async with door(clean_server) as it, publisher(clean_server) as broker:
        body = {"sessionId": "s", "content": "a", "messageId": "m", "notBefore": later, "expiresAt": later + 1}
        assert await request(broker, body) == {"messageId": "m"}
        (queued,) = (await it.store.queue("s", after="", limit=10)).messages
        assert (queued.record.due, queued.data["notBefore"], queued.data["expiresAt"]) == (False, later, later + 1)
        assert await request(broker, {"sessionId": "s", "content": "a", "messageId": "n"}) == {"messageId": "n"}
        steer = {"sessionId": "s", "content": "a", "delivery": "steer"}
        for refused, code in [
            ({"sessionId": "s", "content": "a", "ifBusy": "reject"}, "busy"),
            ({**steer, "expectTurn": 7}, "turn-mismatch"),
            ({"sessionId": "rests", "content": "a", "delivery": "steer", "ifIdle": "reject"}, "idle"),
            ({"sessionId": "s", "content": "a", "expiresAt": 1}, "expired"),
        ]:
            answer: Any = await request(broker, refused)
            assert answer["code"] == code
        await it.handled()
        assert it.outside.xlen(INTAKE_DEAD) == 0


async def test_a_plain_entry_is_answered_in_plain_json(clean_server: Server) -> None:
    async with door(clean_server) as it:
        with it.outside.pubsub(ignore_subscribe_messages=True) as replies:  # type: ignore[no-untyped-call]
            replies.subscribe("replies")
            for body in ('{"sessionId": "s", "content": "a", "messageId": "m"}', '{"sessionId": "s"}'):
                it.put_raw(data=body, reply_to="replies", correlation_id="c")
            heard: list[bytes] = []

            def listened() -> bool:
                message: Any = replies.get_message()
                if message:
                    heard.append(message["data"])
                return len(heard) == 2

            await wait_until(listened, PATIENCE_S, "two replies")
        assert heard[0] == b'{"messageId":"m"}'
        assert json.loads(heard[1])["code"] == "bad-input"


# -- refusing -----------------------------------------------------------------------------------------------


async def test_what_is_no_prompt_goes_to_the_dead_entries_and_holds_up_nobody(clean_server: Server) -> None:
    async with door(clean_server) as it:
        bad = {
            it.put_raw(data="nonsense"): b"nonsense",
            it.put_raw(data=b"\xff\x00\xfe"): b"\xff\x00\xfe",
            it.put("s", ""): None,
            it.put("s", delivery="pigeon"): None,
            it.put_raw(body="x"): b'{"body":"x"}',
            it.put_raw(__data__=b"\x89BIN\r\n\x1a\nbroken"): None,
        }
        it.put("s", messageId="good")
        assert await it.messages("s", 1) == ["good"]
        letters = {letter["id"].decode(): letter for letter in await it.dead(len(bad))}
        assert letters.keys() == bad.keys()
        for entry_id, data in bad.items():
            reason = json.loads(letters[entry_id]["reason"])
            assert (reason["code"], reason["status"]) == ("bad-input", 400)
            assert reason["detail"]
            assert data is None or letters[entry_id]["data"] == data
        await it.handled()
        dead = partial(it.metric, "intake_entries_total", outcome="dead")
        await wait_until(lambda: dead() == len(bad), PATIENCE_S, "the dead entries to be counted")


async def test_a_refusal_that_nobody_waits_for_is_a_dead_entry(clean_server: Server) -> None:
    async with door(clean_server) as it:
        it.put("s", "one", messageId="m")
        it.put("s", "two", messageId="m")
        (letter,) = await it.dead(1)
        assert json.loads(letter["reason"])["code"] == "conflict"
        await it.handled()


async def test_a_full_queue_is_waited_for_in_order_and_holds_back_its_own_session_alone(clean_server: Server) -> None:
    async with door(clean_server, pending_max=2) as it:
        for number in range(6):
            it.put("full", messageId=f"m{number}")
        it.put("other", messageId="o")
        assert await it.messages("other", 1) == ["o"]
        assert await it.messages("full", 2) == ["m0", "m1"]
        await wait_until(lambda: it.metric("intake_entries_total", outcome="retried"), PATIENCE_S, "a retry")
        worker = EchoWorker(it.store)

        async def drained() -> bool:
            await worker.answer_all()
            return await it.messages("full", 2) == [f"m{number}" for number in range(6)]

        await wait_until(drained, PATIENCE_S, "six messages in order")
        await it.handled()
        assert it.outside.xlen(INTAKE_DEAD) == 0


async def test_a_queue_that_stays_full_is_given_up(clean_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RETRIES, "queue-full", 2)
    async with door(clean_server, pending_max=1) as it:
        it.put("s", messageId="m0")
        it.put("s", messageId="m1")
        (letter,) = await it.dead(1)
        assert json.loads(letter["reason"])["code"] == "queue-full"
        await it.handled()


async def test_a_session_that_takes_nothing_does_not_bring_reading_to_a_halt(clean_server: Server) -> None:
    limits = IntakeLimits(recover_ms=20, in_flight_count=10, batch_count=5, lane_count=3)
    async with door(clean_server, limits, pending_max=1) as it:
        it.put("full", messageId="m0")
        await it.messages("full", 1)
        it.put("full", messageId="m1")
        await wait_until(lambda: it.metric("intake_entries_total", outcome="retried"), PATIENCE_S, "a retry")
        for number in range(2, 40):
            it.put("full", messageId=f"m{number}")
        it.put("other", messageId="o")
        assert await it.messages("other", 1) == ["o"]
        letters = await it.dead(36)
        assert {json.loads(letter["reason"])["code"] for letter in letters} == {"queue-full"}
        assert consumers(it.outside).popitem()[1] == 3


class _Gated(RedisStore):
    """A store that takes messages only while its gate is open."""

    gate = asyncio.Event()

    async def submit(self, *args: Any) -> Any:
        if not self.gate.is_set():
            raise StoreUnavailable("the store refused")
        return await super().submit(*args)


async def test_reading_pauses_while_too_much_is_in_hand(clean_server: Server) -> None:
    limits = IntakeLimits(recover_ms=20, in_flight_count=5, batch_count=5)
    _Gated.gate = asyncio.Event()
    async with _Gated.connect(settings(redis_url=clean_server.url)) as store, door(clean_server, limits, store) as it:
        for number in range(40):
            it.put(f"s{number}")
        await wait_until(lambda: sum(consumers(it.outside).values()) >= 5, PATIENCE_S, "a read")
        await rounds(it, 10)
        assert sum(consumers(it.outside).values()) <= 10
        _Gated.gate.set()
        await it.handled()


# -- recovering ---------------------------------------------------------------------------------------------

VICTIM: Final = """
import asyncio, sys
from mailslot_services.ingest import serve, intake
from mailslot_core.settings import IngestSettings

async def hang(*_):
    print("here", flush=True)
    await asyncio.Event().wait()

if sys.argv[2] == "read":
    intake.Intake._submit = hang
else:
    intake.Intake._settle = hang
settings = IngestSettings(redis_url=sys.argv[1], durability="memory", port=0)
asyncio.run(serve(settings, asyncio.Event()))
"""


@pytest.mark.parametrize("after", ["read", "submit"])
async def test_entries_of_a_process_killed_before_it_acknowledged_are_each_one_message(
    clean_server: Server, after: str
) -> None:
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, clean_server.url, after, stdout=subprocess.PIPE
    )
    try:
        with clean_server.client() as outside:
            for number in range(20):
                body = json.dumps({"sessionId": f"s{number % 2}", "content": "a", "messageId": f"m{number}"})
                outside.xadd(INTAKE, {"data": body})
            outside.xadd(INTAKE, {"data": "nonsense"})
            assert victim.stdout
            assert await asyncio.wait_for(victim.stdout.readline(), PATIENCE_S) == b"here\n"
            os.kill(victim.pid, signal.SIGKILL)
            await victim.wait()
            assert sum(consumers(outside).values()) > 0
    finally:
        if victim.returncode is None:
            victim.kill()
            await victim.wait()
    async with door(clean_server) as it:
        for number in range(2):
            found = await it.messages(f"s{number}", 10)
            assert sorted(found) == sorted(f"m{each}" for each in range(number, 20, 2))
        await it.dead(1)
        await it.handled()


async def test_an_entry_that_was_lost_on_its_way_to_us_is_taken_up(clean_server: Server) -> None:
    """The server handed it out and the connection broke: it rests with us, and nobody has it."""
    async with door(clean_server) as it:
        (ours,) = await wait_until(lambda: consumers(it.outside), PATIENCE_S, "a consumer")
        with it.outside.pipeline(transaction=True) as pipe:
            pipe.xadd(INTAKE, {"data": json.dumps({"sessionId": "s", "content": "a", "messageId": "m"})})
            pipe.xreadgroup(INTAKE_GROUP, ours, {INTAKE: ">"})
            pipe.execute()
        assert await it.messages("s", 1) == ["m"]
        await it.handled()
        assert it.metric("intake_reclaimed_total") == 1


async def rounds(it: Door, count: int) -> None:
    """So many rounds of recovery by whoever recovers here."""

    def done() -> int:
        stats: Any = it.outside.info("commandstats")
        return int(stats.get("cmdstat_xinfo|consumers", {"calls": 0})["calls"])

    before = done()
    await wait_until(lambda: done() - before >= count, PATIENCE_S, f"{count} rounds of recovery")


async def test_an_entry_in_the_hand_of_a_live_consumer_is_nobody_else_s(clean_server: Server) -> None:
    slow = IntakeLimits(recover_ms=20, dead_ms=1_000, lost_ms=5_000)
    async with door(clean_server, slow, pending_max=1) as holder:
        (name,) = await wait_until(lambda: consumers(holder.outside), PATIENCE_S, "a consumer")
        holder.put("s", messageId="m0")
        holder.put("s", messageId="m1")
        await wait_until(lambda: consumers(holder.outside)[name] == 1, PATIENCE_S, "an entry that waits")
        async with door(clean_server, slow) as other:

            def rested() -> bool:
                pending: Any = other.outside.xpending_range(INTAKE, INTAKE_GROUP, "-", "+", 10)
                return bool(pending[0]["time_since_delivered"] > 3 * slow.dead_ms)

            await wait_until(rested, PATIENCE_S, "the entry to have rested for long")
            await rounds(other, 10)
            assert other.metric("intake_reclaimed_total") == 0
            assert holder.metric("intake_reclaimed_total") == 0
            assert consumers(other.outside)[name] == 1


async def test_a_consumer_that_is_gone_is_removed_and_its_entries_are_not(clean_server: Server) -> None:
    with clean_server.client() as outside:
        outside.xgroup_create(INTAKE, INTAKE_GROUP, id="0", mkstream=True)
        outside.xgroup_createconsumer(INTAKE, INTAKE_GROUP, "empty")
        outside.xadd(INTAKE, {"data": json.dumps({"sessionId": "s", "content": "a", "messageId": "m"})})
        outside.xreadgroup(INTAKE_GROUP, "holding", {INTAKE: ">"})
        quick = IntakeLimits(recover_ms=20, dead_ms=300, lost_ms=100, gone_ms=1_000)
        async with door(clean_server, quick) as it:
            assert await it.messages("s", 1) == ["m"]
            await wait_until(lambda: len(consumers(outside)) == 1, PATIENCE_S, "the others to be removed")
        assert consumers(outside) == {}


class _Cursed(RedisStore):
    """A store with a defect that one session meets."""

    async def submit(self, session_id: str, *args: Any) -> Any:
        if session_id == "cursed":
            raise ZeroDivisionError
        return await super().submit(session_id, *args)


async def test_an_entry_that_meets_a_defect_costs_a_bounded_number_of_tries(clean_server: Server) -> None:
    limits = IntakeLimits(recover_ms=20, dead_ms=400, lost_ms=20, deliveries=3)
    async with _Cursed.connect(settings(redis_url=clean_server.url)) as store, door(clean_server, limits, store) as it:
        it.put("cursed")
        it.put("s", messageId="m")
        assert await it.messages("s", 1) == ["m"]
        (letter,) = await it.dead(1)
        assert json.loads(letter["reason"])["code"] == "internal"
        await it.handled()
        assert await it.complaints() == []


async def test_a_door_that_ends_leaves_no_consumer_and_nothing_pending(clean_server: Server) -> None:
    async with door(clean_server) as it:
        it.put("s")
        await it.messages("s", 1)
        await it.handled()
    with clean_server.client() as outside:
        assert consumers(outside) == {}


# -- the server's faults ------------------------------------------------------------------------------------


async def test_a_flushed_stream_begins_anew(clean_server: Server) -> None:
    async with door(clean_server) as it:
        it.put("s", messageId="before")
        await it.messages("s", 1)
        it.outside.delete(INTAKE)
        it.put("s", messageId="after")
        assert await it.messages("s", 2) == ["before", "after"]
        await it.handled()
        assert await it.complaints() == []


@pytest.mark.slow
async def test_a_server_that_was_restarted_is_read_again() -> None:
    with running("redis70", aof="always") as server:
        async with door(server) as it:
            it.put("s", messageId="before")
            await it.messages("s", 1)
            server.kill()
            assert await it.complaints()
            server.start()
            with server.client() as outside:
                it.outside = outside
                it.put("s", messageId="after")
                assert await it.messages("s", 2) == ["before", "after"]
                await it.handled()
            assert await it.complaints() == []


@pytest.mark.slow
async def test_a_server_that_takes_no_writes_is_waited_for_without_haste() -> None:
    with running("redis70") as server:
        async with door(server) as it:
            it.put("s", messageId="before")
            await it.messages("s", 1)
            it.outside.replicaof("127.0.0.1", "1")

            def refused() -> int:
                stats: Any = it.outside.info("commandstats")
                return int(stats["cmdstat_xreadgroup"]["rejected_calls"])

            await wait_until(refused, PATIENCE_S, "a refused read")
            assert refused() < 50
            it.outside.replicaof("NO", "ONE")
            it.put("s", messageId="after")
            assert await it.messages("s", 2) == ["before", "after"]
            await it.handled()

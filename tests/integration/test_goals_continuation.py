"""Goals go on when the agent rests: by notices, without notices, with two services, and never twice.

The service runs as it is; the worker is `EchoWorker`, driven by the test: a round happens when the test says so.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path as File
from typing import Any, Final

import pytest
import redis

from mailslot_contracts.codec import encode
from mailslot_contracts.ids import goal_message_id
from mailslot_contracts.notation import render
from mailslot_core import invariants
from mailslot_core.goal import Change
from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Event, Status
from mailslot_core.settings import GoalSettings, StoreSettings
from mailslot_core.store import IdleNotice
from mailslot_services.broker import Arrival
from mailslot_services.goal_continuation import serve
from mailslot_services.goal_continuation.continuation import Continuation
from mailslot_services.goal_continuation.listening import readable
from mailslot_services.goal_continuation.metrics import GoalMetrics, Outcome, Path
from tests.echo_worker import CREATED, EchoWorker, prompt
from tests.servers import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

VECTORS: Final = File(__file__).parents[2] / "contracts" / "vectors"
SOON_S: Final = 10.0
NEVER_MS: Final = 3_600_000
"""A reconcile interval that no test reaches: what happens then happens by notices."""
PARTITIONS: Final = 2
STREAMS: Final = [keys.partition_key(partition, "idle") for partition in range(PARTITIONS)]


def settings_of(url: str, reconcile_ms: int = NEVER_MS) -> GoalSettings:
    return GoalSettings(redis_url=url, durability="memory", partitions=PARTITIONS, reconcile_ms=reconcile_ms)


@pytest.fixture
async def store(clean_server_url: str) -> AsyncIterator[RedisStore]:
    settings = StoreSettings(redis_url=clean_server_url, durability="memory", partitions=PARTITIONS)
    async with RedisStore.connect(settings) as found:
        yield found


@asynccontextmanager
async def goals_service(url: str, reconcile_ms: int = NEVER_MS) -> AsyncIterator[None]:
    """A goals service in this process; entered when it listens on every partition."""
    stop = asyncio.Event()
    service = asyncio.create_task(serve(settings_of(url, reconcile_ms), stop))
    before = ears(url)
    try:
        await wait_until(lambda: service.done() or ears(url) == before + PARTITIONS, SOON_S, "the service to listen")
        yield
    finally:
        stop.set()
        await asyncio.wait_for(service, SOON_S)


def ears(url: str) -> int:
    """How many connections wait for notices."""
    with redis.Redis.from_url(url) as look:
        return sum(1 for each in look.client_list() if each["cmd"] == "xreadgroup")


def consumers(url: str) -> set[tuple[str, bytes]]:
    """Who has taken notices, by stream."""
    found: set[tuple[str, bytes]] = set()
    with redis.Redis.from_url(url) as look:
        for stream in STREAMS:
            found |= {(stream, each["name"]) for each in look.xinfo_consumers(stream, keys.IDLE_GROUP)}
    return found


async def make_goal(store: RedisStore, session_id: str = "s", rounds: int = 2) -> Any:
    wanted = Change("create", goal_id="goal-1", objective="keep the garden", budgets={"rounds": rounds})
    return await store.goal_change(session_id, wanted, CREATED)


async def ledger(store: RedisStore, session_id: str = "s") -> list[Event]:
    return await store.events(session_id, after=0, limit=1000)


async def rounds_queued(store: RedisStore, session_id: str = "s") -> list[int]:
    found = await ledger(store, session_id)
    return [e.data["source"]["round"] for e in found if e.type == "inbox/queued" and e.data["source"]["kind"] == "goal"]


async def phase_of(store: RedisStore, session_id: str = "s") -> str:
    level = await store.level(session_id)
    return level.goal["phase"] if level and level.goal else "none"


async def run_until_blocked(store: RedisStore, worker: EchoWorker, session_id: str = "s") -> None:
    async def blocked() -> bool:
        await worker.answer_all()
        return await phase_of(store, session_id) == "blocked"

    await wait_until(blocked, SOON_S, "the goal to be blocked")


# -- golden traces ------------------------------------------------------------------------------------------


async def test_trace_11_goal_rounds(store: RedisStore, clean_server_url: str) -> None:
    vector = json.loads((VECTORS / "11-goal-rounds.json").read_text())
    worker = EchoWorker(store)
    async with goals_service(clean_server_url):
        await prompt(store, "s", "A")
        grant = await worker.acquire()
        assert grant is not None
        grant = await worker.begin_step(grant)
        await store.goal_change("s", Change("create", goal_id="goal-1", objective="o", budgets={"rounds": 2}), CREATED)
        await worker.answer(grant)
        await run_until_blocked(store, worker)
    events = await ledger(store)
    goal_messages = [e.data["messageId"] for e in events if e.type == "inbox/queued" and e.data["messageId"] != "A"]
    labels = dict(zip(goal_messages, ("g1", "g2"), strict=True))
    assert render(events, labels) == [*vector["pattern"], "goal(block)"]
    assert invariants.violations(events) == []


async def test_a_goal_made_on_an_agent_that_never_ran_begins_at_once(store: RedisStore, clean_server_url: str) -> None:
    """Semantics G2: creating a goal on an idle agent counts as the idle notice."""
    async with goals_service(clean_server_url):
        await make_goal(store)
        await wait_until(lambda: rounds_queued(store), SOON_S, "the first round")
    (queued,) = [event for event in await ledger(store) if event.type == "inbox/queued"]
    assert queued.data["messageId"] == goal_message_id("goal-1", 1, 1, 0)


async def test_a_goal_whose_rounds_are_spent_is_blocked_with_a_code(store: RedisStore, clean_server_url: str) -> None:
    async with goals_service(clean_server_url):
        await make_goal(store, rounds=3)
        await run_until_blocked(store, EchoWorker(store))
    level = await store.level("s")
    assert level is not None
    assert level.goal is not None
    assert level.goal["reason"] == {"code": "budget-rounds", "message": "all 3 rounds are spent"}
    assert level.status is Status.IDLE
    assert await rounds_queued(store) == [1, 2, 3]


async def test_a_person_comes_first_and_the_round_is_tried_again(store: RedisStore, clean_server_url: str) -> None:
    """Trace 12."""
    worker = EchoWorker(store)
    async with goals_service(clean_server_url):
        await make_goal(store, rounds=1)
        await wait_until(lambda: rounds_queued(store), SOON_S, "the first round")
        await prompt(store, "s", "H")
        await worker.answer_one()
        await run_until_blocked(store, worker)
    admitted = [event.data["messageId"] for event in await ledger(store) if event.type == "user/message"]
    assert admitted[0] == "H"
    assert len(admitted) == 2
    assert await rounds_queued(store) == [1, 1]


async def test_a_turn_that_fails_pauses_the_goal_and_no_round_follows(store: RedisStore, clean_server_url: str) -> None:
    """Semantics G4."""
    worker = EchoWorker(store)
    async with goals_service(clean_server_url, reconcile_ms=50):
        await make_goal(store)
        await wait_until(lambda: rounds_queued(store), SOON_S, "the first round")
        await worker.answer_one(kind="error")
        await make_goal(store, "other")
        await wait_until(lambda: rounds_queued(store, "other"), SOON_S, "the service to go on with other goals")
    assert await phase_of(store) == "paused"
    assert await rounds_queued(store) == [1]


async def test_a_goal_that_is_resumed_goes_on(store: RedisStore, clean_server_url: str) -> None:
    worker = EchoWorker(store)
    async with goals_service(clean_server_url):
        await make_goal(store)
        await wait_until(lambda: rounds_queued(store), SOON_S, "the first round")
        await worker.answer_one(kind="error")
        await store.goal_change("s", Change("resume", expected=("goal-1", 2)), CREATED)
        await run_until_blocked(store, worker)
    assert await rounds_queued(store) == [1, 2]


# -- lost and stale notices ---------------------------------------------------------------------------------


async def test_losing_every_notice_does_not_stop_a_goal(store: RedisStore, clean_server_url: str) -> None:
    """Semantics G8. The streams are deleted again and again, with the group that is listened on."""
    worker = EchoWorker(store)
    async with goals_service(clean_server_url, reconcile_ms=100):
        await make_goal(store, rounds=3)
        with redis.Redis.from_url(clean_server_url) as hand:

            async def blocked() -> bool:
                hand.delete(*STREAMS)
                await worker.answer_all()
                return await phase_of(store) == "blocked"

            await wait_until(blocked, SOON_S, "the goal to spend its rounds")
    assert await rounds_queued(store) == [1, 2, 3]


async def test_notices_are_heard_again_after_their_stream_was_deleted(store: RedisStore, clean_server_url: str) -> None:
    async with goals_service(clean_server_url, reconcile_ms=100):
        with redis.Redis.from_url(clean_server_url) as hand:
            hand.delete(*STREAMS)
            await wait_until(lambda: hand.exists(*STREAMS) == PARTITIONS, SOON_S, "the groups to be made anew")
        await wait_until(lambda: ears(clean_server_url) == PARTITIONS, SOON_S, "every partition to be heard again")


async def test_a_goal_made_while_no_service_ran_is_found_at_the_start(store: RedisStore, clean_server_url: str) -> None:
    await make_goal(store)
    with redis.Redis.from_url(clean_server_url) as hand:
        hand.delete(*STREAMS)
    async with goals_service(clean_server_url):
        await wait_until(lambda: rounds_queued(store), SOON_S, "the first round")


async def test_a_notice_that_is_older_than_an_edit_does_nothing(store: RedisStore) -> None:
    await make_goal(store)
    stale = IdleNotice("s", "goal-1", revision=1, idle_seq=0)
    await store.goal_change("s", Change("edit", expected=("goal-1", 1), objective="mow the lawn"), CREATED)
    before = await ledger(store)
    continuation = Continuation(store, GoalMetrics())
    assert await continuation.answer(stale, Path.NOTICE) is Outcome.STALE
    assert await ledger(store) == before
    fresh = stale._replace(revision=2)
    assert await continuation.answer(fresh, Path.NOTICE) is Outcome.ADVANCED
    assert await continuation.answer(fresh, Path.NOTICE) is Outcome.STALE


async def test_a_notice_for_a_session_that_does_not_exist_does_nothing(store: RedisStore) -> None:
    continuation = Continuation(store, GoalMetrics())
    assert await continuation.answer(IdleNotice("nobody", "g", 1, 0), Path.NOTICE) is Outcome.STALE


GARBAGE: Final[list[dict[Any, Any]]] = [
    {b"data": b"\xff\x00"},
    {b"other": b"x"},
    {b"data": encode({"sessionId": "s"})},
    {b"data": encode(["s"])},
    {b"data": encode({"sessionId": "s", "goalId": "g", "revision": "three", "idleSeq": 0})},
    {b"__data__": b"{not json"},
]


async def test_a_notice_that_cannot_be_read_stands_in_nobodys_way(store: RedisStore, clean_server_url: str) -> None:
    async with goals_service(clean_server_url):
        with redis.Redis.from_url(clean_server_url) as hand:
            for stream in STREAMS:
                for fields in GARBAGE:
                    hand.xadd(stream, fields)
        await make_goal(store)
        await wait_until(lambda: rounds_queued(store), SOON_S, "the round behind the garbage")


def test_the_others_of_a_batch_are_read_and_what_cannot_be_is_counted() -> None:
    notice = IdleNotice("s", "g", 3, 40)
    sound = {b"data": encode({"sessionId": "s", "goalId": "g", "revision": 3, "idleSeq": 40})}
    metrics = GoalMetrics()
    batch = [Arrival(f"{number}-0", fields) for number, fields in enumerate([*GARBAGE, sound], 1)]
    assert readable(batch, metrics) == [notice]
    assert metrics.registry.get_sample_value("mailslot_goals_unreadable_total") == len(GARBAGE)


# -- more than one service ----------------------------------------------------------------------------------


async def test_two_services_queue_each_round_once(store: RedisStore, clean_server_url: str) -> None:
    """Both listen, and both reconcile as fast as they can."""
    worker = EchoWorker(store)
    sessions = [f"s-{number}" for number in range(8)]
    async with goals_service(clean_server_url, reconcile_ms=50), goals_service(clean_server_url, reconcile_ms=50):
        for session_id in sessions:
            await make_goal(store, session_id, rounds=4)

        async def all_blocked() -> bool:
            await worker.answer_all()
            return [await phase_of(store, each) for each in sessions] == ["blocked"] * len(sessions)

        await wait_until(all_blocked, SOON_S, "every goal to spend its rounds")
    for session_id in sessions:
        assert await rounds_queued(store, session_id) == [1, 2, 3, 4]
        assert invariants.violations(await ledger(store, session_id)) == []


async def test_the_same_notice_answered_many_times_at_once_queues_one_round(store: RedisStore) -> None:
    await make_goal(store)
    notice = IdleNotice("s", "goal-1", revision=1, idle_seq=0)
    continuations = [Continuation(store, GoalMetrics()) for _ in range(4)]
    outcomes = await asyncio.gather(*(each.answer(notice, Path.NOTICE) for each in continuations for _ in range(10)))
    assert outcomes.count(Outcome.ADVANCED) == 1
    assert await rounds_queued(store) == [1]


# -- what it leaves behind ----------------------------------------------------------------------------------


async def test_nothing_is_ever_pending_and_delivered_notices_are_trimmed(
    store: RedisStore, clean_server_url: str
) -> None:
    async with goals_service(clean_server_url, reconcile_ms=50):
        for number in range(30):
            await make_goal(store, f"s-{number}")
        with redis.Redis.from_url(clean_server_url) as look:
            await wait_until(
                lambda: all(look.xlen(stream) <= 1 for stream in STREAMS), SOON_S, "delivered notices to be trimmed"
            )
            assert [look.xpending(stream, keys.IDLE_GROUP)["pending"] for stream in STREAMS] == [0] * PARTITIONS


async def test_a_consumer_that_went_away_is_forgotten(
    store: RedisStore, clean_server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailslot_services.goal_continuation.listening.GONE_MS", 1_500)
    async with goals_service(clean_server_url):
        for number in range(8):
            await make_goal(store, f"s-{number}")
        await wait_until(lambda: len(consumers(clean_server_url)) == PARTITIONS, SOON_S, "a notice in each partition")
    gone = consumers(clean_server_url)
    assert len(gone) == PARTITIONS
    async with goals_service(clean_server_url, reconcile_ms=50):
        await wait_until(
            lambda: not gone & consumers(clean_server_url), SOON_S, "the consumers of the service that went away to go"
        )


# -- a store in trouble -------------------------------------------------------------------------------------


async def test_a_store_that_refuses_is_asked_again(store: RedisStore, clean_server: Server) -> None:
    """A full server takes no new round; once it has room the next reconcile queues it."""
    await make_goal(store)
    await store.goal_change("s", Change("pause"))
    with clean_server.client() as hand:
        try:
            async with goals_service(clean_server.url, reconcile_ms=100):
                hand.config_resetstat()
                hand.config_set("maxmemory", 1)
                await store.goal_change("s", Change("resume"))
                await wait_until(lambda: refusals(hand), SOON_S, "the server to refuse")
                assert await rounds_queued(store) == []
                hand.config_set("maxmemory", 0)
                await wait_until(lambda: rounds_queued(store), SOON_S, "the round after the trouble")
        finally:
            hand.config_set("maxmemory", 0)


def refusals(hand: redis.Redis) -> int:
    found: Any = hand.info("errorstats")
    return int(found.get("errorstat_OOM", {}).get("count", 0))

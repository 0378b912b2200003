"""The clients against the product: real doors, a real worker, a store in memory. Each promise is held by both."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from mailslot import AsyncClient, Budgets, Client, CursorExpired, Delta, Event, Refused, RunResult, RunTimeout
from mailslot_core.session import Event as Fact
from tests.unit.sdk.product import CuttingProxy, Product
from tests.unit.sdk.twins import KINDS, QUICK, Kind, twin
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

STUBBORN = dataclasses.replace(QUICK, attempts_max=200, reconnects_max=200, backoff_max_ms=10)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def product() -> Iterator[Product]:
    with Product().running() as running:
        yield running


def held_to_u2(result: RunResult, ledger: list[Fact]) -> None:
    """A run is exactly the part of the ledger from its receipt through the first idle after it."""
    queued = next(e.seq for e in ledger if e.type == "inbox/queued" and e.data["messageId"] == result.message_id)
    idle = next(e.seq for e in ledger if e.seq > queued and e.type == "agent/status" and e.data["status"] == "idle")
    assert (result.from_seq, result.to_seq) == (queued, idle)
    assert [event.seq for event in result.events] == list(range(queued, idle + 1))


# -- runs ---------------------------------------------------------------------------------------------------------


async def test_a_run_returns_what_was_said_last_before_the_next_idle(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        result = await client.call("s", "run", "hello")
    assert (result.final_response, result.finish_reason) == ("answer to hello", "completed")
    assert (result.message.state, result.message.turn, result.message.step) == ("admitted", 1, 1)
    held_to_u2(result, product.ledger("s"))


async def test_a_run_returns_today_however_much_was_said_before(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        for day in range(3):
            result = await client.call("s", "run", f"day {day}")
            assert result.final_response == f"answer to day {day}"
            held_to_u2(result, product.ledger("s"))


@pytest.mark.slow
async def test_run_never_returns_yesterday(product: Product) -> None:
    """T1 (vercel/eve#2461): one prompt active, one queued, 200 concurrent runs on one session."""
    async with AsyncClient(product.url, settings=QUICK) as client:
        session = client.session("s")
        await session.prompt("wait for it")
        await asyncio.to_thread(product.reached)
        await session.prompt("queued before")
        runs = [asyncio.ensure_future(session.run(f"run {n}")) for n in range(200)]

        async def all_queued() -> bool:
            return (await session.status()).pending == 201  # the active one is admitted

        await wait_until(all_queued, 60, "200 runs in the queue")
        product.open()
        results = await asyncio.wait_for(asyncio.gather(*runs), 120)
    ledger = product.ledger("s")
    for result in results:
        held_to_u2(result, ledger)
    assert len({result.message_id for result in results}) == 200
    admitted = Counter(e.data["messageId"] for e in ledger if e.type == "user/message")
    assert all(admitted[result.message_id] == 1 for result in results)


async def test_runs_in_many_threads_do_not_mix(product: Product) -> None:
    with Client(product.url, settings=QUICK) as client:
        session_ids = [f"s{n % 4}" for n in range(24)]
        runs = [asyncio.to_thread(client.session(name).run, f"run {n}") for n, name in enumerate(session_ids)]
        results = await asyncio.wait_for(asyncio.gather(*runs), 60)
    for name, result in zip(session_ids, results, strict=True):
        assert result.session_id == name
        held_to_u2(result, product.ledger(name))


async def test_a_run_owns_other_peoples_messages_in_its_interval(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        run = asyncio.ensure_future(client.call("s", "run", "wait please"))
        await asyncio.to_thread(product.reached)
        await client.call("s", "prompt", "me too")
        product.open()
        result = await asyncio.wait_for(run, 20)
    assert result.final_response == "answer to me too"
    assert [event.type for event in result.events].count("turn/end") == 2


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [("fail", "error", ""), ("long", "max-tokens", "answer to long"), ("nothing", "completed", "")],
)
async def test_what_the_model_makes_of_it_is_reported_and_never_raised(
    product: Product, kind: Kind, text: str, reason: str, said: str
) -> None:
    async with twin(kind, product.url) as client:
        result = await client.call("s", "run", text)
    assert (result.finish_reason, result.final_response) == (reason, said)
    assert result.message.state == "admitted"


async def test_the_finish_reason_is_that_of_the_second_of_two_turns(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        run = asyncio.ensure_future(client.call("s", "run", "wait please"))
        await asyncio.to_thread(product.reached)
        await client.call("s", "prompt", "be long")
        product.open()
        assert (await asyncio.wait_for(run, 20)).finish_reason == "max-tokens"


async def test_leaving_a_run_leaves_the_agent_at_work(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        with pytest.raises(RunTimeout):
            await client.call("s", "run", "wait please", timeout=0.5)
        assert (await client.call("s", "status")).status == "running"
        product.open()
        await client.call("s", "when_idle", timeout=20)
    ends = [event.data["reason"]["kind"] for event in product.ledger("s") if event.type == "turn/end"]
    assert ends == ["completed"]


async def test_leaving_a_run_can_stop_the_turn_that_is_open(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        with pytest.raises(RunTimeout) as caught:
            await client.call("s", "run", "wait please", timeout=0.5, cancel_on_abort=True)
        await client.call("s", "when_idle", timeout=20)
    ends = [event.data["reason"] for event in product.ledger("s") if event.type == "turn/end"]
    assert ends == [{"kind": "aborted", "cause": "user"}]
    admitted = [event.data["messageId"] for event in product.ledger("s") if event.type == "user/message"]
    assert admitted == [caught.value.message_id]


async def test_leaving_a_run_never_stops_somebody_elses_turn(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        await client.call("s", "prompt", "wait for theirs", message_id="theirs")
        await asyncio.to_thread(product.reached)
        with pytest.raises(RunTimeout):
            await client.call("s", "run", "mine", timeout=0.5, cancel_on_abort=True)
        product.open()
        await client.call("s", "when_idle", timeout=20)
    ledger = product.ledger("s")
    assert [event for event in ledger if event.type == "cancel/requested"] == []
    ends = [(event.data["turn"], event.data["reason"]["kind"]) for event in ledger if event.type == "turn/end"]
    assert ends == [(1, "completed"), (2, "completed")]


async def test_a_stream_gives_events_then_its_result(product: Product) -> None:
    async with AsyncClient(product.url, settings=QUICK) as client:
        run = client.session("s").stream("in pieces", deltas=True)
        items = [item async for item in run]
    assert "".join(item.text for item in items if isinstance(item, Delta)) == "answer to in pieces"
    assert [item for item in items if isinstance(item, Event)] == list(run.result.events)
    with Client(product.url, settings=QUICK) as blocking:
        events = list(second := blocking.session("s").stream("again"))
    assert tuple(events) == second.result.events
    assert second.receipt is not None
    assert second.receipt.cursor == second.result.from_seq


# -- messages -----------------------------------------------------------------------------------------------------


async def test_the_same_message_twice_is_one_message(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        first = await client.call("s", "prompt", "hello", message_id="m-1")
        again = await client.call("s", "prompt", "hello", message_id="m-1")
        with pytest.raises(Refused) as caught:
            await client.call("s", "prompt", "something else", message_id="m-1")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.cursor == again.cursor
    assert caught.value.code == "conflict"
    assert [event.type for event in product.ledger("s")].count("inbox/queued") == 1


@pytest.mark.parametrize("content", ["", "   ", [], [{"type": "hologram"}]])
async def test_what_no_door_takes_is_refused_with_a_sentence(product: Product, kind: Kind, content: object) -> None:
    async with twin(kind, product.url) as client:
        with pytest.raises(Refused, match="content") as caught:
            await client.call("s", "prompt", content)
    assert (caught.value.code, caught.value.status, caught.value.retryable) == ("bad-input", 400, False)


async def test_a_steer_joins_the_turn_and_an_inject_does_not_wake(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        await client.call("s", "inject", "some context")
        assert (await client.call("s", "status")).status == "idle"
        run = asyncio.ensure_future(client.call("s", "run", "wait please"))
        await asyncio.to_thread(product.reached)
        await client.call("s", "steer", "to the left")
        product.open()
        result = await asyncio.wait_for(run, 20)
    assert [event.type for event in result.events].count("turn/start") == 1
    assert result.final_response == "answer to to the left"
    texts = [event.data["content"][0]["text"] for event in result.events if event.type == "user/message"]
    assert texts == ["some context", "wait please", "to the left"]


async def test_text_and_metadata_come_through_as_they_were_sent(product: Product, kind: Kind) -> None:
    text = "\u2028 \u2029 \x00 \x1b[2J héllo 你好 🙂 \r\n end"
    metadata = {"n": 1.5, "list": [None, True, {"deep": "\u2028"}], "big": 2**62}
    async with twin(kind, product.url) as client:
        await client.call("s", "prompt", text, metadata=metadata, source={"kind": "system"})
        await client.call("s", "when_idle", timeout=20)
        events = await client.first_events("s", 7)
    queued = next(event for event in events if event.type == "inbox/queued")
    assert queued.data["content"] == [{"type": "text", "text": text}]
    assert (queued.data["metadata"], queued.data["source"]) == (metadata, {"kind": "system"})


@pytest.mark.parametrize("session_id", ["a/b", "..", ".", "ü 🙂", "a?b#c&d=e%2F", "x" * 200])
async def test_any_id_names_its_session(product: Product, kind: Kind, session_id: str) -> None:
    async with twin(kind, product.url) as client:
        result = await client.call(session_id, "run", "hello")
        assert (await client.call(session_id, "status")).session_id == session_id
    assert result.session_id == session_id
    held_to_u2(result, product.ledger(session_id))


async def test_a_cancel_stops_the_open_turn_and_what_is_queued_goes_on(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        nothing = await client.call("s", "prompt", "wait please")
        await asyncio.to_thread(product.reached)
        later = await client.call("s", "prompt", "after that")
        outcome = await client.call("s", "cancel", wait=20)
        assert outcome.still_queued == (later.message_id,)
        assert outcome.outcome in ("settled", "requested")
        await client.call("s", "when_idle", after=nothing.cursor, timeout=20)
        assert (await client.call("s", "cancel")).outcome == "nothing_to_cancel"
        with pytest.raises(Refused, match="turn") as caught:
            await client.call("s", "cancel", turn=1)
    assert caught.value.code == "not-open"
    kinds = [event.data["reason"]["kind"] for event in product.ledger("s") if event.type == "turn/end"]
    assert kinds == ["aborted", "completed"]


# -- what the agent does ------------------------------------------------------------------------------------------


async def test_the_level_says_why_the_agent_runs(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        with pytest.raises(Refused, match="s") as caught:
            await client.call("s", "status")
        assert caught.value.code == "not-found"
        receipt = await client.call("s", "prompt", "wait please")
        await asyncio.to_thread(product.reached)
        running = await client.call("s", "status")
        with pytest.raises(RunTimeout, match="turn 1"):
            await client.call("s", "when_idle", timeout=0.2)
        product.open()
        idle_at = await client.call("s", "when_idle", after=receipt.cursor, timeout=20)
        idle = await client.call("s", "status")
    assert (running.status, running.turn, running.conservation) == ("running", 1, 0)
    assert running.reasons
    assert (idle.status, idle.cursor, idle.pending) == ("idle", idle_at, 0)


async def test_events_are_read_from_a_cursor_and_a_foreign_cursor_is_an_error(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        await client.call("s", "run", "hello")
        ledger = product.ledger("s")
        assert [event.seq for event in await client.first_events("s", 3, 4)] == [5, 6, 7]
        found = await client.first_events("s", len(ledger))
        assert [(e.seq, e.type, e.time, e.epoch, e.data) for e in found] == [tuple(e) for e in ledger]
        with pytest.raises(CursorExpired) as caught:
            await client.first_events("s", 1, 1_000_000)
        assert caught.value.newest == ledger[-1].seq
        with pytest.raises(Refused):
            await client.first_events("unknown", 1)


async def test_every_session_is_listed_once(product: Product, kind: Kind) -> None:
    names = {f"session {n:03}" for n in range(230)}
    async with twin(kind, product.url) as client:
        await asyncio.gather(*(client.call(name, "inject", "x") for name in names))
        found = [level.session_id for level in await client.levels()]
        assert await client.levels(status="running") == []
    assert sorted(found) == sorted(names)


async def test_a_session_keeps_the_agent_it_was_made_with(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        assert (await client.call("s", "run", "hello", agent="default")).finish_reason == "completed"
        assert (await client.call("s", "run", "again")).finish_reason == "completed"
        with pytest.raises(Refused) as caught:
            await client.call("s", "prompt", "hello", agent="poet")
        assert caught.value.code == "session-exists"
        await client.call("t", "inject", "x", agent="poet")
    assert product.ledger("t")[0].data["agent"] == "poet"


async def test_a_goal_is_set_read_changed_and_cleared(product: Product, kind: Kind) -> None:
    async with twin(kind, product.url) as client:
        await client.call("s", "inject", "x")
        assert await client.goal("s", "get") is None
        made = await client.goal("s", "set", "win", Budgets(rounds=3))
        assert (made.phase, made.budgets.rounds, made.objective, made.rounds) == ("active", 3, "win", 0)
        with pytest.raises(Refused) as exists:
            await client.goal("s", "set", "win again")
        paused = await client.goal("s", "pause", revision=made.revision)
        with pytest.raises(Refused) as stale:
            await client.goal("s", "resume", revision=made.revision)
        edited = await client.goal("s", "edit", objective="win big", budgets=Budgets(rounds=5))
        blocked_from = await client.goal("s", "resume", revision=edited.revision)
        blocked = await client.goal("s", "block", code="stuck", message="no key", revision=blocked_from.revision)
        assert await client.goal("s", "get") == blocked
        done = await client.goal("s", "complete")
        await client.goal("s", "clear", revision=done.revision)
        assert await client.goal("s", "get") is None
    assert (exists.value.code, stale.value.code) == ("goal-exists", "revision")
    assert (paused.phase, paused.reason.kind) == ("paused", "user")
    assert (edited.objective, edited.budgets.rounds) == ("win big", 5)
    assert (blocked.phase, blocked.reason.code) == ("blocked", "stuck")


# -- cut connections ----------------------------------------------------------------------------------------------


async def test_connections_cut_in_mid_stream_lose_nothing_and_repeat_nothing(
    product: Product, kind: Kind, rng: random.Random
) -> None:
    port = int(product.url.rpartition(":")[2])
    async with CuttingProxy(port, lambda: rng.randint(300, 4000)).running() as proxy:
        async with twin(kind, product.url) as direct:
            for n in range(12):
                await direct.call("s", "run", f"message {n} " + "x" * rng.randint(0, 800))
        ledger = product.ledger("s")
        async with twin(kind, proxy.url, settings=STUBBORN) as client:
            events = await asyncio.wait_for(client.first_events("s", len(ledger)), 60)
    assert [tuple(dataclasses.astuple(event)) for event in events] == [tuple(event) for event in ledger]
    assert proxy.cuts >= 3


async def test_runs_over_connections_that_are_cut_are_exact_and_send_each_message_once(
    product: Product, kind: Kind, rng: random.Random
) -> None:
    port = int(product.url.rpartition(":")[2])
    async with (
        CuttingProxy(port, lambda: rng.randint(1, 3000)).running() as proxy,
        twin(kind, proxy.url, settings=STUBBORN) as client,
    ):
        results = [await asyncio.wait_for(client.call("s", "run", f"message {n}"), 60) for n in range(15)]
    ledger = product.ledger("s")
    for n, result in enumerate(results):
        held_to_u2(result, ledger)
        assert result.final_response == f"answer to message {n}"
    assert Counter(event.type for event in ledger)["user/message"] == 15
    assert proxy.cuts >= 3

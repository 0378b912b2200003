"""What a run and a reader promise holds through both clients of the SDK when their line is cut again and again."""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from typing import Final, TypeVar

import pytest

from mailslot import AsyncClient, Client, Event, RunResult, Settings
from mailslot_core.task import end
from tests.chaos.figure import Figure
from tests.chaos.history import History, http, now_ms
from tests.chaos.ledger import ledger
from tests.chaos.proxy import Proxy, proxy_to
from tests.chaos.stand import Stand, all_idle, made
from tests.chaos.trial import hold_trial
from tests.waiting import pace, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

T = TypeVar("T")

ASYNC_RUNS: Final = 190
SYNC_RUNS: Final = 10
RUNS: Final = ASYNC_RUNS + SYNC_RUNS
RUN_CUT_AFTER_BYTES: Final = 200_000
MESSAGES: Final = 30
LATE_S: Final = 0.01
LOOK_S: Final = 0.5
CUT_AFTER_BYTES: Final = 4_000
GOODBYE: Final = "goodbye"
PATIENCE_S: Final = 120.0
TIRELESS: Final = Settings(
    reconnects_max=10_000, attempts_max=10_000, backoff_first_ms=1, backoff_max_ms=20, streams_max=2_000
)


def port_of(own: Stand) -> int:
    return int(own.services[0].url.rpartition(":")[2])


async def cut_now_and_then(line: Proxy, rng: random.Random, every_s: tuple[float, float] = (0.2, 0.8)) -> None:
    """Reset every connection at random moments."""
    while True:
        await pace(rng.uniform(*every_s))
        line.cut()


def in_thread(pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """All at once: the loop's own pool has fewer threads on a small machine."""
    return asyncio.get_running_loop().run_in_executor(pool, work, *arguments)


def run_sync(client: Client, session: str, text: str) -> RunResult:
    return client.session(session).run(text, timeout=PATIENCE_S)


async def test_no_run_returns_yesterday_over_a_line_that_is_cut(
    calm: Stand, figure: Figure, rng: random.Random
) -> None:
    """T1 (vercel/eve#2461): 200 runs at once on one session through both clients, one prompt active and one queued, all
    that the server says late, and every connection cut now and then; another reader goes on from yesterday's cursor.
    When all are queued, some have been answered; the others are cancelled, which keeps the intervals short."""
    history, sent_ms, session = History(), now_ms(), "T1-sdk"
    async with proxy_to(port_of(calm), rng=rng) as line, AsyncClient(line.http_url, settings=TIRELESS) as one:
        own = one.session(session, agent="slow")
        yesterday = await own.run("yesterday", timeout=PATIENCE_S)
        line.down_delay_s, line.cut_after_bytes = LATE_S, RUN_CUT_AFTER_BYTES
        with Client(line.http_url, settings=TIRELESS) as other, ThreadPoolExecutor(SYNC_RUNS) as pool:
            others = [await own.prompt("an active one"), await own.prompt("a queued one")]
            restored = asyncio.ensure_future(read_async(one, session, after=1))
            threads = [in_thread(pool, run_sync, other, session, f"sync {n}") for n in range(SYNC_RUNS)]
            tasks = [one.session(session).run(f"async {n}", timeout=PATIENCE_S) for n in range(ASYNC_RUNS)]
            running = asyncio.gather(*threads, *tasks)
            await all_kept(calm, session, RUNS + 3)
            await cleared(calm, session)
            results = await running
            farewell = await own.run(GOODBYE, timeout=PATIENCE_S)
            assert await restored == list(range(2, farewell.to_seq + 1))
        figure.fault(line.faults)
    for result in (yesterday, *results, farewell):
        history.kept(session, result.message_id, result.from_seq, sent_ms)
    facts = hold_trial(calm, history, figure, sessions=session)[session]
    queued = {e.data["messageId"]: e.seq for e in facts if e.type == "inbox/queued"}
    idles = [e.seq for e in facts if e.type == "agent/status" and e.data["status"] == "idle"]
    assert len({result.message_id for result in results}) == RUNS
    for result in results:
        begin = queued[result.message_id]
        assert (result.from_seq, result.to_seq) == (begin, next(seq for seq in idles if seq > begin))
        assert [event.seq for event in result.events] == list(range(result.from_seq, result.to_seq + 1))
        assert result.from_seq > max(yesterday.to_seq, others[0].cursor)
        assert "yesterday" not in result.final_response
    assert {result.message.state for result in results} >= {"cancelled"}


async def all_kept(own: Stand, session: str, count: int) -> None:
    """Return when so many messages are in the ledger. Each look reads all of it, so there are few."""

    async def kept() -> bool:
        await pace(LOOK_S)
        return sum(fact.type == "inbox/queued" for fact in ledger(own.client, session)) == count

    await wait_until(kept, PATIENCE_S, "all runs in the ledger")


async def cleared(own: Stand, session: str) -> None:
    """Stop what is open and cancel what is queued, over a line that is whole."""
    async with AsyncClient(own.services[0].url) as client:
        await client.session(session).cancel("clear")


async def test_a_storm_of_reconnects_hides_no_event_from_either_client(
    calm: Stand, figure: Figure, rng: random.Random
) -> None:
    """T15 (upstash/realtime#23): readers from the start and from the middle, synchronous and asynchronous, on a line
    that is cut every few kilobytes and at random while events are appended."""
    history, session = History(), "T15-sdk"
    async with http(calm.services[0].url) as client, proxy_to(port_of(calm), rng=rng) as line:
        await made(client, [session], "default")
        middle = (await history.surely(client, session, "before anybody reads")).cursor
        line.cut_after_bytes = CUT_AFTER_BYTES
        cutting = asyncio.create_task(cut_now_and_then(line, rng))
        async with AsyncClient(line.http_url, settings=TIRELESS) as one:
            with Client(line.http_url, settings=TIRELESS) as other, ThreadPoolExecutor(2) as pool:
                readers: list[asyncio.Future[list[int]]] = []
                readers += [asyncio.ensure_future(read_async(one, session, after)) for after in (0, middle)]
                readers += [in_thread(pool, read_sync, other, session, after) for after in (0, middle)]
                for number in range(MESSAGES):
                    await history.surely(client, session, f"hello {number} " + "x" * rng.randrange(200))
                await all_idle(calm, PATIENCE_S, session)
                last = (await history.surely(client, session, GOODBYE)).cursor
                seen = await asyncio.wait_for(asyncio.gather(*readers), PATIENCE_S)
        await end(cutting)
        figure.fault(line.faults)
    facts = hold_trial(calm, history, figure, sessions=session)[session]
    newest = next(e.seq for e in facts if e.seq > last and e.type == "agent/status" and e.data["status"] == "idle")
    assert line.faults > MESSAGES, "the line was cut again and again"
    assert seen == [list(range(after + 1, newest + 1)) for after in (0, middle)] * 2


class Goodbye:
    """Tells when a reader has read enough: at the idle after the last message."""

    def __init__(self) -> None:
        self._said = False

    def is_over(self, event: Event) -> bool:
        self._said = self._said or (event.type == "inbox/queued" and GOODBYE in str(event.data["content"]))
        return self._said and event.type == "agent/status" and event.data["status"] == "idle"


async def read_async(client: AsyncClient, session: str, after: int) -> list[int]:
    seen, goodbye = [], Goodbye()
    async with aclosing(client.session(session).events(after)) as events:
        async for event in events:
            seen.append(event.seq)
            if goodbye.is_over(event):
                break
    return seen


def read_sync(client: Client, session: str, after: int) -> list[int]:
    seen, goodbye = [], Goodbye()
    with closing(client.session(session).events(after)) as events:
        for event in events:
            seen.append(event.seq)
            if goodbye.is_over(event):
                break
    return seen

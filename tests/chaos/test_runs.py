"""A run that a caller owns tells of what came after its receipt, and of nothing before."""

import asyncio
import inspect
from typing import Final

import pytest

from mailslot import AsyncClient, AsyncSession, RunResult
from tests.chaos.figure import Figure
from tests.chaos.history import History, now_ms
from tests.chaos.proxy import proxy_to
from tests.chaos.stand import Stand, all_idle
from tests.chaos.trial import hold_trial

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

RUNS: Final = 200
CHAIN: Final = 12
PATIENCE_S: Final = 60.0


async def test_a_run_never_returns_what_was_before_its_receipt(calm: Stand, figure: Figure) -> None:
    """T1 (vercel/eve#2461): 200 runs at once on one session, while one prompt is being answered, one is queued, and a
    reader goes on from yesterday's cursor."""
    history, sent_ms = History(), now_ms()
    async with AsyncClient(calm.services[0].url) as client:
        session = client.session("T1-crowd", agent="brisk")
        yesterday = await session.run("yesterday", timeout=PATIENCE_S)
        restored = asyncio.create_task(read_through(session, after=1, count=RUNS))
        others = [await session.prompt("an active one"), await session.prompt("a queued one")]
        results = await asyncio.gather(*(session.run(f"run {n}", timeout=PATIENCE_S) for n in range(RUNS)))
        assert await asyncio.wait_for(restored, PATIENCE_S) == list(range(2, RUNS + 2))
    assert len({result.message_id for result in results}) == RUNS
    for result in results:
        is_an_interval(result)
        assert result.from_seq > max(yesterday.to_seq, *(receipt.cursor for receipt in others))
    await all_idle(calm, PATIENCE_S, "T1-crowd")
    for result in results:
        history.kept("T1-crowd", result.message_id, result.from_seq, sent_ms)
    hold_trial(calm, history, figure, sessions="T1-crowd")


async def test_an_idle_that_arrives_late_ends_nobody_elses_run(calm: Stand, figure: Figure) -> None:
    """T1 (vercel/eve#2461): everything the server says comes late by a different time on each connection, so that a
    run often meets the idle of the one before it."""
    history, sent_ms, url = History(), now_ms(), calm.services[0].url
    async with proxy_to(int(url.rpartition(":")[2])) as far, proxy_to(int(url.rpartition(":")[2])) as farther:
        far.down_delay_s, farther.down_delay_s = 0.01, 0.035
        async with AsyncClient(far.http_url) as one, AsyncClient(farther.http_url) as other:
            chains = [chain(client.session("T1-late", agent="default")) for client in (one, other, one, other)]
            results = [result for results in await asyncio.gather(*chains) for result in results]
        figure.fault(2)
    for result in results:
        is_an_interval(result)
    await all_idle(calm, PATIENCE_S, "T1-late")
    for result in results:
        history.kept("T1-late", result.message_id, result.from_seq, sent_ms)
    hold_trial(calm, history, figure, sessions="T1-late")


def test_a_run_takes_no_cursor_and_its_result_claims_no_success() -> None:
    """T1: what is not there cannot be wrong."""
    assert "after" not in inspect.signature(AsyncSession.run).parameters
    assert not {"status", "success", "result", "ok", "error"} & set(RunResult.__dataclass_fields__)


def is_an_interval(result: RunResult) -> None:
    """From its own receipt through the first idle after it."""
    first, *between, last = result.events
    assert (first.type, first.data["messageId"]) == ("inbox/queued", result.message_id)
    assert [event.seq for event in result.events] == list(range(result.from_seq, result.to_seq + 1))
    assert (last.type, last.data["status"]) == ("agent/status", "idle")
    assert not [event for event in between if event.type == "agent/status" and event.data["status"] == "idle"]
    admitted = [event for event in between if event.type == "user/message"]
    assert result.message_id in {event.data["messageId"] for event in admitted}


async def chain(session: AsyncSession) -> list[RunResult]:
    """One run after the other."""
    return [await session.run(f"run {number}", timeout=PATIENCE_S) for number in range(CHAIN)]


async def read_through(session: AsyncSession, *, after: int, count: int) -> list[int]:
    """The next so many seqs after a cursor."""
    seen = []
    async for event in session.events(after=after):
        seen.append(event.seq)
        if len(seen) == count:
            break
    return seen

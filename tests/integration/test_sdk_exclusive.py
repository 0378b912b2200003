"""Exclusive runs against the product: of any clients, they never overlap (semantics U5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest

from mailslot import AsyncClient, Client, Refused, RunResult
from tests.unit.sdk.product import Product
from tests.unit.sdk.twins import KINDS, QUICK, Kind
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

RUNS = 10
"""Of each of two clients, all at once."""


@pytest.fixture
def product() -> Iterator[Product]:
    with Product().running() as running:
        yield running


def overlap(results: list[RunResult]) -> bool:
    """Whether two of the intervals have an event in common."""
    by_begin = sorted(results, key=lambda result: result.from_seq)
    return any(after.from_seq <= before.to_seq for before, after in pairwise(by_begin))


def run_alone(client: Client, text: str) -> RunResult:
    with client.session("s").exclusive(timeout=60) as alone:
        return alone.run(text, timeout=60)


async def run_alone_async(client: AsyncClient, text: str) -> RunResult:
    async with client.session("s").exclusive(timeout=60) as alone:
        return await alone.run(text, timeout=60)


async def test_exclusive_runs_of_two_clients_never_overlap(product: Product) -> None:
    with Client(product.url, settings=QUICK) as one:
        async with AsyncClient(product.url, settings=QUICK) as other:
            threads = [asyncio.to_thread(run_alone, one, f"one {n}") for n in range(RUNS)]
            tasks = [run_alone_async(other, f"other {n}") for n in range(RUNS)]
            results = await asyncio.gather(*threads, *tasks)
    assert len({result.message_id for result in results}) == 2 * RUNS
    assert not overlap(results)
    said = sorted(result.final_response for result in results)
    assert said == sorted(f"answer to {who} {n}" for who in ("one", "other") for n in range(RUNS))
    assert {[event.type for event in result.events].count("inbox/queued") for result in results} == {1}


async def test_plain_runs_at_once_do_overlap(product: Product) -> None:
    """What the promise above is measured by: without `if_busy` it does not hold."""
    async with AsyncClient(product.url, settings=QUICK) as client:
        session = client.session("s")
        runs = [asyncio.ensure_future(session.run(f"wait {n}")) for n in range(2)]

        async def both_are_kept() -> bool:
            return len([event for event in product.ledger("s") if event.type == "inbox/queued"]) == 2

        await wait_until(both_are_kept, 20, "two runs")
        product.open()
        assert overlap(await asyncio.gather(*runs))


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exclusive_message_waits_for_the_agent_and_gives_up_in_time(product: Product, kind: Kind) -> None:
    with Client(product.url, settings=QUICK) as client:
        session = client.session("s")
        await asyncio.to_thread(session.prompt, "wait for it")
        await asyncio.to_thread(product.reached)

        async def prompt(text: str, timeout: float) -> str:
            if kind == "sync":
                with session.exclusive(timeout=timeout) as alone:
                    return (await asyncio.to_thread(alone.prompt, text)).message_id
            async with (
                AsyncClient(product.url, settings=QUICK) as other,
                other.session("s").exclusive(timeout=timeout) as one,
            ):
                return (await one.prompt(text)).message_id

        with pytest.raises(Refused) as refused:
            await prompt("too late", timeout=0.2)
        assert refused.value.code == "busy"
        waiting = asyncio.ensure_future(prompt("in time", timeout=60))
        product.open()
        kept = await waiting
    ledger = product.ledger("s")
    queued = {event.data["messageId"]: event.seq for event in ledger if event.type == "inbox/queued"}
    first_idle = next(e.seq for e in ledger if e.type == "agent/status" and e.data["status"] == "idle")
    assert list(queued.values())[1:] == [queued[kept]], "the refused one left no trace"
    assert queued[kept] > first_idle


async def test_held_messages_keep_an_exclusive_one_out_until_they_are_gone(product: Product) -> None:
    async with AsyncClient(product.url, settings=QUICK) as client:
        session = client.session("s")
        await session.prompt("wait for it")
        await asyncio.to_thread(product.reached)
        held = await session.prompt("held")
        await session.cancel("hold", wait=10)
        assert (await session.status()).status == "idle"
        waiting = asyncio.ensure_future(run_alone_async(client, "alone"))
        with pytest.raises(Refused, match="busy"):
            async with session.exclusive(timeout=0) as alone:
                await alone.prompt("at once")
        assert not waiting.done()
        await session.withdraw(held.message_id)
        assert (await waiting).final_response == "answer to alone"


async def test_a_message_that_is_not_exclusive_joins_the_interval(product: Product) -> None:
    async with AsyncClient(product.url, settings=QUICK) as client:
        session = client.session("s")
        running = asyncio.ensure_future(run_alone_async(client, "wait for it"))
        await asyncio.to_thread(product.reached)
        joined = await session.prompt("not exclusive")
        product.open()
        result = await running
    assert result.from_seq < joined.cursor < result.to_seq
    assert result.final_response == "answer to not exclusive"

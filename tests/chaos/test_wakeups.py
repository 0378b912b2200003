"""A message that wakes is never kept and forgotten, whenever it comes and whatever is heard of it."""

import asyncio
import random
from itertools import pairwise
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import Ledger, of_type
from tests.chaos.proxy import proxy_to
from tests.chaos.stand import LEASE_MS, Stand, all_idle, attending, made, ready, stand
from tests.chaos.trial import hold_trial
from tests.waiting import pace

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

SESSIONS: Final = 12
MESSAGES: Final = 25
TURN_S: Final = 0.03
"""About how long a turn of the agent `brisk` takes: the next message is sent around its end."""
WAKE_S_MAX: Final = 2.0
"""From a receipt at an idle agent to its admission, while no process is hurt."""
CLAIM_S_MAX: Final = 5.0
"""From any receipt to a turn that claims the message: those before it come first, of which there are few."""
PATIENCE_S: Final = 40.0


async def test_a_message_that_comes_while_the_agent_goes_idle_is_admitted_soon(
    calm: Stand, figure: Figure, rng: random.Random
) -> None:
    """T2 (anomalyco/opencode#32010): messages at every moment around the end of a turn, and around cancels."""
    history = History()
    async with http(calm.services[0].url) as client:
        await made(client, [f"T2-{number}" for number in range(SESSIONS)], "brisk")
        await asyncio.gather(
            *(at_the_edge(client, history, f"T2-{number}", random.Random(rng.random())) for number in range(SESSIONS))
        )
    await all_idle(calm, PATIENCE_S)
    found = hold_trial(calm, history, figure, sessions="T2-")
    waits = [wait for facts in found.values() for wait in waits_s(facts)]
    assert len(waits) > SESSIONS, "some came to an idle agent"
    assert max(waits) < WAKE_S_MAX
    assert max(wait for facts in found.values() for wait in claims_s(facts)) < CLAIM_S_MAX


async def test_without_any_notice_nothing_is_forgotten_and_nobody_hangs(
    tmp_path: Path, figure: Figure, rng: random.Random
) -> None:
    """T2 (anomalyco/opencode#32010): no process hears anything over pub/sub, and one of the two workers is killed and
    started again in the middle. Readers still get the level first, and waiting for idle ends."""
    history = History()
    with stand(tmp_path) as own:
        async with proxy_to(own.store.port) as deaf:
            deaf.mute_subscribers = True
            ingest = own.ingest(store_url=deaf.redis_url)
            workers = [own.worker(store_url=deaf.redis_url) for _ in range(2)]
            await ready(ingest, *workers)
            await attending(own, *workers)
            async with http(ingest.url) as client:
                await made(client, [f"s{number}" for number in range(SESSIONS)], "brisk")
                sending = [
                    asyncio.create_task(at_the_edge(client, history, f"s{n}", random.Random(rng.random())))
                    for n in range(SESSIONS)
                ]
                await asyncio.wait(sending, timeout=0.5)
                workers[0].kill()
                workers[0].start()
                figure.fault()
                await asyncio.gather(*sending)
                await all_idle(own, PATIENCE_S)
                await level_first(client, "s0")
                await idle_is_told(client, history, "s1")
            figure.fault(deaf.faults)
            assert deaf.faults > 0, "notices were published, and lost"
        found = hold_trial(own, history, figure)
    waits = [wait for facts in found.values() for wait in waits_s(facts)]
    assert max(waits) < LEASE_MS / 1000 + WAKE_S_MAX
    assert max(wait for facts in found.values() for wait in claims_s(facts)) < LEASE_MS / 1000 + CLAIM_S_MAX


async def at_the_edge(client: httpx2.AsyncClient, history: History, session: str, rng: random.Random) -> None:
    """Messages at random moments around the end of the turn before; now and then a cancel."""
    for _ in range(MESSAGES):
        delivery = rng.choice(["queue", "queue", "queue", "steer"])
        await history.surely(client, session, "hello", delivery=delivery)
        await pace(rng.uniform(0, 2 * TURN_S))
        if rng.random() < 0.15:
            assert (await client.post(f"/v1/sessions/{session}/cancel")).status_code == 202


def waits_s(facts: Ledger) -> list[float]:
    """For each message that came to an idle agent: seconds from its receipt until a turn claimed it."""
    claimed = {message: each for each in of_type(facts, "inbox/claimed") for message in each.data["messageIds"]}
    waits = []
    for queued, following in pairwise(facts):
        if queued.type == "inbox/queued" and following.type == "agent/status":
            assert following.data["status"] == "running"
            waits.append((claimed[queued.data["messageId"]].time - queued.time) / 1000)
    return waits


def claims_s(facts: Ledger) -> list[float]:
    """For each message, whomever it came to: seconds from its receipt until a turn claimed it."""
    queued = {each.data["messageId"]: each.time for each in of_type(facts, "inbox/queued")}
    claimed = {message: each.time for each in of_type(facts, "inbox/claimed") for message in each.data["messageIds"]}
    assert queued.keys() == claimed.keys(), "none was left"
    return [(claimed[message] - time) / 1000 for message, time in queued.items()]


async def level_first(client: httpx2.AsyncClient, session: str) -> None:
    """The first frame of a stream is the level, at once, although nothing happens."""
    async with asyncio.timeout(WAKE_S_MAX), client.stream("GET", f"/v1/sessions/{session}/events") as response:
        assert await anext(response.aiter_lines()) == "event: session.status"


async def idle_is_told(client: httpx2.AsyncClient, history: History, session: str) -> None:
    """Who waits for the next idle hears of it."""
    receipt = await history.surely(client, session, "hello")
    answer = await client.get(f"/v1/sessions/{session}/idle?after={receipt.cursor}&timeout=10")
    assert answer.json()["status"] == "idle"
    assert answer.json()["cursor"] > receipt.cursor

"""The long run: everything at once, for as long as CHAOS_SECONDS says (`make chaos-long`).

    senders by both doors, cancels, steers, goals ──> two ingests (one behind a line that is cut) ──> Redis, AOF always
                                                                                      four workers, one goal service
    meanwhile, at random: kill -9, SIGSTOP and SIGCONT, SIGTERM, cut lines, Redis out of memory, Redis killed

Rule 1: the seed decides what is done and when; what comes of it depends on the machine. What is checked holds anyway.
Rule 2: every fault ends. The trial is held when everything has come to rest.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import pytest

from mailslot_contracts import INTAKE, INTAKE_DEAD
from tests.chaos.figure import Figure
from tests.chaos.history import History, Told, http
from tests.chaos.ledger import held_by, ledger, now_ms, of_type
from tests.chaos.proxy import Proxy, proxy_to
from tests.chaos.stand import LEASE_MS, Service, Stand, all_idle, made, ready, stand
from tests.chaos.test_kills import GOAL_ROUNDS, all_spent, give_goals, rounds_admitted
from tests.chaos.test_receipts import out_of_memory
from tests.chaos.test_turns import taken_up
from tests.chaos.trial import hold_trial
from tests.waiting import pace, wait_until

SECONDS: Final = float(os.environ.get("CHAOS_SECONDS") or 0)
QUIET_S: Final = 11 * 60
PATIENCE_S: Final = 120.0
SESSIONS: Final = 24
GARDENS: Final = 2
RECOVERY_S_MAX: Final = LEASE_MS / 1000 + 2

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.skipif(not SECONDS, reason="a long run: `make chaos-long`, or set CHAOS_SECONDS"),
    pytest.mark.timeout(max(SECONDS, QUIET_S) + 600),
]


@dataclass
class Soak:
    """What runs, and what is done to it."""

    own: Stand
    line: Proxy
    ingests: list[Service]
    history: History
    figure: Figure
    rng: random.Random
    deadline: float

    @property
    def over(self) -> bool:
        """The time is up."""
        return time.monotonic() > self.deadline


async def test_minutes_of_everything_at_once_lose_nothing(tmp_path: Path, figure: Figure, rng: random.Random) -> None:
    """T8 (openlinker-project/openlinker#2164), T3, T11, T13: minutes of random faults under load."""
    history = History()
    with stand(tmp_path, aof="always") as own:
        async with proxy_to(own.store.port, rng=rng) as line:
            ingests = [own.ingest(), own.ingest(store_url=line.redis_url)]
            for number in range(4):
                own.worker(store_url=line.redis_url if number % 2 else "")
            own.goals()
            await ready(*own.services)
            async with http(ingests[0].url) as client:
                for number in range(SESSIONS):
                    await made(client, [f"s{number}"], ("brisk", "slow", "handy")[number % 3])
            soak = Soak(own, line, ingests, history, figure, rng, time.monotonic() + SECONDS)
            sending = [asyncio.create_task(send(soak, f"s{n}", random.Random(rng.random()))) for n in range(SESSIONS)]
            tending = [asyncio.create_task(tend(soak, f"g{n}")) for n in range(GARDENS)]
            while not soak.over:
                await asyncio.wait([*sending, *tending], timeout=rng.uniform(0.5, 3))
                await rng.choice(FAULTS)(soak)
            await asyncio.gather(*sending)
            await own.revived()
            gardens = [session for sessions in await asyncio.gather(*tending) for session in sessions]
            await wait_until(lambda: own.client.xlen(INTAKE) == 0, PATIENCE_S, "the intake to be empty")
            await all_idle(own, PATIENCE_S)
            figure.fault(line.faults)
        own.fenced_before = 0
        found = hold_trial(own, history, figure)
        for session in gardens:
            assert rounds_admitted(found[session]) == list(range(1, GOAL_ROUNDS + 1))
        assert own.client.xlen(INTAKE_DEAD) == 0
    assert not history.unsettled
    assert max(figure.recoveries_s, default=0) < RECOVERY_S_MAX, sorted(figure.recoveries_s)[-5:]


# -- load -----------------------------------------------------------------------------------------------------


async def send(soak: Soak, session: str, rng: random.Random) -> None:
    """Messages of every kind by both doors, and cancels, until the time is up."""
    number = 0
    async with http(soak.ingests[0].url, timeout_s=8) as one, http(soak.ingests[1].url, timeout_s=8) as other:
        while not soak.over:
            number += 1
            message_id, words = f"{session}-{number}", rng.choice(["hello", "chores please", "try hard", "slowly"])
            if rng.random() < 0.2:
                await put(soak, {"sessionId": session, "messageId": message_id, "content": words})
            else:
                delivery = rng.choice(["queue", "queue", "steer", "inject"])
                await insist(soak.history, (one, other), session, words, message_id, delivery)
            if rng.random() < 0.1:
                await cancelled(one, session, rng.choice(["keep", "keep", "clear"]))
            await pace(rng.expovariate(1 / 0.4))


async def tend(soak: Soak, name: str) -> list[str]:
    """One goal after the other, each in a session of its own, until the time is up. Those sessions."""
    sessions: list[str] = []
    while not soak.over:
        sessions.append(f"{name}-{len(sessions)}")
        await goal_given(soak, sessions[-1])
        await wait_until(partial(all_spent, soak.own, sessions[-1:]), PATIENCE_S, "the goal to spend its rounds")
    return sessions


async def goal_given(soak: Soak, session: str) -> None:
    """By somebody who tries again, whatever is wrong."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            await give_goals(soak.ingests[0], [session])
        except (httpx2.TransportError, AssertionError):
            await pace(0.1)
        else:
            return
    raise AssertionError(f"no goal for {session}")


async def put(soak: Soak, entry: dict[str, str]) -> None:
    """One entry of the broker door, by a sender who tries again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            await asyncio.to_thread(soak.own.client.xadd, INTAKE, {"data": json.dumps(entry)})
        except Exception:  # noqa: BLE001 - whatever a client of Redis says while Redis is away
            assert time.monotonic() < deadline, "the store never came back"
            await pace(0.1)
        else:
            return


async def insist(
    history: History,
    clients: tuple[httpx2.AsyncClient, httpx2.AsyncClient],
    session: str,
    words: str,
    message_id: str,
    delivery: str,
) -> None:
    """One message, until there is a receipt."""
    deadline, number = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < deadline:
        number += 1
        client = clients[number % 2]
        try:
            attempt = await history.attempt(client, session, words, message_id=message_id, delivery=delivery)
        except httpx2.TransportError:
            await pace(0.05)
            continue
        if attempt.told is Told.RECEIPT:
            return
        await pace(0.1)
    raise AssertionError(f"no receipt for {message_id}")


async def cancelled(client: httpx2.AsyncClient, session: str, queue: str) -> None:
    """A cancel, which may be lost."""
    try:
        await client.post(f"/v1/sessions/{session}/cancel", json={"queue": queue})
    except httpx2.TransportError:
        return


# -- faults ---------------------------------------------------------------------------------------------------


async def kill_a_worker(soak: Soak) -> None:
    """And see how soon what it drove goes on."""
    own = soak.own
    victim = soak.rng.choice(own.of_kind("worker"))
    victim.freeze()
    held, killed_ms = held_by(own.client, victim.pid), now_ms(own.client)
    in_turns = [session for session in held if is_in_turn(own, session)]
    victim.kill()
    soak.figure.fault()
    victim.start()
    for session in in_turns:
        taken_s = await wait_until(partial(taken_up, own, session, killed_ms), PATIENCE_S, f"{session} to be taken up")
        soak.figure.recoveries_s.append(taken_s or 0.0)
    await ready(victim)


def is_in_turn(own: Stand, session: str) -> bool:
    """A turn is open that no cancel ends: that one would end without being taken up."""
    marks = [each.type for each in of_type(ledger(own.client, session), "turn/start", "cancel/requested", "turn/end")]
    return marks[-1] == "turn/start"


async def kill_another(soak: Soak) -> None:
    """An ingest or the goal service."""
    victim = soak.rng.choice([*soak.ingests, *soak.own.of_kind("goals")])
    victim.kill()
    soak.figure.fault()
    victim.start()
    await ready(victim)


async def stop_a_worker(soak: Soak) -> None:
    """For longer than its lease; then it goes on."""
    victim = soak.rng.choice(soak.own.of_kind("worker"))
    victim.freeze()
    soak.figure.fault()
    await pace(LEASE_MS / 1000 * soak.rng.uniform(0.5, 2.5))
    victim.thaw()


async def end_one(soak: Soak) -> None:
    """In order."""
    victim = soak.rng.choice([*soak.own.of_kind("worker"), *soak.ingests])
    victim.terminate()
    soak.figure.fault()
    await victim.ended()
    victim.start()
    await ready(victim)


async def cut_the_line(soak: Soak) -> None:
    """Of an ingest and of half the workers."""
    soak.line.cut()


async def stall_the_line(soak: Soak) -> None:
    """For longer than a lease; what was on its way arrives late."""
    soak.line.stall()
    await pace(LEASE_MS / 1000 * 2)
    soak.line.flow()


async def fill_the_store(soak: Soak) -> None:
    """For a moment."""
    with out_of_memory(soak.own):
        soak.figure.fault()
        await pace(0.5)


async def kill_the_store(soak: Soak) -> None:
    """And start it again on what it had written."""
    soak.own.store.kill()
    soak.figure.fault()
    soak.own.store.start()
    await ready(*soak.ingests)


FAULTS: Final[list[Callable[[Soak], Awaitable[None]]]] = [
    *[kill_a_worker] * 4,
    *[kill_another] * 2,
    *[stop_a_worker] * 2,
    end_one,
    cut_the_line,
    stall_the_line,
    fill_the_store,
    kill_the_store,
]


async def test_eleven_quiet_minutes_do_not_end_a_stream(calm: Stand, figure: Figure) -> None:
    """T15 (upstash/realtime#23): nothing happens for eleven minutes, with the shipped settings; then the next event
    comes on the same stream."""
    history, session = History(), "T15-eleven-minutes"
    async with http(calm.services[0].url, timeout_s=60) as client:
        await made(client, [session], "default")
        began, sent, raw = time.monotonic(), False, b""
        async with client.stream("GET", f"/v1/sessions/{session}/events") as response:
            async for chunk in response.aiter_raw():
                raw += chunk
                if not sent and time.monotonic() - began > QUIET_S:
                    sent = True
                    await history.surely(client, session, "at last")
                if b"at last" in raw:
                    break
    await all_idle(calm, PATIENCE_S, session)
    hold_trial(calm, history, figure, sessions=session)

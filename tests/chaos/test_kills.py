"""Processes are killed with -9 at any moment: nothing is lost, and it goes on elsewhere soon."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import httpx2
import pytest
import redis

from mailslot_contracts import INTAKE, INTAKE_DEAD, INTAKE_GROUP
from tests.chaos.figure import Figure
from tests.chaos.history import History, Told, http
from tests.chaos.ledger import Ledger, admitted, held_by, ledger, now_ms, of_type
from tests.chaos.stand import LEASE_MS, Service, Stand, all_idle, made, passing, ready
from tests.chaos.trial import hold_trial, recovery_s
from tests.waiting import pace, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

RECOVERY_S_MAX: Final = LEASE_MS / 1000 + 2
"""From the kill of a worker until its turn goes on elsewhere: the issue's bound."""
ROUNDS: Final = 4
PATIENCE_S: Final = 60.0
SESSIONS: Final = 8
GOALS: Final = 2
GOAL_ROUNDS: Final = 8


async def test_a_turn_goes_on_elsewhere_soon_after_its_worker_was_killed(rough: Stand, figure: Figure) -> None:
    """T8 (openlinker-project/openlinker#2164): two of three workers are killed at once, again and again, in the middle
    of turns. Each turn is taken up before its lease and two seconds are over, by the store's clock."""
    history, workers = History(), rough.of_kind("worker")
    async with http(rough.of_kind("ingest")[0].url) as client:
        for number in range(ROUNDS):
            sessions = [f"T8-kill-{number}-{one}" for one in "abcdef"]
            await made(client, sessions, "slow")
            await asyncio.gather(*(history.surely(client, session, "hello") for session in sessions))
            await wait_until(partial(all_in_a_step, rough, sessions), PATIENCE_S, "everybody to be at work")
            victims = workers[number % 3], workers[(number + 1) % 3]
            for victim in victims:
                victim.freeze()  # so that what it holds when it is killed is known
            held = [session for victim in victims for session in held_by(rough.client, victim.pid)]
            killed_ms = now_ms(rough.client)
            for victim in victims:
                victim.kill()
                figure.fault()
                victim.start()
            for session in held:
                figure.recoveries_s.append(await recovered(rough, session, killed_ms))
            await ready(*workers)
            await all_idle(rough, PATIENCE_S)  # or a turn would be given up at its third crash
    hold_trial(rough, history, figure, sessions="T8-kill-")
    assert len(figure.recoveries_s) > ROUNDS, "the victims were at work"
    assert max(figure.recoveries_s) < RECOVERY_S_MAX, sorted(figure.recoveries_s)[-3:]


def all_in_a_step(own: Stand, sessions: Sequence[str]) -> bool:
    """Each has admitted its message; none has come to its end."""
    return all(any(of_type(ledger(own.client, session), "user/message")) for session in sessions)


async def recovered(own: Stand, session: str, killed_ms: int) -> float:
    """Seconds until its turn went on."""

    def taken_up() -> float | None:
        return recovery_s(ledger(own.client, session), killed_ms)

    return await wait_until(taken_up, PATIENCE_S, f"{session} to be taken up") or 0.0


async def test_whatever_is_killed_at_whatever_moment_every_message_comes_to_its_end(
    rough: Stand, figure: Figure, rng: random.Random
) -> None:
    """T8 (taskiq-python/taskiq-redis#131): workers, ingest and the goal service are killed at random while messages
    come by HTTP and by the broker door, and goals go on. No manual step brings anything back, and every round of every
    goal was there once."""
    history, stop = History(), asyncio.Event()
    sessions = [f"T8-any-{number}" for number in range(SESSIONS)]
    with_goals = [f"T8-any-goal-{number}" for number in range(GOALS)]
    with passing(rough, rough.ingest(), rough.goals()):
        ingests = rough.of_kind("ingest")
        await ready(*rough.services)
        await give_goals(ingests[0], with_goals)
        chances = [rng.random() for _ in sessions]
        sending = [
            asyncio.create_task(send(rough, ingests, history, session, chance, stop))
            for session, chance in zip(sessions, chances, strict=True)
        ]
        for victim in rng.sample(rough.services, k=len(rough.services)):
            await asyncio.wait(sending, timeout=rng.uniform(0, 0.5))
            victim.kill()
            figure.fault()
            victim.start()
            await ready(victim)
        stop.set()
        sent = await asyncio.gather(*sending)
        await wait_until(lambda: rough.client.xlen(INTAKE) == 0, PATIENCE_S, "the intake to be empty")
        await wait_until(partial(all_spent, rough, with_goals), PATIENCE_S, "every goal to spend its rounds")
        await all_idle(rough, PATIENCE_S)
    found = hold_trial(rough, history, figure, sessions="T8-any-")
    assert rough.client.xlen(INTAKE_DEAD) == 0
    assert not history.unsettled
    for session, count in zip(sessions, sent, strict=True):
        assert sorted(admitted(found[session])) == sorted(f"{session}-{number}" for number in range(count))
    for session in with_goals:
        assert rounds_admitted(found[session]) == list(range(1, GOAL_ROUNDS + 1))


async def give_goals(ingest: Service, sessions: Sequence[str]) -> None:
    """Each has a goal, which its agent works at from now on."""
    async with http(ingest.url) as client:
        await made(client, sessions, "steady")
        for session in sessions:
            goal = {"objective": "keep the garden", "budgets": {"rounds": GOAL_ROUNDS}}
            answer = await client.put(f"/v1/sessions/{session}/goal", json=goal)
            assert answer.status_code == 201 or answer.json()["code"] == "goal-exists", answer.text


def all_spent(own: Stand, sessions: Sequence[str]) -> bool:
    """The last that is known of each goal is that it has no round left. Not while the store is away."""
    try:
        changes = [[*of_type(ledger(own.client, session), "goal/change")][-1] for session in sessions]
    except redis.ConnectionError:
        return False
    return all((change.data["goal"].get("reason") or {}).get("code") == "budget-rounds" for change in changes)


def rounds_admitted(facts: Ledger) -> list[int]:
    """The rounds of a goal whose messages entered the transcript, in order."""
    sources = [each.data["source"] for each in of_type(facts, "user/message")]
    return [source["round"] for source in sources if source["kind"] == "goal"]


async def send(
    own: Stand, ingests: list[Service], history: History, session: str, share: float, stop: asyncio.Event
) -> int:
    """Messages by both doors, one after the other, until `stop`; whoever does not answer is asked again under the same
    id. How many that were."""
    rng, number = random.Random(share), 0
    async with http(ingests[0].url, timeout_s=5) as one, http(ingests[1].url, timeout_s=5) as other:
        while not stop.is_set():
            message_id = f"{session}-{number}"
            if rng.random() < 0.3:
                entry = {"sessionId": session, "messageId": message_id, "content": f"message {number}"}
                own.client.xadd(INTAKE, {"data": json.dumps(entry)})
            else:
                await either(history, (one, other), session, message_id)
            number += 1
            await pace(rng.uniform(0, 0.6))
    return number


async def either(
    history: History, clients: tuple[httpx2.AsyncClient, httpx2.AsyncClient], session: str, message_id: str
) -> None:
    """Send to one ingest, to the other one, and so on, until there is a receipt."""
    deadline, number = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < deadline:
        number += 1
        try:
            attempt = await history.attempt(clients[number % 2], session, "hello", message_id=message_id)
        except httpx2.TransportError:
            await pace(0.02)
            continue
        if attempt.told is Told.RECEIPT:
            return
    raise AssertionError(f"no receipt for {message_id}")


async def test_an_entry_whose_consumer_was_removed_with_it_is_delivered(rough: Stand, figure: Figure) -> None:
    """T8 (taskiq-python/taskiq-redis#131): an ingest dies with entries of the broker door in hand, and somebody removes
    its consumer, which drops the record that they were handed out."""
    (ingest,) = rough.of_kind("ingest")
    ingest.freeze()
    for number in range(3):
        entry = {"sessionId": "T8-removed", "messageId": f"removed-{number}", "content": "hello"}
        rough.client.xadd(INTAKE, {"data": json.dumps(entry)})
    pending = await wait_until(partial(handed_out, rough, ingest.pid), PATIENCE_S, "an entry to be handed out")
    assert pending
    ingest.kill()
    for consumer in pending:
        rough.client.xgroup_delconsumer(INTAKE, INTAKE_GROUP, consumer)
        figure.fault()
    ingest.start()
    await ready(ingest)
    await wait_until(lambda: rough.client.xlen(INTAKE) == 0, PATIENCE_S, "the intake to be empty")
    await all_idle(rough, PATIENCE_S)
    facts = hold_trial(rough, History(), figure, sessions="T8-removed")["T8-removed"]
    assert sorted(admitted(facts)) == ["removed-0", "removed-1", "removed-2"]


def handed_out(own: Stand, pid: int) -> list[bytes]:
    """The consumers of this process that have entries in hand."""
    consumers: list[Any] = own.client.xinfo_consumers(INTAKE, INTAKE_GROUP)
    return [each["name"] for each in consumers if each["pending"] and f"-{pid}-" in each["name"].decode()]

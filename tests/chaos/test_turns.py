"""A turn that takes long is left alone; a worker that stands still is replaced; one turn is carried out once."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from mailslot_core.errors import Fenced
from mailslot_core.redis.keys import partition_of
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Grant, Lease, Store
from mailslot_core.turn import Draft, End, Then
from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.history import now_ms as history_ms
from tests.chaos.ledger import admitted, ends, ledger, now_ms, of_type
from tests.chaos.stand import LEASE_MS, Stand, all_idle, made
from tests.chaos.trial import hold_trial, recovery_s
from tests.conftest import empty
from tests.crew import prompt
from tests.echo_worker import EchoWorker
from tests.servers import Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PATIENCE_S: Final = 40.0
RECOVERY_S_MAX: Final = LEASE_MS / 1000 + 2
RACES: Final = 300
LONG_MS: Final = 60_000
DONE: Final = End({"kind": "completed"})
HANDED_BACK: Final = (1, "handback")
LAPSED: Final = (2, "crash")
"""The attempt that a successor makes of a turn, and why it is its turn."""


async def test_a_tool_that_blocks_for_several_leases_keeps_its_turn_and_runs_once(calm: Stand, figure: Figure) -> None:
    """T7 (Abilityai/trinity#2846), T9 (mastra-ai/mastra#23648): a blocking tool of 5 s under a lease of 1.5 s, with
    another worker that would take the turn, and messages that come meanwhile."""
    history = History()
    async with http(calm.services[0].url) as client:
        await made(client, ["T7-long"], "handy")
        await history.surely(client, "T7-long", "block for long")
        await wait_until(lambda: calm.entries("block long"), PATIENCE_S, "the tool to be at work")
        for number in range(5):
            await history.surely(client, "T7-long", f"by the way {number}", delivery="steer")
            await client.get("/v1/sessions/T7-long/idle?timeout=0.5")
        await history.surely(client, "T7-long", "and then")
    await all_idle(calm, PATIENCE_S, "T7-long")
    facts = hold_trial(calm, history, figure, sessions="T7-long")["T7-long"]
    assert len(calm.entries("block long")) == 1
    assert not list(of_type(facts, "turn/recovered"))
    assert len({each.epoch for each in facts if each.data.get("turn") == 1}) == 1


async def test_a_frozen_loop_is_replaced_although_its_process_lives(rough: Stand, figure: Figure) -> None:
    """T7 (Abilityai/trinity#2846): a tool that stands on the event loop for 20 s while a thread of its process goes on.
    Its cap is a minute; its sessions go on elsewhere within a lease and two seconds."""
    history, session, workers = History(), "T7-frozen", rough.of_kind("worker")
    async with http(rough.of_kind("ingest")[0].url) as client:
        await made(client, [session, "T7-beside"], "handy")
        await history.surely(client, session, "freeze")
        (entry,) = await wait_until(lambda: rough.entries("freeze"), PATIENCE_S, "the loop to be frozen")
        frozen_ms = now_ms(rough.client)
        figure.fault()
        taken_s = await wait_until(partial(taken_up, rough, session, frozen_ms), PATIENCE_S, "a successor")
        await history.surely(client, "T7-beside", "hello")
        await all_idle(rough, PATIENCE_S)
    (frozen,) = [worker for worker in workers if entry.endswith(f" {worker.pid}")]
    assert frozen.is_alive()
    frozen.kill()
    facts = hold_trial(rough, history, figure, sessions="T7-")[session]
    assert ends(facts) == ["completed"]
    assert len(rough.entries("freeze")) == 2, "a tool that only reads is asked again"
    assert taken_s is not None
    figure.recoveries_s.append(taken_s)
    assert taken_s < RECOVERY_S_MAX


def taken_up(own: Stand, session: str, since_ms: int) -> float | None:
    """Seconds until the session's turn went on."""
    return recovery_s(ledger(own.client, session), since_ms)


async def test_of_two_that_claim_at_once_one_drives_and_the_other_settles_nothing(
    redis70: Server, tmp_path: Path, figure: Figure
) -> None:
    """T9 (mastra-ai/mastra#23648): two stores on two connections ask for one ready session at the same moment; and an
    owner that gave its lease up, or whose lease lapsed, between reading and committing writes nothing into its
    sibling's turn."""
    empty(redis70.url)
    history = History()
    settings = StoreSettings(redis_url=redis70.url, durability="memory")
    async with RedisStore.connect(settings) as one, RedisStore.connect(settings) as other:
        for number in range(RACES):
            session = f"s{number}"
            sent_ms = history_ms()
            history.kept(session, "A", (await prompt(one, session, "A")).cursor, sent_ms)
            claims = (acquired(one, f"one-{number}", session), acquired(other, f"two-{number}", session))
            (winner,) = [grant for grant in await asyncio.gather(*claims) if grant is not None]
            lapses = number % 2 == 1
            await (lapsed(other, winner.lease) if lapses else other.handback(winner.lease, 2))
            (sibling,) = [grant for grant in [await acquired(other, f"sibling-{number}", session)] if grant]
            assert (sibling.turn, sibling.attempt, sibling.recovered) == (1, *(LAPSED if lapses else HANDED_BACK))
            with pytest.raises(Fenced):
                await one.commit(winner.lease, 3, [Draft("step/start", {"turn": 1, "step": 1})])
            with pytest.raises(Fenced):
                await one.settle(winner.lease, 4, (), DONE, then=Then.YIELD, hand_out=False, lease_ms=LONG_MS)
            worker = EchoWorker(other)
            worker.calls = 10
            await worker.answer(sibling)
            figure.fault(2)
    with redis70.client() as client:
        found = hold_trial(Stand(redis70, tmp_path, client), history, figure)
    assert figure.fenced == 2 * RACES
    assert all(admitted(facts) == ["A"] and ends(facts) == ["completed"] for facts in found.values())


async def acquired(store: Store, owner: str, session: str) -> Grant | None:
    """The session, if this owner gets it."""
    return await store.acquire(partition_of(session, store.partitions), f"{owner}/0", 1, LONG_MS)


async def lapsed(store: Store, lease: Lease) -> None:
    """The lease is over, and a sweep has seen it."""
    await store.renew([lease], lease_ms=1)

    async def is_swept() -> bool:
        partition = partition_of(lease.session_id, store.partitions)
        return bool((await store.sweep(partition, forget_after_ms=LONG_MS)).lapsed)

    await wait_until(is_swept, PATIENCE_S, "the lease to lapse")

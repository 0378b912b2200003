"""Who lost its lease writes nothing, however late what it wrote arrives, and every such write is counted."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.chaos.conftest import unavailable
from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import admitted, fenced_writes, held_by, ledger, ledgers, now_ms, of_type
from tests.chaos.namespace import Namespace
from tests.chaos.proxy import proxy_to
from tests.chaos.stand import (
    FAKETIME,
    LEASE_MS,
    Service,
    Stand,
    all_idle,
    attending,
    made,
    passing,
    reached_from,
    ready,
    stand,
    without_others,
)
from tests.chaos.trial import hold_trial, recovery_s
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PATIENCE_S: Final = 40.0
SESSIONS: Final = [f"s{number}" for number in range(8)]
RECOVERY_S_MAX: Final = LEASE_MS / 1000 + 2


async def test_a_stopped_owner_that_is_let_go_on_after_its_lease_writes_nothing(rough: Stand, figure: Figure) -> None:
    """T11 (aegra/aegra PR547): SIGSTOP the owner past its lease, a successor runs, SIGCONT; twice."""
    history, workers, sessions = History(), rough.of_kind("worker"), [f"T11-{session}" for session in SESSIONS]
    async with http(rough.of_kind("ingest")[0].url) as client:
        await made(client, sessions, "slow")
        for _ in range(2):
            await asyncio.gather(*(history.surely(client, session, "hello") for session in sessions))
            zombie = await wait_until(partial(busiest, rough, workers), PATIENCE_S, "an owner to be at work")
            assert zombie is not None
            zombie.freeze()
            stopped_ms, held = now_ms(rough.client), held_by(rough.client, zombie.pid)
            figure.fault()
            await all_idle(rough, PATIENCE_S)
            before = ledgers(rough.client)
            zombie.thaw()
            await ready(zombie)
            assert ledgers(rough.client) == before
            taken_s = [recovery_s(before[session], stopped_ms) for session in held]
            figure.recoveries_s += [taken for taken in taken_s if taken is not None]
    hold_trial(rough, history, figure, sessions="T11-")
    assert figure.recoveries_s
    assert max(figure.recoveries_s) < RECOVERY_S_MAX


def busiest(own: Stand, workers: Sequence[Service]) -> Service | None:
    """The worker that drives most, once the model has been asked there."""
    found = max(workers, key=lambda worker: len(held_by(own.client, worker.pid)))
    return found if is_at_work(own, found) else None


async def test_what_a_former_owner_wrote_and_arrives_late_is_refused_and_counted(rough: Stand, figure: Figure) -> None:
    """T11 (aegra/aegra PR547): the owner's settling, and every renewal after it, hang on their way for longer than its
    lease, and arrive when a successor has finished the turn. The owner has let go by itself meanwhile."""
    history, sessions = History(), [f"T11-late-{session}" for session in SESSIONS]
    async with proxy_to(rough.store.port) as line, http(rough.of_kind("ingest")[0].url) as client:
        zombie = rough.worker(store_url=line.redis_url)
        with passing(rough, zombie):
            await ready(zombie)
            with without_others(rough, zombie):
                caught = line.stall_at(b"settle")
                await busy(client, history, sessions)
                await asyncio.wait_for(caught.wait(), PATIENCE_S)
            await all_idle(rough, PATIENCE_S)
            before = ledgers(rough.client)
            assert "lease-over" in zombie.said()
            line.flow()
            await wait_until(partial(is_refused, rough), PATIENCE_S, "a late write to be refused")
            assert ledgers(rough.client) == before
            figure.fault(line.faults)
    hold_trial(rough, history, figure, sessions="T11-late-")
    assert figure.fenced > 0


async def test_what_the_kernel_sends_again_after_a_split_network_is_refused_and_counted(
    rough: Stand, figure: Figure, network: Namespace
) -> None:
    """T11 (aegra/aegra PR547): all packets between the owner and the store vanish until a successor has finished; then
    the kernel sends again what the owner wrote."""
    history, sessions, port = History(), [f"T11-split-{session}" for session in SESSIONS], str(rough.store.port)
    with reached_from(rough, network) as url:
        # A call that waits long keeps its connection, so the kernel goes on trying.
        zombie = rough.worker("--call-timeout-ms", "60000", store_url=url, within=network.within)
        with passing(rough, zombie):
            await attending(rough, zombie)
            with without_others(rough, zombie):
                network.drop_at(port, "settle")
                async with http(rough.of_kind("ingest")[0].url) as client:
                    await busy(client, history, sessions)
                await wait_until(network.dropped, PATIENCE_S, "a settling to be on its way")
                network.drop(port)
            await all_idle(rough, PATIENCE_S)
            before = ledgers(rough.client)
            network.heal()
            await wait_until(partial(is_refused, rough), PATIENCE_S, "a late write to be refused")
            assert ledgers(rough.client) == before
    figure.fault(network.faults)
    hold_trial(rough, history, figure, sessions="T11-split-")
    assert figure.fenced > 0


def is_refused(own: Stand) -> bool:
    """Whether a write was refused in this scenario."""
    return fenced_writes(own.client) > own.fenced_before


async def test_a_clock_that_jumps_an_hour_costs_nothing(tmp_path: Path, figure: Figure) -> None:
    """T11 (aegra/aegra PR547): the store's clock jumps an hour ahead and two hours back under load; after each jump a
    worker is killed, and its turns go on elsewhere in the usual time."""
    if FAKETIME is None:
        unavailable("libfaketime is missing: apt-get install libfaketime")
    history, clock = History(), tmp_path / "clock"
    with stand(tmp_path, clock=clock) as own:
        ingest, workers = own.ingest(), [own.worker(), own.worker()]
        await ready(ingest, *workers)
        async with http(ingest.url) as client:
            await made(client, SESSIONS, "slow")
            for number, jump in enumerate(("+3600", "-3600")):
                await asyncio.gather(*(history.surely(client, session, "hello") for session in SESSIONS))
                await wait_until(partial(is_at_work, own, workers[number]), PATIENCE_S, "the worker to be at work")
                clock.write_text(jump)
                await asyncio.gather(*(history.surely(client, session, "hello") for session in SESSIONS))
                began, before = time.monotonic(), recoveries(own)
                workers[number].kill()
                await wait_until(partial(is_more, own, before), PATIENCE_S, "a successor")
                figure.recoveries_s.append(time.monotonic() - began)
                await all_idle(own, PATIENCE_S)
                figure.fault(2)
                if number == 0:
                    workers[number].start()
                    await ready(workers[number])
        found = hold_trial(own, history, figure)
    assert all(len(admitted(facts)) == 4 for facts in found.values())
    assert max(figure.recoveries_s) < RECOVERY_S_MAX


def recoveries(own: Stand) -> int:
    """How many turns were taken up so far."""
    return sum(1 for facts in ledgers(own.client).values() for _ in of_type(facts, "turn/recovered"))


def is_more(own: Stand, before: int) -> bool:
    return recoveries(own) > before


async def busy(client: httpx2.AsyncClient, history: History, sessions: Sequence[str]) -> None:
    """Every session has a message that takes the agent a while."""
    await made(client, sessions, "slow")
    await asyncio.gather(*(history.surely(client, session, "hello") for session in sessions))


def is_at_work(own: Stand, worker: Service) -> bool:
    """It drives some session, and the model has been asked there."""
    held = held_by(own.client, worker.pid)
    return any(any(of_type(ledger(own.client, session), "user/message")) for session in held)

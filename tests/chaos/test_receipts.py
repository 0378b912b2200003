"""A receipt is true, a refusal is true, and what nobody knows becomes known by asking again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import httpx2
import pytest

from tests.chaos.figure import Figure
from tests.chaos.history import Attempt, History, Told, http
from tests.chaos.ledger import admitted, ledger, of_type
from tests.chaos.namespace import Namespace
from tests.chaos.proxy import proxy_to
from tests.chaos.stand import Stand, all_idle, made, passing, reached_from, ready
from tests.chaos.trial import hold_trial
from tests.waiting import pace, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

SENDERS: Final = 8
PATIENCE_S: Final = 40.0


async def test_a_store_that_takes_no_writes_is_said_to_have_kept_nothing_and_has(
    durable: Stand, figure: Figure
) -> None:
    """T3 (NousResearch/hermes-agent#82381): out of memory, read-only, unable to save, killed and started again, one
    after the other, while messages come all the time."""
    history = History()
    async with sending(durable.of_kind("ingest")[0].url, history, "T3-refused"):
        for trouble in (out_of_memory, read_only, unable_to_save, killed):
            await more_receipts(history, 20)
            with trouble(durable):
                figure.fault()
                if trouble is not killed:
                    await more(history, Told.REFUSED, 20)
        await more_receipts(history, 20)
    await all_idle(durable, PATIENCE_S)
    hold_trial(durable, history, figure, sessions="T3-refused")
    assert {attempt.code for attempt in history.by(Told.REFUSED)} == {"store-refused"}
    assert not history.unsettled


@contextmanager
def out_of_memory(own: Stand) -> Iterator[None]:
    """Redis has more than it may have."""
    own.client.config_set("maxmemory", "1mb")
    yield
    own.client.config_set("maxmemory", "0")


@contextmanager
def read_only(own: Stand) -> Iterator[None]:
    """Redis is the replica of a master that is not there."""
    own.client.replicaof("127.0.0.1", 1)
    yield
    own.client.replicaof("NO", "ONE")


@contextmanager
def unable_to_save(own: Stand) -> Iterator[None]:
    """Redis cannot write its snapshot, and takes no writes because of that."""
    in_the_way = own.store.folder / "dump.rdb" / "a-folder"
    in_the_way.mkdir(parents=True)
    own.client.config_set("save", "3600 1000000")
    save(own, "err")
    yield
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    own.client.config_set("save", "")
    save(own, "ok")


def save(own: Stand, status: str) -> None:
    """Try to write a snapshot, which comes to `status`. A rewrite of the append-only file may be under way."""
    own.client.bgsave(schedule=True)
    while True:
        info = own.client.info("persistence")
        if info["rdb_last_bgsave_status"] == status and not info["rdb_bgsave_in_progress"]:
            return


@contextmanager
def killed(own: Stand) -> Iterator[None]:
    """Redis is killed, and started again on what it had written."""
    own.store.kill()
    yield
    own.store.start()


@asynccontextmanager
async def sending(url: str, history: History, sessions: str) -> AsyncIterator[None]:
    """So many senders while the block is open; what is unknown to one at the end is asked for until it is known."""
    stop = asyncio.Event()
    async with http(url) as client:
        senders = [asyncio.create_task(send_on(client, history, f"{sessions}-{n}", stop)) for n in range(SENDERS)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*senders)


async def send_on(client: httpx2.AsyncClient, history: History, session: str, stop: asyncio.Event) -> None:
    """One message after the other. What was refused is not sent again; what is unknown is, until it is known."""
    while not stop.is_set():
        attempt = await history.attempt(client, session, "hello")
        if attempt.told is Told.UNKNOWN:
            await history.surely(client, session, "hello", message_id=attempt.message_id, patience_s=PATIENCE_S)
        await pace(0.01)


async def more(history: History, told: Told, count: int) -> None:
    """Return when so many more attempts have come to this."""
    wanted = len(history.by(told)) + count
    await wait_until(lambda: len(history.by(told)) >= wanted, PATIENCE_S, f"{count} more attempts to be {told}")


async def more_receipts(history: History, count: int) -> None:
    await more(history, Told.RECEIPT, count)


# -- lost replies ---------------------------------------------------------------------------------------------


async def test_a_receipt_that_was_lost_on_its_way_is_had_by_asking_again_and_the_message_is_one(
    calm: Stand, figure: Figure
) -> None:
    """T3 (NousResearch/hermes-agent#82381): the store carries the submit out, and its reply is lost between store and
    ingest; then the receipt is lost between ingest and client."""
    history, session = History(), "T3-lost"
    async with proxy_to(calm.store.port) as inner:
        ingest = calm.ingest(store_url=inner.redis_url)
        with passing(calm, ingest):
            await ready(ingest)
            async with proxy_to(int(ingest.url.rpartition(":")[2])) as outer, http(outer.http_url) as client:
                await history.surely(client, session, "the first one makes connections")
                for number in range(20):
                    loss = inner.lose_reply(b"submit") if number % 2 else outer.lose_reply(b"POST")
                    lost = await history.attempt(client, session, f"hello {number}", message_id=f"lost-{number}")
                    assert lost.told is Told.UNKNOWN, lost
                    assert loss.done.is_set(), "the server had answered"
                    assert len(copies(calm, session, f"lost-{number}")) == 1, "it was carried out"
                    again = await history.surely(client, session, f"hello {number}", message_id=f"lost-{number}")
                    assert again.duplicate
                figure.fault(inner.faults + outer.faults)
    await all_idle(calm, PATIENCE_S)
    hold_trial(calm, history, figure, sessions=session)


def copies(own: Stand, session: str, message_id: str) -> list[int]:
    """Where a message is queued."""
    queued = of_type(ledger(own.client, session), "inbox/queued")
    return [each.seq for each in queued if each.data["messageId"] == message_id]


async def test_what_a_cut_network_leaves_in_doubt_is_one_message_in_the_end(
    calm: Stand, figure: Figure, network: Namespace
) -> None:
    """T3 (NousResearch/hermes-agent#82381): packets between ingest and store vanish, are answered with resets, and get
    lost at random, all by the kernel; messages come all the time."""
    history, port = History(), str(calm.store.port)
    with reached_from(calm, network) as url:
        # ingest is reached from here through the same interface, so what breaks is the way to one port
        ingest = calm.ingest("--call-timeout-ms", "1000", store_url=url, within=network.within, host=network.inside_ip)
        with passing(calm, ingest):
            await ready(ingest)
            async with sending(ingest.url, history, "T3-network"):
                for fault in (network.drop, network.reset, network.lose):
                    await more_receipts(history, 20)
                    fault(port)
                    await not_receipts(history, SENDERS)
                    network.heal()
                await more_receipts(history, 20)
    figure.fault(network.faults)
    await all_idle(calm, PATIENCE_S)
    hold_trial(calm, history, figure, sessions="T3-network")
    assert not history.unsettled


async def not_receipts(history: History, count: int) -> None:
    """Return when so many more attempts have come to something else than a receipt."""
    before = len(history.attempts) - len(history.by(Told.RECEIPT))
    await wait_until(
        lambda: len(history.attempts) - len(history.by(Told.RECEIPT)) >= before + count, PATIENCE_S, "the fault to tell"
    )


# -- full, and on the way out ---------------------------------------------------------------------------------


async def test_a_full_queue_refuses_what_it_did_not_keep_and_takes_it_when_there_is_room(
    calm: Stand, figure: Figure
) -> None:
    """T3 (NousResearch/hermes-agent#82381): at the depth cap; more senders than there are places, behind a turn that
    does not end until it is cancelled."""
    history, session, places = History(), "T3-full", 5
    ingest = calm.ingest("--pending-max", str(places))
    with passing(calm, ingest):
        await ready(ingest)
        async with http(ingest.url) as client:
            await made(client, [session], "handy")
            await history.surely(client, session, "never answer")
            await wait_until(lambda: admitted(ledger(calm.client, session)), PATIENCE_S, "the model to be asked")
            attempts = await asyncio.gather(*(history.attempt(client, session, f"hello {n}") for n in range(40)))
            refused = [attempt for attempt in attempts if attempt.told is Told.REFUSED]
            assert len(refused) == 40 - places
            assert {attempt.code for attempt in refused} == {"queue-full"}
            assert (await client.post(f"/v1/sessions/{session}/cancel")).status_code == 202
            for attempt in refused:
                await history.surely(client, session, "hello again", message_id=attempt.message_id)
    await all_idle(calm, PATIENCE_S)
    hold_trial(calm, history, figure, sessions=session)


async def test_receipts_given_on_the_way_out_are_true(rough: Stand, figure: Figure) -> None:
    """T3 (NousResearch/hermes-agent#82381): ingest and a worker are asked to end while messages come."""
    history, stop = History(), asyncio.Event()
    (ingest,), (worker, *_) = rough.of_kind("ingest"), rough.of_kind("worker")
    async with http(ingest.url, timeout_s=5) as client:
        sessions = [f"T3-out-{number}" for number in range(SENDERS)]
        await made(client, sessions, "brisk")
        senders = [asyncio.create_task(insist(client, history, session, stop)) for session in sessions]
        for service in (ingest, worker):
            await more_receipts(history, 30)
            service.terminate()
            figure.fault()
            await service.ended()
            service.start()
            await ready(service)
        await more_receipts(history, 30)
        stop.set()
        await asyncio.gather(*senders)
    await all_idle(rough, PATIENCE_S)
    found = hold_trial(rough, history, figure, sessions="T3-out-")
    recovered = [each.data["reason"] for facts in found.values() for each in of_type(facts, "turn/recovered")]
    assert set(recovered) <= {"handback"}, "who ends in order leaves no crash behind"


async def insist(client: httpx2.AsyncClient, history: History, session: str, stop: asyncio.Event) -> Attempt | None:
    """One message after the other, each until there is a receipt."""
    last = None
    while not stop.is_set():
        last = await history.surely(client, session, "hello", patience_s=PATIENCE_S)
        await pace(0.01)
    return last

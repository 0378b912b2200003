"""A receipt is true, a refusal is true, and what nobody knows becomes known by asking again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.chaos.figure import Figure
from tests.chaos.history import Attempt, History, Told, http
from tests.chaos.ledger import ledger, of_type
from tests.chaos.namespace import Namespace
from tests.chaos.proxy import proxy_to
from tests.chaos.stand import Stand, all_idle, made, ready, stand
from tests.chaos.trial import hold_trial
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

SENDERS: Final = 8
PATIENCE_S: Final = 40.0


async def test_a_store_that_takes_no_writes_is_said_to_have_kept_nothing_and_has(
    tmp_path: Path, figure: Figure
) -> None:
    """T3 (NousResearch/hermes-agent#82381): out of memory, read-only, unable to save, killed and started again, one
    after the other, while messages come all the time."""
    history = History()
    with stand(tmp_path, aof="always") as own:
        ingest, worker = own.ingest(), own.worker()
        await ready(ingest, worker)
        async with sending(ingest.url, history):
            for trouble in (out_of_memory, read_only, unable_to_save, killed):
                await more_receipts(history, 20)
                with trouble(own):
                    figure.fault()
                    if trouble is not killed:
                        await more(history, Told.REFUSED, 20)
            await more_receipts(history, 20)
        await all_idle(own, PATIENCE_S)
        hold_trial(own, history, figure)
    refused = {attempt.code for attempt in history.by(Told.REFUSED)}
    assert refused == {"store-refused"}
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
async def sending(url: str, history: History) -> AsyncIterator[None]:
    """So many senders while the block is open; what is unknown to one at the end is asked for until it is known."""
    stop = asyncio.Event()
    async with http(url) as client:
        senders = [asyncio.create_task(send_on(client, history, f"s{n}", stop)) for n in range(SENDERS)]
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
        await asyncio.sleep(0.01)


async def more(history: History, told: Told, count: int) -> None:
    """Return when so many more attempts have come to this."""
    wanted = len(history.by(told)) + count
    await wait_until(lambda: len(history.by(told)) >= wanted, PATIENCE_S, f"{count} more attempts to be {told}")


async def more_receipts(history: History, count: int) -> None:
    await more(history, Told.RECEIPT, count)


# -- lost replies ---------------------------------------------------------------------------------------------


async def test_a_receipt_that_was_lost_on_its_way_is_had_by_asking_again_and_the_message_is_one(
    tmp_path: Path, figure: Figure
) -> None:
    """T3 (NousResearch/hermes-agent#82381): the store carries the submit out, and its reply is lost between store and
    ingest; then the receipt is lost between ingest and client."""
    history = History()
    with stand(tmp_path) as own:
        async with proxy_to(own.store.port) as inner:
            ingest, worker = own.ingest(store_url=inner.redis_url), own.worker()
            await ready(ingest, worker)
            async with proxy_to(int(ingest.url.rpartition(":")[2])) as outer, http(outer.http_url) as client:
                await history.surely(client, "s", "the first one makes connections")
                for number in range(20):
                    loss = inner.lose_reply(b"submit") if number % 2 else outer.lose_reply(b"POST")
                    lost = await history.attempt(client, "s", f"hello {number}", message_id=f"lost-{number}")
                    assert lost.told is Told.UNKNOWN, lost
                    assert loss.done.is_set(), "the server had answered"
                    assert len(copies(own, "s", f"lost-{number}")) == 1, "it was carried out"
                    again = await history.surely(client, "s", f"hello {number}", message_id=f"lost-{number}")
                    assert again.duplicate
                figure.fault(inner.faults + outer.faults)
        await all_idle(own, PATIENCE_S)
        hold_trial(own, history, figure)


def copies(own: Stand, session: str, message_id: str) -> list[int]:
    """Where a message is queued."""
    queued = of_type(ledger(own.client, session), "inbox/queued")
    return [each.seq for each in queued if each.data["messageId"] == message_id]


async def test_what_a_cut_network_leaves_in_doubt_is_one_message_in_the_end(
    tmp_path: Path, figure: Figure, network: Namespace
) -> None:
    """T3 (NousResearch/hermes-agent#82381): packets between ingest and store vanish, are answered with resets, and get
    lost at random, all by the kernel; messages come all the time."""
    history = History()
    with stand(tmp_path, options=("--bind", f"127.0.0.1 {network.host_ip}", "--protected-mode", "no")) as own:
        url = f"redis://{network.host_ip}:{own.store.port}/0"
        # ingest is reached from here through the same interface, so what breaks is the way to one port
        port = str(own.store.port)
        ingest = own.ingest("--call-timeout-ms", "1000", store_url=url, within=network.within, host=network.inside_ip)
        worker = own.worker()
        await ready(ingest, worker)
        async with sending(ingest.url, history):
            for fault in (network.drop, network.reset, network.lose):
                await more_receipts(history, 20)
                fault(port)
                await not_receipts(history, SENDERS)
                network.heal()
                await more_receipts(history, 20)
        figure.fault(network.faults)
        await all_idle(own, PATIENCE_S)
        hold_trial(own, history, figure)
    assert not history.unsettled


async def not_receipts(history: History, count: int) -> None:
    """Return when so many more attempts have come to something else than a receipt."""
    before = len(history.attempts) - len(history.by(Told.RECEIPT))
    await wait_until(
        lambda: len(history.attempts) - len(history.by(Told.RECEIPT)) >= before + count, PATIENCE_S, "the fault to tell"
    )


# -- full, and on the way out ---------------------------------------------------------------------------------


async def test_a_full_queue_refuses_what_it_did_not_keep_and_takes_it_when_there_is_room(
    tmp_path: Path, figure: Figure
) -> None:
    """T3 (NousResearch/hermes-agent#82381): at the depth cap; more senders than there are places."""
    history, places = History(), 5
    with stand(tmp_path) as own:
        ingest = own.ingest("--pending-max", str(places))
        await ready(ingest)
        async with http(ingest.url) as client:
            attempts = await asyncio.gather(*(history.attempt(client, "s", f"hello {n}") for n in range(40)))
            refused = [attempt for attempt in attempts if attempt.told is Told.REFUSED]
            assert len(refused) == 40 - places
            assert {attempt.code for attempt in refused} == {"queue-full"}
            await ready(own.worker())
            for attempt in refused:
                await history.surely(client, "s", "hello again", message_id=attempt.message_id)
        await all_idle(own, PATIENCE_S)
        hold_trial(own, history, figure)


async def test_receipts_given_on_the_way_out_are_true(tmp_path: Path, figure: Figure) -> None:
    """T3 (NousResearch/hermes-agent#82381): ingest and worker are asked to end while messages come."""
    history = History()
    with stand(tmp_path) as own:
        ingest, worker = own.ingest(), own.worker()
        await ready(ingest, worker)
        stop = asyncio.Event()
        async with http(ingest.url, timeout_s=5) as client:
            await made(client, [f"s{n}" for n in range(SENDERS)], "brisk")
            senders = [asyncio.create_task(insist(client, history, f"s{n}", stop)) for n in range(SENDERS)]
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
        await all_idle(own, PATIENCE_S)
        found = hold_trial(own, history, figure)
    recovered = [each.data["reason"] for facts in found.values() for each in of_type(facts, "turn/recovered")]
    assert set(recovered) <= {"handback"}, "who ends in order leaves no crash behind"


async def insist(client: httpx2.AsyncClient, history: History, session: str, stop: asyncio.Event) -> Attempt | None:
    """One message after the other, each until there is a receipt."""
    last = None
    while not stop.is_set():
        last = await history.surely(client, session, "hello", patience_s=PATIENCE_S)
        await asyncio.sleep(0.01)
    return last

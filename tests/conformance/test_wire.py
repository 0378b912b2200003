"""The wire: each caller gets its own answer or its own error, whatever happens to the others and to the connection."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from redis.asyncio import BlockingConnectionPool
from redis.exceptions import ResponseError

from mailslot_core.errors import OutcomeUnknown, StoreUnavailable
from mailslot_core.redis.store import RedisStore, connect
from mailslot_core.redis.wire import BATCH_MAX, Barrier, GroupCommit
from mailslot_core.settings import StoreSettings
from tests.conformance.dialogue import BIRTH, ledger, message, prompt
from tests.conformance.proxies import Line, line_to
from tests.conformance.worlds import PARTITIONS, loop_turns, redis_world, settings
from tests.servers import Server, running
from tests.waiting import wait_until

pytestmark = pytest.mark.conformance

TIMEOUT_MS = 300
CALLS = 60


@pytest.fixture
async def wire(server: Server) -> AsyncIterator[GroupCommit]:
    async with wire_to(server) as found:
        yield found


@pytest.fixture
def own_server(server: Server) -> Iterator[Server]:
    """A server that a test may stop or kill."""
    with running(server.kind) as found:
        yield found


@asynccontextmanager
async def wire_to(server: Server, barrier: Barrier | None = None) -> AsyncIterator[GroupCommit]:
    client = connect(settings(server, call_timeout_ms=TIMEOUT_MS))
    pool = client.connection_pool
    assert isinstance(pool, BlockingConnectionPool)
    found = GroupCommit(pool, timeout_ms=TIMEOUT_MS, barrier=barrier)
    try:
        yield found
    finally:
        await found.close()
        await client.aclose()


async def echoes(wire: GroupCommit, count: int = CALLS) -> None:
    replies = await asyncio.gather(*(wire.call(("ECHO", n)) for n in range(count)))
    assert replies == [str(n).encode() for n in range(count)]


# -- one caller among many ----------------------------------------------------------------------------------


async def test_each_caller_gets_its_own_reply(wire: GroupCommit) -> None:
    await echoes(wire, 3 * BATCH_MAX)


async def test_an_error_is_its_callers_alone(wire: GroupCommit) -> None:
    calls = [wire.call(("ECHO", 1)), wire.call(("NO SUCH COMMAND",)), wire.call(("ECHO", 2))]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, third) == (b"1", b"2")
    assert isinstance(second, ResponseError)


async def test_what_cannot_be_sent_is_its_callers_error_alone(wire: GroupCommit) -> None:
    calls = [wire.call(("ECHO", 1)), wire.call(("ECHO", "\ud800")), wire.call(("ECHO", 2))]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, third) == (b"1", b"2")
    assert isinstance(second, UnicodeEncodeError)
    await echoes(wire)


async def test_callers_that_give_up_never_shift_the_replies_of_others(server: Server, wire: GroupCommit) -> None:
    server.freeze()
    try:
        calls = [asyncio.create_task(wire.call(("ECHO", n))) for n in range(CALLS)]
        await in_flight(calls)
        for call in calls[::2]:
            call.cancel()
    finally:
        server.thaw()
    assert await asyncio.gather(*calls[1::2]) == [str(n).encode() for n in range(1, CALLS, 2)]
    await echoes(wire)


async def test_a_call_that_was_given_up_before_it_was_sent_is_not_sent(server: Server, wire: GroupCommit) -> None:
    key = "given up"
    call = asyncio.create_task(wire.call(("SET", key, 1)))
    await asyncio.sleep(0)
    call.cancel()
    await echoes(wire)
    with server.client() as look:
        assert look.get(key) is None


# -- broken connections -------------------------------------------------------------------------------------


async def test_a_server_that_does_not_answer_leaves_the_outcome_unknown(server: Server, wire: GroupCommit) -> None:
    await echoes(wire)
    server.freeze()
    try:
        for outcome in await asyncio.gather(*(wire.call(("ECHO", n)) for n in range(3)), return_exceptions=True):
            assert isinstance(outcome, OutcomeUnknown)
    finally:
        server.thaw()
    await echoes(wire)


async def test_a_server_that_dies_under_a_call_leaves_its_outcome_unknown(own_server: Server) -> None:
    async with wire_to(own_server) as wire:
        await echoes(wire)
        own_server.freeze()
        calls = [asyncio.create_task(wire.call(("ECHO", n))) for n in range(CALLS)]
        await in_flight(calls)
        own_server.kill()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, OutcomeUnknown)


async def test_a_server_that_is_gone_was_sent_nothing(own_server: Server) -> None:
    async with wire_to(own_server) as wire:
        await echoes(wire)
        own_server.kill()
        await loop_turns()
        with pytest.raises(StoreUnavailable):
            await wire.call(("ECHO", 1))
        own_server.start()
        await echoes(wire)


async def test_connections_that_were_killed_meanwhile_are_made_anew(server: Server, wire: GroupCommit) -> None:
    await echoes(wire)
    with server.client() as look:
        look.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await loop_turns()
    await echoes(wire)


async def test_a_connection_that_breaks_under_a_batch_answers_every_caller(server: Server) -> None:
    async with line_to(server) as line, wire_to_line(server, line) as wire:
        await echoes(wire)
        line.deaf = True
        calls = [asyncio.create_task(wire.call(("ECHO", n))) for n in range(CALLS)]
        await asyncio.wait_for(line.heard.wait(), 5)
        line.cut()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, OutcomeUnknown)
        line.deaf = False
        await echoes(wire)


async def test_a_closed_wire_sends_nothing(server: Server) -> None:
    async with wire_to(server) as wire:
        await wire.close()
        with pytest.raises(StoreUnavailable):
            await wire.call(("ECHO", 1))


async def test_a_wire_that_is_closed_tells_everybody_who_waits(server: Server) -> None:
    async with wire_to(server) as wire:
        await echoes(wire)
        server.freeze()
        try:
            sent = [asyncio.create_task(wire.call(("ECHO", n))) for n in range(3)]
            await in_flight(sent)
            await wire.close()
            for outcome in await asyncio.gather(*sent, return_exceptions=True):
                assert isinstance(outcome, OutcomeUnknown)
        finally:
            server.thaw()


# -- refusals that redis-py raises as if the connection were broken -------------------------------------------


async def test_a_server_that_still_loads_its_data_kept_nothing() -> None:
    replies = b"-LOADING Redis is loading the dataset in memory\r\n"

    async def loading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while asked := await reader.read(65_536):
                writer.write(b"+OK\r\n" * asked.count(b"SETINFO") + replies * asked.count(b"ECHO"))
        writer.close()

    listening = await asyncio.start_server(loading, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0?protocol=2"
    client = connect(settings_for(url))
    store = RedisStore(client, settings_for(url), None)
    try:
        outcomes = await asyncio.gather(*(store._call(("ECHO", n)) for n in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
    finally:
        await store.close()
        await client.aclose()
        listening.close()


# -- what that means to a sender ------------------------------------------------------------------------------


async def test_a_lost_receipt_names_its_message_and_asking_again_is_safe(server: Server) -> None:
    async with redis_world(server), line_to(server) as line, RedisStore.connect(settings_for(line.url)) as store:
        await store.create("s", BIRTH)
        line.deaf = True
        with pytest.raises(OutcomeUnknown) as unknown:
            await prompt(store, "s", "A")
        assert unknown.value.message_id == "A"
        line.deaf = False
        line.cut()
        again = await prompt(store, "s", "A")
        assert (again.cursor, again.duplicate) == (2, True)
        assert [event.type for event in await ledger(store, "s")].count("inbox/queued") == 1


async def test_a_sender_who_gives_up_changes_nothing(server: Server) -> None:
    async with redis_world(server) as world:
        await world.store.create("s", BIRTH)
        sending = asyncio.create_task(world.store.submit("s", message("A"), BIRTH))
        await wait_until(lambda: world.look.xlen(world.key("s", "ledger")) > 1 or sending.done(), 5, "the message")
        sending.cancel()
        assert (await prompt(world.store, "s", "A")).cursor == 2


async def test_a_frozen_server_does_not_hold_who_waits_for_the_bell(server: Server) -> None:
    async with redis_world(server, call_timeout_ms=TIMEOUT_MS) as world:
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(world.store.wait_ready(50), 5)
        finally:
            server.thaw()
        await prompt(world.store, "s", "A")
        assert await world.store.wait_ready(1000) is not None


async def test_notices_come_again_from_a_server_that_was_started_again(own_server: Server) -> None:
    given = settings(own_server, call_timeout_ms=TIMEOUT_MS)
    async with RedisStore.connect(given) as store, store.watch("s") as notices:
        own_server.kill()
        own_server.start()
        hearing = asyncio.ensure_future(anext(notices))

        async def hears() -> bool:
            with suppress(StoreUnavailable, OutcomeUnknown):
                await store.publish_delta("s", {"text": "again"})
            return hearing.done()

        await wait_until(hears, 10, "a notice from the server that came back")


# -- vocabulary -------------------------------------------------------------------------------------------------


def settings_for(url: str) -> StoreSettings:
    return StoreSettings(redis_url=url, partitions=PARTITIONS, durability="memory", call_timeout_ms=TIMEOUT_MS)


@asynccontextmanager
async def wire_to_line(server: Server, line: Line) -> AsyncIterator[GroupCommit]:
    client = connect(settings_for(line.url))
    pool = client.connection_pool
    assert isinstance(pool, BlockingConnectionPool)
    found = GroupCommit(pool, timeout_ms=5_000)
    try:
        yield found
    finally:
        await found.close()
        await client.aclose()


async def in_flight(calls: list[asyncio.Task[object]]) -> None:
    """The calls have been given to the connection: a few turns of the loop after they were made."""
    await loop_turns()
    assert not any(call.done() for call in calls)

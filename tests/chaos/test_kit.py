"""The kit itself: a proxy that breaks what it says, a trial that finds what is wrong, a table that tells it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import pytest

from mailslot_services.verify.ledger import Entry
from tests.chaos import provider_shape
from tests.chaos.figure import Figure, table
from tests.chaos.history import Attempt, History, Told
from tests.chaos.namespace import Namespace
from tests.chaos.proxy import Proxy, proxy_to
from tests.chaos.stand import Stand, stand
from tests.chaos.trial import hold_trial
from tests.waiting import wait_until

pytestmark = pytest.mark.chaos


@asynccontextmanager
async def echoed() -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter, list[bytes]]]:
    """A connection through a proxy to a server that says back what it hears, and what that has heard."""
    heard: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            heard.append(line)
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with proxy_to(server.sockets[0].getsockname()[1]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"begin\n")
        assert await reader.readline() == b"begin\n"
        try:
            yield proxy, reader, writer, heard
        finally:
            writer.close()
            server.close()


async def test_a_cut_is_a_reset_at_once() -> None:
    async with echoed() as (proxy, reader, _, _):
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readline(), 5)


async def test_what_is_stalled_arrives_late_and_whole() -> None:
    async with echoed() as (proxy, reader, writer, heard):
        proxy.stall()
        writer.write(b"late\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reader.readline()), 0.2)
        assert heard == [b"begin\n"]
        proxy.flow()
        await wait_until(lambda: heard == [b"begin\n", b"late\n"], 5, "what was held back")


async def test_what_a_client_wrote_before_it_left_arrives_although_the_line_was_stalled() -> None:
    async with echoed() as (proxy, _, writer, heard):
        caught = proxy.stall_at(b"last")
        writer.write(b"last words\n")
        await asyncio.wait_for(caught.wait(), 5)
        writer.close()
        proxy.flow()
        await wait_until(lambda: b"last words\n" in heard, 5, "the last words")


async def test_a_lost_reply_is_lost_after_the_server_has_answered() -> None:
    async with echoed() as (proxy, reader, writer, heard):
        loss = proxy.lose_reply(b"two", nth=2)
        for word in (b"one\n", b"two\n", b"again two\n"):
            writer.write(word)
            if word != b"again two\n":
                assert await reader.readline() == word
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readline(), 5)
        assert loss.done.is_set()
        assert heard[-1] == b"again two\n"


async def test_a_server_that_vanished_is_silence() -> None:
    async with echoed() as (proxy, reader, writer, heard):
        proxy.vanish()
        writer.write(b"hello?\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), 0.2)
        assert heard == [b"begin\n"]


async def test_who_is_refused_is_taken_again_on_the_same_port() -> None:
    async with echoed() as (proxy, _, _, _):
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.listen()
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.close()


def test_a_network_can_be_had_and_healed(network: Namespace) -> None:
    network.drop_at("1", "words")
    assert network.dropped() == 0
    network.heal()


def test_the_trial_finds_what_was_promised_and_is_not_there(tmp_path: Path) -> None:
    """A receipt for nothing, and a refusal of what is kept: the trial fails, and the figures say so."""
    with stand(tmp_path) as own:
        forge(own, "s", [("session/created", {"agent": "default"}), ("inbox/queued", queued("kept"))])
        history, figure = History(), Figure("T0")
        history.note(Attempt("s", "lost", Told.RECEIPT, "accepted", 1, 2, cursor=7))
        history.note(Attempt("s", "kept", Told.REFUSED, "store-refused", 3, 4))
        with pytest.raises(AssertionError, match="lost has a receipt") as told:
            hold_trial(own, history, figure, at_rest=False)
        assert "kept was refused" in str(told.value)
    assert figure.losses == 1


def queued(message_id: str) -> dict[str, object]:
    return {"messageId": message_id, "lane": "next-turn", "wake": True, "content": [], "source": {"kind": "user"}}


def forge(own: Stand, session: str, events: list[tuple[str, dict[str, object]]]) -> None:
    """A ledger that no store has written."""
    for seq, (kind, data) in enumerate(events, 1):
        fields = {"type": kind, "time": str(seq), "epoch": "0", "data": b"\1" + msgpack.packb(data)}
        own.client.xadd(f"mailslot:{{p00}}:s:{session}:ledger", fields, id=f"{seq}-0")  # type: ignore[arg-type]


def test_a_history_that_no_provider_takes_is_found() -> None:
    calls = [{"callId": "c", "name": "t", "arguments": {}}]
    names = {"turn": 1, "step": 1}
    asked = Entry(1, "assistant/message", 1, 1, {**names, "content": [], "toolCalls": calls})
    result = Entry(2, "tool/result", 1, 1, {**names, "callId": "c", "content": ""})
    user = Entry(3, "user/message", 1, 1, {**names, "messageId": "m", "content": []})
    provider_shape.check_after_every_fact([asked, result, user])
    for broken in ([asked, user], [asked, result, result], [result], [asked, asked]):
        with pytest.raises(provider_shape.BadShape):
            provider_shape.check_after_every_fact(broken)


def test_the_table_adds_up_what_belongs_to_one_scenario() -> None:
    one = Figure("T10", operations=2_000, faults=1, recoveries_s=[0.5, 2.0])
    other, first = Figure("T10", operations=1, recoveries_s=[1.0]), Figure("T2", losses=1)
    header, *rows = table([one, other, first])
    assert header.split()[:3] == ["scenario", "operations", "faults"]
    assert [row.split() for row in rows] == [
        ["T2", "0", "0", "1", "0", "0", "0"],
        ["T10", "2,001", "1", "0", "0", "0", "0", "3", "1.00", "s", "2.00", "s"],
    ]

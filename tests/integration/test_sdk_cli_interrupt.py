"""Ctrl-C while `mailslot run` is under way, as signals to a process, against agents that take their time.

Once stops what the run began and waits for idle; twice, or SIGTERM, leaves the agent at work. Where it matters what the
worker has done by then, it is driven by hand.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from mailslot_core.memory import MemoryStore
from mailslot_core.session import Event
from tests.echo_worker import EchoWorker
from tests.integration.test_sdk_cli import PATIENCE_S, call, kinds, standing, started, terminal
from tests.unit.ingest.served import House, on_socket
from tests.unit.ingest.stages import begun
from tests.unit.sdk.driving import level_frame
from tests.unit.sdk.product import Product
from tests.unit.sdk.served import Reply, Rude, served, stream
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

Process = asyncio.subprocess.Process
STOPPING = "mailslot run: stopping, and waiting until the agent is idle; Ctrl-C again leaves it at work\n"


@pytest.fixture
def product() -> Iterator[Product]:
    """Its agent waits in the middle of a turn until it is let go on."""
    with Product().running() as running:
        yield running


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """No worker is there but those that a test drives by hand."""
    async with on_socket(MemoryStore()) as found:
        yield found


async def ended(process: Process) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


async def said(process: Process) -> str:
    assert process.stderr is not None
    return (await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)).decode()


async def ledger(house: House) -> list[Event]:
    return await house.store.events("s", after=0, limit=1_000)


async def sent(house: House, count: int = 1) -> list[str]:
    """The ids of the messages, once there are so many."""

    async def queued() -> list[str]:
        level = await house.client.get("/v1/sessions/s")
        if level.status_code != 200:
            return []
        found = [event.data["messageId"] for event in await ledger(house) if event.type == "inbox/queued"]
        return found if len(found) == count else []

    return await wait_until(queued, PATIENCE_S, "the message")


def left(message_id: str) -> str:
    return f"mailslot run: left; the agent goes on with message {message_id} in session s\n"


async def test_ctrl_c_stops_the_turn_that_took_the_message_and_waits_for_idle(product: Product) -> None:
    async with started(product.url, "run", "--session", "s", "wait please") as process:
        await asyncio.to_thread(product.reached)
        process.send_signal(signal.SIGINT)
        code, out, err = await ended(process)
    stopped = "mailslot run: turn 1 is asked to stop\nmailslot run: the last turn ended aborted: user\n"
    assert (code, out, err) == (1, "", STOPPING + stopped)
    assert [event.data["turn"] for event in product.ledger("s") if event.type == "cancel/requested"] == [1]
    assert product.ledger("s")[-1].data == {"status": "idle"}


async def test_a_second_ctrl_c_leaves_at_once_and_says_where_the_agent_goes_on(house: House) -> None:
    async with started(str(house.client.base_url), "run", "--session", "s", "task") as process:
        (message_id,) = await sent(house)
        await begun(house)  # a worker that does not hear of the cancel
        process.send_signal(signal.SIGINT)
        assert await said(process) == STOPPING
        assert await said(process) == "mailslot run: turn 1 is asked to stop\n"
        process.send_signal(signal.SIGINT)
        assert await ended(process) == (130, "", left(message_id))
    assert "turn/end" not in [event.type for event in await ledger(house)]


async def test_ctrl_c_withdraws_a_message_that_no_turn_has_taken(house: House) -> None:
    async with started(str(house.client.base_url), "run", "--session", "s", "task") as process:
        (message_id,) = await sent(house)
        process.send_signal(signal.SIGINT)
        code, out, err = await ended(process)
    stopped = "mailslot run: the message is withdrawn\n"
    assert (code, out) == (3, "")
    assert err == STOPPING + stopped + "mailslot run: no turn ended; the message is cancelled (withdrawn)\n"
    assert (await house.client.get(f"/v1/sessions/s/messages/{message_id}")).json()["cause"] == "withdrawn"
    assert "cancel/requested" not in [event.type for event in await ledger(house)]


async def test_ctrl_c_does_not_hit_the_turn_after_the_one_that_took_the_message(house: House) -> None:
    async with started(str(house.client.base_url), "run", "--session", "s", "task") as process:
        await sent(house)
        await house.prompt("s", "somebody else's", messageId="n")
        await EchoWorker(house.store).answer_one()
        await begun(house)  # turn 2, which took the other message
        process.send_signal(signal.SIGINT)
        assert await said(process) == STOPPING
        assert await said(process) == "mailslot run: there is nothing to stop: turn 1 is over\n"
        assert "cancel/requested" not in [event.type for event in await ledger(house)]
        process.send_signal(signal.SIGINT)
        assert (await ended(process))[0] == 130
    assert [event.data["turn"] for event in await ledger(house) if event.type == "turn/end"] == [1]


async def test_ctrl_c_before_the_task_is_sent_leaves_and_nothing_is_sent(product: Product) -> None:
    await call(product.url, "send", "--session", "s", "wait for the door")
    await asyncio.to_thread(product.reached)
    with terminal() as (shown, follower):
        async with started(product.url, "run", "--session", "s", "mine", stderr=follower) as process:
            await wait_until(lambda: "waiting for the agent to be idle" in shown(), PATIENCE_S, "the wait")
            process.send_signal(signal.SIGINT)
            out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert "mailslot run: left before the task was sent\r\n" in shown()
    assert (process.returncode, out) == (130, b"")
    assert kinds(product, "s").count("inbox/queued") == 1
    assert "cancel/requested" not in kinds(product, "s")


async def test_ctrl_c_while_the_task_is_being_sent_stops_it_as_soon_as_it_is_kept() -> None:
    """The server takes its time over the receipt; the second Ctrl-C does not wait for it."""
    hanging = Reply(parts=[Rude.HANG])
    replies = {"events": stream(level_frame("s", 0), Rude.HANG), "prompt": hanging}
    with served(lambda call: replies.get(call.path.rpartition("/")[2], standing("s", 0))) as server:
        async with started(server.url, "run", "--session", "s", "task") as process:
            await wait_until(lambda: server.called("POST", "/prompt"), PATIENCE_S, "the task")
            process.send_signal(signal.SIGINT)
            assert await said(process) == STOPPING
            process.send_signal(signal.SIGINT)
            code, out, err = await ended(process)
    message_id = server.called("POST", "/prompt")[0].json["messageId"]
    assert (code, out) == (130, "")
    assert err == f"mailslot run: left; message {message_id} may be kept in session s, or not\n"
    assert not server.called("DELETE", message_id)


async def test_sigterm_leaves_at_once_and_the_agent_goes_on(product: Product) -> None:
    async with started(product.url, "run", "--session", "s", "wait please") as process:
        await asyncio.to_thread(product.reached)
        process.send_signal(signal.SIGTERM)
        code, out, err = await ended(process)
    (own,) = [event.data["messageId"] for event in product.ledger("s") if event.type == "inbox/queued"]
    assert (code, out, err) == (143, "", left(own))
    assert "cancel/requested" not in kinds(product, "s")
    product.open()
    await wait_until(lambda: "turn/end" in kinds(product, "s"), PATIENCE_S, "the turn to end by itself")

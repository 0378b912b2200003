"""The clients and the inbox: real doors, a store in memory, a worker driven by hand. Both keep each promise."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mailslot import CursorExpired, OutcomeUnknown, Refused, Settings
from mailslot_core.memory import MemoryStore
from tests.echo_worker import EchoWorker
from tests.unit.ingest.served import House, on_socket
from tests.unit.ingest.stages import LATER, begun, give_up
from tests.unit.sdk.product import CuttingProxy
from tests.unit.sdk.twins import KINDS, Kind, Twin, twin
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

STUBBORN = Settings(attempts_max=100, backoff_first_ms=1, backoff_max_ms=5)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with on_socket(MemoryStore()) as found:
        yield found


@pytest.fixture
async def client(house: House, kind: Kind) -> AsyncIterator[Twin]:
    async with twin(kind, str(house.client.base_url)) as found:
        yield found


async def refusal(client: Twin, method: str, *arguments: Any, **named: Any) -> str:
    """The code that a call is refused with."""
    with pytest.raises(Refused) as caught:
        await client.call("s", method, *arguments, **named)
    return caught.value.code


async def test_what_waits_can_be_listed_replaced_moved_and_withdrawn(house: House, client: Twin) -> None:
    for name in ("a", "b", "c"):
        await client.call("s", "prompt", f"text {name}", message_id=name, metadata={"n": name})
    await client.call("s", "prompt", "later", message_id="d", not_before=LATER, expires_at=LATER + 1)
    assert (await client.call("s", "replace", "a", "new")).state == "queued"
    assert (await client.call("s", "withdraw", "b")).cause == "withdrawn"
    assert (await client.call("s", "move", "c")).delivery == "steer"
    queue = await client.call("s", "queue")
    assert [(m.message_id, m.delivery, m.due) for m in queue] == [
        ("c", "steer", True), ("a", "queue", True), ("d", "queue", False),
    ]  # fmt: skip
    assert [m.content[0]["text"] for m in queue] == ["text c", "new", "later"]
    assert (queue[0].metadata, queue[0].source) == ({"n": "c"}, {"kind": "user"})
    assert (queue[2].not_before, queue[2].expires_at) == (LATER, LATER + 1)
    await EchoWorker(house.store).answer_all()
    record = await client.call("s", "message", "c")
    assert (record.state, record.turn, record.step, record.due) == ("admitted", 1, 1, None)
    assert await refusal(client, "withdraw", "c") == "already-settled"
    assert await refusal(client, "message", "nobody") == "not-found"
    assert await refusal(client, "replace", "d", "") == "bad-input"


async def test_a_long_queue_is_whole(client: Twin) -> None:
    for n in range(130):
        await client.call("s", "inject", "x", message_id=f"m{n:03}")
    assert [message.message_id for message in await client.call("s", "queue")] == [f"m{n:03}" for n in range(130)]


async def test_a_message_may_say_when_it_is_not_wanted(house: House, client: Twin) -> None:
    assert await refusal(client, "steer", "x", if_idle="reject") == "idle"
    await client.call("s", "prompt", "x", if_busy="reject")
    assert await refusal(client, "prompt", "x", if_busy="reject") == "busy"
    assert await refusal(client, "inject", "x", if_busy="reject") == "busy"
    await EchoWorker(house.store).acquire()
    assert await refusal(client, "steer", "x", expect_turn=2) == "turn-mismatch"
    await client.call("s", "steer", "x", expect_turn=1, if_idle="reject")
    assert await refusal(client, "prompt", "x", expires_at=1) == "expired"
    assert await refusal(client, "prompt", "x", expect_turn=1) == "bad-input"
    assert await refusal(client, "prompt", "x", not_before="tomorrow") == "bad-input"


async def test_a_cancel_holds_or_clears_and_a_hold_is_released(house: House, client: Twin) -> None:
    await client.call("s", "prompt", "x", message_id="a")
    worker, grant = await begun(house)
    await client.call("s", "prompt", "x", message_id="b")
    outcome = await client.call("s", "cancel", "hold", turn=1)
    assert (outcome.outcome, outcome.turn, outcome.still_queued) == ("requested", 1, ("b",))
    await worker.answer(grant, kind="error")
    level = await client.call("s", "status")
    assert (level.status, level.hold, level.held, level.closed) == ("idle", "cancel", 1, False)
    assert (await client.call("s", "message", "b")).state == "held"
    assert await client.call("s", "release") == (await client.call("s", "status")).cursor
    assert await refusal(client, "release") == "not-held"
    assert (await client.call("s", "cancel", queue="clear")).still_queued == ()
    assert (await client.call("s", "message", "b")).cause == "cancel"
    assert await refusal(client, "cancel", turn=9) == "not-open"


async def test_a_session_is_closed_and_erased(house: House, client: Twin) -> None:
    await client.call("s", "prompt", "x", message_id="a")
    worker, grant = await begun(house)
    assert not (await client.call("s", "close")).closed
    assert await refusal(client, "prompt", "x") == "closed"
    assert not (await client.call("s", "delete")).erased
    await worker.answer(grant, kind="error")
    erasure = await client.call("s", "delete", wait=5)
    assert erasure.erased
    assert erasure.stores["ledger"].messages == 1
    assert await refusal(client, "status") == "not-found"
    assert await refusal(client, "delete") == "not-found"


async def test_whoever_follows_an_erased_session_learns_that_it_is_gone(house: House, client: Twin) -> None:
    await client.call("s", "inject", "x")
    following = asyncio.create_task(client.first_events("s", 100))

    async def followed() -> bool:
        return house.metric("event_readers") == 1

    await wait_until(followed, 10, "the events to be followed")
    await client.call("s", "delete")
    with pytest.raises(CursorExpired) as gone:
        await asyncio.wait_for(following, 20)
    assert (gone.value.oldest, gone.value.newest) == (0, 0)


async def test_a_dead_letter_is_listed_and_redriven_once(house: House, client: Twin) -> None:
    await client.call("s", "prompt", "x", message_id="m")
    await give_up(house.store)
    (letter,) = await client.letters()
    assert (letter.session_id, letter.turn, [m.state for m in letter.messages]) == ("s", 1, ["dead"])
    (receipt,) = await client.redrive(letter.letter_id)
    assert receipt.message_id == "m"
    with pytest.raises(Refused) as again:
        await client.redrive(letter.letter_id)
    assert again.value.code == "not-dead"
    (waiting,) = await client.call("s", "queue")
    assert waiting.redrive
    await EchoWorker(house.store).answer_all()
    assert (await client.call("s", "message", "m")).state == "admitted"


async def test_prompts_with_conditions_over_connections_that_are_cut_are_taken_once(
    house: House, kind: Kind, rng: random.Random
) -> None:
    """A repeat of what was kept is a duplicate, although by then the agent is busy with that very message (M3)."""
    port = house.client.base_url.port
    assert port is not None
    async with (
        CuttingProxy(port, lambda: rng.randint(1, 600)).running() as proxy,
        twin(kind, proxy.url, settings=STUBBORN) as client,
    ):
        for n in range(20):
            receipt = await client.call("s", "prompt", "x", message_id=f"m{n}", if_busy="reject", expires_at=LATER)
            assert receipt.message_id == f"m{n}"
            await EchoWorker(house.store, f"worker {n}").answer_all()
    ledger = await house.store.events("s", after=0, limit=1000)
    assert [e.data["messageId"] for e in ledger if e.type == "inbox/queued"] == [f"m{n}" for n in range(20)]
    assert proxy.cuts >= 3


async def test_a_change_over_a_connection_that_is_cut_is_known_or_said_to_be_unknown(
    house: House, kind: Kind, rng: random.Random
) -> None:
    port = house.client.base_url.port
    assert port is not None
    settings = Settings(attempts_max=2, backoff_first_ms=1, backoff_max_ms=5)
    async with (
        CuttingProxy(port, lambda: rng.randint(1, 600)).running() as proxy,
        twin(kind, proxy.url, settings=settings) as client,
    ):
        for n in range(20):
            await house.prompt("s", messageId=f"m{n}")
            try:
                assert (await client.call("s", "withdraw", f"m{n}")).cause == "withdrawn"
            except OutcomeUnknown:
                continue
            record = (await house.client.get(f"/v1/sessions/s/messages/m{n}")).json()
            assert record["cause"] == "withdrawn"
    assert proxy.cuts >= 3

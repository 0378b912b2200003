"""Hints: notices come in ledger order and as the ledger has them, deltas are seen and not kept, the bell rings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Event
from mailslot_core.store import Store
from tests.conformance.dialogue import BIRTH, Slot, ledger, prompt
from tests.conformance.worlds import RedisWorld
from tests.waiting import wait_until

pytestmark = pytest.mark.conformance

HEARD_S = 5.0

Notices = AsyncIterator[dict[str, Any]]


async def test_a_watcher_hears_every_event_in_the_ledgers_order_and_as_the_ledger_has_it(
    store: Store, slot: Slot
) -> None:
    async with store.watch("s") as notices:
        await prompt(store, "s", "A")
        await slot.run("s")
        events = await ledger(store, "s")
        assert await heard(notices, len(events)) == [envelope("s", event) for event in events]


async def test_idle_is_among_the_notices(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    async with store.watch("s") as notices:
        await slot.run("s")
        while (await one(notices))["data"].get("status") != "idle":
            pass


async def test_a_watcher_hears_its_own_session_alone(store: Store, slot: Slot) -> None:
    async with store.watch("s") as notices:
        await prompt(store, "other", "A")
        await slot.run("other")
        await prompt(store, "s", "B")
        assert {notice["sessionId"] for notice in await heard(notices, 3)} == {"s"}


async def test_two_watchers_of_a_session_hear_the_same(store: Store) -> None:
    async with store.watch("s") as one_side, store.watch("s") as other_side:
        await prompt(store, "s", "A")
        assert await heard(one_side, 3) == await heard(other_side, 3)


async def test_a_watcher_that_leaves_takes_nothing_from_the_others(store: Store) -> None:
    async with store.watch("s") as staying:
        async with store.watch("s") as leaving:
            await prompt(store, "s", "A")
            assert await heard(leaving, 3) == await heard(staying, 3)
        await prompt(store, "s", "B")
        assert (await one(staying))["data"]["messageId"] == "B"


async def test_who_watches_anew_hears_what_comes_from_then_on(store: Store) -> None:
    for name in ("A", "B", "C"):
        async with store.watch("s") as notices:
            await prompt(store, "s", name)
            queued = [n for n in await heard(notices, 1 if name != "A" else 3) if n["type"] == "inbox/queued"]
            assert [notice["data"]["messageId"] for notice in queued] == [name]


async def test_a_delta_is_seen_and_not_kept(store: Store) -> None:
    await store.create("s", BIRTH)
    async with store.watch("s") as notices:
        await store.publish_delta("s", {"turn": 1, "step": 1, "text": "hel"})
        delta = {"turn": 1, "step": 1, "text": "hel"}
        assert await one(notices) == {"v": 1, "sessionId": "s", "type": "assistant/delta", "data": delta}
    assert len(await ledger(store, "s")) == 1


async def test_the_bell_names_a_partition_with_something_ready(store: Store) -> None:
    await prompt(store, "s", "A")
    assert await store.wait_ready(1000) == partition_of("s", store.partitions)


async def test_the_bell_wakes_who_waits(store: Store) -> None:
    waiting = asyncio.create_task(store.wait_ready(5000))
    await asyncio.sleep(0)
    await prompt(store, "s", "A")
    assert await asyncio.wait_for(waiting, HEARD_S) == partition_of("s", store.partitions)


async def test_the_bell_is_silent_when_nothing_is_ready(store: Store) -> None:
    await store.create("s", BIRTH)
    assert await store.wait_ready(1) is None


async def test_a_bell_that_is_not_waited_for_any_more_rings_the_next_time(store: Store) -> None:
    waiting = asyncio.create_task(store.wait_ready(5000))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    await prompt(store, "s", "A")
    assert await store.wait_ready(5000) == partition_of("s", store.partitions)


async def test_an_acquire_that_leaves_something_ready_rings_again(redis: RedisWorld) -> None:
    store = redis.store
    near = [name for name in (f"s{n}" for n in range(10)) if partition_of(name, store.partitions) == 0][:2]
    for name in near:
        await prompt(store, name, "A")
    while await store.wait_ready(1) is not None:
        pass
    await Slot(store).acquire(near[0])
    assert await store.wait_ready(1000) == 0


async def test_notices_come_again_after_their_connection_broke(redis: RedisWorld) -> None:
    async with redis.store.watch("s") as notices:
        redis.look.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call]
        seen: list[dict[str, Any]] = []

        async def hears() -> bool:
            await redis.store.publish_delta("s", {"text": "again"})
            with suppress(TimeoutError):
                seen.append(await asyncio.wait_for(anext(notices), 0.05))
            return bool(seen)

        await wait_until(hears, 10, "a notice after the connection broke")


async def test_a_watcher_that_lags_loses_its_own_oldest_hints(redis: RedisWorld) -> None:
    from mailslot_core.redis.topics import HINTS_MAX  # noqa: PLC0415 - of this implementation alone

    async with redis.store.watch("s") as lagging, redis.store.watch("s") as quick:
        last = HINTS_MAX + 10
        for number in range(1, last + 1):
            await redis.store.publish_delta("s", {"n": number})
            assert (await one(quick))["data"] == {"n": number}
        assert [n["data"]["n"] for n in await heard(lagging, HINTS_MAX)] == list(range(11, last + 1))


def envelope(session_id: str, event: Event) -> dict[str, Any]:
    return {
        "v": 1,
        "seq": event.seq,
        "sessionId": session_id,
        "type": event.type,
        "time": event.time,
        "epoch": event.epoch,
        "data": event.data,
    }


async def one(notices: Notices) -> dict[str, Any]:
    return await asyncio.wait_for(anext(notices), HEARD_S)


async def heard(notices: Notices, count: int) -> list[dict[str, Any]]:
    return [await one(notices) for _ in range(count)]

"""The two doors alone, without a worker: how fast a message becomes durable, and how long its sender waits.

HTTP: a poster in another process keeps IN_FLIGHT connections busy; a message is done when its receipt has come.
Broker door: IN_FLIGHT callers put an entry on `mailslot:intake` and wait for the notice of its `inbox/queued`, which is
published by the act that appends it. The stream's group must have nothing pending at the end.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mailslot_contracts.channels import INTAKE
from mailslot_core.redis.store import RedisStore
from tests.bench.figure import percentile
from tests.bench.listener import listening
from tests.bench.poster import post_as_fast_as_taken
from tests.bench.process import Meter, fresh_server, ingest, store_settings
from tests.bench.scale import PATIENCE_S, SESSIONS, TEXT, Scale
from tests.bench.traffic import in_flight, message_of, session_of
from tests.servers import Server
from tests.waiting import wait_until

DOOR_GROUP: Final = "door"


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """Both doors of one ingest process, one after the other, each into sessions of its own."""
    with fresh_server() as server:
        async with ingest(server, folder) as (pid, port):
            pids = {"ingest": pid, "store": server.pid}
            return {**await _http(scale, server, port, pids), **await _broker(scale, server, pids)}


async def _http(scale: Scale, server: Server, port: int, pids: Mapping[str, int]) -> dict[str, float]:
    post_as_fast_as_taken(port, scale.http_s / 10)
    before, meter = await queued(server, "s"), Meter(pids)
    found = post_as_fast_as_taken(port, scale.http_s)
    assert not found["refused"], f"prompts were refused: {found['refused']}"
    count = await queued(server, "s") - before
    # wrk hangs up on its last requests, so a few more were kept than it was told of
    assert found["count"] <= count, f"{found['count']} receipts for {count} messages"
    return {
        "http_per_s": found["per_s"],
        "http_p50": found["p50"],
        "http_p99": found["p99"],
        "http_cpu": meter.microseconds("ingest", count),
        "http_store_cpu": meter.microseconds("store", count),
    }


async def _broker(scale: Scale, server: Server, pids: Mapping[str, int]) -> dict[str, float]:
    count, took = scale.door_messages, list[float]()
    waiting: dict[str, asyncio.Future[float]] = {}

    def heard(when: float, notice: dict[str, Any]) -> None:
        if notice["type"] == "inbox/queued" and (future := waiting.pop(notice["data"]["messageId"], None)):
            future.set_result(when)

    async with listening(server, heard), RedisStore.connect(store_settings(server)) as store:

        async def send(number: int) -> None:
            future = waiting[message_of(number)] = asyncio.get_running_loop().create_future()
            sent = time.monotonic()
            await put(store, number)
            took.append(await asyncio.wait_for(future, PATIENCE_S) - sent)

        meter, begin = Meter(pids), time.monotonic()
        await in_flight(count, send)
        lasted = time.monotonic() - begin
    assert await queued(server, DOOR_GROUP) == count
    with server.client() as client:
        await wait_until(lambda: _nothing_pending(client), PATIENCE_S, "every entry to be acknowledged")
    return {
        "door_per_s": count / lasted,
        "door_p50": percentile(took, 0.5) * 1000,
        "door_p99": percentile(took, 0.99) * 1000,
        "door_cpu": meter.microseconds("ingest", count),
        "door_store_cpu": meter.microseconds("store", count),
    }


async def put(store: RedisStore, number: int) -> None:
    """One entry as a backend without our SDK writes it: JSON in the field `data`."""
    entry = {"sessionId": session_of(number, DOOR_GROUP), "messageId": message_of(number), "content": TEXT}
    await store._wire.call(("XADD", INTAKE, "*", "data", json.dumps(entry)))


def _nothing_pending(client: Any) -> bool:
    groups = client.xinfo_groups(INTAKE)
    return bool(groups) and all(group["pending"] == 0 and group["lag"] == 0 for group in groups)


async def queued(server: Server, group: str) -> int:
    """Messages in the ledgers of a group, by the sessions' own counters."""
    async with RedisStore.connect(store_settings(server)) as store:
        levels = await asyncio.gather(*(store.level(session_of(number, group)) for number in range(SESSIONS)))
    assert all(level is None or level.conservation == 0 for level in levels)
    return sum(level.pending for level in levels if level is not None)

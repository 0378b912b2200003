"""From submit to rest: messages a second with every event in the ledger, and what CPU each takes.

live    workers wait, IN_FLIGHT callers submit to the store, the clock stops when every agent rests
drain   workers are frozen while all messages are queued, the clock runs from the thaw until every agent rests

Whoever submits shares the machine with store and workers, as in every measurement beside it.
"""

import time
from contextlib import nullcontext
from pathlib import Path

import redis

from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore
from tests.bench import plain_consumer
from tests.bench.audit import audit, expected
from tests.bench.process import Meter, fresh_server, frozen, store_settings, workers
from tests.bench.scale import IN_FLIGHT, PATIENCE_S, Scale
from tests.bench.traffic import BORN, submission, submit_all
from tests.servers import Server
from tests.waiting import wait_until


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """One worker, then the plain consumer that it is compared with, then two workers."""
    one = await _live_and_drain(scale, folder, 1)
    beside = await plain_consumer.measure(scale, folder)
    two = await _live_and_drain(scale, folder, 2)
    return {
        **{f"{name}_cpu": one["live"][name] for name in ("worker", "store", "producer")},
        **{f"drain_{name}_cpu": one["drain"][name] for name in ("worker", "store")},
        **{f"{mode}1_per_s": found["per_s"] for mode, found in one.items()},
        **{f"{mode}2_per_s": found["per_s"] for mode, found in two.items()},
        **beside,
    }


async def _live_and_drain(scale: Scale, folder: Path, count: int) -> dict[str, dict[str, float]]:
    with fresh_server() as server:
        async with workers(server, folder, count) as pids, RedisStore.connect(store_settings(server)) as store:
            await warm_up(store, server, count)
            live = await run(scale, server, store, pids, backlog=False)
            return {"live": live, "drain": await run(scale, server, store, pids, backlog=True)}


async def run(scale: Scale, server: Server, store: RedisStore, pids: list[int], *, backlog: bool) -> dict[str, float]:
    """Messages a second and CPU a message, in sessions that are new; their ledgers are read back afterwards."""
    messages, group = scale.messages, "drained" if backlog else "live"
    with frozen(pids) if backlog else nullcontext():
        if backlog:
            await submit_all(store, messages, group)
        meter, own, begin = Meter({"worker": pids, "store": server.pid}), time.process_time(), time.monotonic()
    if not backlog:
        await submit_all(store, messages, group)
    own = time.process_time() - own
    await at_rest(server)
    per_s = messages / (time.monotonic() - begin)
    spent = {name: meter.microseconds(name, messages) for name in ("worker", "store")}
    await audit(store, expected(messages, group))
    return {**spent, "producer": own / messages * 1e6, "per_s": per_s}


async def warm_up(store: RedisStore, server: Server, count: int) -> None:
    """Every worker has answered something: what is loaded on first use is loaded."""
    for number in range(IN_FLIGHT * count):
        await store.submit(f"warm{number}", submission(f"warm{number}"), BORN)
    await at_rest(server)


async def at_rest(server: Server) -> None:
    """Every agent rests."""
    with server.client() as client:
        await wait_until(lambda: active(client) == 0, PATIENCE_S, "every agent to rest")


def active(client: redis.Redis) -> int:
    """Sessions that are running."""
    pipeline = client.pipeline(transaction=False)
    for partition in range(int(client.hget(keys.CONFIG, "partitions") or 0)):
        pipeline.zcard(keys.partition_key(partition, "active"))
    return sum(pipeline.execute())

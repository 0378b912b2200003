"""What ours is compared with: FastStream's stream subscriber in its documented mode, doing nothing with a message.

    python -m tests.bench.plain_consumer REDIS_URL      the consumer's process

One group, one handler after another, entries fetched by the hundred and acknowledged one by one. It gets as many
messages of the same size from as many callers. It keeps no ledger, no order per key and no status: it is the least that
a worker on Redis Streams can do with that library.
"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import redis
import uvloop
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

from tests.bench.process import Meter, fresh_server, frozen, service
from tests.bench.scale import IN_FLIGHT, PATIENCE_S, TEXT, Scale
from tests.bench.traffic import in_flight, session_of
from tests.servers import Server
from tests.waiting import wait_until

MODULE: Final = "tests.bench.plain_consumer"
STREAM: Final = "jobs"
GROUP: Final = "g"
RECORDS_MAX: Final = 100


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """Live and draining, as `end_to_end` does it."""
    with fresh_server() as server, server.client() as client:
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        with service(folder, "faststream", MODULE, server.url) as consumer:
            broker = RedisBroker(server.url, logger=None)  # type: ignore[arg-type] # None is silence, and documented
            await broker.connect()
            await in_flight(IN_FLIGHT, lambda number: _publish(broker, number))
            await consumed(client)
            live = await _consume(scale, server, client, broker, consumer.pid, backlog=False)
            drain = await _consume(scale, server, client, broker, consumer.pid, backlog=True)
            await broker.stop()
    return {
        "faststream_per_s": live["per_s"],
        "faststream_worker_cpu": live["worker"],
        "faststream_store_cpu": live["store"],
        "faststream_producer_cpu": live["producer"],
        "faststream_drain_per_s": drain["per_s"],
    }


async def _publish(broker: RedisBroker, number: int) -> None:
    await broker.publish({"i": number, "key": session_of(number), "payload": TEXT}, stream=STREAM)


async def _consume(
    scale: Scale, server: Server, client: redis.Redis, broker: RedisBroker, pid: int, *, backlog: bool
) -> dict[str, float]:
    count = scale.messages
    with frozen([pid]) if backlog else nullcontext():
        if backlog:
            await in_flight(count, lambda number: _publish(broker, number))
        meter, own, begin = Meter({"worker": pid, "store": server.pid}), time.process_time(), time.monotonic()
    if not backlog:
        await in_flight(count, lambda number: _publish(broker, number))
    own = time.process_time() - own
    await consumed(client)
    per_s = count / (time.monotonic() - begin)
    spent = {name: meter.microseconds(name, count) for name in ("worker", "store")}
    return {**spent, "producer": own / count * 1e6, "per_s": per_s}


async def consumed(client: redis.Redis) -> None:
    """Every entry was handled and acknowledged."""

    def is_consumed() -> bool:
        (group,) = client.xinfo_groups(STREAM)
        return bool(group["pending"] == 0 and group["lag"] == 0)

    await wait_until(is_consumed, PATIENCE_S, "the consumer to be done")


def consume(url: str) -> None:
    """Consume until a signal comes."""
    broker = RedisBroker(url, logger=None)  # type: ignore[arg-type] # None is silence, and documented
    app = FastStream(broker, logger=None)

    @broker.subscriber(stream=StreamSub(STREAM, group=GROUP, consumer=f"c{os.getpid()}", max_records=RECORDS_MAX))
    async def job(message: dict[str, Any]) -> Any:
        return message["i"]

    uvloop.run(app.run())


if __name__ == "__main__":
    consume(sys.argv[1])

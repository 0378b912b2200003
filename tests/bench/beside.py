"""What else the same machine does in the same minute: a plain stream consumer, and the bare function call.

FastStream's consumer gets the same number of messages of the same size from as many callers. It keeps no ledger, no
order per key and no status; it is the least that a worker on Redis Streams can do with that library.
redis-benchmark calls a function that does nothing, and `submit_v1` with the arguments that the product sends.
"""

import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from shutil import which
from typing import Any, Final

import redis
from faststream.redis import RedisBroker

from mailslot_core.redis.functions import Functions
from mailslot_core.redis.store import RedisStore
from tests.bench import faststream_consumer
from tests.bench.faststream_consumer import GROUP, STREAM
from tests.bench.process import Meter, fresh_server, frozen, service, store_settings
from tests.bench.scale import IN_FLIGHT, PATIENCE_S, TEXT, Scale
from tests.bench.traffic import BORN, in_flight, session_of, submission
from tests.bench.weight import PARTITIONS
from tests.servers import Server, ServerMissing
from tests.waiting import wait_until

PIPELINED: Final = 16
UNIQUE: Final = "__rand_int__"  # redis-benchmark puts twelve digits in its place, other ones in every call
UNIQUE_MAX: Final = 2**31 - 1
DEPTH_MAX: Final = 1_000_000_000  # all calls go to one session, whose queue must not get full
NOTHING: Final = "#!lua name=bench_nothing\nredis.register_function('nothing', function(keys, args) return 1 end)\n"


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """Both."""
    return {**await _faststream(scale, folder), **await _calls(scale)}


# -- FastStream ---------------------------------------------------------------------------------------------


async def _faststream(scale: Scale, folder: Path) -> dict[str, float]:
    with fresh_server() as server, server.client() as client:
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        with service(folder, "faststream", faststream_consumer.__name__, server.url) as consumer:
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
    """As `end_to_end.run`."""
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


# -- bare calls ---------------------------------------------------------------------------------------------


async def _calls(scale: Scale) -> dict[str, float]:
    with fresh_server() as server:
        async with RedisStore.connect(store_settings(server)):
            pass  # the functions are loaded
        with server.client() as client:
            client.function_load(NOTHING)
        nothing, submit = ("FCALL", "nothing", 1, "{p00}"), await submit_call()
        return {
            "fcall_per_s": benchmark(server, scale.calls, nothing, pipelined=1),
            "fcall_piped_per_s": benchmark(server, scale.calls, nothing, pipelined=PIPELINED),
            "submit_per_s": benchmark(server, scale.calls, submit, pipelined=1),
            "submit_piped_per_s": benchmark(server, scale.calls, submit, pipelined=PIPELINED),
        }


async def submit_call() -> tuple[Any, ...]:
    """The command that the product sends for a submit, with a messageId that is another one in every call."""
    sent: list[tuple[Any, ...]] = []

    async def call(command: tuple[Any, ...], *, durable: bool = False) -> list[Any]:
        sent.append(command)
        return [b"ok", 1, 0]

    message = submission(UNIQUE)
    # a command line holds no NUL, which is how msgpack writes the depth 0
    await Functions(call, PARTITIONS).submit(session_of(0), message, {**BORN, "depth": 1}, DEPTH_MAX)
    return sent[0]


def benchmark(server: Server, calls: int, command: Sequence[Any], *, pipelined: int) -> float:
    """Calls a second."""
    program = which("redis-benchmark")
    if program is None:
        raise ServerMissing("redis-benchmark is not on PATH: run `apt-get install redis-tools`")
    options = ["-p", server.port, "-c", IN_FLIGHT, "-n", calls, "-P", pipelined, "-r", UNIQUE_MAX, "--csv"]
    words = [word if isinstance(word, bytes) else str(word) for word in (program, *options, *command)]
    said = subprocess.run(words, capture_output=True, check=True, timeout=PATIENCE_S).stdout.decode(errors="replace")
    # --csv: a line of headings, then "<the command, which may hold anything>","<calls a second>","<average ms>",...
    return float(said.strip().rpartition("\n")[2].split('","')[1])

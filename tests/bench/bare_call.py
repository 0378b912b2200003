"""The bare function call: what is left when Python is taken away.

redis-benchmark calls a function that does nothing, and `submit_v1` with the arguments that the product sends, in one
session whose queue grows with every call.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any, Final

from mailslot_core.inbox import Room
from mailslot_core.redis.functions import Functions
from mailslot_core.redis.store import RedisStore
from tests.bench.process import fresh_server, store_settings
from tests.bench.scale import IN_FLIGHT, PATIENCE_S, Scale
from tests.bench.traffic import BORN, session_of, submission
from tests.bench.weight import PARTITIONS
from tests.servers import Server, ServerMissing

PIPELINED: Final = 16
UNIQUE: Final = "__rand_int__"  # redis-benchmark puts twelve digits in its place, other ones in every call
UNIQUE_MAX: Final = 2**31 - 1
ROOM: Final = Room(1_000_000_000, 10**15)  # all calls go to one session, whose queue must not get full
NOTHING: Final = "#!lua name=bench_nothing\nredis.register_function('nothing', function(keys, args) return 1 end)\n"


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
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
    await Functions(call, PARTITIONS).submit(session_of(0), message, {**BORN, "depth": 1}, ROOM)
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

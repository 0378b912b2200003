"""The processes under measurement: the services as users start them, each under a watcher, and what CPU they spent.

Rule 1: whatever is started here ends with the block that started it, and with this process, however that ends.
Rule 2: CPU is counted by the kernel for whole processes, so nothing that a process does is left out.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mailslot_core.settings import StoreSettings
from tests.bench.scale import PATIENCE_S
from tests.servers import Server, free_port, running, watched
from tests.waiting import wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MODULE = "mailslot_services"


# A rewrite of the file starts when it has doubled, in the middle of whatever is measured then, and costs a core.
NO_REWRITE = ("--auto-aof-rewrite-percentage", "0")


@contextmanager
def fresh_server() -> Iterator[Server]:
    """An empty Redis 7.0 with the options that are shipped: an append-only file, written through every second."""
    with running("redis70", aof="everysec", options=NO_REWRITE) as server:
        yield server


@contextmanager
def service(folder: Path, name: str, *words: str) -> Iterator[int]:
    """`python -m <words>` for the length of the block; its process id."""
    with watched([sys.executable, "-m", *words], folder / f"{name}.log") as pid:
        yield pid


@contextmanager
def workers(server: Server, folder: Path, count: int) -> Iterator[list[int]]:
    """So many `mailslot worker`s as they come, with the echo agent; their process ids."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                service(folder, f"worker-{n}", MODULE, "worker", *store_options(server), "--log-level", "warning")
            )
            for n in range(count)
        ]


@contextmanager
def ingest(server: Server, folder: Path) -> Iterator[tuple[int, int]]:
    """`mailslot ingest` on a free port; its process id and the port."""
    port = free_port()
    words = ("ingest", *store_options(server), "--port", str(port), "--log-level", "warning")
    with service(folder, "ingest", MODULE, *words) as pid:
        yield pid, port


@contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """These processes stand still while the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def store_settings(server: Server) -> StoreSettings:
    """How this process itself talks to the store."""
    return StoreSettings(redis_url=server.url, durability="memory")


def store_options(server: Server) -> tuple[str, ...]:
    """Flags that every service takes. `memory` is the level that `mailslot up` states for the shipped options."""
    return ("--redis-url", server.url, "--durability", "memory")


async def workers_ready(server: Server, count: int) -> None:
    """All workers hear the topic on which they are spoken to, which they open before they drive sessions."""
    with server.client() as client:
        await wait_until(
            lambda: len(client.pubsub_channels("mailslot:control:*")) == count, PATIENCE_S, f"{count} workers to start"
        )


class Meter:
    """CPU seconds of some processes since it was made."""

    def __init__(self, pids: Mapping[str, int | list[int]]) -> None:
        self._pids = {name: [pid] if isinstance(pid, int) else pid for name, pid in pids.items()}
        self._before = {name: self._spent(name) for name in self._pids}

    def microseconds(self, name: str, count: int) -> float:
        """CPU microseconds of `name` for each of `count` things."""
        return (self._spent(name) - self._before[name]) / count * 1e6

    def _spent(self, name: str) -> float:
        return sum(cpu_s(pid) for pid in self._pids[name])


def cpu_s(pid: int) -> float:
    """User and system time that a process has spent, in seconds, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

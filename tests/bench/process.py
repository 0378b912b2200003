"""The processes under measurement: the services as users start them, each under a watcher, and what CPU they spent.

Rule 1: whatever is started here ends with the block that started it, and with this process, however that ends.
Rule 2: CPU is counted by the kernel for whole processes, so nothing that a process does is left out.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from mailslot_core.settings import StoreSettings
from tests.bench.scale import PATIENCE_S
from tests.servers import Server, free_port, running, watched
from tests.waiting import wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MODULE = "mailslot_services"
LOG_CHARACTERS = 2_000  # of a service that ended by itself, shown


# A rewrite of the file starts when it has doubled, in the middle of whatever is measured then, and costs a core.
NO_REWRITE = ("--auto-aof-rewrite-percentage", "0")


@contextmanager
def fresh_server() -> Iterator[Server]:
    """An empty Redis 7.0 with the options that are shipped: an append-only file, written through every second."""
    with running("redis70", aof="everysec", options=NO_REWRITE) as server:
        yield server


class Service(NamedTuple):
    """A process that was started."""

    pid: int
    log: Path

    def check(self) -> None:
        """It runs still; what it said last if it does not."""
        assert Path(f"/proc/{self.pid}").exists(), f"{self.log.name} ended: {self.log.read_text()[-LOG_CHARACTERS:]}"


@contextmanager
def service(folder: Path, name: str, *words: str) -> Iterator[Service]:
    """`python -m <words>` for the length of the block."""
    log = folder / f"{name}.log"
    with watched([sys.executable, "-m", *words], log) as pid:
        yield Service(pid, log)


async def ready(services: Sequence[Service], condition: Callable[[], bool], what: str) -> None:
    """The condition holds; at once an error if one of the services ends instead."""

    def holds() -> bool:
        for one in services:
            one.check()
        return condition()

    await wait_until(holds, PATIENCE_S, what)


@asynccontextmanager
async def workers(server: Server, folder: Path, count: int) -> AsyncIterator[list[int]]:
    """So many `mailslot worker`s as they come, with the echo agent, ready; their process ids. They hear the topic on
    which each is spoken to just before they drive sessions."""
    with ExitStack() as stack, server.client() as client:
        words = (MODULE, "worker", *store_options(server), "--log-level", "warning")
        started = [stack.enter_context(service(folder, f"worker-{number}", *words)) for number in range(count)]
        await ready(
            started, lambda: len(client.pubsub_channels("mailslot:control:*")) == count, f"{count} workers to be ready"
        )
        yield [one.pid for one in started]


@asynccontextmanager
async def ingest(server: Server, folder: Path) -> AsyncIterator[tuple[int, int]]:
    """`mailslot ingest` on a free port, ready; its process id and the port."""
    port = free_port()
    words = (MODULE, "ingest", *store_options(server), "--port", str(port), "--log-level", "warning")
    with service(folder, "ingest", *words) as started:
        await ready([started], lambda: _answers(f"http://127.0.0.1:{port}/readyz"), "ingest to be ready")
        yield started.pid, port


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


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


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def cpu_s(pid: int) -> float:
    """User and system time that a process has spent, in seconds, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

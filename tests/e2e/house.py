"""The whole product as real processes, started the way an operator starts them, one command each.

    store (Redis 7.0, AOF always) <── ingest <── doors
                 ^── worker 1, worker 2
                 ^── goals

Rule 1: every process is `mailslot <service>` from the environment's own `bin`, under the watcher of `tests.servers`: it
        dies with the test process, however that ends.
Rule 2: processes are ended by their process ids, never by name.
Rule 3: nothing is looked at from inside: the HTTP doors, `/metrics`, and the store through a connection of its own.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
import redis

from tests.servers import Server, free_port, running, watched
from tests.waiting import wait_until

MAILSLOT: Final = Path(sys.executable).with_name("mailslot")
LEASE_MS: Final = 6_000
"""Short, so that what a killed worker held is taken up soon; long enough for a busy machine to load the weights of the
small model, for which a worker's loop stands still."""
READY_S_MAX: Final = 60.0
STATES: Final = "mailslot:{p*}:s:*:state"
"""The state hashes of all sessions (`mailslot_core.redis.keys`)."""
STATE_FIELDS: Final = ("owner", "phase", "admitted")


@dataclass(frozen=True)
class Process:
    """One running service. `url` answers `/readyz` (ingest) or `/metrics` (the others)."""

    name: str
    pid: int
    url: str
    log: Path

    def kill(self) -> None:
        """End it with -9, by its id."""
        os.kill(self.pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it where it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)


class Seen(NamedTuple):
    """A session from outside. `owner` is `<host>-<pid>-<token>/<slot>` of the worker that drives it, or empty."""

    name: str
    owner: str | None
    phase: str | None
    admitted: str | None

    def is_driven_by(self, worker: Process) -> bool:
        """The worker has its lease and a turn is open."""
        return f"-{worker.pid}-" in (self.owner or "") and self.phase not in {None, "closed"}


@dataclass(frozen=True)
class House:
    """Everything that runs."""

    store: Server
    ingest: Process
    workers: tuple[Process, Process]
    goals: Process

    @property
    def url(self) -> str:
        """Where the HTTP doors are."""
        return self.ingest.url

    def sessions(self) -> list[Seen]:
        """Every session as the store has it now."""
        with redis.Redis.from_url(self.store.url, decode_responses=True) as client:
            return [
                Seen(key.partition(":s:")[2].removesuffix(":state"), *client.hmget(key, STATE_FIELDS))
                for key in client.scan_iter(match=STATES, count=1_000)
            ]


@contextmanager
def running_house(folder: Path, agents: Path) -> Iterator[House]:
    """Store, ingest, two workers and goals for the length of the block."""
    with ExitStack() as stack:
        store = stack.enter_context(running("redis70", aof="always"))

        def start(name: str, service: str, *options: str, port_option: str = "--metrics-port") -> Process:
            port, log = free_port(), folder / f"{name}.log"
            words = [str(MAILSLOT), service, "--redis-url", store.url, port_option, str(port), *options]
            pid = stack.enter_context(watched(words, log))
            return Process(name, pid, f"http://127.0.0.1:{port}", log)

        lease = ("--agents", str(agents), "--lease-ms", str(LEASE_MS), "--sweep-ms", "500")
        yield House(
            store,
            start("ingest", "ingest", port_option="--port"),
            (start("worker-1", "worker", *lease), start("worker-2", "worker", *lease)),
            start("goals", "goals"),
        )


async def all_ready(house: House) -> None:
    """Return when every process says that it is ready."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        for process in (house.ingest, *house.workers, house.goals):
            path = "/readyz" if process is house.ingest else "/metrics"

            async def answers(url: str = process.url + path, process: Process = process) -> bool:
                assert is_alive(process.pid), f"{process.name} ended at its start: {process.log.read_text()[-2000:]}"
                try:
                    return (await client.get(url)).status_code == 200
                except httpx2.TransportError:
                    return False

            await wait_until(answers, READY_S_MAX, f"{process.name} to be ready")


def is_alive(pid: int) -> bool:
    """Whether a process of that id is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter when it goes while it is looked at
        return False

"""What a scenario runs on: a real Redis and real services, each of which can be hurt and started again.

    stand ── store      redis-server, killed with -9 and started again on the same folder
          ├─ ingest…    python -m mailslot_services ingest
          ├─ worker…    python -m mailslot_services worker
          └─ goals…     python -m mailslot_services goals

Rule 1: a process is ended, stopped and let go on by its own id, and dies with the test process whatever happens.
Rule 2: a service may reach the store through a proxy (`store_url`) or from a network of its own (`within`).
Rule 3: leases are short (LEASE_MS), so that recovery is seen in seconds; everything else is as it is shipped.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2
import redis

from tests.chaos.ledger import fenced_writes, running_sessions
from tests.chaos.namespace import Namespace
from tests.e2e.house import is_alive
from tests.servers import BINARIES, Aof, Server, free_port, running, under_watch
from tests.waiting import pace, wait_until

LEASE_MS: Final = 1_500
SWEEP_MS: Final = 400
LOOK_S: Final = 0.02
READY_S_MAX: Final = 60.0
ENDED_S_MAX: Final = 30.0
LOG_CHARACTERS: Final = 3_000
AGENTS: Final = Path(__file__).with_name("agents.toml")
FAKETIME: Final = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DIARY: Final = "CHAOS_DIARY"
"""The environment name of the file into which the tools of `chores.py` write what they did."""


@dataclass(eq=False)
class Service:
    """One service. `start` may be called again after its end; its address stays the same."""

    name: str
    words: Sequence[str]
    url: str
    log: Path
    environment: dict[str, str]
    pid: int = 0
    starts: int = 0
    _watcher: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """The process runs; it may not be ready yet."""
        self.stop()
        with self.log.open("ab") as log:
            self._watcher = subprocess.Popen(
                under_watch(self.words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
                bufsize=0,
            )
        assert self._watcher.stdout is not None
        words = self._watcher.stdout.readline().split()
        assert words, f"{self.name} could not be started: {self.said()}"
        self.pid = int(words[1])
        self.starts += 1

    def stop(self) -> None:
        """End it in order if it runs; a second call does nothing."""
        if self._watcher is None:
            return
        assert self._watcher.stdin is not None
        assert self._watcher.stdout is not None
        self.thaw()
        self._watcher.stdin.close()
        self._watcher.wait()
        self._watcher.stdout.close()
        self._watcher = None

    def kill(self) -> None:
        """End it with -9. Returns when it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        if self._watcher is not None:
            self._watcher.wait()

    def terminate(self) -> None:
        """Ask it to end, as an orchestrator does."""
        os.kill(self.pid, signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it where it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self.is_alive():
            os.kill(self.pid, signal.SIGCONT)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._watcher is not None and is_alive(self.pid)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-LOG_CHARACTERS:]

    async def ended(self) -> None:
        """Return when it is gone."""
        await wait_until(lambda: not self.is_alive(), ENDED_S_MAX, f"{self.name} to end")


@dataclass
class Stand:
    """Everything that runs in one scenario."""

    store: Server
    folder: Path
    client: redis.Redis
    services: list[Service] = field(default_factory=list)
    fenced_before: int = 0
    """Writes refused before this scenario, where several share a stand."""

    def of_kind(self, kind: str) -> list[Service]:
        """The services of a kind: `ingest`, `worker` or `goals`."""
        return [service for service in self.services if service.name.startswith(kind)]

    async def revived(self) -> None:
        """Every service runs and is ready, whatever was done to it."""
        for service in self.services:
            service.thaw()
            if not service.is_alive():
                service.start()
        await ready(*self.services)
        self.fenced_before = fenced_writes(self.client)

    @property
    def diary(self) -> Path:
        """What the tools wrote."""
        return self.folder / "diary"

    def entries(self, word: str = "") -> list[str]:
        """The lines of the diary that begin with a word."""
        if not self.diary.exists():
            return []
        return [line for line in self.diary.read_text().splitlines() if line.startswith(word)]

    def ingest(self, *options: str, store_url: str = "", within: Sequence[str] = (), host: str = "") -> Service:
        """One more ingest, started."""
        address = ("--host", host) if host else ()
        return self._service("ingest", "--port", (*address, *options), store_url, within, host or "127.0.0.1")

    def worker(self, *options: str, agents: Path = AGENTS, store_url: str = "", within: Sequence[str] = ()) -> Service:
        """One more worker, started."""
        lease = ("--agents", str(agents), "--lease-ms", str(LEASE_MS), "--sweep-ms", str(SWEEP_MS))
        return self._service("worker", "--metrics-port", (*lease, *options), store_url, within)

    def goals(self, *options: str, store_url: str = "") -> Service:
        """One more goal service, started."""
        return self._service("goals", "--metrics-port", ("--reconcile-ms", "500", *options), store_url, ())

    def _service(
        self,
        kind: str,
        port_option: str,
        options: Sequence[str],
        store_url: str,
        within: Sequence[str],
        host: str = "127.0.0.1",
    ) -> Service:
        name = f"{kind}-{1 + sum(service.name.startswith(kind) for service in self.services)}"
        port = free_port()
        words = [*within, sys.executable, "-m", "mailslot_services", kind, "--redis-url", store_url or self.store.url]
        words += ["--durability", durability_of(self.store), port_option, str(port), *options]
        service = Service(name, words, f"http://{host}:{port}", self.folder / f"{name}.log", {DIARY: str(self.diary)})
        self.services.append(service)
        service.start()
        return service


def durability_of(store: Server) -> str:
    """The best that this store gives."""
    return "fsync" if store.aof == "always" else "memory"


@contextmanager
def stand(folder: Path, *, aof: Aof = "no", options: Sequence[str] = (), clock: Path | None = None) -> Iterator[Stand]:
    """A store, and whatever the block starts, for the length of the block. With a `clock`, a file that `crooked` reads,
    the store's time is what it says."""
    kept = running("redis70", aof=aof, options=options) if clock is None else crooked(folder, clock)
    with kept as store, store.client() as client:
        own = Stand(store, folder, client)
        try:
            yield own
        finally:
            for service in own.services:
                if service.is_alive():
                    service.thaw()
                    os.kill(service.pid, signal.SIGKILL)  # nothing here needs an orderly end
            for service in own.services:
                service.stop()
            own.store.thaw()


@contextmanager
def passing(own: Stand, *services: Service) -> Iterator[None]:
    """These services are on a shared stand for the length of the block only."""
    try:
        yield
    finally:
        for service in services:
            if service.is_alive():
                service.kill()
            service.stop()
            own.services.remove(service)


@contextmanager
def without_others(own: Stand, *chosen: Service) -> Iterator[None]:
    """No other worker runs for the length of the block."""
    others = [worker for worker in own.of_kind("worker") if worker not in chosen]
    for worker in others:
        worker.freeze()
    try:
        yield
    finally:
        for worker in others:
            worker.thaw()


@contextmanager
def reached_from(own: Stand, network: Namespace) -> Iterator[str]:
    """The store can be reached from the network for the length of the block; its URL there."""
    own.client.config_set("protected-mode", "no")
    own.client.config_set("bind", f"127.0.0.1 {network.host_ip}")
    try:
        yield f"redis://{network.host_ip}:{own.store.port}/0"
    finally:
        own.client.config_set("bind", "127.0.0.1")


@contextmanager
def crooked(folder: Path, clock: Path) -> Iterator[Server]:
    """A Valkey whose wall clock is off by the seconds in a file, `+3600` for an hour ahead. (Its monotonic clock is
    not, and Redis itself does not start under libfaketime.)"""
    clock.write_text("+0")
    wrapper = folder / "crooked-server"
    faked = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": clock,
        "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,
    }
    words = " ".join(f"{name}={value}" for name, value in faked.items())
    wrapper.write_text(f'#!/bin/sh\nexec env {words} {BINARIES["valkey91"]()} "$@"\n')
    wrapper.chmod(0o755)
    store = Server("valkey91", wrapper, folder, free_port())
    try:
        store.start()
        yield store
    finally:
        store.stop()


async def ready(*services: Service, also: Callable[[], bool] = lambda: True) -> None:
    """Return when all of them say that they are ready."""
    async with httpx2.AsyncClient(trust_env=False, timeout=2) as client:
        for service in services:
            path = "/readyz" if service.name.startswith("ingest") else "/metrics"

            async def answers(url: str = service.url + path, service: Service = service) -> bool:
                assert service.is_alive(), f"{service.name} ended at its start: {service.said()}"
                try:
                    return (await client.get(url)).status_code == 200
                except httpx2.TransportError:
                    return False

            await wait_until(answers, READY_S_MAX, f"{service.name} to be ready")
    await wait_until(also, READY_S_MAX, "the services to be ready")


async def attending(own: Stand, *workers: Service) -> None:
    """Return when these workers hear the topic on which each is spoken to, which is just before they drive sessions.
    A worker in a namespace serves its metrics where nobody here can read them."""

    def all_listen() -> bool:
        for worker in workers:
            assert worker.is_alive(), f"{worker.name} ended at its start: {worker.said()}"
        topics = [str(topic) for topic in own.client.pubsub_channels("mailslot:control:*")]
        return all(any(f"-{worker.pid}-" in topic for topic in topics) for worker in workers)

    await wait_until(all_listen, READY_S_MAX, f"{len(workers)} workers to attend")


async def made(client: httpx2.AsyncClient, sessions: Iterable[str], agent: str) -> None:
    """The sessions exist, with this agent."""
    for session in sessions:
        answer = await client.post("/v1/sessions", json={"sessionId": session, "agent": agent})
        assert answer.status_code in {200, 201}, answer.text


async def all_idle(own: Stand, timeout_s: float, *sessions: str) -> None:
    """Return when every session rests, or every one of these."""

    async def rest() -> bool:
        await pace(LOOK_S)  # looking costs the store and this process more than elsewhere
        running = running_sessions(own.client)
        return not (set(running) & set(sessions) if sessions else running)

    await wait_until(rest, timeout_s, "every agent to be idle")

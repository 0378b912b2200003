"""`mailslot up`: the whole product in one terminal, with nothing to configure.

    port free? ──> embedded store ──> ingest, workers, goals ──> all ready ──> screen ──> Ctrl-C
                                          (child processes)                                 │
                   store ends last <── goals <── workers <── ingest <──────── drained in this order

Rule 1: whatever cannot work is said before anything is started, with the option that would help.
Rule 2: the screen says where everything is, what a receipt promises, and what to type next.
Rule 3: a service that dies is reported and started again (`child`); one that cannot be started ends `up`.
Rule 4: Ctrl-C and SIGTERM drain; a second one ends everything at once. Nothing outlives `up`, not even under kill -9.
Rule 5: options reach the services through their environment, so what is set there for one of them counts here too.

With --redis-url there is no embedded store.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from mailslot_core.errors import CoreError, Misconfigured
from mailslot_core.settings import IngestSettings, Port, StoreSettings, WorkerSettings
from mailslot_services.boot import EXIT_FAILED, METRICS_HOST, env_name, parse, run_until_signal
from mailslot_services.child import ChildFailed, Crew, Service
from mailslot_services.embedded import EmbeddedServer, free_port

DESCRIPTION: Final = "Run everything in this terminal: an embedded store and every service. Ctrl-C ends it in order."

START_S_MAX: Final = 60.0
"""How long the services may take until all are ready; a loaded machine needs a few seconds."""
POLL_S: Final = 0.03
"""How often a starting service is asked whether it is ready."""
PATIENCE_S: Final = 3.0
"""How often a start that takes long says what it waits for."""
ANSWER_S_MAX: Final = 2.0
"""How long one question of that kind may take."""
DRAIN_S: Final = 10.0
"""How long ingest and goals may take to end; a worker may take its --drain-ms."""
MARGIN_S: Final = 5.0
"""How much longer than its own drain a worker may take before it is killed."""
PORT_DEFAULT: Final = 8080
AGENTS_DEFAULT: Final = "agents.toml"

RECEIPTS: Final = {
    "memory": "a receipt means: in the store's memory",
    "fsync": "a receipt means: on disk",
    "replicated": "a receipt means: on the store's replicas",
}


class UpSettings(StoreSettings):
    """The options of `mailslot up`, with defaults for one person's machine."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(PORT_DEFAULT, description="port to listen on; 0 takes a free one")
    state_dir: str = Field(".mailslot", description="folder in which the embedded store keeps everything")
    workers: int = Field(1, ge=1, le=64, description="worker processes")
    agents: str = Field("", description="agents.toml; without it ./agents.toml if there is one, else `default` echoes")
    ephemeral: bool = Field(False, description="keep nothing: the embedded store forgets everything at the end")
    redis_url: str = Field("", description="a store of your own; without it an embedded one is started")
    durability: Literal["memory", "fsync", "replicated"] = Field(
        "memory", description="what a receipt promises: memory, fsync (on disk), replicated (on --replicas others)"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="least level of the services' lines that is shown"
    )


@dataclass(frozen=True)
class Probe:
    """Where a service says that it is ready."""

    name: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """As a person would type it."""
        return f"http://{_in_url(self.host)}:{self.port}{self.path}"


@dataclass(frozen=True)
class Plan:
    """Everything that will be started, decided before anything is."""

    settings: UpSettings
    port: int
    agents: str
    services: tuple[Service, ...]
    probes: tuple[Probe, ...]


# -- deciding -----------------------------------------------------------------------------------------------


def checked_port(settings: UpSettings) -> int:
    """The port to listen on, or the refusal that names the option (rule 1)."""
    if settings.port == 0:
        return free_port()
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise CoreError(f"there is no address {settings.host} ({error.strerror}): give another --host") from error
    except OSError as error:
        where = f"port {settings.port} of {settings.host}"
        raise CoreError(f"{where} cannot be used ({os.strerror(error.errno or 0)}): give another --port") from error
    return settings.port


def checked_agents(settings: UpSettings) -> str:
    """The agents file, or "" for none; one that was asked for must be there (rule 1)."""
    path = settings.agents or AGENTS_DEFAULT
    if Path(path).is_file():
        return path
    if settings.agents:
        raise Misconfigured(f"there is no file {settings.agents}: give another --agents")
    return ""


def plan(settings: UpSettings, store_url: str, port: int, agents: str, drain_ms: int) -> Plan:
    """The services, in the order in which they are drained, and where each says that it is ready."""
    common = {env_name(StoreSettings, name): str(getattr(settings, name)) for name in StoreSettings.model_fields}
    common[env_name(StoreSettings, "redis_url")] = store_url
    worker_drain_s = drain_ms / 1000 + MARGIN_S
    doors = {env_name(IngestSettings, "host"): settings.host, env_name(IngestSettings, "port"): str(port)}
    services = [Service("ingest", _words("ingest"), DRAIN_S, {**common, **doors})]
    probes = [Probe("ingest", reachable(settings.host), port, "/readyz")]
    others = [(f"worker {number}", "worker", worker_drain_s) for number in range(1, settings.workers + 1)]
    for name, word, drain_s in [*others, ("goals", "goals", DRAIN_S)]:
        metrics = free_port()
        env = {**common, "MAILSLOT_METRICS_PORT": str(metrics), "MAILSLOT_AGENTS": agents}
        services.append(Service(name, _words(word), drain_s, env))
        probes.append(Probe(name, METRICS_HOST, metrics, "/metrics"))
    return Plan(settings, port, agents, tuple(services), tuple(probes))


def _words(service: str) -> list[str]:
    """The command line of a service. -P: the folder that `up` was called in must not shadow what it imports."""
    return [sys.executable, "-P", "-m", "mailslot_services", service]


def reachable(host: str) -> str:
    """An address to connect to; the wildcards are addresses to listen on only."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# -- telling ------------------------------------------------------------------------------------------------


def tell(sentence: str) -> None:
    """One line on the screen, at once. When nobody reads it any more, the work goes on all the same."""
    with suppress(BrokenPipeError):
        print(sentence, flush=True)


def tell_of(name: str, line: str) -> None:
    """A line about, or of, one service."""
    tell(f"{name:<9}| {line}")


def screen(ready: Plan, store: EmbeddedServer | None, seconds: float) -> str:
    """Rule 2."""
    settings = ready.settings
    base = f"http://{_in_url(reachable(settings.host))}:{ready.port}"
    rows = [
        ("API", f"{base}/v1/sessions"),
        ("docs", f"{base}/docs"),
        ("asyncapi", f"{base}/asyncapi"),
        ("metrics", " ".join([f"{base}/metrics", *(probe.url for probe in ready.probes[1:])])),
        ("store", store_words(settings, store)),
        ("durability", f"{settings.durability}: {RECEIPTS[settings.durability]}{file_words(settings, store)}"),
        ("agents", ready.agents or "`default`, which echoes (no agents.toml here)"),
        ("workers", str(settings.workers)),
    ]
    told = [f"  {name:<11} {words}" for name, words in rows]
    return "\n".join(
        [
            f"\nmailslot is ready ({seconds:.1f} s)\n",
            *told,
            f"\nIn another terminal:\n\n  {hello(settings, ready.port)}\n",
            "Ctrl-C ends everything in order.\n",
        ]
    )


def store_words(settings: UpSettings, store: EmbeddedServer | None) -> str:
    """Where the store is and where it keeps things."""
    if store is None:
        scheme, _, rest = settings.redis_url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"
    return f"{store.url} (embedded Valkey, {'nothing is kept' if settings.ephemeral else f'kept in {store.folder}'})"


def file_words(settings: UpSettings, store: EmbeddedServer | None) -> str:
    """What stands beneath the level: the embedded store writes a file once a second."""
    if store is None:
        return ""
    return "; gone when this ends" if settings.ephemeral else "; on disk within a second (append-only file, everysec)"


def hello(settings: UpSettings, port: int) -> str:
    """A command to copy: with the path when `mailslot` is not on the PATH, with --url when the port is another."""
    beside = Path(sys.executable).with_name("mailslot")
    program = "mailslot"
    if shutil.which("mailslot") is None and beside.exists():
        here = Path.cwd()
        program = str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
    url = f"http://{_in_url(reachable(settings.host))}:{port}"
    option = "" if url == f"http://127.0.0.1:{PORT_DEFAULT}" else f" --url {url}"
    return f'{shlex.quote(program)} run{option} "hello"'


# -- running ------------------------------------------------------------------------------------------------


async def answers(probe: Probe) -> bool:
    """Whether the address answers 200. One request on a connection of its own, which needs no HTTP library."""
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            reader, writer = await asyncio.open_connection(probe.host, probe.port)
            try:
                writer.write(f"GET {probe.path} HTTP/1.0\r\nHost: {_in_url(probe.host)}\r\n\r\n".encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.split()[1:2] == [b"200"]


async def all_ready(probes: Sequence[Probe]) -> None:
    """Return when every service has said that it is ready; says which ones are still waited for."""
    waiting, began, told = list(probes), time.monotonic(), time.monotonic()
    while waiting:
        ready = [probe for probe, yes in zip(waiting, await asyncio.gather(*map(answers, waiting)), strict=True) if yes]
        for probe in ready:
            waiting.remove(probe)
            tell_of(probe.name, f"ready ({time.monotonic() - began:.1f} s)")
        names = ", ".join(probe.name for probe in waiting)
        if waiting and time.monotonic() - began > START_S_MAX:
            raise CoreError(f"{names} did not say `ready` within {START_S_MAX:.0f} s")
        if waiting and time.monotonic() - told > PATIENCE_S:
            told = time.monotonic()
            tell(f"waiting for {names} ({told - began:.0f} s)")
        await asyncio.sleep(POLL_S if waiting else 0)


@asynccontextmanager
async def store_of(settings: UpSettings) -> AsyncIterator[EmbeddedServer | None]:
    """The embedded store, None when there is one already."""
    if settings.redis_url:
        yield None
        return
    async with EmbeddedServer(Path(settings.state_dir), ephemeral=settings.ephemeral, progress=tell) as store:
        yield store


async def first_of(*awaitables: Coroutine[Any, Any, object]) -> None:
    """Wait until the first one is done and raise what it raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


async def store_end(store: EmbeddedServer | None) -> None:
    """Raises when the embedded store ends by itself; nothing can go on without it."""
    if store is None:
        await asyncio.Event().wait()
    else:
        await store.wait()
        raise CoreError(f"the embedded store ended by itself; its log is in {store.folder}")


async def serve(planned: Plan, store: EmbeddedServer | None, stop: asyncio.Event, began: float) -> None:
    """Run the services until one of them, the store or a signal says that it is over."""
    crew = Crew(planned.services, tell_of)
    tell(f"starting {', '.join(service.name for service in planned.services)}")
    crew.start()
    try:
        await first_of(all_ready(planned.probes), stop.wait(), crew.failure(), store_end(store))
        if not stop.is_set():
            crew.all_ready()
            tell(screen(planned, store, time.monotonic() - began))
            await first_of(stop.wait(), crew.failure(), store_end(store))
        tell("ending in order: ingest, workers, goals, store (Ctrl-C again ends them at once)")
        await crew.drain()
    except ChildFailed:
        await crew.drain()
        raise
    finally:
        await crew.kill()  # after an orderly end there is nobody left


async def household(settings: UpSettings, port: int, agents: str, drain_ms: int, stop: asyncio.Event) -> None:
    """The store around the services."""
    began = time.monotonic()
    async with store_of(settings) as store:
        store_url = store.url if store else settings.redis_url
        await serve(plan(settings, store_url, port, agents, drain_ms), store, stop, began)
    tell("ended")


def command(argv: Sequence[str]) -> int:
    """`mailslot up`: check, start, wait, drain; the exit code."""
    prog = "mailslot up"
    settings = parse(UpSettings, argv, prog=prog, description=DESCRIPTION)
    drain_ms = parse(WorkerSettings, [], prog=prog, description="").drain_ms
    try:
        port, agents = checked_port(settings), checked_agents(settings)
    except CoreError as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return EXIT_FAILED
    return run_until_signal(lambda stop: household(settings, port, agents, drain_ms, stop))

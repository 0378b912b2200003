"""Event streams: how many events a second reach 1, 100 and 1,000 subscribers, and what an open stream weighs.

    submit --> store --notices, ledger--> [ ingest ] --SSE--> listeners
                 +-----notices alone----> [ plain  ] --SSE--> listeners      beside, in the same round

Both sides get the same events from the same submits; the plain one (`plain_streams`) passes the notices on and knows
nothing else. Events are sent by this process, never more than AHEAD ahead of the slowest stream; the clock stops when
every stream has brought every event, which is counted (`listeners`). So a figure is of events that everybody got, and
no stream falls behind its buffer. With a single stream the submits are the limit, so its CPU says more than its rate.

Memory is the server's resident set before and after the many streams are open and have brought an event, divided by
their number: buffers of the kernel are not in it, everything else is.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from mailslot_core.inbox import Submission
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Lane
from mailslot_core.settings import StoreSettings
from tests.bench import plain_streams
from tests.bench.listeners import MARKED_TEXT, Listeners, listeners
from tests.bench.process import Meter, fresh_server, ingest, ready, resident_bytes, service
from tests.bench.scale import IN_FLIGHT, Scale
from tests.bench.traffic import BORN, in_flight, message_of, submission
from tests.servers import Server, free_port

AHEAD: Final = IN_FLIGHT
"""Events that may be on their way to the slowest stream of a session; far less than its buffer holds."""

WARM_EVENTS: Final = 3
"""Events that every stream has brought before the clock runs: all of them are live by then."""

EVENTS_MAX: Final = 10_000
"""Events for one session. Injected context waits for a turn, which never comes here, and a queue has its limit."""

ROOMY: Final[dict[str, Any]] = {
    "durability": "memory",
    "pending_max": 2 * EVENTS_MAX,
    "pending_bytes_max": EVENTS_MAX * 4_096,
}


class Process(NamedTuple):
    """A server that streams events."""

    pid: int
    port: int


class Side(NamedTuple):
    """One of the two servers under measurement, and the store that it gets its events from."""

    prefix: str
    store: RedisStore
    process: Process

    async def send(self, session_id: str, number: int) -> None:
        """One event."""
        await self.store.submit(session_id, context(number), BORN)


class Case(NamedTuple):
    """So many streams on so many sessions."""

    name: str
    streams: int
    sessions: int


def cases(scale: Scale) -> tuple[Case, ...]:
    """In this order: memory is weighed in the second, when the process is warm and has not held many streams before."""
    some, many, sessions = scale.streams
    return Case("1", 1, 1), Case("many", many, 1), Case("some", some, 1), Case("spread", many, sessions)


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """Ours, and the plain loop beside it."""
    found: dict[str, float] = {}
    for prefix, started in (("sse", ours), ("plain", plain)):
        with fresh_server() as server:
            settings = StoreSettings(redis_url=server.url, **ROOMY)
            async with started(server, folder) as process, RedisStore.connect(settings) as store:
                for case in cases(scale):
                    found |= await measured(scale, Side(prefix, store, process), case)
    return found


# -- both sides ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def ours(server: Server, folder: Path) -> AsyncIterator[Process]:
    """`mailslot ingest`, as it is shipped."""
    async with ingest(server, folder) as (pid, port):
        yield Process(pid, port)


@asynccontextmanager
async def plain(server: Server, folder: Path) -> AsyncIterator[Process]:
    """The plain loop, once it hears the topics."""
    port = free_port()
    words = (plain_streams.MODULE, server.url, str(port))
    with server.client() as client, service(folder, "plain", *words) as started:
        await ready([started], lambda: client.pubsub_numpat() > 0, "the plain loop to listen")
        yield Process(started.pid, port)


def context(number: int) -> Submission:
    """Injected context: one event, and nothing follows from it."""
    made = submission(message_of(number), MARKED_TEXT)
    return replace(made, lane=Lane.NEXT_STEP, wake=False, data={**made.data, "lane": "next-step", "wake": False})


# -- one case -----------------------------------------------------------------------------------------------


async def measured(scale: Scale, side: Side, case: Case) -> dict[str, float]:
    """Deliveries a second and CPU a delivery; with many streams, bytes a stream too."""
    each = min(max(scale.deliveries // case.streams, 1), EVENTS_MAX)
    count = each * case.sessions
    sessions = [f"{case.name}-{number}" for number in range(case.sessions)]
    for session_id in sessions:
        await side.store.create(session_id, BORN)
    paths = [f"/v1/sessions/{sessions[n % case.sessions]}/events?after=1" for n in range(case.streams)]
    name, found = f"{side.prefix}_{case.name}", dict[str, float]()
    async with listeners(side.process.port) as streams:
        before = resident_bytes(side.process.pid)
        await streams.open(paths)
        await sent(side, streams, sessions, 0, WARM_EVENTS * case.sessions)
        if case.name == "many":
            found[f"{side.prefix}_stream_bytes"] = (resident_bytes(side.process.pid) - before) / case.streams
        warm = streams.slowest
        meter, own, begin = Meter({"server": side.process.pid}), time.process_time(), time.monotonic()
        await sent(side, streams, sessions, warm * case.sessions, count)
        lasted, own = time.monotonic() - begin, time.process_time() - own
        deliveries = each * case.streams
        found[f"{name}_per_s"] = deliveries / lasted
        found[f"{name}_cpu"] = meter.microseconds("server", deliveries)
        if case.streams > 1:
            found[f"{name}_listener_cpu"] = own / deliveries * 1e6
    return found


async def sent(side: Side, streams: Listeners, sessions: list[str], first: int, count: int) -> None:
    """`count` events, in turn over the sessions, never far ahead of the slowest stream; return when all were heard."""

    async def send(number: int) -> None:
        place = first + number
        await streams.heard(max(0, place // len(sessions) + 1 - AHEAD))
        await side.send(sessions[place % len(sessions)], place)

    await in_flight(count, send, callers=AHEAD)
    total = (first + count) // len(sessions)
    await streams.heard(total)
    streams.check(total)

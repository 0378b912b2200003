"""A resume storm: clients whose streams are cut and resumed again and again while events are appended.

    paced submits --> store --> [ ingest ] --SSE--> 200 clients      raw: bare sockets, `Last-Event-ID`
       one hot session, and          ^  cut, resume  |               sdk: `session.events()` behind a proxy that cuts
       many that are quiet           +---------------+

Rule 1: every client must have had every event of its session once, in order, when the storm is over. It is asserted: a
        figure of a storm that lost or repeated something does not exist.
Rule 2: a raw stream ends after a random number of bytes or a random time, whichever comes first, mostly within a frame.
        Half a frame is none. The proxy does the same to the SDK's, and now and then cuts all of them at once.
Rule 3: latency is from just before the submit to the arrival at a client, by this process's clock; the time that its
        stream was down is in it.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, cast

from mailslot import AsyncClient, Settings
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Store
from mailslot_core.task import end
from tests.bench.figure import percentile
from tests.bench.process import fresh_server, ingest
from tests.bench.scale import PATIENCE_S, Scale
from tests.bench.streams import ROOMY, context
from tests.bench.traffic import BORN, paced
from tests.chaos.proxy import Proxy, proxy_to
from tests.waiting import pace, wait_until

FRAME: Final = re.compile(rb"id: (\d+)\nevent: [a-z.]+\ndata: [^\n]*\n\n")
"""A whole frame with an id. The server never splits one over two chunks of the answer's transfer coding."""

STREAM_BYTES_MAX: Final = 256 * 1024
STREAM_S_MAX: Final = 2.0
"""After its first byte: who hung up before would load a busy server without ever getting anything."""

ALL_AT_ONCE_S: Final = (0.1, 1.5)
"""Between two cuts of everything that the proxy has open; the first comes after the shorter time."""
CATCH_UP_S: Final = 2 * PATIENCE_S
"""How long after the last event clients may take, where the machine could not keep up; the figures show it then."""

TIRELESS: Final = Settings(reconnects_max=1_000_000, backoff_first_ms=1, backoff_max_ms=20)


class Plan(NamedTuple):
    """How big a storm is."""

    clients: int
    per_s: int
    """Events appended a second, all sessions together."""
    seconds: float
    hot_share: float = 0.1
    """Part of the clients, and part of the events, that the hot session has; the others have the rest in turn."""


@dataclass
class Client:
    """What one client has got: seqs, and when."""

    session_id: str
    seqs: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    opened_s: list[float] = field(default_factory=list)
    """How long each of its streams took from the connect to the first byte."""

    def got(self, seq: int) -> None:
        """One event."""
        self.seqs.append(seq)
        self.times.append(time.monotonic())


Reading = Callable[[int, Sequence[Client], random.Random], "contextlib.AbstractAsyncContextManager[Faults]"]


@dataclass
class Faults:
    """How many streams were cut."""

    count: Callable[[], int]


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """A storm of raw clients, then one of SDK clients."""
    found: dict[str, float] = {}
    plan = Plan(clients=scale.storm_clients, per_s=scale.storm_per_s, seconds=scale.paced_s)
    with fresh_server() as server:
        settings = StoreSettings(redis_url=server.url, **ROOMY)
        async with ingest(server, folder) as (_, port), RedisStore.connect(settings) as store:
            for kind, reading in (("raw", by_hand), ("sdk", by_sdk)):
                figures = await storm(store, port, plan, reading, random.Random(kind), group=kind)
                found |= {f"storm_{kind}_{name}": value for name, value in figures.items()}
    return found


async def storm(
    store: Store, port: int, plan: Plan, reading: Reading, rng: random.Random, group: str
) -> dict[str, float]:
    """Figures of a storm in which nobody missed anything and nobody had anything twice (rule 1)."""
    hot = max(1, round(plan.clients * plan.hot_share))
    sessions = [f"{group}-hot", *(f"{group}-{number}" for number in range(plan.clients - hot))]
    clients = [Client(sessions[0]) for _ in range(hot)] + [Client(name) for name in sessions[1:]]
    for session_id in sessions:
        await store.create(session_id, BORN)
    sent: dict[tuple[str, int], float] = {}

    async def send(number: int) -> None:
        is_hot = number % round(1 / plan.hot_share) == 0
        session_id = sessions[0] if is_hot else sessions[1 + number % (len(sessions) - 1)]
        began = time.monotonic()
        receipt = await store.submit(session_id, context(number), BORN)
        sent[session_id, receipt.cursor] = began

    newest = dict.fromkeys(sessions, 1)
    async with reading(port, clients, rng) as faults:
        await wait_until(lambda: all(client.seqs for client in clients), PATIENCE_S, "every client to read")
        began = time.monotonic()
        await paced(round(plan.per_s * plan.seconds), plan.per_s, send)
        lasted = time.monotonic() - began
        for session_id, seq in sent:
            newest[session_id] = max(newest[session_id], seq)
        await wait_until(
            lambda: all(client.seqs[-1] >= newest[client.session_id] for client in clients),
            CATCH_UP_S,
            "every client to have had everything",
        )
        cuts = faults.count()
    for client in clients:
        assert client.seqs == list(range(1, newest[client.session_id] + 1)), f"{client.session_id}: {client.seqs}"
    return _figures(clients, sent, cuts, lasted)


def _figures(
    clients: Sequence[Client], sent: dict[tuple[str, int], float], cuts: int, lasted: float
) -> dict[str, float]:
    took = [
        when - sent[client.session_id, seq]
        for client in clients
        for seq, when in zip(client.seqs, client.times, strict=True)
        if seq > 1
    ]
    opened = [seconds for client in clients for seconds in client.opened_s]
    found = {
        "appended_per_s": len(sent) / lasted,
        "delivered_per_s": len(took) / lasted,
        "cuts_per_s": cuts / lasted,
        "p50": percentile(took, 0.5) * 1000,
        "p99": percentile(took, 0.99) * 1000,
    }
    if opened:
        found["open_p50"], found["open_p99"] = percentile(opened, 0.5) * 1000, percentile(opened, 0.99) * 1000
    return found


# -- by hand ------------------------------------------------------------------------------------------------


class Stream(asyncio.Protocol):
    """One stream of one client, until so many bytes have come."""

    def __init__(self, client: Client, left_bytes: int) -> None:
        self.opened = asyncio.get_running_loop().create_future()
        self.over = asyncio.get_running_loop().create_future()
        self._client = client
        self._left_bytes = left_bytes
        self._rest = b""
        self._began = time.monotonic()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for what comes after the last event."""
        self._transport = cast("asyncio.Transport", transport)
        last = self._client.seqs[-1] if self._client.seqs else 0
        head = f"GET /v1/sessions/{self._client.session_id}/events HTTP/1.1\r\nHost: h\r\nLast-Event-ID: {last}\r\n\r\n"
        self._transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        """Whole frames of what may still come."""
        if self.over.done():
            return
        if not self.opened.done():
            assert data.startswith(b"HTTP/1.1 200 "), data[:300]
            self.opened.set_result(None)
            self._client.opened_s.append(time.monotonic() - self._began)
        place, text = 0, self._rest + data[: self._left_bytes]
        for frame in FRAME.finditer(text):
            self._client.got(int(frame[1]))
            place = frame.end()
        self._rest = text[place:]
        self._left_bytes -= len(data)
        if self._left_bytes <= 0:
            self.cut()

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        for future in (self.opened, self.over):
            if not future.done():
                future.set_result(None)

    def cut(self) -> None:
        """Hang up in the middle of whatever comes."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)


@asynccontextmanager
async def by_hand(port: int, clients: Sequence[Client], rng: random.Random) -> AsyncIterator[Faults]:
    """Bare sockets that know nothing but `Last-Event-ID`."""
    cuts = 0

    async def read(client: Client) -> None:
        nonlocal cuts
        loop = asyncio.get_running_loop()
        while True:
            left_bytes = rng.randrange(1, STREAM_BYTES_MAX)
            _, stream = await loop.create_connection(lambda left=left_bytes: Stream(client, left), "127.0.0.1", port)  # type: ignore[misc]
            try:
                await asyncio.wait({stream.opened})
                await asyncio.wait({stream.over}, timeout=rng.uniform(0, STREAM_S_MAX))
            finally:
                stream.cut()
            cuts += 1

    async with _running([read(client) for client in clients]):
        yield Faults(lambda: cuts)


# -- by the SDK ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def by_sdk(port: int, clients: Sequence[Client], rng: random.Random) -> AsyncIterator[Faults]:
    """SDK clients, each with connections of its own, behind a proxy that cuts."""

    async def read(client: Client, sdk: AsyncClient) -> None:
        async for event in sdk.session(client.session_id).events():
            client.got(event.seq)

    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(proxy_to(port, rng=rng))
        line.cut_after_bytes = STREAM_BYTES_MAX
        sdks = [await stack.enter_async_context(AsyncClient(line.http_url, settings=TIRELESS)) for _ in clients]
        reads = [read(client, sdk) for client, sdk in zip(clients, sdks, strict=True)]
        await stack.enter_async_context(_running([*reads, _cut_all(line, rng)]))
        yield Faults(lambda: line.faults)


async def _cut_all(line: Proxy, rng: random.Random) -> None:
    await pace(ALL_AT_ONCE_S[0])
    while True:
        line.cut()
        await pace(rng.uniform(*ALL_AT_ONCE_S))


@asynccontextmanager
async def _running(reads: Sequence[Awaitable[None]]) -> AsyncIterator[None]:
    """These run until the block ends; one that fails fails the block."""
    tasks = [asyncio.ensure_future(one) for one in reads]
    try:
        yield
        for task in tasks:
            assert not task.done(), f"a client gave up: {task}"
    finally:
        await end(*tasks)

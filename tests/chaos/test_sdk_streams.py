"""What the SDK gives of a session is what is in its ledger, whatever lies between: each once, in order, unharmed."""

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import httpx2
import pytest

from mailslot import AsyncClient, Client, Settings
from mailslot.event import Event
from mailslot_contracts.channels import STATUS_CHANNEL, event_channel
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_core.task import end
from tests.bench import storm
from tests.bench.storm import Plan, Reading, by_hand, by_sdk
from tests.bench.streams import context
from tests.bench.traffic import BORN
from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import ledger
from tests.chaos.proxy import Link, Proxy, write
from tests.chaos.stand import Stand, passing, ready
from tests.chaos.test_streams import HEARTBEAT_MS, deaf_ingest, port_of
from tests.chaos.trial import hold_trial
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PATIENCE_S: Final = 60.0
TIRELESS: Final = Settings(reconnects_max=1_000_000, backoff_first_ms=1, backoff_max_ms=2)
HOSTILE: Final = (
    "line\u2028separator, paragraph\u2029separator, next\u0085line",
    "carriage\rreturn, both\r\n, form\x0cfeed, \x1c\x1d\x1e, tab\t, nothing\x00",
    "data: {}\n\nid: 99999\nevent: session.gap\ndata: {}\n\n",
    "\r\n0\r\n\r\n",
    "\ufeff你好 🙂 e\u0301 \U0010ffff \u202e right to left",
)
HUGE: Final = "🙂é\u2028" * 90_000
DRIPPED_BYTES: Final = 8_000
PIECE_BYTES_MAX: Final = 3_000
CUTS: Final = 90
STRANGE: Final = (b"", b"hello", b"\x01", b"\x01\x90", b"\x01\xc1", b"\x01\x80", b"\x01\x81\xa1a\x01", b"\x02\x80")
"""No notices: no frame, no value, no map, no session, another version."""

WHOLE: Final = 2**40
"""More bytes than any stream here has."""


# -- who reads ----------------------------------------------------------------------------------------------

Reader = Callable[[str, str, int, Settings], Awaitable[list[Event]]]


async def by_async_client(url: str, session: str, newest: int, settings: Settings = TIRELESS) -> list[Event]:
    """Every event up to a seq, by the asynchronous client."""
    async with AsyncClient(url, settings=settings) as client, asyncio.timeout(PATIENCE_S):
        found = []
        async for event in client.session(session).events():
            found.append(event)
            if event.seq >= newest:
                break
        return found


async def by_client(url: str, session: str, newest: int, settings: Settings = TIRELESS) -> list[Event]:
    """Likewise by the synchronous one, in a thread of its own."""

    def read() -> list[Event]:
        found = []
        with Client(url, settings=settings) as client, contextlib.closing(client.session(session).events()) as events:
            for event in events:
                found.append(event)
                if event.seq >= newest:
                    break
        return found

    return await asyncio.wait_for(asyncio.to_thread(read), PATIENCE_S)


readers = pytest.mark.parametrize("read", [by_client, by_async_client], ids=["sync", "async"])


# -- what lies between --------------------------------------------------------------------------------------


class Limits(random.Random):
    """Says after how many bytes the next connection is cut: the numbers given, one after the other, then never."""

    def __init__(self, *limits: int) -> None:
        super().__init__(0)
        self.left = list(limits)
        self.asked = 0

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        self.asked += 1
        return self.left.pop(0) if self.left else WHOLE


class Dripping(Proxy):
    """Passes on the beginning of each connection byte by byte, and the rest in small pieces of any length."""

    dripped = 0

    async def _down_within(self, link: Link, chunk: bytes) -> bool:
        place = 0
        while place < len(chunk):
            size = 1 if self.dripped < DRIPPED_BYTES else self._rng.randrange(1, PIECE_BYTES_MAX)
            await write(link.client, chunk[place : place + size])
            await asyncio.sleep(0)  # so that whoever reads sees it before there is more
            place += size
            self.dripped += size
        return True


def faithful(calm: Stand, session: str, events: Sequence[Event]) -> None:
    """What was given is the ledger from its beginning."""
    facts = ledger(calm.client, session)[: len(events)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [(event.type, event.data) for event in events] == [(fact.type, fact.data) for fact in facts]


async def said(calm: Stand, history: History, session: str, texts: Sequence[str]) -> int:
    """These texts are in the session's ledger and in nobody's way; its newest seq."""
    async with http(calm.services[0].url) as client:
        for text in texts:
            await history.surely(client, session, text, delivery="inject")
    return ledger(calm.client, session)[-1].seq


def texts_of(events: Sequence[Event]) -> list[str]:
    return [event.data["content"][0]["text"] for event in events if event.type == "inbox/queued"]


# -- scenarios ----------------------------------------------------------------------------------------------


@readers
async def test_no_character_is_harmed_when_a_stream_comes_byte_by_byte(
    calm: Stand, figure: Figure, rng: random.Random, read: Reader
) -> None:
    """T15 (upstash/realtime#23): separators that some take for line ends, frames within frames, and an event of a
    megabyte, through a line that gives a byte at a time."""
    history, session = History(), f"T15-drip-{read.__name__}"
    newest = await said(calm, history, session, (*HOSTILE, HUGE))
    line = Dripping(port_of(calm.services[0].url), rng=rng)
    await line.listen()
    try:
        events = await read(line.http_url, session, newest, TIRELESS)
    finally:
        await line.close()
    assert line.dripped > DRIPPED_BYTES
    faithful(calm, session, events)
    assert texts_of(events) == [*HOSTILE, HUGE]
    hold_trial(calm, history, figure, sessions=session, at_rest=False)


@readers
async def test_a_stream_cut_within_a_frame_a_character_or_a_line_end_goes_on_as_if_it_had_not_been(
    calm: Stand, figure: Figure, rng: random.Random, read: Reader
) -> None:
    """T15 (upstash/realtime#23): the line is cut after each CR of the transfer coding, within each character of several
    bytes, and at random bytes, from the head on."""
    history, session = History(), f"T15-cut-{read.__name__}"
    newest = await said(calm, history, session, HOSTILE)
    raw = await answer_of(calm.services[0].url, session, newest)
    within_line_end = [place for place in range(1, len(raw)) if raw[place - 1 : place + 1] == b"\r\n"]
    within_character = [place for place in range(1, len(raw)) if 0x80 <= raw[place] < 0xC0]
    assert within_line_end
    assert within_character
    places = [*within_line_end, *within_character, *rng.sample(range(1, len(raw)), CUTS)]
    for place in rng.sample(places, CUTS):
        limits = Limits(place)
        line = Proxy(port_of(calm.services[0].url), rng=limits)
        line.cut_after_bytes = WHOLE
        await line.listen()
        try:
            events = await read(line.http_url, session, newest, TIRELESS)
        finally:
            await line.close()
        assert limits.asked > 1, f"it was cut at byte {place} and came back"
        figure.fault()
        faithful(calm, session, events)
        assert texts_of(events) == list(HOSTILE)
    hold_trial(calm, history, figure, sessions=session, at_rest=False)


async def answer_of(url: str, session: str, newest: int) -> bytes:
    """A stream's bytes as they come over the line, up to the frame of a seq."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    writer.write(f"GET /v1/sessions/{session}/events?after=0 HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    raw = b""
    async with asyncio.timeout(PATIENCE_S):
        while b"\nid: %d\n" % newest not in raw:
            raw += await reader.read(65_536)
    writer.transport.abort()
    return raw[: raw.index(b"\nid: %d\n" % newest)]


@pytest.mark.parametrize(
    ("reading", "heard"),
    [(by_hand, True), (by_sdk, True), (by_sdk, False)],
    ids=["bare", "sdk", "sdk-no-notice"],
)
async def test_clients_that_are_cut_while_events_pour_in_see_each_of_them_once(
    calm: Stand, figure: Figure, rng: random.Random, reading: Reading, heard: bool
) -> None:
    """T15 (upstash/realtime#23): a storm on a hot session and many quiet ones, with every notice and with none."""
    group = f"T15-pour-{reading.__name__}-{heard}"
    plan = Plan(clients=50, per_s=500, seconds=3.0) if heard else Plan(clients=20, per_s=100, seconds=1.5)
    settings = StoreSettings(redis_url=calm.store.url, durability="memory")
    async with contextlib.AsyncExitStack() as stack:
        ingest = calm.services[0] if heard else await stack.enter_async_context(deaf_ingest(calm))
        store = await stack.enter_async_context(RedisStore.connect(settings))
        found = await storm.storm(store, port_of(ingest.url), plan, reading, rng, group)
    figure.fault(round(found["cuts_per_s"] * plan.seconds))
    assert found["cuts_per_s"] * plan.seconds >= plan.clients / 2, "they were cut again and again"
    hold_trial(calm, History(), figure, sessions=group, at_rest=False)


@pytest.mark.parametrize("sessions", [1, 1_000], ids=["one-session", "many-sessions"])
async def test_a_thousand_streams_of_one_process_each_have_every_event_once(
    calm: Stand, figure: Figure, sessions: int
) -> None:
    """T15 (upstash/realtime#23): a thousand readers at once, all of one session, or each of its own."""
    names = [f"T15-thousand-{sessions}-{number}" for number in range(sessions)]
    clients = [storm.Client(names[number % sessions]) for number in range(1_000)]
    loop, port = asyncio.get_running_loop(), port_of(calm.services[0].url)
    async with RedisStore.connect(StoreSettings(redis_url=calm.store.url, durability="memory")) as store:
        await asyncio.gather(*(store.create(name, BORN) for name in names))
        streams = []
        for client in clients:
            made = storm.Stream(client, WHOLE)
            await loop.create_connection(lambda made=made: made, "127.0.0.1", port)  # type: ignore[misc]
            streams.append(made)
        await wait_until(lambda: all(client.seqs for client in clients), PATIENCE_S, "every stream to have begun")
        more = 10 if sessions == 1 else 1
        for number in range(more):
            await asyncio.gather(*(store.submit(name, context(number), BORN) for name in names))
        expected = list(range(1, more + 2))
        await wait_until(
            lambda: all(len(client.seqs) >= more + 1 for client in clients), PATIENCE_S, "every stream to be through"
        )
    assert all(client.seqs == expected for client in clients)
    for stream in streams:
        stream.cut()
    figure.operations += sessions * more


@readers
async def test_a_quiet_stream_lives_by_its_heartbeats_and_a_dead_one_is_left(
    calm: Stand, figure: Figure, read: Reader
) -> None:
    """T15 (PostHog PR101104): nothing but heartbeats for three times as long as a client bears silence: it stays.
    Nothing at all: it comes back over a new connection. No notice is heard in all this."""
    history, session = History(), f"T15-beats-{read.__name__}"
    first = await said(calm, history, session, ["first"])
    silence_s = 5 * HEARTBEAT_MS / 1000
    patience = Settings(reconnects_max=1_000_000, backoff_first_ms=1, backoff_max_ms=20, silence_timeout_s=silence_s)
    async with deaf_ingest(calm) as ingest:
        limits = Limits()
        line = Proxy(port_of(ingest.url), rng=limits)
        line.cut_after_bytes = WHOLE
        await line.listen()
        reading = asyncio.ensure_future(read(line.http_url, session, first + 2, patience))
        try:
            loop = asyncio.get_running_loop()
            until = loop.time() + 3 * silence_s
            await wait_until(lambda: loop.time() > until, PATIENCE_S, "a long quiet time to pass")
            assert limits.asked == 1, "one stream for all of it"
            assert await said(calm, history, session, ["second"]) == first + 1
            line.stall()
            figure.fault()
            await wait_until(lambda: limits.asked > 1, PATIENCE_S, "the silent stream to be left")
            assert await said(calm, history, session, ["third"]) == first + 2
            line.flow()
            events = await reading
        finally:
            await end(reading)
            await line.close()
    faithful(calm, session, events)
    assert texts_of(events) == ["first", "second", "third"]
    hold_trial(calm, history, figure, sessions=session, at_rest=False)


async def test_a_client_that_takes_its_time_is_closed_and_still_given_everything(calm: Stand, figure: Figure) -> None:
    """T15 (upstash/realtime#23): who iterates slowly falls behind the server's buffer. It does not notice."""
    history, session = History(), "T15-slow"
    await said(calm, history, session, ["first"])
    async with deaf_ingest(calm) as ingest, AsyncClient(ingest.url, settings=TIRELESS) as sdk:
        stream = sdk.session(session).events()
        events = [await anext(stream)]
        newest = await said(calm, history, session, ["x" * 200_000] * 50)
        read = "mailslot_ingest_events_read_total"
        await wait_until(lambda: sample(ingest.url, read, newest - 2), PATIENCE_S, "ingest to have read all of it")
        figure.fault()
        async with asyncio.timeout(PATIENCE_S):
            async for event in stream:
                events.append(event)
                if event.seq == newest:
                    break
        await stream.aclose()
        ended = 'mailslot_ingest_streams_ended_total{why="overflow"}'
        assert await sample(ingest.url, ended, 1), "it was closed in between"
    faithful(calm, session, events)
    assert events[-1].seq == newest
    hold_trial(calm, history, figure, sessions=session, at_rest=False)


async def sample(url: str, name: str, least: int) -> bool:
    """Whether a sample of this ingest has come to so much."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"{url}/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return found is not None and float(found[1]) >= least


async def test_words_of_strangers_on_a_topic_do_not_end_the_listening(calm: Stand, figure: Figure) -> None:
    """T15 (upstash/realtime#23): anybody may publish to a topic. An ingest that looks at ledgers of itself once in ten
    minutes hears the next notice all the same."""
    history, session = History(), "T15-strangers"
    await said(calm, history, session, ["first"])
    ingest = calm.ingest("--poll-ms", "600000")
    with passing(calm, ingest):
        await ready(ingest)
        async with AsyncClient(ingest.url) as sdk, asyncio.timeout(PATIENCE_S):
            stream = sdk.session(session).events()
            events = [await anext(stream), await anext(stream)]
            for words in (
                b"",
                b"hello",
                b"\x01",
                b"\x01\x90",
                b"\x01\xc1",
                b"\x01\x80",
                b"\x01\x81\xa1a\x01",
                b"\x02\x80",
            ):
                for topic in (STATUS_CHANNEL, event_channel(session)):
                    calm.client.publish(topic, words)
                    figure.fault()
            await said(calm, history, session, ["second"])
            events.append(await anext(stream))
            await stream.aclose()
    faithful(calm, session, events)
    hold_trial(calm, history, figure, sessions=session, at_rest=False)

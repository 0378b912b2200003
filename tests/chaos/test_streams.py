"""Readers of a session never miss an event in silence, however often their line is cut."""

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from mailslot import AsyncClient, CursorExpired, Settings
from mailslot_core.task import end
from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import key_of, ledger
from tests.chaos.proxy import Proxy, proxy_to
from tests.chaos.stand import Service, Stand, all_idle, made, passing, ready
from tests.chaos.trial import hold_trial
from tests.waiting import pace, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

READERS: Final = 2
MESSAGES: Final = 30
CUT_AFTER_BYTES: Final = 4_000
PATIENCE_S: Final = 60.0
TIRELESS: Final = Settings(reconnects_max=10_000, backoff_first_ms=1, backoff_max_ms=20, attempts_max=10_000)
HEARTBEAT_MS: Final = 100
QUIET_S: Final = 3.0


@asynccontextmanager
async def deaf_ingest(calm: Stand) -> AsyncIterator[Service]:
    """One more ingest on the calm store, which hears no notice, and whose buffers are small."""
    async with proxy_to(calm.store.port) as deaf:
        deaf.mute_subscribers = True
        ingest = calm.ingest(
            *("--sse-buffer-events-max", "16", "--sse-heartbeat-ms", str(HEARTBEAT_MS), "--poll-ms", "100"),
            store_url=deaf.redis_url,
        )
        with passing(calm, ingest):
            await ready(ingest)
            yield ingest


@pytest.mark.parametrize("heard", [True, False], ids=["every-notice", "no-notice"])
async def test_a_storm_of_reconnects_leaves_no_gap_and_repeats_nothing(
    calm: Stand, figure: Figure, rng: random.Random, heard: bool
) -> None:
    """T15 (upstash/realtime#23): the line is cut every few kilobytes and at random while events are appended; readers
    with the SDK and with bare SSE, with every notice heard and with none."""
    history, session = History(), f"T15-storm-{heard}"
    async with contextlib.nullcontext(calm.services[0]) if heard else deaf_ingest(calm) as ingest:
        url = ingest.url
        async with http(calm.services[0].url) as client, proxy_to(port_of(url), rng=rng) as line:
            await made(client, [session], "brisk")
            line.cut_after_bytes = CUT_AFTER_BYTES
            seen: list[list[int]] = [[] for _ in range(2 * READERS)]
            tasks = [asyncio.create_task(read_bare(line, session, seqs)) for seqs in seen[:READERS]]
            tasks += [asyncio.create_task(read_by_sdk(line, session, seqs)) for seqs in seen[READERS:]]
            tasks.append(asyncio.create_task(cut_now_and_then(line, rng)))
            for number in range(MESSAGES):
                await history.surely(client, session, f"hello {number} " + "x" * rng.randrange(200))
            await all_idle(calm, PATIENCE_S, session)
            newest = ledger(calm.client, session)[-1].seq
            await wait_until(lambda: all(newest in seqs for seqs in seen), PATIENCE_S, "every reader to be through")
            assert not any(task.done() for task in tasks), "nobody gave up"
            await end(*tasks)
            figure.fault(line.faults)
    hold_trial(calm, history, figure, sessions=session)
    assert line.faults > READERS * 10, "the line was cut again and again"
    assert seen == [list(range(1, newest + 1))] * len(seen)


async def cut_now_and_then(line: Proxy, rng: random.Random) -> None:
    """Reset every connection at random moments."""
    while True:
        await pace(rng.uniform(0.1, 0.5))
        line.cut()


async def read_by_sdk(line: Proxy, session: str, seqs: list[int]) -> None:
    """Seqs as the SDK gives them."""
    async with AsyncClient(line.http_url, settings=TIRELESS) as client:
        async for event in client.session(session).events():
            seqs += [event.seq]


async def read_bare(line: Proxy, session: str, seqs: list[int]) -> None:
    """Seqs as a reader gets them who knows nothing but `Last-Event-ID`."""
    async with http(line.http_url, timeout_s=1) as client:
        while True:
            async for frame in frames(client, session, seqs[-1] if seqs else 0):
                if frame.id is not None:
                    assert frame.data["seq"] == frame.id
                    seqs.append(frame.id)


class Frame(NamedTuple):
    """One frame of an event stream."""

    event: str
    id: int | None
    data: Any


async def frames(client: httpx2.AsyncClient, session: str, after: int) -> AsyncIterator[Frame]:
    """The whole frames of one stream, until it is cut, ends, or is silent for a second. Half a frame is none."""
    headers = {"Last-Event-ID": str(after)}
    try:
        async with client.stream("GET", f"/v1/sessions/{session}/events", headers=headers) as response:
            assert response.status_code == 200, response.status_code
            fields: dict[str, str] = {}
            buffer = b""
            async for chunk in response.aiter_raw():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(b":"):
                        continue
                    if line:
                        name, _, value = line.decode().partition(": ")
                        fields[name] = value
                    elif fields:
                        number = int(fields["id"]) if "id" in fields else None
                        yield Frame(fields.get("event", ""), number, json.loads(fields["data"]))
                        fields = {}
    except httpx2.TransportError:
        return


async def test_a_cursor_below_what_is_kept_is_an_explicit_gap_at_every_door(calm: Stand, figure: Figure) -> None:
    """T15 (PostHog PR101104): the ledger is trimmed below a reader's cursor. It hears what is kept; who is above it
    reads on without a gap."""
    history, session = History(), "T15-trimmed"
    async with http(calm.services[0].url) as client:
        for number in range(10):
            await history.surely(client, session, f"hello {number}")
        await all_idle(calm, PATIENCE_S, session)
        newest = hold_trial(calm, history, figure, sessions=session)[session][-1].seq
        oldest, key = newest - 20, key_of(session, "ledger")
        calm.client.xtrim(key, minid=f"{oldest}-0", approximate=False)
        figure.fault()
        below, above = (0, oldest - 2, newest + 1), (oldest - 1, newest)
        for after, is_kept in [*((cursor, False) for cursor in below), *((cursor, True) for cursor in above)]:
            page = await client.get(
                f"/v1/sessions/{session}/events?after={after}", headers={"accept": "application/json"}
            )
            async with AsyncClient(calm.services[0].url) as sdk:
                events = sdk.session(session).events(after=after)
                if is_kept:
                    assert [each["seq"] for each in page.json()["events"]] == list(range(after + 1, newest + 1))
                    if after < newest:
                        assert (await anext(events)).seq == after + 1
                else:
                    assert (page.status_code, page.json()["code"]) == (410, "cursor-expired")
                    with pytest.raises(CursorExpired) as told:
                        await anext(events)
                    assert (told.value.oldest, told.value.newest) == (oldest, newest)
                    gap = [frame async for frame in frames(client, session, after) if frame.event == "session.gap"]
                    assert [frame.data["oldest"] for frame in gap] == [oldest]
    calm.client.delete(key)  # it is whole no more, and no other scenario's business


async def test_a_reader_that_does_not_read_is_closed_with_its_cursor_and_a_quiet_one_is_kept(
    calm: Stand, figure: Figure
) -> None:
    """T15 (upstash/realtime#23): nothing happens for many heartbeats, and the stream still brings the next event; a
    reader that falls behind its buffer is closed, and goes on where it was."""
    history, session = History(), "T15-quiet"
    async with deaf_ingest(calm) as ingest, http(ingest.url) as client:
        await made(client, [session], "default")
        began = asyncio.get_running_loop().time()
        async with client.stream("GET", f"/v1/sessions/{session}/events") as response:
            beats, raw = 0, b""
            async for chunk in response.aiter_raw():
                beats += chunk.count(b"\n:") + chunk.startswith(b":")
                raw += chunk
                if asyncio.get_running_loop().time() - began > QUIET_S and beats < 1_000:
                    beats += 1_000
                    await history.surely(client, session, "at last")
                if b"at last" in raw:
                    break
        assert beats - 1_000 > QUIET_S * 1000 / HEARTBEAT_MS / 2
        async with http(ingest.url) as slow, slow.stream("GET", f"/v1/sessions/{session}/events") as response:
            stream = response.aiter_raw()
            read = await anext(stream)
            for number in range(40):
                await history.surely(client, session, f"{number} " + "x" * 60_000)
            await all_idle(calm, PATIENCE_S, session)
            read += b"".join([chunk async for chunk in stream])
        figure.fault()
        *whole, last_words = read.rstrip().split(b"\n\n")
        assert last_words.startswith(b":"), last_words[-300:]
        said = re.search(rb"go on with Last-Event-ID (\d+)$", last_words)
        assert said is not None, last_words[-300:]
        cursor = int(said[1])
        ids = [line for frame in whole for line in frame.split(b"\n") if line.startswith(b"id: ")]
        assert [int(line[4:]) for line in ids] == list(range(1, cursor + 1)), "from the start, without a gap"
        facts = hold_trial(calm, history, figure, sessions=session)[session]
        assert cursor < facts[-1].seq, "it was closed before it had everything"
        headers = {"accept": "application/json"}
        page = await client.get(f"/v1/sessions/{session}/events?after={cursor}", headers=headers)
        following = [each["seq"] for each in page.json()["events"]]
    assert following == list(range(cursor + 1, cursor + 1 + len(following)))
    assert following


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])

"""Readers that are slow, many, or often back: ended with a cursor, or served in full, and never thinned (T15)."""

import asyncio
import random
import re
import socket
from typing import Any, Final

import pytest

from tests.bench.storm import Client, Plan, Stream, by_hand, storm
from tests.bench.streams import context
from tests.bench.traffic import BORN
from tests.unit.ingest.served import PATIENCE_S, House, on_socket
from tests.waiting import wait_until

STREAMS: Final = 1_000
SLOW: Final = 3
EVENTS: Final = 60
TEXT_BYTES: Final = 200_000
"""Together more than the kernel and a stream's buffer keep for a reader that does not read."""

RECEIVE_BYTES: Final = 65_536
LAST_WORDS: Final = re.compile(rb": overflow; go on with Last-Event-ID (\d+)\n\n\r\n0\r\n\r\n$")
IDS: Final = re.compile(rb"^id: (\d+)$", re.MULTILINE)
UNBOUNDED: Final = 2**62


def port_of(house: House) -> int:
    port = house.client.base_url.port
    assert port is not None
    return port


async def open_stream(port: int, session_id: str, after: int) -> socket.socket:
    """A stream whose client takes little at a time."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    head = f"GET /v1/sessions/{session_id}/events HTTP/1.1\r\nHost: h\r\nLast-Event-ID: {after}\r\n\r\n"
    await loop.sock_sendall(sock, head.encode())
    return sock


async def read_on(sock: socket.socket, until: bytes | None = None) -> bytes:
    """What comes, to the end of the answer or until these bytes were in it."""
    loop, found, tail = asyncio.get_running_loop(), bytearray(), b""
    async with asyncio.timeout(PATIENCE_S):
        while not tail.endswith(b"\r\n0\r\n\r\n") and not (until and until in tail):
            chunk = await loop.sock_recv(sock, 1_000_000)
            found += chunk
            tail = tail[-32:] + chunk  # a search through all of it each time would cost the square of its size
    return bytes(found)


def ids_in(said: bytes) -> list[int]:
    return [int(found) for found in IDS.findall(said)]


@pytest.mark.parametrize(
    "limit", [{"sse_buffer_events_max": 16}, {"sse_buffer_bytes_max": 1_000_000}], ids=["events", "bytes"]
)
async def test_slow_readers_are_closed_with_a_cursor_and_have_had_everything_when_they_are_through(
    limit: dict[str, Any],
) -> None:
    async with on_socket(**limit) as house:
        port = port_of(house)
        await house.prompt("s", delivery="inject")
        socks = [await open_stream(port, "s", 0) for _ in range(SLOW)]
        seen = [ids_in(await read_on(sock, b"id: 2\n")) for sock in socks]
        await wait_until(lambda: house.metric("event_streams") == SLOW, PATIENCE_S, "every stream to be followed")
        for _ in range(EVENTS):  # nobody reads meanwhile
            await house.prompt("s", "x" * TEXT_BYTES, delivery="inject")
        closed = 0
        for sock, seqs in zip(socks, seen, strict=True):
            after = seqs[-1]
            while True:
                said = await read_on(sock, b"id: %d\n" % (EVENTS + 2))
                seqs.extend(ids_in(said))
                sock.close()
                last_words = LAST_WORDS.search(said)
                if last_words is None:
                    break
                closed += 1
                assert int(last_words[1]) == seqs[-1], "the cursor is the last event that was sent"
                assert seqs[-1] >= after
                after = seqs[-1]
                sock = await open_stream(port, "s", after)  # noqa: PLW2901 - the same reader, come back
        assert closed >= SLOW, "each was closed before it had everything"
        assert seen == [list(range(1, EVENTS + 3))] * SLOW


@pytest.mark.parametrize("sessions", [1, STREAMS], ids=["one-session", "many-sessions"])
async def test_a_thousand_streams_at_once_each_have_every_event_once(sessions: int) -> None:
    async with on_socket(poll_ms=1_000) as house:
        names = [f"s{number}" for number in range(sessions)]
        for name in names:
            await house.store.submit(name, context(0), BORN)
        clients = [Client(names[number % sessions]) for number in range(STREAMS)]
        loop = asyncio.get_running_loop()
        streams = []
        for client in clients:
            _, opened = await loop.create_connection(
                lambda client=client: Stream(client, UNBOUNDED),  # type: ignore[misc]
                "127.0.0.1",
                port_of(house),
            )
            streams.append(opened)
        await wait_until(lambda: all(client.seqs == [1, 2] for client in clients), 30, "every stream to have begun")
        assert house.metric("event_streams") == STREAMS
        assert house.metric("event_readers") == sessions
        more = 5 if sessions == 1 else 1
        for number in range(more):
            for name in names:
                await house.store.submit(name, context(1 + number), BORN)
        newest = 2 + more
        await wait_until(lambda: all(client.seqs[-1] == newest for client in clients), 30, "every stream to be through")
        assert all(client.seqs == list(range(1, newest + 1)) for client in clients)
        for each in streams:
            each.cut()
        await wait_until(lambda: house.metric("event_readers") == 0, PATIENCE_S, "every reader to stop")
        await wait_until(lambda: house.metric("event_streams") == 0, PATIENCE_S, "every stream to end")


async def test_a_storm_of_reconnects_on_many_sessions_leaves_no_gap_and_repeats_nothing(rng: random.Random) -> None:
    async with on_socket() as house:
        found = await storm(house.store, port_of(house), Plan(30, 200, 2.0), by_hand, rng, "storm")
        assert found["cuts_per_s"] > 5, "they were cut again and again"

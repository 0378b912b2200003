"""Who follows a session: one reader of its ledger, many subscriptions.

    ledger --read once--> [reader of the session] --encode once--> subscription, subscription, subscription
       ^                         ^                                      |
       |                    a notice, or a tick                         v
       +----- history pages, until a subscription meets its reader   SSE stream, long poll

Rule 1: a subscription is put on its reader first, then reads the history up to where it was put on, then what the
        reader has brought since: every event after its cursor, once, in order (semantics L7).
Rule 2: notices and ticks are only reasons to look. What is passed on was read from the ledger; deltas excepted,
        which are in no ledger and pass only to who asked for them.
Rule 3: a burst of notices is one read. A delta comes after the events that were noticed before it.
Rule 4: a subscription that falls behind its buffer (events and bytes) is ended, never thinned: it knows its cursor
        and goes on from there.
Rule 5: a store that cannot be read right now ends nothing; the next tick looks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from mailslot_contracts import ENVELOPE_VERSION, encode_json
from mailslot_contracts.events import TRANSIENT
from mailslot_contracts.protocol import SSE_DELTA, SSE_EVENT, SSE_STATUS
from mailslot_core.clock import Clock
from mailslot_core.errors import CoreError, CursorExpired
from mailslot_core.session import Event
from mailslot_core.settings import IngestSettings
from mailslot_core.store import Store
from mailslot_core.task import end
from mailslot_services.ingest.metric import Metrics

READ_COUNT: Final = 500
"""Events in one read: some hundred KB, so that one long ledger does not fill the memory or hold up the loop."""

NOTICES_MAX: Final = 4_096
"""Notices kept for a reader that is busy. An event whose notice is dropped is read with the next; a delta is lost."""

DATA: Final = b"\ndata: "
"""Where the JSON of a frame begins."""

log = logging.getLogger("mailslot.ingest")


class Frame(NamedTuple):
    """One event or delta as the bytes of an SSE frame. A delta has no event: it never moves a cursor."""

    event: Event | None
    data: bytes

    @property
    def line(self) -> bytes:
        """The JSON alone."""
        return self.data[self.data.index(DATA) + len(DATA) : -2]


class Ended(StrEnum):
    """Why a subscription brings nothing more."""

    OVERFLOW = "overflow"  # it fell behind its buffer
    GAP = "gap"  # what comes next is no longer in the ledger
    CLOSING = "closing"  # this process ends


def envelope(session_id: str, event: Event) -> dict[str, Any]:
    """An event as it stands on the public doors (protocol section 4)."""
    return {
        "v": ENVELOPE_VERSION,
        "seq": event.seq,
        "sessionId": session_id,
        "type": event.type,
        "time": event.time,
        "epoch": event.epoch,
        "data": event.data,
    }


def frame_of(session_id: str, event: Event) -> Frame:
    """An event as an SSE frame: the one place where it is encoded for streams."""
    name = SSE_STATUS if event.type == "agent/status" else SSE_EVENT
    line = encode_json(envelope(session_id, event))
    return Frame(event, b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, name.encode(), line))


def delta_frame(notice: dict[str, Any]) -> Frame:
    """A delta as an SSE frame without id."""
    return Frame(None, b"event: %s\ndata: %s\n\n" % (SSE_DELTA.encode(), encode_json(notice)))


# -- subscriptions ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Buffer:
    """What a reader has brought for one subscription and that has not been taken yet."""

    events_max: int
    bytes_max: int
    deltas: bool
    frames: deque[Frame] = field(default_factory=deque)
    size_bytes: int = 0
    ended: Ended | None = None
    gap: CursorExpired | None = None
    quiet: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, frame: Frame) -> None:
        """Keep a frame, or end when there is no room (rule 4)."""
        if self.ended or (frame.event is None and not self.deltas):
            return
        if len(self.frames) >= self.events_max or self.size_bytes + len(frame.data) > self.bytes_max:
            self.end(Ended.OVERFLOW)
            return
        self.frames.append(frame)
        self.size_bytes += len(frame.data)
        self.quiet = False
        self.ready.set()

    def end(self, why: Ended, gap: CursorExpired | None = None) -> None:
        """Bring nothing more. After an overflow nothing of the buffer is passed on: its owner's cursor says where
        to go on, and the memory is free at once."""
        if self.ended is None:
            self.ended, self.gap = why, gap
            if why is Ended.OVERFLOW:
                self.frames.clear()
        self.ready.set()

    def tick(self) -> None:
        """Half a heartbeat has passed; wake the owner if nothing came since the last one."""
        if self.quiet:
            self.ready.set()
        self.quiet = not self.quiet

    def take(self) -> list[Frame]:
        """Everything that is there."""
        frames = list(self.frames)
        self.frames.clear()
        self.size_bytes = 0
        self.ready.clear()
        return frames


class Following:
    """One subscription: what comes after its cursor, in order. Made by `Fanout.follow`."""

    def __init__(self, store: Store, session_id: str, buffer: _Buffer, *, after: int, joined: int) -> None:
        self._store = store
        self.session_id = session_id
        self._buffer = buffer
        self._joined = joined  # the reader brings everything after this seq
        self.cursor = after
        self.expired = False

    @property
    def ended(self) -> Ended | None:
        """Why nothing more will come, None while something may."""
        return self._buffer.ended

    @property
    def gap(self) -> CursorExpired | None:
        """What can be read instead, after GAP."""
        return self._buffer.gap

    async def next(self) -> list[Frame]:
        """The next frames. None of them: a heartbeat is due, its time is over (`expired`), or it has `ended`."""
        if self.cursor < self._joined and self._buffer.ended is not Ended.CLOSING:
            return await self._history()
        await self._buffer.ready.wait()
        fresh = [frame for frame in self._buffer.take() if frame.event is None or frame.event.seq > self.cursor]
        self._advance(fresh)
        if self._buffer.ended or self.expired:
            self._buffer.ready.set()
        return fresh

    def expire(self) -> None:
        """Its owner's time is over."""
        self.expired = True
        self._buffer.ready.set()

    async def _history(self) -> list[Frame]:
        limit = min(READ_COUNT, self._joined - self.cursor)
        try:
            events = await self._store.events(self.session_id, after=self.cursor, limit=limit)
        except CursorExpired as error:
            self._buffer.end(Ended.GAP, error)
            self._joined = self.cursor
            return []
        if not events:  # the ledger is shorter than it was: whatever the reader says next holds
            self._joined = self.cursor
        frames = [frame_of(self.session_id, event) for event in events]
        self._advance(frames)
        return frames

    def _advance(self, frames: Sequence[Frame]) -> None:
        self.cursor = max((frame.event.seq for frame in frames if frame.event), default=self.cursor)


# -- readers ------------------------------------------------------------------------------------------------


class _Reader:
    """Reads one session for all who follow it here."""

    def __init__(self, store: Store, session_id: str, cursor: int, metrics: Metrics) -> None:
        self.session_id = session_id
        self.cursor = cursor
        self.buffers: set[_Buffer] = set()
        self._store = store
        self._metrics = metrics
        self._notices: deque[dict[str, Any]] = deque(maxlen=NOTICES_MAX)
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._stopped)

    def tick(self) -> None:
        """Look, whether or not a notice came."""
        self._wake.set()

    async def stop(self) -> None:
        """Read no more."""
        await end(self._task)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """A reader that fails is a defect: it is told, and who followed it may come again."""
        if not task.cancelled() and task.exception() is not None:
            log.error("a reader failed", exc_info=task.exception(), extra={"session": self.session_id})
            for buffer in self.buffers:
                buffer.end(Ended.CLOSING)

    async def _run(self) -> None:
        async with self._store.watch(self.session_id) as notices:
            listener = asyncio.create_task(self._listen(notices))
            try:
                while True:
                    await self._burst()
                    await self._wake.wait()
            finally:
                await end(listener)

    async def _listen(self, notices: AsyncIterator[dict[str, Any]]) -> None:
        async for notice in notices:
            self._notices.append(notice)
            self._wake.set()

    async def _burst(self) -> None:
        """Everything there is a reason to look for, with as few reads as its order allows (rule 3)."""
        self._wake.clear()
        noticed = 0
        try:
            while self._notices:
                notice = self._notices.popleft()
                if notice.get("type") not in TRANSIENT:
                    noticed = max(noticed, notice.get("seq", 0))
                    continue
                await self._read(noticed)
                self._push(delta_frame(notice))
            await self._read(None)
        except CursorExpired as error:
            for buffer in list(self.buffers):
                buffer.end(Ended.GAP, error)
        except CoreError as error:
            log.warning("a ledger could not be read; trying again", extra={"cause": str(error)})

    async def _read(self, until: int | None) -> None:
        """Read and pass on: up to a seq, or to the end."""
        while until is None or self.cursor < until:
            limit = READ_COUNT if until is None else min(READ_COUNT, until - self.cursor)
            events = await self._store.events(self.session_id, after=self.cursor, limit=limit)
            for event in events:
                self._push(frame_of(self.session_id, event))
            if events:
                self.cursor = events[-1].seq
                self._metrics.events_read.inc(len(events))
            if not events.more:
                return

    def _push(self, frame: Frame) -> None:
        for buffer in self.buffers:
            buffer.push(frame)


class Fanout:
    """All readers of this process. Close it before the server is asked to end, so that no stream holds it up."""

    def __init__(self, store: Store, settings: IngestSettings, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._readers: dict[str, _Reader] = {}
        self._tickers: list[asyncio.Task[None]] = []
        self._closed = False

    @asynccontextmanager
    async def follow(
        self, session_id: str, *, after: int, newest: int, deltas: bool = False, timeout_s: float | None = None
    ) -> AsyncIterator[Following]:
        """A subscription to what comes after `after`. `newest` is the seq that the session was seen at just now;
        `timeout_s` is when the subscription expires. Raises `CursorExpired` for a cursor beyond the ledger."""
        if after > newest:
            await self._store.events(session_id, after=after, limit=1)
        buffer = _Buffer(self._settings.sse_buffer_events_max, self._settings.sse_buffer_bytes_max, deltas)
        reader = self._join(session_id, newest, buffer)
        following = Following(self._store, session_id, buffer, after=after, joined=reader.cursor)
        expiry = None if timeout_s is None else asyncio.create_task(self._expire(following, timeout_s))
        try:
            yield following
        finally:
            if expiry is not None:
                expiry.cancel()
            await self._leave(reader, buffer)

    async def close(self) -> None:
        """Every subscription ends; new ones end at once."""
        self._closed = True
        for ticker in self._tickers:
            ticker.cancel()
        self._tickers.clear()
        for reader in list(self._readers.values()):
            for buffer in reader.buffers:
                buffer.end(Ended.CLOSING)
            await reader.stop()

    def _join(self, session_id: str, newest: int, buffer: _Buffer) -> _Reader:
        """Put the buffer on the session's reader. Nothing is awaited between reading its cursor and being on it."""
        reader = self._readers.get(session_id)
        if reader is None:
            reader = self._readers[session_id] = _Reader(self._store, session_id, newest, self._metrics)
            self._metrics.event_readers.set(len(self._readers))
        reader.buffers.add(buffer)
        if self._closed:
            buffer.end(Ended.CLOSING)
        elif not self._tickers:
            self._tickers = [asyncio.create_task(self._poll()), asyncio.create_task(self._beat())]
        return reader

    async def _leave(self, reader: _Reader, buffer: _Buffer) -> None:
        reader.buffers.discard(buffer)
        if reader.buffers or self._readers.get(reader.session_id) is not reader:
            return
        del self._readers[reader.session_id]
        self._metrics.event_readers.set(len(self._readers))
        await reader.stop()

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(self._settings.poll_ms / 1000)
            for reader in self._readers.values():
                reader.tick()

    async def _beat(self) -> None:
        """Twice a heartbeat, so that no stream is silent for longer than one."""
        while True:
            await self._clock.sleep(self._settings.sse_heartbeat_ms / 2000)
            for reader in self._readers.values():
                for buffer in reader.buffers:
                    buffer.tick()

    async def _expire(self, following: Following, timeout_s: float) -> None:
        await self._clock.sleep(timeout_s)
        following.expire()

"""Events: as a stream (SSE), as pages, and as one long poll for idle.

    GET events                      level, then history after the cursor, then live       protocol section 1
    GET events, Accept: JSON        {events, next}
    GET idle                        the first idle after a cursor, or `running` at the timeout

Rule 1: the first frame of a stream is the level, without id. What follows has every seq after the cursor once, in
        order; a filter leaves out types, never places.
Rule 2: a stream ends for a reason it says: a gap as an event, falling behind as a comment that names the cursor.
        Whoever comes back with its last id has missed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mailslot_contracts import encode_json
from mailslot_contracts.protocol import (
    IDLE_TIMEOUT_S_DEFAULT,
    IDLE_TIMEOUT_S_MAX,
    PAGE_COUNT_DEFAULT,
    PAGE_COUNT_MAX,
    SSE_GAP,
    SSE_STATUS,
)
from mailslot_core.errors import CoreError, CursorExpired
from mailslot_core.session import Event, Status
from mailslot_core.store import Level
from mailslot_services.ingest.door import Door, answer, level_of, level_wire
from mailslot_services.ingest.fanout import Ended, Following, Frame, envelope
from mailslot_services.ingest.request import Query, last_event_id, session_id, wants_page

HEARTBEAT = b": still here\n\n"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Types = frozenset[str] | None


async def read_events(door: Door, request: Request) -> Response:
    """Events after a cursor, as a stream or as a page."""
    name = session_id(request)
    query = Query(request)
    resumed = last_event_id(request)
    after = query.number("after", 0) if resumed is None else resumed
    limit = query.number("limit", PAGE_COUNT_DEFAULT, least=1, most=PAGE_COUNT_MAX)
    types, deltas = query.words("types"), query.switch("deltas")
    level = await level_of(door, name)
    if wants_page(request):
        return await _page(door, name, after, limit, types)
    chunks = _stream(door, level, after, types, deltas=deltas)
    return StreamingResponse(chunks, headers=STREAM_HEADERS, media_type="text/event-stream")


# -- pages --------------------------------------------------------------------------------------------------


async def _page(door: Door, name: str, after: int, limit: int, types: Types) -> Response:
    events = await door.store.events(name, after=after, limit=limit)
    shown = [envelope(name, event) for event in events if types is None or event.type in types]
    return answer({"events": shown, "next": events[-1].seq if events.more else None})


# -- streams ------------------------------------------------------------------------------------------------


async def _stream(door: Door, level: Level, after: int, types: Types, *, deltas: bool) -> AsyncIterator[bytes]:
    door.metrics.event_streams.inc()
    why = "left"
    try:
        yield status_frame(level)
        async with _followed(door, level, after, deltas=deltas) as following:
            said_at = door.clock.monotonic()
            while not following.ended:
                frames = await following.next()
                said = chunk(frames, types)
                # Frames that the filter left out are no sign of life to whoever listens.
                silent = not frames or door.clock.monotonic() - said_at >= door.settings.sse_heartbeat_ms / 1000
                if not said and silent and not following.ended:
                    said = HEARTBEAT
                if said:
                    said_at = door.clock.monotonic()
                    yield said
            why = following.ended.value
            yield last_words(following)
    except CursorExpired as error:
        why = Ended.GAP.value
        yield gap_frame(level.session_id, error)
    except CoreError as error:
        why = error.code
        yield b": %s\n\n" % encode_json(str(error))
    finally:
        door.metrics.event_streams.dec()
        door.metrics.stream_ended(why)


def _followed(door: Door, level: Level, after: int, *, deltas: bool) -> AbstractAsyncContextManager[Following]:
    return door.fanout.follow(level.session_id, after=after, newest=level.cursor, deltas=deltas)


def status_frame(level: Level) -> bytes:
    """The level as the first frame; without id, so that it never moves a cursor."""
    return b"event: %s\ndata: %s\n\n" % (SSE_STATUS.encode(), encode_json(level_wire(level)))


def gap_frame(name: str, gap: CursorExpired) -> bytes:
    """What is asked for is no longer there; these are the seqs that are."""
    notice = {"sessionId": name, "oldest": gap.oldest, "newest": gap.newest}
    return b"event: %s\ndata: %s\n\n" % (SSE_GAP.encode(), encode_json(notice))


def chunk(frames: list[Frame], types: Types) -> bytes:
    """Some frames in one write; those of other types are left out."""
    if types is None:
        return b"".join(frame.data for frame in frames)
    return b"".join(frame.data for frame in frames if frame.event is None or frame.event.type in types)


def last_words(following: Following) -> bytes:
    """What a stream says before it ends."""
    if following.gap is not None:
        return gap_frame(following.session_id, following.gap)
    return b": %s; go on with Last-Event-ID %d\n\n" % (str(following.ended).encode(), following.cursor)


# -- idle ---------------------------------------------------------------------------------------------------


async def wait_idle(door: Door, request: Request) -> Response:
    """The first idle after a cursor, as soon as there is one; `running` at the timeout.

    Without `after` an agent that is idle now is answered at once. `idle` always means an idle after the cursor: an
    agent that has rested since before it is answered `running` without reasons, when nothing came by the timeout.
    """
    name = session_id(request)
    query = Query(request)
    after = query.given_number("after")
    timeout_s = query.seconds("timeout", IDLE_TIMEOUT_S_DEFAULT, IDLE_TIMEOUT_S_MAX)
    level = await level_of(door, name)
    if after is None:
        if level.status is Status.IDLE:
            return _idle(level.idle_cursor)
        after = level.cursor
    found = await _first_idle(door, level, after, timeout_s)
    if found is not None:
        return _idle(found)
    level = await level_of(door, name)
    return answer({"status": "running", "cursor": level.cursor, "reasons": level.reasons})


def _idle(cursor: int) -> Response:
    return answer({"status": "idle", "cursor": cursor})


async def _first_idle(door: Door, level: Level, after: int, timeout_s: float) -> int | None:
    """The seq of the first idle after a cursor, waiting for it as long as allowed."""
    async with door.fanout.follow(level.session_id, after=after, newest=level.cursor, timeout_s=timeout_s) as following:
        while not (following.expired or following.ended):
            for frame in await following.next():
                if frame.event is not None and _is_idle(frame.event):
                    return frame.event.seq
        if following.gap is not None:
            raise following.gap
    return None


def _is_idle(event: Event) -> bool:
    return event.type == "agent/status" and event.data["status"] == Status.IDLE

"""Sessions: make one, list them, read one's level, stop its turn, end its hold."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from mailslot_contracts import Cancel, SessionCreate, read
from mailslot_contracts.protocol import IDLE_TIMEOUT_S_MAX, PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX
from mailslot_core.session import Status
from mailslot_core.turn import Cancelled
from mailslot_services.ingest.admission import created, new_id
from mailslot_services.ingest.door import Door, answer, level_of, level_or_none, level_wire
from mailslot_services.ingest.request import Query, read_json_or_empty, session_id

SCAN_COUNT: Final = 200
"""Sessions whose levels are read at once while a page is put together."""

SCANS_MAX: Final = 25
"""Reads for one page of a filtered list. A page may come out short; its `next` says where to go on."""


async def create_session(door: Door, request: Request) -> Response:
    """The session is there: 201 when it is new, 200 when it was there with the same body."""
    wanted = read(SessionCreate, await read_json_or_empty(request, door.settings.body_bytes_max))
    name = wanted.session_id or new_id(door.clock)
    made = await door.store.create(name, created(wanted.agent, wanted.metadata, wanted.on_failure))
    return answer({"sessionId": name, "cursor": made.cursor}, 201 if made.fresh else 200)


async def list_sessions(door: Door, request: Request) -> Response:
    """A page of levels in order of session id."""
    query = Query(request)
    limit = query.number("limit", PAGE_COUNT_DEFAULT, least=1, most=PAGE_COUNT_MAX)
    status = query.choice("status", tuple(status.value for status in Status))
    after, more, found = query.name("after"), True, list[dict[str, object]]()
    for _ in range(SCANS_MAX):
        count = min(SCAN_COUNT, limit - len(found)) if status is None else SCAN_COUNT
        names = await door.store.sessions(after=after, limit=count)
        levels = await asyncio.gather(*(level_or_none(door.store, name) for name in names))
        more = len(names) == count
        for name, level in zip(names, levels, strict=True):
            if len(found) == limit:
                more = True
                break
            after = name
            if level is not None and status in (None, level.status):
                found.append(level_wire(level))
        if not more or len(found) == limit:
            break
    return answer({"sessions": found, "next": after if more else None})


async def read_session(door: Door, request: Request) -> Response:
    """The level of one session."""
    return answer(level_wire(await level_of(door, session_id(request))))


async def cancel_turn(door: Door, request: Request) -> Response:
    """A cancel of the open turn is recorded, or there was nothing to cancel; what was queued is kept, held or cancelled
    in the same act. With `wait`, whether the turn has ended."""
    name = session_id(request)
    wait_s = Query(request).seconds("wait", 0, IDLE_TIMEOUT_S_MAX)
    wanted = read(Cancel, await read_json_or_empty(request, door.settings.body_bytes_max))
    cancelled = await door.store.cancel(name, cause=wanted.cause, queue=wanted.queue, turn=wanted.turn)
    outcome = cancelled.outcome
    if wait_s and outcome == "requested" and await _has_ended(door, name, cancelled, wait_s):
        outcome = "settled"
    wire: dict[str, object] = {"outcome": outcome, "stillQueued": cancelled.still_queued}
    if cancelled.turn is not None:
        wire["turn"] = cancelled.turn
    return answer(wire, 202)


async def release_queue(door: Door, request: Request) -> Response:
    """No hold is in force; what waited behind it wakes the agent."""
    name = session_id(request)
    return answer({"sessionId": name, "cursor": await door.store.release(name)})


async def _has_ended(door: Door, name: str, cancelled: Cancelled, wait_s: float) -> bool:
    """Whether the cancelled turn is over, waiting for it as long as it is allowed to. A cancel that named no turn
    was over when it was recorded."""
    level = await door.store.level(name)
    if cancelled.turn is None or level is None or level.turn != cancelled.turn:
        return True
    async with door.fanout.follow(name, after=level.cursor, newest=level.cursor, timeout_s=wait_s) as following:
        while not (following.expired or following.ended):
            for frame in await following.next():
                event = frame.event
                if event and event.type == "turn/end" and event.data["turn"] == cancelled.turn:
                    return True
    return False

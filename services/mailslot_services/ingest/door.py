"""What every handler has, and the two plain ways to answer.

Route table --> Endpoint(request) --> handler(door, request) --> Response
                                          |
                                          +--> store, admission, fanout, metrics
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgpack import UnpackException
from starlette.requests import Request
from starlette.responses import Response

from mailslot_contracts import encode_json
from mailslot_core.clock import Clock
from mailslot_core.errors import Refused, StoreFault
from mailslot_core.settings import IngestSettings
from mailslot_core.store import Level, Store
from mailslot_services.ingest.admission import Admission
from mailslot_services.ingest.fanout import Fanout
from mailslot_services.ingest.metric import Metrics

Check = Callable[[], Awaitable[str | None]]
"""A condition of readiness: None when it holds, else the sentence that says what does not."""

Gauge = Callable[[], Awaitable[None]]
"""Sets gauges that are read from elsewhere when somebody scrapes."""


@dataclass(frozen=True)
class Door:
    """The parts of a running ingest, put together by `create_app`."""

    store: Store
    settings: IngestSettings
    clock: Clock
    metrics: Metrics
    admission: Admission
    fanout: Fanout
    pages: Mapping[str, bytes]
    checks: list[Check] = field(default_factory=list)
    gauges: list[Gauge] = field(default_factory=list)


Handler = Callable[[Door, Request], Awaitable[Response]]

UNREADABLE: Final = (LookupError, ValueError, TypeError, UnpackException)
"""What reading indexes ends in that are not what this version writes."""

log = logging.getLogger("mailslot.ingest")


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(encode_json(value), status, headers, "application/json")


async def level_of(door: Door, session_id: str) -> Level:
    """The session's level; `not-found` when there is none."""
    level = await door.store.level(session_id)
    if level is None:
        raise Refused("not-found", f"there is no session {session_id}")
    return level


async def level_or_none(store: Store, session_id: str) -> Level | None:
    """The session's level; None when there is none, or when it cannot be read because its indexes are damaged: that is
    logged, and does not spoil a list of sessions."""
    try:
        return await store.level(session_id)
    except (StoreFault, *UNREADABLE) as error:
        cause = f"{type(error).__name__}: {error}"
        log.warning("a session is damaged; mailslot doctor says more", extra={"session": session_id, "cause": cause})
        return None


def level_wire(level: Level) -> dict[str, object]:
    """A level as it stands on the public doors (protocol section 1)."""
    wire: dict[str, object] = {
        "sessionId": level.session_id,
        "status": str(level.status),
        "reasons": level.reasons,
        "cursor": level.cursor,
        "pending": level.pending,
        "held": level.held,
        "usage": level.usage,
        "conservation": level.conservation,
    }
    if level.turn is not None:
        wire["turn"] = level.turn
    if level.goal is not None:
        wire["goal"] = level.goal
    if level.hold is not None:
        wire["hold"] = level.hold
    if level.closed:
        wire["closed"] = True
    return wire

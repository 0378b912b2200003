"""How a session ends: closed, which keeps its history; or erased, which keeps nothing.

    close     queue cancelled, open turn asked to stop ----> session/closed, at once or at the idle after its turn
    erase     the same ---------------------------------------------^ ----> everything that was kept is gone

Rule 1: both are one act of the store, and may be repeated. What an open turn delays is finished by the worker that
        ends it and by the sweep, whether or not anybody asks again (semantics M9).
Rule 2: an erased session is not there. Its id is free; whoever still reads it gets a gap.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mailslot_contracts.protocol import IDLE_TIMEOUT_S_MAX
from mailslot_core.errors import Refused
from mailslot_core.store import Closing
from mailslot_services.ingest.door import Door, answer
from mailslot_services.ingest.request import Query, session_id

STORE = "ledger"
"""The name of the one store that has something of a session."""


async def close_session(door: Door, request: Request) -> Response:
    """The session takes no more messages. What was queued is cancelled, an open turn asked to stop; the session is
    closed at once, or at its idle. Closing twice is the same as closing once."""
    name = session_id(request)
    closing = await door.store.close_session(name)
    return answer({"sessionId": name, "closed": closing.closed, "cursor": closing.cursor}, 202)


async def erase_session(door: Door, request: Request) -> Response:
    """The session is closed and nothing of it is kept: 200. While its last turn still ends 202, and it is erased after
    that; with `wait`, that is waited for."""
    name = session_id(request)
    wait_s = Query(request).seconds("wait", 0, IDLE_TIMEOUT_S_MAX)
    closing: Closing | None = await door.store.close_session(name, erase=True)
    if closing is not None and not closing.erased and wait_s and await _has_closed(door, name, closing, wait_s):
        closing = await _erased(door, name)
    erased = closing is None or closing.erased
    receipt: dict[str, object] = {"erased": erased}
    if closing is not None:
        receipt |= {"events": closing.events, "messages": closing.messages}
    return answer({"sessionId": name, "erased": erased, "stores": {STORE: receipt}}, 200 if erased else 202)


async def _erased(door: Door, name: str) -> Closing | None:
    """What came of erasing a session that is closed by now; None when it was gone already."""
    try:
        return await door.store.close_session(name, erase=True)
    except Refused as refused:
        if refused.code != "not-found":
            raise
        return None


async def _has_closed(door: Door, name: str, closing: Closing, wait_s: float) -> bool:
    """Whether the session's last turn is over, waiting for it as long as allowed. A gap means that it is gone."""
    cursor = closing.cursor
    async with door.fanout.follow(name, after=cursor, newest=cursor, timeout_s=wait_s) as following:
        while not (following.expired or following.ended):
            for frame in await following.next():
                if frame.event is not None and frame.event.type == "session/closed":
                    return True
        return following.gap is not None

"""Messages by their id: the queue, one message's record, and what can be done while it is queued (semantics M6, M7).

    GET    messages         what waits, in the order it would be taken
    GET    messages/{mid}   what happened to it
    PATCH  messages/{mid}   {content}: other content, same place    {delivery: "steer"}: to the next step
    DELETE messages/{mid}   withdrawn

Rule 1: each change is one act of the store, decided against the claim of the turn. Whoever comes later is refused
        `already-claimed` or `already-settled`, and changed nothing.
Rule 2: a record never says how a turn ended.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from mailslot_contracts import DELIVERY, Delivery, MessagePatch, MessageState, read
from mailslot_contracts.protocol import PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX
from mailslot_core.errors import Refused
from mailslot_core.store import Record, Waiting
from mailslot_services.ingest.door import Door, answer
from mailslot_services.ingest.request import Query, message_id, read_json, session_id

STATES: Final = ("pending",)
"""What the list can be of."""

WAITS: Final[dict[tuple[str, bool], Delivery]] = {
    (placement.lane, placement.wake): delivery for delivery, placement in DELIVERY.items()
}
"""How a message waits, by its lane and whether it wakes."""

WHY: Final = {MessageState.CANCELLED: "cause", MessageState.REJECTED: "reason", MessageState.DEAD: "reason"}
"""What a record calls the why of its state."""

SHOWN: Final = ("content", "source", "notBefore", "expiresAt", "redrive", "metadata")
"""What of a queued message's data is shown beside its record."""


async def read_queue(door: Door, request: Request) -> Response:
    """Messages that are queued or claimed: claimed ones, the next step's, the next turns', and last those that are not
    due. A page is bounded in bytes as well."""
    name = session_id(request)
    query = Query(request)
    query.choice("state", STATES)
    limit = query.number("limit", PAGE_COUNT_DEFAULT, least=1, most=PAGE_COUNT_MAX)
    page = await door.store.queue(name, after=query.name("after"), limit=limit)
    return answer({"messages": [waiting_wire(waiting) for waiting in page.messages], "next": page.next})


async def read_message(door: Door, request: Request) -> Response:
    """What happened to one message, until some time after it settled. It never says how a turn ended."""
    name, message = session_id(request), message_id(request)
    record = await door.store.message(name, message)
    if record is None:
        raise Refused("not-found", f"session {name} has no message {message}")
    return answer(record_wire(record))


async def change_message(door: Door, request: Request) -> Response:
    """The queued message has new content in its old place, or steers: it waits for the next step, a hold is over."""
    name, message = session_id(request), message_id(request)
    patch = read(MessagePatch, await read_json(request, door.settings.body_bytes_max))
    if patch.content is None:
        return answer(record_wire(await door.store.move(name, message)))
    return answer(record_wire(await door.store.replace(name, message, [block.wire() for block in patch.content])))


async def withdraw_message(door: Door, request: Request) -> Response:
    """The queued message is cancelled and will not be admitted."""
    return answer(record_wire(await door.store.withdraw(session_id(request), message_id(request))))


def record_wire(record: Record) -> dict[str, object]:
    """A record as it stands on the public doors."""
    state = MessageState.HELD if record.held else MessageState(record.state)
    wire: dict[str, object] = {
        "messageId": record.message_id,
        "state": state.value,
        "delivery": WAITS[record.lane, record.wake].value,
        "cursor": record.cursor,
        "due": record.due if state in (MessageState.QUEUED, MessageState.HELD) else None,
        "turn": record.turn,
        "step": record.step,
        WHY.get(state, "reason"): record.why,
    }
    return {name: value for name, value in wire.items() if value is not None}


def waiting_wire(waiting: Waiting) -> dict[str, object]:
    """A message that waits, with what it would say if it entered now."""
    return record_wire(waiting.record) | {name: waiting.data[name] for name in SHOWN if name in waiting.data}

"""What became of one message: read off the events of a ledger, or as the server keeps it.

    queued ──> claimed (turn) ──> admitted (turn, step)
      │ │         ├─────────────> cancelled (cause), rejected (reason), dead (reason)
      │ └─ held   │
      └───────────┴─────────────> cancelled (cause), expired

Rule 1: this is about the message, and stops at its admission. It never says how a turn ended, or that
        anything in an interval happened because of the message.
Rule 2: the table STATES is the whole life; a type that is not in it changes no state.
Rule 3: only a waking message is held. One that wakes nobody, or is not due, is queued at an idle whoever else is held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mailslot.event import Event
from mailslot.reading import JsonMap, field, maps, optional

STATES: dict[str, str] = {
    "inbox/queued": "queued",
    "inbox/claimed": "claimed",
    "user/message": "admitted",
    "inbox/cancelled": "cancelled",
    "inbox/rejected": "rejected",
    "inbox/expired": "expired",
    "inbox/dead": "dead",
}
"""Event type -> the state it puts its message in."""

DUE = frozenset({"inbox/due", "inbox/moved"})
"""Event types after which a message that was for later waits like any other."""

SAID: dict[str, tuple[str, ...]] = {
    "claimed": ("turn",),
    "admitted": ("turn", "step"),
    "cancelled": ("cause",),
    "rejected": ("reason",),
    "dead": ("reason",),
}
"""State -> the fields of its event that belong to the record."""


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """The message's own record; that of a run says as much as was seen of its events."""

    message_id: str
    state: str
    """`queued`, `held`, `claimed`, `admitted`, `cancelled`, `rejected`, `expired` or `dead`."""
    turn: int | None = None
    """The turn that took it, and admitted it if it is admitted."""
    step: int | None = None
    """The step that admitted it."""
    cause: str | None = None
    """Why it was cancelled."""
    reason: str | None = None
    """Why it was rejected, or is dead."""
    delivery: str | None = None
    """How it waits, or waited: `queue`, `steer` or `inject`."""
    cursor: int | None = None
    """The seq of its `inbox/queued`, as in its receipt."""
    due: bool | None = None
    """False while it waits for its `not_before`; None once it does not wait."""

    def wire(self) -> dict[str, Any]:
        """As the protocol writes it in JSON; what is not known is left out."""
        fields = {
            "messageId": self.message_id,
            "state": self.state,
            "turn": self.turn,
            "step": self.step,
            "cause": self.cause,
            "reason": self.reason,
            "delivery": self.delivery,
            "cursor": self.cursor,
            "due": self.due,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Life:
    """A message as its events tell it, one after another."""

    record: MessageRecord
    wakes: bool
    """It is a follow-up or a steer, not injected context."""
    due: bool
    """Its time has come, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage(MessageRecord):
    """A message that is queued or claimed, with what it would say if it entered now."""

    content: list[dict[str, Any]]
    source: dict[str, Any]
    not_before: int | None = None
    """Milliseconds since 1970 by the store's clock."""
    expires_at: int | None = None
    redrive: bool = False
    """It was dead and is queued again."""
    metadata: dict[str, Any] | None = None


def read_record(value: JsonMap) -> MessageRecord:
    """A record from its JSON."""
    return MessageRecord(**_record_fields(value))


def read_queued(value: JsonMap) -> QueuedMessage:
    """A message that waits, from its JSON."""
    return QueuedMessage(
        **_record_fields(value),
        content=[dict(block) for block in maps(value, "content")],
        source=field(value, "source", dict),
        not_before=optional(value, "notBefore", int),
        expires_at=optional(value, "expiresAt", int),
        redrive=optional(value, "redrive", bool) or False,
        metadata=optional(value, "metadata", dict),
    )


def _record_fields(value: JsonMap) -> dict[str, Any]:
    return {
        "message_id": field(value, "messageId", str),
        "state": field(value, "state", str),
        "turn": optional(value, "turn", int),
        "step": optional(value, "step", int),
        "cause": optional(value, "cause", str),
        "reason": optional(value, "reason", str),
        "delivery": optional(value, "delivery", str),
        "cursor": optional(value, "cursor", int),
        "due": optional(value, "due", bool),
    }


def queued(event: Event) -> Life:
    """The life that begins with a message's `inbox/queued`."""
    not_before = event.data.get("notBefore")
    due = not isinstance(not_before, int) or not_before <= event.time
    return Life(MessageRecord(event.data["messageId"], "queued"), event.data.get("wake") is True, due)


def after(life: Life, event: Event) -> Life:
    """The life after one more event."""
    record = life.record
    if _names(event.data, record.message_id):
        if event.type == "inbox/queued":
            return queued(event)
        if event.type in DUE:
            return replace(life, due=True)
        state = STATES.get(event.type)
        if state is not None:
            said: dict[str, Any] = {name: event.data.get(name) for name in SAID.get(state, ())}
            return replace(life, record=MessageRecord(record.message_id, state, **said))
    waits = record.state == "queued" and life.wakes and life.due
    if waits and event.type == "agent/status" and event.data.get("held"):
        # A waking message that is still queued at an idle can only wait behind the hold.
        return replace(life, record=replace(record, state="held"))
    if record.state == "held" and event.type == "inbox/released":
        return replace(life, record=replace(record, state="queued"))
    return life


def _names(data: dict[str, Any], message_id: str) -> bool:
    return data.get("messageId") == message_id or message_id in data.get("messageIds", ())

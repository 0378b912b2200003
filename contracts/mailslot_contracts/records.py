"""What is known of one message, the queue of those that wait, and the letters of those that died.

    GET    /v1/sessions/{sid}/messages?state=pending   -> QueuePage of QueuedMessage
    GET    /v1/sessions/{sid}/messages/{mid}           -> MessageRecord
    PATCH  /v1/sessions/{sid}/messages/{mid}           MessagePatch -> MessageRecord
    DELETE /v1/sessions/{sid}/messages/{mid}           -> MessageRecord
    GET    /v1/dead                                    -> DeadPage of DeadLetter
    POST   /v1/dead/{letterId}/redrive                 -> Redriven

Rule 1: a record is about the message and stops at its admission. How a turn ended is not in it (semantics M6).
Rule 2: what waits is shown as it would enter now: with the content of the last replace, in the lane of the last move.
Rule 3: a dead letter names the turn that was given up, why, and what became of the messages that it held.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue, Strict

from mailslot_contracts.door import Answer, Count, MessageIdField, Ordinal, Seq, SessionIdField, UnixMs
from mailslot_contracts.events import EventContent, Provenance
from mailslot_contracts.messages import Delivery, Receipt


class MessageState(StrEnum):
    """Where a message is in its life; `held` is queued behind a hold."""

    QUEUED = "queued"
    HELD = "held"
    CLAIMED = "claimed"
    ADMITTED = "admitted"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"


class MessageRecord(Answer):
    """What happened to a message. It never says how a turn ended."""

    model_config = ConfigDict(extra="forbid")

    message_id: MessageIdField
    state: Annotated[MessageState, Strict(strict=False)]
    delivery: Annotated[Delivery, Strict(strict=False)] | None = None
    """How it waits, or waited: a follow-up that was steered with is a steer from then on."""
    cursor: Seq | None = None
    """The seq of its `inbox/queued`, as in its receipt."""
    due: bool | None = None
    """false while it waits for its `notBefore`; absent once it does not wait."""
    turn: Ordinal | None = None
    """The turn that took it, and admitted it if it is admitted."""
    step: Ordinal | None = None
    """The step that admitted it."""
    cause: str | None = None
    """Why it was cancelled."""
    reason: str | None = None
    """Why it was rejected, or is dead."""


class QueuedMessage(MessageRecord):
    """A message that is queued or claimed, with what it would say if it entered now."""

    content: EventContent
    source: Provenance
    not_before: UnixMs | None = None
    expires_at: UnixMs | None = None
    redrive: bool | None = None
    """It was dead and is queued again."""
    metadata: dict[str, JsonValue] | None = None


class QueuePage(Answer):
    """What waits, in the order it would be taken: claimed first, then the next step's, then the next turns', then what
    is not due. `next` is the `after` of the next page, null on the last."""

    messages: Annotated[tuple[QueuedMessage, ...], Strict(strict=False)]
    next: str | None

    def wire(self) -> dict[str, object]:
        """As plain data; `next` is always there."""
        return {**super().wire(), "next": self.next}


class DeadMessage(Answer):
    """A message that died with the turn, and what it is now: `dead`, or what a redrive made of it."""

    message_id: MessageIdField
    state: Annotated[MessageState, Strict(strict=False)] | None = None
    """Absent when nothing is known of it any more: it was redriven, settled, and its record's window is over."""


class DeadLetter(Answer):
    """A turn was given up after too many crashes."""

    letter_id: Annotated[str, Field(min_length=1)]
    """What to redrive it by: letters are listed in its order, oldest first. It can stand in a path as it is."""
    session_id: SessionIdField
    turn: Ordinal
    reason: str
    attempts: Count
    """How often the turn was tried."""
    time: UnixMs
    """When it was given up, in ms by the store's clock."""
    messages: Annotated[tuple[DeadMessage, ...], Strict(strict=False)]
    """All that it had claimed, and what became of each: those that it had not admitted are dead and can be redriven."""


class DeadPage(Answer):
    """Some dead letters; `next` is the `after` of the next page, null on the last."""

    letters: Annotated[tuple[DeadLetter, ...], Strict(strict=False)]
    next: str | None

    def wire(self) -> dict[str, object]:
        """As plain data; `next` is always there."""
        return {**super().wire(), "next": self.next}


class Redriven(Answer):
    """The letter's dead messages are queued again, each under its own id."""

    receipts: Annotated[tuple[Receipt, ...], Strict(strict=False)]

"""The result of an owned run: what `run()` of an SDK gives back for the interval that its caller owns (U2, U3).

    … │ inbox/queued (its own message)  …everything…  agent/status idle │ …
        from                                                         to

Rule 1: the interval is the caller's, not the message's: it may hold steering, other people's messages,
        several turns. `finalResponse` is the last text said in it, with no claim that it answers the message.
Rule 2: there is no status and no success here. `finishReason` tells how the last turn in the interval
        ended; it is absent when none did, and in SDKs that do not report it.
Rule 3: `message` is what became of the message itself (M6, U4): an observation beside the interval, which
        stops at admission and is not the cause of anything in it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, Strict

from mailslot_contracts.door import Answer, MessageIdField, SessionIdField
from mailslot_contracts.events import Envelope
from mailslot_contracts.records import MessageRecord


class RunResult(Answer):
    """One interval of activity, from a receipt through the next idle of the whole agent."""

    model_config = ConfigDict(extra="forbid")

    session_id: SessionIdField
    message_id: MessageIdField
    final_response: str
    """Text of the last `assistant/message` in the interval that has text; empty when none has."""
    events: Annotated[tuple[Envelope, ...], Strict(strict=False)]
    from_seq: Annotated[int, Field(alias="from", ge=1)]
    """The seq of the message's `inbox/queued`."""
    to_seq: Annotated[int, Field(alias="to", ge=1)]
    """The seq of the first idle after it."""
    finish_reason: str | None = None
    """Kind of the last `turn/end` in the interval."""
    message: MessageRecord | None = None
    """The record of the message itself, as it was at the end of the interval."""

    def wire(self) -> dict[str, object]:
        """As plain data; the events as they came."""
        return {**super().wire(), "events": [event.wire() for event in self.events]}

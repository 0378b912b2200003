"""The bodies of the REST door that are neither a message or its record, an event nor a goal (protocol section 1).

    POST   /v1/sessions               SessionCreate  -> SessionAnswer
    GET    /v1/sessions                              -> LevelPage
    DELETE /v1/sessions/{sid}                        -> EraseAnswer
    POST   /v1/sessions/{sid}/close                  -> CloseAnswer
    POST   /v1/sessions/{sid}/prompts [Prompt, …]    -> [PromptBatchItem, …]
    POST   /v1/sessions/{sid}/cancel  Cancel         -> CancelAnswer
    POST   /v1/sessions/{sid}/release                -> SessionAnswer
    GET    /v1/sessions/{sid}/events                 -> EventPage, or SSE
    GET    /v1/sessions/{sid}/idle                   -> IdleAnswer

Rule 1: no answer here tells how a message's turn ended.
Rule 2: one bad item of a batch is that item's error; the others are taken.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from mailslot_contracts.door import Answer, Count, Door, MessageIdField, NameField, Ordinal, Seq, SessionIdField
from mailslot_contracts.events import Envelope
from mailslot_contracts.messages import BATCH_COUNT_MAX, Metadata, Receipt
from mailslot_contracts.problems import BadInput, Problem, TooLarge
from mailslot_contracts.status import Level

PAGE_COUNT_MAX = 1000
"""Events, sessions, messages or letters in one page."""

PAGE_COUNT_DEFAULT = 100
"""The same when the caller names no limit."""

IDLE_TIMEOUT_S_MAX = 60
"""Seconds that one long poll waits at most: below the idle timeout of common proxies."""

IDLE_TIMEOUT_S_DEFAULT = 30
"""Seconds that a long poll waits when the caller names no timeout."""

HEARTBEAT_S = 15
"""Seconds between two comments on an otherwise silent SSE stream."""

DEFAULT_AGENT = "default"
"""The agent of a session that names none."""

SSE_EVENT = "session.event"
SSE_STATUS = "session.status"
SSE_DELTA = "session.delta"
SSE_GAP = "session.gap"


class SessionCreate(Door):
    """Make a session."""

    session_id: SessionIdField | None = None
    """The caller's own id for the session; without one, ingest makes it."""
    agent: NameField = DEFAULT_AGENT
    on_failure: Literal["continue", "hold"] = "continue"
    """hold puts the queue on hold after a turn that failed, was blocked or was given up."""
    metadata: Metadata = Field(default_factory=dict)

    def created(self) -> dict[str, object]:
        """The data of the `session/created` that this makes."""
        return {"agent": self.agent, "onFailure": self.on_failure, "depth": 0, "metadata": self.metadata}


class SessionAnswer(Answer):
    """The session is there."""

    session_id: SessionIdField
    cursor: Seq
    """The seq of its newest event."""


class LevelPage(Answer):
    """Some sessions; `next` is the `after` of the next page, null on the last."""

    sessions: Annotated[tuple[Level, ...], Strict(strict=False)]
    next: str | None

    def wire(self) -> dict[str, object]:
        """As plain data; `next` is always there."""
        return {**super().wire(), "next": self.next}


class Cancel(Door):
    """Stop the open turn."""

    queue: Literal["keep", "hold", "clear"] = "keep"
    """What happens to what is queued: the agent goes on with it, it waits for a release, or it is cancelled."""
    turn: Ordinal | None = None
    """Only this turn; refused `not-open` when it is not the open one."""
    cause: Literal["user", "parent", "hook"] = "user"


class CancelAnswer(Answer):
    """What the cancel came to."""

    outcome: Literal["requested", "nothing_to_cancel", "settled"]
    """settled is only answered to a caller who waits for it."""
    turn: Ordinal | None = None
    """The turn that was named by the cancel."""
    still_queued: Annotated[tuple[MessageIdField, ...], Strict(strict=False)]


class CloseAnswer(Answer):
    """The session takes no more messages."""

    session_id: SessionIdField
    closed: bool
    """false while its last turn still ends; `session/closed` follows at its idle."""
    cursor: Seq
    """The seq of its newest event."""


class StoreReceipt(Answer):
    """What one store had of a session: whether it is gone from there, and how much that was."""

    erased: bool
    events: Count | None = None
    messages: Count | None = None
    """Those that a record was still kept of. Both are absent when somebody else erased it while this call waited."""


class EraseAnswer(Answer):
    """The session is closed, and gone once `erased` is true."""

    session_id: SessionIdField
    erased: bool
    """false while its last turn still ends; it is erased after that, without being asked again."""
    stores: dict[str, StoreReceipt]
    """By the name of the store. There is one, `ledger`: the events, and everything that is kept beside them."""


class EventPage(Answer):
    """Some events in order of seq; `next` is the `after` of the next page, null when there is none yet."""

    events: Annotated[tuple[Envelope, ...], Strict(strict=False)]
    next: Seq | None

    def wire(self) -> dict[str, object]:
        """As plain data; `next` is always there."""
        return {"events": [event.wire() for event in self.events], "next": self.next}


class IdleAnswer(Answer):
    """The agent is idle since `cursor`, or still running at the timeout."""

    status: Literal["running", "idle"]
    cursor: Seq
    """When idle, the seq of the first idle after the one asked about; when running, the newest seq."""
    reasons: Annotated[tuple[str, ...], Strict(strict=False)] | None = None


PromptBatchItem = Receipt | Problem
"""What one prompt of a batch came to."""


def check_batch(value: object) -> list[object]:
    """The items of a batch, each still to be read on its own: one bad item does not spoil the others."""
    if not isinstance(value, list):
        raise BadInput("a batch must be a list of prompts")
    if not value:
        raise BadInput("a batch must hold at least one prompt")
    if len(value) > BATCH_COUNT_MAX:
        raise TooLarge("the batch", len(value), BATCH_COUNT_MAX, "prompts")
    return value

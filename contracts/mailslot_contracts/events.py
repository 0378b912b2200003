"""Events: every durable fact a ledger can hold, and the envelope it travels in (protocol sections 4 and 5).

    {"v": 1, "seq": 12, "sessionId": "s", "type": "inbox/queued", "time": 1764554400123, "epoch": 3, "data": {…}}

Rule 1: the type decides the shape of the data; the table EVENT_DATA is the whole list.
Rule 2: unknown fields are kept, an unknown type becomes an `UnknownEvent`, an unknown `turn/end` kind
        stays what it is and counts as not-success (semantics L4).
Rule 3: a higher envelope version is refused: whoever reads on could misread a fact.
Rule 4: `assistant/delta` is no event. It has no seq, is in no ledger, and may be lost.
Rule 5: no event pairs a message with a result.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Strict,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)

from mailslot_contracts.codec import check_value
from mailslot_contracts.door import (
    Answer,
    Count,
    Fact,
    GoalIdField,
    MessageIdField,
    NameField,
    Ordinal,
    Seq,
    SessionIdField,
    UnixMs,
    read,
    refusal,
)
from mailslot_contracts.goals import Goal
from mailslot_contracts.messages import normalise_content
from mailslot_contracts.problems import BadInput, VersionError

ENVELOPE_VERSION = 1
"""The version that is written, and the highest that is read."""

TRANSIENT = ("assistant/delta",)
"""Types of notices that never stand in a ledger."""

TOOL_OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
"""Error code of a tool result: the call was started, its worker died, and it may not be run twice (R3)."""

ABORTED_BEFORE_DISPATCH = "ABORTED_BEFORE_DISPATCH"
"""Error code of a tool result: the turn was cancelled before the call was started (C4)."""

TURN_BUDGET_CODES = ("budget-steps", "budget-tool-calls", "budget-tokens", "budget-wall-time")
"""Codes of a `turn/end{error}` that says which budget of the turn was exceeded (T10)."""


# -- content and provenance, as a ledger holds them ---------------------------------------------------------


class TextBlock(Fact):
    """A text block; a model's may be empty."""

    type: Literal["text"]
    text: str


class ImageBlock(Fact):
    """An image block."""

    type: Literal["image"]
    media_type: str
    data: str | None = None
    url: str | None = None


BLOCK_TYPES = ("text", "image")


class OtherBlock(Fact):
    """A block of a kind that this version does not know."""

    type: Annotated[str, Field(json_schema_extra={"not": {"enum": list(BLOCK_TYPES)}})]


def _block_tag(block: object) -> str:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return kind if kind in BLOCK_TYPES else "other"


EventBlock = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[ImageBlock, Tag("image")] | Annotated[OtherBlock, Tag("other")],
    Discriminator(_block_tag),
]
EventContent = Annotated[tuple[EventBlock, ...], Strict(strict=False), BeforeValidator(normalise_content)]
"""Blocks in order; a bare string is read as one text block."""


class Provenance(Fact):
    """Where a message came from; a goal's names the goal, the revision and the round."""

    kind: str
    goal_id: GoalIdField | None = None
    revision: Ordinal | None = None
    round: Ordinal | None = None

    @model_validator(mode="after")
    def _goal_is_named(self) -> Self:
        if self.kind == "goal" and None in (self.goal_id, self.revision, self.round):
            raise BadInput("source: kind goal needs goalId, revision and round")
        return self


class Usage(Fact):
    """What models used."""

    input_tokens: Count
    output_tokens: Count
    cost: Annotated[float, Field(ge=0)] | None = None


# -- session and inbox --------------------------------------------------------------------------------------


class SessionCreated(Fact):
    """The session exists. `depth` is 0 without a parent."""

    agent: NameField
    on_failure: Literal["continue", "hold"]
    parent: SessionIdField | None = None
    depth: Count
    metadata: dict[str, JsonValue]


class SessionClosed(Fact):
    """The session takes no more messages; its history stays readable."""

    cause: str


class InboxQueued(Fact):
    """The message is in the inbox: this is what a receipt proves."""

    message_id: MessageIdField
    lane: Literal["next-turn", "next-step"]
    wake: bool
    content: EventContent
    source: Provenance
    not_before: UnixMs | None = None
    expires_at: UnixMs | None = None
    redrive: bool | None = None
    metadata: dict[str, JsonValue] | None = None


class InboxClaimed(Fact):
    """The turn took these messages, in the order they will enter. `step` is the step they will enter, absent
    in the claim that opens the turn."""

    turn: Ordinal
    step: Ordinal | None = None
    message_ids: Annotated[tuple[MessageIdField, ...], Strict(strict=False)]


class InboxReplaced(Fact):
    """The queued message has new content, in its old place."""

    message_id: MessageIdField
    content: EventContent


class InboxMoved(Fact):
    """The queued message waits in another lane, at the place of this event."""

    message_id: MessageIdField
    lane: Literal["next-turn", "next-step"]


class InboxCancelled(Fact):
    """The message will not be admitted, because somebody or something took it back."""

    message_id: MessageIdField
    cause: Literal["withdrawn", "cancel", "preempted", "stale", "closed"]


class InboxRejected(Fact):
    """The turn that claimed the message did not let it in."""

    message_id: MessageIdField
    turn: Ordinal
    reason: str


class InboxExpired(Fact):
    """The message was still queued at its `expiresAt`."""

    message_id: MessageIdField


class InboxDead(Fact):
    """The turn that claimed the message gave up after crashes."""

    message_id: MessageIdField
    reason: str
    attempts: Count


class InboxDue(Fact):
    """The message's `notBefore` has come; its place in the lane is this event."""

    message_id: MessageIdField


class InboxHeld(Fact):
    """Queued messages do not wake the agent from here on. Causes written so far: `cancel`, `failure`."""

    cause: str


class InboxReleased(Fact):
    """Queued messages wake again. Causes written so far: `submit`, `move`, `release`, `goal`, `redrive`."""

    cause: str


class AgentStatus(Fact):
    """Status of the whole agent. `held` says how many follow-ups and steers wait behind a hold."""

    status: Literal["running", "idle"]
    held: Count | None = None


# -- turns and steps ----------------------------------------------------------------------------------------


class Completed(Fact):
    """The model had its say."""

    kind: Literal["completed"]


class MaxTokens(Fact):
    """A model answer of the turn was cut off at its token limit."""

    kind: Literal["max-tokens"]


class Aborted(Fact):
    """The turn was cancelled."""

    kind: Literal["aborted"]
    cause: Literal["user", "parent", "hook"]


class Blocked(Fact):
    """The admission hook let nothing in."""

    kind: Literal["blocked"]


class Failed(Fact):
    """The turn failed for good."""

    kind: Literal["error"]
    code: str
    message: str
    retryable: bool


class Interrupted(Fact):
    """Recovery gave the turn up after too many crashes."""

    kind: Literal["interrupted"]


END_KINDS = ("completed", "max-tokens", "aborted", "blocked", "error", "interrupted")


class OtherEnd(Fact):
    """An end that this version does not know: not a success (semantics L4)."""

    kind: Annotated[str, Field(json_schema_extra={"not": {"enum": list(END_KINDS)}})]


def is_success(kind: str | None) -> bool:
    """Whether a turn that ended with this kind did what it was for. Only `completed` did."""
    return kind == "completed"


def _end_tag(reason: object) -> str:
    kind = reason.get("kind") if isinstance(reason, dict) else getattr(reason, "kind", None)
    return kind if kind in END_KINDS else "other"


EndReason = Annotated[
    Annotated[Completed, Tag("completed")]
    | Annotated[MaxTokens, Tag("max-tokens")]
    | Annotated[Aborted, Tag("aborted")]
    | Annotated[Blocked, Tag("blocked")]
    | Annotated[Failed, Tag("error")]
    | Annotated[Interrupted, Tag("interrupted")]
    | Annotated[OtherEnd, Tag("other")],
    Discriminator(_end_tag),
]


class TurnStart(Fact):
    """A turn is open."""

    turn: Ordinal


class TurnEnd(Fact):
    """The turn is closed. This is about the turn, not about any message."""

    turn: Ordinal
    reason: EndReason
    usage: Usage | None = None


class TurnRecovered(Fact):
    """A new owner goes on with an open turn. `attempt` is 1 + crashes."""

    turn: Ordinal
    attempt: Ordinal
    reason: Literal["crash", "handback", "resume"]


class StepStart(Fact):
    """A model call is about to be made. Steps count from 1 in each turn."""

    turn: Ordinal
    step: Ordinal


class StepEnd(Fact):
    """The model call and the tool calls it asked for are over."""

    turn: Ordinal
    step: Ordinal


class UserMessage(Fact):
    """The message entered the transcript: only this proves consumption."""

    message_id: MessageIdField
    turn: Ordinal
    step: Ordinal
    content: EventContent
    source: Provenance


class ToolCallAsked(Fact):
    """A tool call that a model asked for."""

    call_id: NameField
    name: str
    arguments: dict[str, JsonValue]


class AssistantMessage(Fact):
    """What the model said. `interrupted` marks the prefix that was visible when it was cancelled."""

    turn: Ordinal
    step: Ordinal
    content: EventContent
    tool_calls: Annotated[tuple[ToolCallAsked, ...], Strict(strict=False)] | None = None
    model: str
    usage: Usage | None = None
    interrupted: bool | None = None


class ToolCall(Fact):
    """The call is started: from here on it may have had its effect."""

    turn: Ordinal
    step: Ordinal
    call_id: NameField
    name: str
    arguments: dict[str, JsonValue]


class ToolFault(Fact):
    """Why a tool call has no proper result."""

    code: str
    message: str


class ToolResult(Fact):
    """What the call came to."""

    turn: Ordinal
    step: Ordinal
    call_id: NameField
    content: EventContent
    error: ToolFault | None = None


class LlmRetry(Fact):
    """A model call failed and is made again after the delay. Written before the wait."""

    turn: Ordinal
    step: Ordinal
    attempt: Ordinal
    delay_ms: Count
    code: str
    message: str


class CancelRequested(Fact):
    """Somebody wants the named turn to stop. `closing`: and the session to be closed once that is done."""

    cause: Literal["user", "parent", "hook"]
    queue: Literal["keep", "hold", "clear"]
    turn: Ordinal | None = None
    closing: bool | None = None


# -- goals, children, approvals, accounting -----------------------------------------------------------------


class GoalChange(Fact):
    """The goal is at this revision."""

    operation: Literal["create", "edit", "pause", "resume", "complete", "block", "clear"]
    goal: Goal


class SubagentStarted(Fact):
    """A child session works for this one."""

    child_id: SessionIdField
    call_id: NameField | None = None
    detached: bool


class SubagentDetached(Fact):
    """The agent no longer waits for the child."""

    child_id: SessionIdField


class SubagentSettled(Fact):
    """The child's run is over."""

    child_id: SessionIdField
    stop_reason: str
    output: str | None = None


class ApprovalRequested(Fact):
    """A tool call waits for a person's yes."""

    approval_id: NameField
    turn: Ordinal
    step: Ordinal
    call_id: NameField
    question: str


class ApprovalAnswered(Fact):
    """The approval has its answer."""

    approval_id: NameField
    answer: Literal["allow", "deny"]
    by: str


class UsageRecorded(Fact):
    """What one model call used."""

    turn: Ordinal
    step: Ordinal
    attempt: Ordinal
    model: str
    request_id: str | None = None
    input_tokens: Count
    output_tokens: Count
    cost: Annotated[float, Field(ge=0)] | None = None


class CompactionDone(Fact):
    """The transcript from one seq to another is replaced by a summary."""

    from_seq: Annotated[int, Field(alias="from", ge=1)]
    to_seq: Annotated[int, Field(alias="to", ge=1)]
    summary: str


EVENT_DATA: dict[str, type[Fact]] = {
    "session/created": SessionCreated,
    "inbox/queued": InboxQueued,
    "inbox/claimed": InboxClaimed,
    "inbox/replaced": InboxReplaced,
    "inbox/moved": InboxMoved,
    "inbox/cancelled": InboxCancelled,
    "inbox/rejected": InboxRejected,
    "inbox/expired": InboxExpired,
    "inbox/dead": InboxDead,
    "inbox/due": InboxDue,
    "inbox/held": InboxHeld,
    "inbox/released": InboxReleased,
    "agent/status": AgentStatus,
    "turn/start": TurnStart,
    "turn/end": TurnEnd,
    "turn/recovered": TurnRecovered,
    "step/start": StepStart,
    "step/end": StepEnd,
    "user/message": UserMessage,
    "assistant/message": AssistantMessage,
    "tool/call": ToolCall,
    "tool/result": ToolResult,
    "llm/retry": LlmRetry,
    "cancel/requested": CancelRequested,
    "goal/change": GoalChange,
    "subagent/started": SubagentStarted,
    "subagent/detached": SubagentDetached,
    "subagent/settled": SubagentSettled,
    "approval/requested": ApprovalRequested,
    "approval/answered": ApprovalAnswered,
    "usage/recorded": UsageRecorded,
    "compaction/done": CompactionDone,
    "session/closed": SessionClosed,
}

EVENT_TYPES: tuple[str, ...] = tuple(EVENT_DATA)
"""Every event type that this version knows."""


# -- envelopes ----------------------------------------------------------------------------------------------


class Envelope(Fact):
    """An event on its way. `time` is the store's clock in ms; `epoch` is the lease epoch it was written under."""

    v: Annotated[int, Field(ge=1, le=ENVELOPE_VERSION)]
    seq: Ordinal
    session_id: SessionIdField
    type: str
    time: UnixMs
    epoch: Count
    data: Fact


class UnknownEvent(Envelope):
    """An event of a type that this version does not know: kept, and passed on as it is."""


def _envelope_of(event_type: str, data: type[Fact]) -> type[Envelope]:
    fields: dict[str, Any] = {"type": (Literal.__getitem__(event_type), ...), "data": (data, ...)}
    return create_model(f"{data.__name__}Event", __base__=Envelope, __doc__=data.__doc__, **fields)


ENVELOPES: dict[str, type[Envelope]] = {name: _envelope_of(name, data) for name, data in EVENT_DATA.items()}
"""The envelope of each known type: the members of the union, by their discriminator."""

_ANY_EVENT: Any = Annotated[reduce(operator.or_, ENVELOPES.values()), Field(discriminator="type")]
EVENT_UNION: TypeAdapter[Envelope] = TypeAdapter(_ANY_EVENT)
"""The discriminated union of all known events."""


def parse_event(value: object) -> Envelope:
    """The event that an envelope holds; its `data` is of the class that EVENT_DATA names for its type."""
    if not isinstance(value, dict):
        raise BadInput("an event must be an object")
    version = value.get("v")
    if type(version) is int and version > ENVELOPE_VERSION:
        raise VersionError(version, ENVELOPE_VERSION)
    return read(ENVELOPES.get(str(value.get("type")), UnknownEvent), value)


def parse_data(event_type: str, data: object) -> Fact:
    """The data of one event, held to the shape of its type; an unknown type's is kept as it is."""
    check_value(data)
    try:
        return EVENT_DATA.get(event_type, Fact).model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = refusal(error)
        raise BadInput(f"{event_type}: {wrong}") from None


class AssistantDelta(Answer):
    """A piece of text that the model is saying right now."""

    turn: Ordinal
    step: Ordinal
    text: str


class DeltaNotice(Answer):
    """A transient notice: no seq, in no ledger, never moves a cursor."""

    v: Literal[1]
    session_id: SessionIdField
    type: Literal["assistant/delta"]
    data: AssistantDelta


class GapNotice(Answer):
    """What was asked for is no longer kept, or never was; these are the seqs that can be read."""

    session_id: SessionIdField
    oldest: Seq
    newest: Seq

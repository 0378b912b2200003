"""What can go wrong at a door, as data: the code table, the RFC 9457 body, and our own errors.

Every refusal carries one code and one sentence. The code decides the HTTP status, the title and
whether repeating the same request unchanged can help; nothing else does.

Errors of this package, by whose fault it is (all of them the sender's):

    ContractError                 has .code, and str() is the sentence
    ├── BadInput                  bad-input: the value is not what the door takes
    │   ├── BadValue              a value that no ledger may hold (semantics L5)
    │   ├── BadId                 an id that no key may hold
    │   ├── VersionError          an envelope from a newer protocol
    │   └── CodecError            bytes that are not one encoded value
    │       ├── CodecVersionError the version byte is not ours
    │       └── CodecTooLarge     too-large: over the frame limit
    └── TooLarge                  too-large: over a limit that has a name and a unit
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Code(StrEnum):
    """Every problem code of the public doors."""

    BAD_INPUT = "bad-input"
    EXPIRED = "expired"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    ALREADY_CLAIMED = "already-claimed"
    ALREADY_SETTLED = "already-settled"
    ALREADY_ANSWERED = "already-answered"
    NOT_OPEN = "not-open"
    NOT_HELD = "not-held"
    NOT_DEAD = "not-dead"
    BUSY = "busy"
    IDLE = "idle"
    TURN_MISMATCH = "turn-mismatch"
    CLOSED = "closed"
    GOAL_EXISTS = "goal-exists"
    SESSION_EXISTS = "session-exists"
    NOT_ALLOWED = "not-allowed"
    CURSOR_EXPIRED = "cursor-expired"
    REVISION = "revision"
    TOO_LARGE = "too-large"
    CONFLICT = "conflict"
    QUEUE_FULL = "queue-full"
    RATE_LIMITED = "rate-limited"
    INTERNAL = "internal"
    STORE_REFUSED = "store-refused"
    OUTCOME_UNKNOWN = "outcome-unknown"


class CodeRow(NamedTuple):
    """What a code means on HTTP; retryable = the same request, unchanged, may succeed later."""

    status: int
    retryable: bool
    title: str


CODES: dict[Code, CodeRow] = {
    Code.BAD_INPUT: CodeRow(400, False, "The request is not what this door takes"),
    Code.EXPIRED: CodeRow(400, False, "The message's time was over before it came"),
    Code.UNAUTHORIZED: CodeRow(401, False, "The caller is not known"),
    Code.FORBIDDEN: CodeRow(403, False, "The caller may not do this"),
    Code.NOT_FOUND: CodeRow(404, False, "There is no such thing"),
    Code.METHOD_NOT_ALLOWED: CodeRow(405, False, "This address does not take that method"),
    Code.ALREADY_CLAIMED: CodeRow(409, False, "The message was claimed first"),
    Code.ALREADY_SETTLED: CodeRow(409, False, "The message is settled"),
    Code.ALREADY_ANSWERED: CodeRow(409, False, "The approval was answered first"),
    Code.NOT_OPEN: CodeRow(409, False, "The named turn is not open"),
    Code.NOT_HELD: CodeRow(409, False, "The session is not on hold"),
    Code.NOT_DEAD: CodeRow(409, False, "The message is not dead"),
    Code.BUSY: CodeRow(409, True, "The agent is busy"),
    Code.IDLE: CodeRow(409, False, "The agent is idle"),
    Code.TURN_MISMATCH: CodeRow(409, False, "Another turn is open"),
    Code.CLOSED: CodeRow(409, False, "The session is closed"),
    Code.GOAL_EXISTS: CodeRow(409, False, "The session has a goal"),
    Code.SESSION_EXISTS: CodeRow(409, False, "The session exists with another body"),
    Code.NOT_ALLOWED: CodeRow(409, False, "The state of the goal does not allow this"),
    Code.CURSOR_EXPIRED: CodeRow(410, False, "The cursor is older than what is kept"),
    Code.REVISION: CodeRow(412, False, "The goal has another revision"),
    Code.TOO_LARGE: CodeRow(413, False, "The request is over a limit"),
    Code.CONFLICT: CodeRow(422, False, "The message id was used with another body"),
    Code.QUEUE_FULL: CodeRow(429, True, "The session's queue is full"),
    Code.RATE_LIMITED: CodeRow(429, True, "Too many requests"),
    Code.INTERNAL: CodeRow(500, False, "The service failed; this is a defect"),
    Code.STORE_REFUSED: CodeRow(503, True, "The store refused; nothing was kept"),
    Code.OUTCOME_UNKNOWN: CodeRow(503, True, "The outcome is not known; repeat with the same message id"),
}

PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE_PREFIX = "urn:mailslot:problem:"


class Problem(BaseModel):
    """The body of every refusal (RFC 9457). Readers skip members they do not know."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)

    type: str = Field(description="urn:mailslot:problem:<code>")
    title: str = Field(description="one line for the code, always the same")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="one sentence that names the thing and its state")
    code: Code
    retryable: bool = Field(description="the same request, unchanged, may succeed later")
    retry_after_ms: int | None = Field(default=None, ge=0, description="do not repeat sooner than this")
    message_id: str | None = Field(default=None, description="with outcome-unknown: repeat with this id")
    oldest: int | None = Field(default=None, description="with cursor-expired: the oldest seq kept")
    newest: int | None = Field(default=None, description="with cursor-expired: the newest seq kept")

    @classmethod
    def of(
        cls,
        code: Code | str,
        detail: str,
        *,
        retry_after_ms: int | None = None,
        message_id: str | None = None,
        oldest: int | None = None,
        newest: int | None = None,
    ) -> Self:
        """The problem of a code, with status, title and retryable from the table."""
        row = CODES[Code(code)]
        return cls(
            type=PROBLEM_TYPE_PREFIX + code,
            title=row.title,
            status=row.status,
            detail=detail,
            code=Code(code),
            retryable=row.retryable,
            retry_after_ms=retry_after_ms,
            message_id=message_id,
            oldest=oldest,
            newest=newest,
        )

    def wire(self) -> dict[str, object]:
        """As plain data with the wire's names; what is absent is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ContractError(ValueError):
    """Something that came through a door breaks the contract."""

    code: ClassVar[Code] = Code.BAD_INPUT

    def problem(self) -> Problem:
        """This error as a problem body."""
        return Problem.of(self.code, str(self))


class BadInput(ContractError):
    """The value is not what the door takes."""


class BadValue(BadInput):
    """`{path}: {why}`: a value that no ledger may hold."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class BadId(BadInput):
    """`{what} {why}`: an id that no key may hold."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} {why}")
        self.what = what
        self.why = why


class VersionError(BadInput):
    """`envelope version {v} is newer than {known}; upgrade the reader`."""

    def __init__(self, v: int, known: int) -> None:
        super().__init__(f"envelope version {v} is newer than {known}, the newest known here; upgrade the reader")
        self.v = v


class CodecError(BadInput):
    """The bytes are not one encoded value."""


class CodecVersionError(CodecError):
    """`unknown encoding version {found}; this reader knows {known}`."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"unknown encoding version {found}; this reader knows {known}")
        self.found = found


class CodecTooLarge(CodecError):
    """The bytes are over the frame limit."""

    code: ClassVar[Code] = Code.TOO_LARGE


class TooLarge(ContractError):
    """`{what} has {found} {unit}; the limit is {limit}`."""

    code: ClassVar[Code] = Code.TOO_LARGE

    def __init__(self, what: str, found: int, limit: int, unit: str) -> None:
        super().__init__(f"{what} has {found} {unit}; the limit is {limit}")
        self.what = what
        self.found = found
        self.limit = limit

"""What can go wrong for a client, by whose fault it is.

    MailslotError                 has .code, and str() is the sentence
    ├── Refused                   the server said no, and nothing was done; .code is the problem's
    ├── OutcomeUnknown            it may have been done or not; .message_id makes repeating safe
    ├── CursorExpired             the history after the cursor is not kept any more
    ├── RunTimeout                the caller's own patience ended; the agent goes on
    ├── TransportLost             the server could not be reached again, whatever was tried
    └── BadAnswer                 what answered does not speak this protocol

Rule 1: a model error, a token limit, a cancelled or rejected message are no errors of a client: they are facts
        in the ledger, and a run reports them as it reports everything else.
Rule 2: `TransportLost` and `OutcomeUnknown` come only after every repetition that is safe has been tried.
"""

from __future__ import annotations

from collections.abc import Mapping


class MailslotError(Exception):
    """Anything this package raises on purpose."""

    code: str = "error"


class Refused(MailslotError):
    """The server refused, and nothing was kept or changed. `code` says why; `retryable` that it may work later."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        problem: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        """HTTP status; None when it was refused here, before it was sent."""
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.problem = dict(problem or {})
        """The whole problem as it came (RFC 9457)."""


class OutcomeUnknown(MailslotError):
    """The request may have been carried out or not. Repeating a prompt with the same message id is always safe."""

    code = "outcome-unknown"

    def __init__(self, sentence: str, *, message_id: str | None = None) -> None:
        super().__init__(sentence)
        self.message_id = message_id
        """The id to repeat with; None when it was not about a message."""


class CursorExpired(MailslotError):
    """The events after the cursor are not kept, or never were. Nothing was skipped in silence."""

    code = "cursor-expired"

    def __init__(self, sentence: str, *, oldest: int | None = None, newest: int | None = None) -> None:
        super().__init__(sentence)
        self.oldest = oldest
        """The oldest seq that can be read."""
        self.newest = newest
        """The newest seq that can be read."""


class RunTimeout(MailslotError):
    """The time the caller gave is over. The agent was not cancelled, unless the caller asked for that."""

    code = "run-timeout"

    def __init__(self, sentence: str, *, message_id: str | None = None) -> None:
        super().__init__(sentence)
        self.message_id = message_id
        """The message of the run, when one was sent: it may be kept, and its events can be read later."""


class TransportLost(MailslotError):
    """The connection could not be made, or was cut and could not be resumed."""

    code = "transport-lost"

    def __init__(self, sentence: str, *, reached: bool = False) -> None:
        super().__init__(sentence)
        self.reached = reached
        """Whether the server was ever reached: false means that nobody listens at the address."""


class BadAnswer(MailslotError):
    """Something answered that does not speak this protocol, or speaks a newer one."""

    code = "bad-answer"

"""What can go wrong in the core, as one tree, ordered by whose fault it is.

    CoreError                  has a `code` (stable, for programs) and a sentence (for people)
    |-- Refused                the caller's: the act is not allowed in this state; nothing was changed
    |-- Fenced                 the worker's: it no longer owns the session (semantics L3, R2); nothing was written
    |-- CursorExpired          the reader's: the events after its cursor were trimmed (semantics L7)
    |-- StoreUnavailable       the store's: it refused or was not reached; nothing was kept
    |-- StoreFault             nobody's and ours: damaged data or a defect; the doctor says which session
    |-- OutcomeUnknown         the wire's: the answer was lost; the act may have been carried out (semantics M1)
    `-- Misconfigured          the operator's: the server cannot give what the configuration promises (semantics M2)

Rule 1: a sentence names the thing and its state: `cannot cancel turn 4: turn 5 is open`.
Rule 2: `Refused`, `Fenced` and `StoreUnavailable` mean that the ledger is byte for byte what it was.
"""

from __future__ import annotations


class CoreError(Exception):
    """An act that was not carried out, or not known to be."""

    code = "internal"

    def __init__(self, sentence: str, *, code: str | None = None) -> None:
        super().__init__(sentence)
        if code is not None:
            self.code = code


class Refused(CoreError):
    """The act is not allowed in this state; nothing was changed.

    `retry_after_ms` is set when waiting can help (a full queue).
    """

    code = "refused"

    def __init__(self, code: str, sentence: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(sentence, code=code)
        self.retry_after_ms = retry_after_ms


class Fenced(CoreError):
    """The caller does not own the session (any more); the store refused its write and counted it."""

    code = "fenced"


class CursorExpired(CoreError):
    """Events after the cursor are no longer (or never were) in the ledger.

    `oldest` and `newest` are the seqs that can be read, both 0 for an empty ledger.
    """

    code = "cursor-expired"

    def __init__(self, sentence: str, *, oldest: int, newest: int) -> None:
        super().__init__(sentence)
        self.oldest = oldest
        self.newest = newest


class StoreUnavailable(CoreError):
    """The store refused the act (read-only, out of memory, not reachable); nothing was kept."""

    code = "store-refused"


class OutcomeUnknown(CoreError):
    """The store's answer was lost; repeating the same act with the same id is safe."""

    code = "outcome-unknown"

    def __init__(self, sentence: str, *, message_id: str | None = None) -> None:
        super().__init__(sentence)
        self.message_id = message_id


class StoreFault(CoreError):
    """The store failed in the middle of an act: what it keeps is damaged, or we are wrong. Repeating does not help."""


class Misconfigured(CoreError):
    """The server cannot give what the configuration promises; the sentence says what to set."""

    code = "misconfigured"

"""What clients were told, written down while they are told it: the other half of what a checker needs.

    client ── submit ──> store                 receipt     the message is inside          (must be found)
       ^────────────────── answer              refusal     it is not                      (must not be found)
                                               unknown     nobody knows; ask again        (either is right)

Rule 1: it keeps what was sent, what was said and when, and judges nothing.
Rule 2: `sent_ms` and `answered_ms` are readings of one clock for all clients of a record; which one does not matter, as
        long as it never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Content = Sequence[Any]
"""The blocks of a message, as its client made them."""


class Receipt(NamedTuple):
    """A client was told that the message is inside, at `cursor`."""

    session_id: str
    message_id: str
    cursor: int
    sent_ms: float
    answered_ms: float
    duplicate: bool = False
    content: Content | None = None
    """What the client had sent, None if it does not say so: then nobody can compare it with what was queued."""


class Refusal(NamedTuple):
    """A client was told that this attempt left nothing behind."""

    session_id: str
    message_id: str
    code: str
    sent_ms: float
    answered_ms: float


class Unknown(NamedTuple):
    """A client was told that nobody knows whether the message is inside."""

    session_id: str
    message_id: str
    sent_ms: float
    answered_ms: float


class Cancel(NamedTuple):
    """A client was told that a cancel was recorded; `turn` is the one it hits, None when none was open."""

    session_id: str
    turn: int | None
    sent_ms: float
    answered_ms: float


class Change(NamedTuple):
    """A client was told that a queued message is now `withdrawn`, `replaced` or `moved`."""

    session_id: str
    message_id: str
    what: str
    sent_ms: float
    answered_ms: float
    content: Content | None = None
    """What the client had put in its place, None if nothing, or if it does not say so."""


@dataclass
class Recorder:
    """Everything that clients were told."""

    receipts: list[Receipt] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    unknowns: list[Unknown] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    erased: set[str] = field(default_factory=set)
    """Sessions that a client had erased: their ledgers are gone, and that is right."""

    def receipt(
        self,
        session_id: str,
        message_id: str,
        cursor: int,
        *,
        sent_ms: float,
        answered_ms: float,
        duplicate: bool = False,
        content: Content | None = None,
    ) -> None:
        """A receipt was given, for a submit or for a redrive."""
        self.receipts.append(Receipt(session_id, message_id, cursor, sent_ms, answered_ms, duplicate, content))

    def refused(self, session_id: str, message_id: str, code: str, *, sent_ms: float, answered_ms: float) -> None:
        """A submit was refused."""
        self.refusals.append(Refusal(session_id, message_id, code, sent_ms, answered_ms))

    def unknown(self, session_id: str, message_id: str, *, sent_ms: float, answered_ms: float) -> None:
        """A submit came to nobody knows what."""
        self.unknowns.append(Unknown(session_id, message_id, sent_ms, answered_ms))

    def cancelled(self, session_id: str, turn: int | None, *, sent_ms: float, answered_ms: float) -> None:
        """A cancel was answered `requested`."""
        self.cancels.append(Cancel(session_id, turn, sent_ms, answered_ms))

    def changed(
        self,
        session_id: str,
        message_id: str,
        what: str,
        *,
        sent_ms: float,
        answered_ms: float,
        content: Content | None = None,
    ) -> None:
        """A queued message was `withdrawn`, `replaced` or `moved`."""
        self.changes.append(Change(session_id, message_id, what, sent_ms, answered_ms, content))

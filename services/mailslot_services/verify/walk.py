"""Where in a ledger a check stands: what the events so far add up to. The rules beside it read this and change it.

    entry ──> rules of life (messages, lanes, order) ──┐
          ──> rules of turn (turns, steps, transcript) ┼──> (kind, sentence)*
          ──> rules of rest (status, hold, idle) ──────┘

It is written from the specification, not from the store: lanes are dictionaries in order of arrival, because a message
gets its place in a lane by the seq at which it comes there (semantics M4), and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from mailslot_services.verify.ledger import Entry
from mailslot_services.verify.report import Kind

QUEUED: Final = "queued"
CLAIMED: Final = "claimed"
ADMITTED: Final = "admitted"
REJECTED: Final = "rejected"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
DEAD: Final = "dead"
ENDED: Final = frozenset({ADMITTED, REJECTED, CANCELLED, EXPIRED, DEAD})

NEXT_TURN: Final = "next-turn"
NEXT_STEP: Final = "next-step"
RUNNING: Final = "running"
IDLE: Final = "idle"

Broken = Iterator[tuple[Kind, str]]


@dataclass(slots=True)
class Life:
    """One life of one message."""

    message_id: str
    queued_seq: int
    lane: str
    wake: bool
    due: bool
    not_before: int | None
    expires_at: int | None
    content: list[Any]  # as it is now: what was queued, or what replaced it
    state: str = QUEUED
    turn: int = 0  # that claimed it
    place: int = 0  # among all that were ever claimed: the order in which they must enter
    ended_ms: int = 0


@dataclass(slots=True)
class Walk:
    """The state of one session as its ledger tells it."""

    forget_after_ms: int
    verbatim: bool = True  # what is admitted has the words of what was queued
    # messages
    lives: dict[str, Life] = field(default_factory=dict)
    lanes: dict[str, OrderedDict[str, Life]] = field(
        default_factory=lambda: {NEXT_TURN: OrderedDict(), NEXT_STEP: OrderedDict()}
    )
    """Due messages that wait, in the order in which they came there."""
    claimed: dict[str, Life] = field(default_factory=dict)
    claims: int = 0
    entered: int = 0  # place of the last claimed message that was admitted
    waking: int = 0  # messages in the lanes that wake
    queued_seqs: dict[str, list[int]] = field(default_factory=dict)
    contents: dict[int, list[Any]] = field(default_factory=dict)  # of `inbox/queued`, by seq
    changed: set[tuple[str, str]] = field(default_factory=set)  # (message, what) of withdrawals, replacements, moves
    replacements: dict[str, list[list[Any]]] = field(default_factory=dict)  # contents that took a message's place
    queued: int = 0
    settled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(sorted(ENDED), 0))
    cleared_seq: int = 0  # of the last cancel that cleared the queue
    # turns
    turn: int = 0
    step: int = 0
    open: bool = False
    in_step: bool = False
    answered: bool = False
    claim_follows: bool = False  # a turn has just started
    asked: set[str] = field(default_factory=set)  # calls without a result
    started: set[str] = field(default_factory=set)  # calls that were started, of this step
    cancelled: set[int] = field(default_factory=set)  # turns that a cancel names
    epoch: int = 0  # of the open turn's last owner
    unannounced: bool = False  # somebody else goes on with the turn, and nobody has said so
    crashes: int = 0  # of the open turn
    written_ms: int = 0  # when the open turn's owner last wrote
    ends: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    recovery_ms: list[int] = field(default_factory=list)
    # the agent
    status: str = IDLE
    held: bool = False
    closing: bool = False

    @property
    def pending(self) -> int:
        """Messages that have come to no end."""
        return sum(life.state not in ENDED for life in self.lives.values())

    @property
    def conservation(self) -> int:
        """0, if every message is somewhere (semantics M5)."""
        return self.queued - sum(self.settled.values()) - self.pending

    @property
    def left(self) -> list[str]:
        """Why the agent may not be idle (semantics S3)."""
        reasons = []
        if self.open:
            reasons.append(f"turn {self.turn} is open")
        if self.claimed:
            reasons.append(f"{sorted(self.claimed)} are claimed")
        if self.waking and not self.held:
            waiting = [life.message_id for lane in self.lanes.values() for life in lane.values() if life.wake]
            reasons.append(f"{waiting} wait")
        return reasons

    def enter_lane(self, life: Life) -> None:
        """The message is due from here on; it stands behind those that are."""
        self.lanes[life.lane][life.message_id] = life
        self.waking += life.wake

    def leave_lane(self, life: Life) -> None:
        """The message waits there no longer."""
        if self.lanes[life.lane].pop(life.message_id, None) is not None:
            self.waking -= life.wake


Rule = Callable[[Walk, Entry], Broken]
"""Looks at one entry with what came before it, says what is broken, and takes the entry in."""

"""What the server answers, as values: receipt, level, goal, dead letter, what a cancel or a session's end came to.

Rule 1: a receipt says that the message is durably queued. It has no status, no result and no reason, and nothing
        here gives it one.
Rule 2: a level is about the whole agent, never about a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mailslot.reading import JsonMap, field, maps, optional, texts


@dataclass(frozen=True, slots=True)
class Receipt:
    """The message is durably queued. Nothing else is said."""

    message_id: str
    cursor: int
    """The seq of the message's `inbox/queued`: reading events after it shows what came next."""
    duplicate: bool
    """The same message was accepted before, and nothing was appended now."""
    durability: str
    """How well it is kept: `memory`, `fsync` or `replicated`."""

    def wire(self) -> dict[str, Any]:
        """As it stands on the wire."""
        return {
            "messageId": self.message_id,
            "cursor": self.cursor,
            "duplicate": self.duplicate,
            "durability": self.durability,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What models used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits for a goal's whole life, or what it has spent of them; None is left to the server's default."""

    rounds: int | None = None
    turns: int | None = None
    model_calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    wall_seconds: int | None = None

    def wire(self) -> dict[str, Any]:
        """What is set, by its wire name."""
        values = ((entry.name, getattr(self, entry.name)) for entry in fields(self))
        return {_BUDGET_NAMES[name]: value for name, value in values if value is not None}


_BUDGET_NAMES = {
    "rounds": "rounds",
    "turns": "turns",
    "model_calls": "modelCalls",
    "tokens": "tokens",
    "cost": "cost",
    "wall_seconds": "wallSeconds",
}


@dataclass(frozen=True, slots=True)
class GoalReason:
    """Why a goal does not go on: paused has `kind`, blocked has `code` and `message`."""

    kind: str | None = None
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal as it stands."""

    goal_id: str
    revision: int
    objective: str
    phase: str
    """`active`, `paused`, `blocked` or `complete`."""
    rounds: int
    budgets: Budgets
    spent: Budgets
    reason: GoalReason | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """How the whole agent stands at `cursor`. Reading events after `cursor` misses nothing."""

    session_id: str
    status: str
    """`running` or `idle`."""
    reasons: tuple[str, ...]
    """Why it is running, for people."""
    cursor: int
    pending: int
    """Messages that are queued or claimed."""
    held: int
    """Follow-ups and steers that wait behind a hold."""
    usage: Usage
    conservation: int
    """Messages lost or settled twice; anything but 0 is a defect of the server."""
    turn: int | None = None
    """The open turn."""
    goal: Goal | None = None
    hold: str | None = None
    """Why the queue is on hold; None when it is not."""
    closed: bool = False
    """The session takes no more messages."""


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """What a cancel came to."""

    outcome: str
    """`requested`, `nothing_to_cancel`, or, to a caller who waits, `settled`."""
    still_queued: tuple[str, ...]
    """Messages that the agent goes on with, or holds."""
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """The session takes no more messages."""

    closed: bool
    """False while its last turn still ends; `session/closed` follows at its idle."""
    cursor: int


@dataclass(frozen=True, slots=True)
class StoreReceipt:
    """What one store had of a session, and whether it is gone from there; None when that is not known."""

    erased: bool
    events: int | None = None
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class Erasure:
    """The session is closed, and gone once `erased` is True."""

    erased: bool
    """False while its last turn still ends; it is erased after that, without being asked again."""
    stores: Mapping[str, StoreReceipt]
    """By the name of the store."""


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that died with a turn, and what it is now: `dead`, what a redrive made of it, or None: not known."""

    message_id: str
    state: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A turn that was given up after too many crashes, and the messages that died with it."""

    letter_id: str
    """What to redrive it by."""
    session_id: str
    turn: int
    reason: str
    attempts: int
    time: int
    """Milliseconds since 1970 by the store's clock."""
    messages: tuple[DeadMessage, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """One answer of a long poll: the agent is idle since `cursor`, or still running and why."""

    idle: bool
    cursor: int
    reasons: tuple[str, ...]


def read_receipt(value: JsonMap) -> Receipt:
    """A receipt from its JSON."""
    return Receipt(
        message_id=field(value, "messageId", str),
        cursor=field(value, "cursor", int),
        duplicate=field(value, "duplicate", bool),
        durability=field(value, "durability", str),
    )


def read_level(value: JsonMap) -> Level:
    """A level from its JSON."""
    goal = optional(value, "goal", dict)
    return Level(
        session_id=field(value, "sessionId", str),
        status=field(value, "status", str),
        reasons=texts(value, "reasons"),
        cursor=field(value, "cursor", int),
        pending=field(value, "pending", int),
        held=field(value, "held", int),
        usage=_usage(optional(value, "usage", dict) or {}),
        conservation=field(value, "conservation", int),
        turn=optional(value, "turn", int),
        goal=None if goal is None else read_goal(goal),
        hold=optional(value, "hold", str),
        closed=optional(value, "closed", bool) or False,
    )


def read_goal(value: JsonMap) -> Goal:
    """A goal from its JSON."""
    reason = optional(value, "reason", dict)
    return Goal(
        goal_id=field(value, "goalId", str),
        revision=field(value, "revision", int),
        objective=field(value, "objective", str),
        phase=field(value, "phase", str),
        rounds=field(value, "rounds", int),
        budgets=_budgets(field(value, "budgets", dict)),
        spent=_budgets(field(value, "spent", dict)),
        reason=None if reason is None else _reason(reason),
    )


def read_cancel(value: JsonMap) -> CancelOutcome:
    """What a cancel came to, from its JSON."""
    return CancelOutcome(
        outcome=field(value, "outcome", str),
        still_queued=texts(value, "stillQueued"),
        turn=optional(value, "turn", int),
    )


def read_closing(value: JsonMap) -> Closing:
    """The end of a session from its JSON."""
    return Closing(closed=field(value, "closed", bool), cursor=field(value, "cursor", int))


def read_erasure(value: JsonMap) -> Erasure:
    """What erasing a session came to, from its JSON."""
    stores = field(value, "stores", dict)
    return Erasure(
        erased=field(value, "erased", bool),
        stores={
            name: StoreReceipt(
                erased=field(receipt, "erased", bool),
                events=optional(receipt, "events", int),
                messages=optional(receipt, "messages", int),
            )
            for name, receipt in ((name, field(stores, name, dict)) for name in stores)
        },
    )


def read_dead(value: JsonMap) -> DeadLetter:
    """A dead letter from its JSON."""
    return DeadLetter(
        letter_id=field(value, "letterId", str),
        session_id=field(value, "sessionId", str),
        turn=field(value, "turn", int),
        reason=field(value, "reason", str),
        attempts=field(value, "attempts", int),
        time=field(value, "time", int),
        messages=tuple(
            DeadMessage(field(message, "messageId", str), optional(message, "state", str))
            for message in maps(value, "messages")
        ),
    )


def read_rest(value: JsonMap) -> Rest:
    """One answer of a long poll, from its JSON."""
    return Rest(
        idle=field(value, "status", str) == "idle",
        cursor=field(value, "cursor", int),
        reasons=texts(value, "reasons"),
    )


def _usage(value: JsonMap) -> Usage:
    return Usage(
        input_tokens=optional(value, "inputTokens", int) or 0,
        output_tokens=optional(value, "outputTokens", int) or 0,
        cost=_number(value, "cost"),
    )


def _budgets(value: JsonMap) -> Budgets:
    return Budgets(
        rounds=optional(value, "rounds", int),
        turns=optional(value, "turns", int),
        model_calls=optional(value, "modelCalls", int),
        tokens=optional(value, "tokens", int),
        cost=_number(value, "cost"),
        wall_seconds=optional(value, "wallSeconds", int),
    )


def _reason(value: JsonMap) -> GoalReason:
    return GoalReason(
        kind=optional(value, "kind", str), code=optional(value, "code", str), message=optional(value, "message", str)
    )


def _number(value: JsonMap, name: str) -> float | None:
    found = value.get(name)
    return float(field(value, name, int)) if isinstance(found, int) else optional(value, name, float)

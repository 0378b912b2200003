"""The level: how the whole agent stands, readable at any time, with the seq it was read at (semantics S4).

Rule 1: a level is about the agent, never about a message.
Rule 2: a reader who has the level at `cursor` and reads the events after it misses nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Strict

from mailslot_contracts.door import Answer, Count, Ordinal, Seq, SessionIdField
from mailslot_contracts.events import Usage
from mailslot_contracts.goals import Goal


class AgentState(StrEnum):
    """Status of the whole agent."""

    RUNNING = "running"
    IDLE = "idle"


class Level(Answer):
    """How the agent stands at `cursor`."""

    session_id: SessionIdField
    status: Literal["running", "idle"]
    reasons: Annotated[tuple[str, ...], Strict(strict=False)]
    """Why it is running, for people: `turn 4`, `2 queued`; empty when it is idle."""
    cursor: Seq
    """The seq of the newest event that the level counts."""
    turn: Ordinal | None = None
    """The open turn."""
    pending: Count
    """Messages that are queued or claimed."""
    held: Count
    """Follow-ups and steers that wait behind a hold."""
    hold: str | None = None
    """Why the queue is on hold; absent when it is not."""
    closed: bool | None = None
    """true when the session takes no more messages; absent while it does."""
    goal: Goal | None = None
    usage: Usage
    conservation: int
    """Messages lost (positive) or settled twice (negative); anything but 0 is a defect (semantics M5)."""

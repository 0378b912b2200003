"""The life of one message.

              submit              take               admit
     (none) ---------> [QUEUED] ---------> [CLAIMED] ---------> [ADMITTED]
                         | | |               | | |
        withdraw, cancel | | | expire        | | +--> [DEAD]       the turn was given up
            [CANCELLED] <+ | +-> [EXPIRED]   | +----> [REJECTED]   by the hook, or the turn failed first
                           |                 +------> [CANCELLED]  the turn was aborted first
                           +-> replace, move, due, hold: still queued

Rule 1: a message is queued once; submitting it again gives the same receipt (semantics M3).
Rule 2: a settled message never changes; each life has one terminal state (semantics M5).
Rule 3: a message can be changed only while it is queued; who comes after `take` gets `already-claimed` (M7).
Rule 4: nothing here knows how a turn ended. A message's life stops at admission (semantics M6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mailslot_core import activity, goal
from mailslot_core.errors import Refused
from mailslot_core.session import TERMINAL, Act, Data, Lane, Message, MessageState, Session

# Whose waking message ends a hold: a person or a backend; not a schedule, a child or a goal (semantics S7).
DOOR_SOURCES = frozenset({"user", "system", "plugin"})


@dataclass(frozen=True, slots=True)
class Submission:
    """A message on its way in. `data` is its whole `inbox/queued` data; `fingerprint` identifies its body (M3)."""

    message_id: str
    lane: Lane
    wake: bool
    data: Data
    fingerprint: str

    @property
    def from_door(self) -> bool:
        """A person or a backend sent it, not a goal or a child."""
        return self.data["source"].get("kind", "user") in DOOR_SOURCES


@dataclass(frozen=True, slots=True)
class Receipt:
    """The message is in the inbox: `cursor` is the seq of its `inbox/queued`. It says nothing else (M1)."""

    message_id: str
    cursor: int
    duplicate: bool


def check_submit(session: Session, submission: Submission, *, depth_max: int) -> None:
    """Refuse what may not be queued. The duplicate check comes before this (semantics M3)."""
    if session.closed:
        raise Refused("closed", f"session {session.session_id} is closed")
    queued = len(session.waiting)
    if queued >= depth_max:
        raise Refused(
            "queue-full",
            f"session {session.session_id} has {queued} queued messages; the limit is {depth_max}",
            retry_after_ms=1000,
        )


def submit(act: Act, submission: Submission, *, depth_max: int) -> Receipt:
    """Queue a message and wake the agent if the message wakes it (semantics M1, S2)."""
    check_submit(act.session, submission, depth_max=depth_max)
    event = act.append("inbox/queued", submission.data)
    message = act.session.messages[submission.message_id]
    if message.wake and message.due and submission.from_door:
        activity.release(act, "submit")
    activity.wake(act)
    return Receipt(submission.message_id, event.seq, duplicate=False)


def queued_message(session: Session, message_id: str) -> Message:
    """The message, if it can still be changed; else the refusal that says why not (semantics M7)."""
    message = session.messages.get(message_id)
    if message is None:
        raise Refused("not-found", f"session {session.session_id} has no message {message_id}")
    if message.state is MessageState.CLAIMED:
        raise Refused("already-claimed", f"message {message_id} is already claimed")
    if message.state in TERMINAL:
        raise Refused("already-settled", f"message {message_id} is already {message.state}")
    return message


def withdraw(act: Act, message_id: str, cause: str = "withdrawn") -> None:
    """Take a queued message back (semantics M7); the agent rests if it was the last reason to run (S6)."""
    message = queued_message(act.session, message_id)
    act.append("inbox/cancelled", {"messageId": message_id, "cause": cause})
    if message.is_goal:
        goal.pause(act, cause)
    activity.rest(act)


def replace(act: Act, message_id: str, content: list[Any]) -> None:
    """Give a queued message new content in its old place (semantics M7)."""
    queued_message(act.session, message_id)
    act.append("inbox/replaced", {"messageId": message_id, "content": content})


def move(act: Act, message_id: str) -> None:
    """Steer with a queued message: it goes to next-step, at the place of the move, and ends a hold (M7, S7)."""
    queued_message(act.session, message_id)
    act.append("inbox/moved", {"messageId": message_id, "lane": str(Lane.NEXT_STEP)})
    activity.release(act, "move")


def sweep(act: Act) -> None:
    """Append what time alone has changed: messages that became due, earliest first, or expired (semantics M11)."""
    queued = list(act.session.waiting.values())
    for message in sorted(queued, key=lambda message: (message.not_before or 0, message.place)):
        if message.expires_at is not None and message.expires_at <= act.now:
            act.append("inbox/expired", {"messageId": message.message_id})
            if message.is_goal:
                goal.pause(act, "expired")
        elif not message.due and message.not_before is not None and message.not_before <= act.now:
            act.append("inbox/due", {"messageId": message.message_id})
            activity.wake(act)  # right after the message that wakes (S2)
    activity.rest(act)


def clear(act: Act, cause: str) -> list[str]:
    """Cancel everything that is queued, next-step first, what is not yet due last (semantics C2)."""
    cleared = activity.queued_messages(act.session)
    for message_id in cleared:
        act.append("inbox/cancelled", {"messageId": message_id, "cause": cause})
    return cleared

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
Rule 5: a dead message may be given another life, under the same id (semantics R5); nothing else comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mailslot_contracts.codec import frame
from mailslot_core import activity, goal
from mailslot_core.errors import Refused
from mailslot_core.session import TERMINAL, Act, Data, Lane, Message, MessageState, Session, Status, goal_of

# Whose waking message ends a hold: a person or a backend; not a schedule, a child or a goal (semantics S7).
DOOR_SOURCES = frozenset({"user", "system", "plugin"})


@dataclass(frozen=True, slots=True)
class Submission:
    """A message on its way in. `data` is its whole `inbox/queued` data; `fingerprint` identifies its body (M3).

    Conditions, which are no part of the body: `if_busy` and `if_idle` refuse it while the agent is busy or idle,
    `expect_turn` unless that turn is the open one (semantics U5, M8).
    """

    message_id: str
    lane: Lane
    wake: bool
    data: Data
    fingerprint: str
    if_busy: bool = False
    if_idle: bool = False
    expect_turn: int | None = None

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


class Room(NamedTuple):
    """How much may wait in one session: messages, and bytes of their bodies."""

    messages_max: int
    bytes_max: int


def check_room(session: Session, room: Room, count: int, size: int) -> None:
    """Refuse what would not fit beside what is queued. Waiting helps: the agent makes room."""
    if count and len(session.waiting) + count > room.messages_max:
        held = f"has {len(session.waiting)} queued messages; the limit is {room.messages_max}"
    elif size > 0 and session.waiting_bytes + size > room.bytes_max:
        held = f"has {session.waiting_bytes} bytes of queued messages; the limit is {room.bytes_max}"
    else:
        return
    raise Refused("queue-full", f"session {session.session_id} {held}", retry_after_ms=1000)


def check_submit(session: Session, submission: Submission, *, now: int, room: Room) -> None:
    """Refuse what may not be queued. The duplicate check comes before this (semantics M3)."""
    name, expires_at = session.session_id, submission.data.get("expiresAt")
    session.check_open()
    if expires_at is not None and expires_at <= max(now, session.time):
        raise Refused("expired", f"message {submission.message_id} expired at {expires_at}, which is over")
    if submission.if_busy and (
        session.status is Status.RUNNING or activity.followups(session) + activity.steers(session)
    ):
        raise Refused("busy", f"session {name} is busy")
    if submission.if_idle and session.status is Status.IDLE:
        raise Refused("idle", f"session {name} is idle")
    if submission.expect_turn is not None and not (session.open and session.turn == submission.expect_turn):
        raise Refused("turn-mismatch", f"turn {submission.expect_turn} of session {name} is not open")
    check_room(session, room, 1, len(frame(submission.data)))


def submit(act: Act, submission: Submission, *, room: Room) -> Receipt:
    """Queue a message and wake the agent if the message wakes it (semantics M1, S2)."""
    check_submit(act.session, submission, now=act.now, room=room)
    return _queue(act, submission, "submit")


def _queue(act: Act, submission: Submission, cause: str) -> Receipt:
    event = act.append("inbox/queued", submission.data)
    message = act.session.messages[submission.message_id]
    if message.wake and message.due and submission.from_door:
        activity.release(act, cause)
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


def replace(act: Act, message_id: str, content: list[Any], *, room: Room) -> None:
    """Give a queued message new content in its old place (semantics M7)."""
    message = queued_message(act.session, message_id)
    data = {"messageId": message_id, "content": content}
    check_room(act.session, room, 0, len(frame(data)) - message.size)
    act.append("inbox/replaced", data)


def move(act: Act, message_id: str) -> None:
    """Steer with a queued message: it goes to next-step, at the place of the move, and ends a hold (M7, S7)."""
    queued_message(act.session, message_id)
    act.append("inbox/moved", {"messageId": message_id, "lane": str(Lane.NEXT_STEP)})
    activity.release(act, "move")


def expire(act: Act, *lanes: Lane) -> None:
    """What would be claimed now from these lanes and is over expires instead (M11): the sweep may be late."""
    for lane in lanes:
        for message in act.session.lane(lane):
            if message.expires_at is not None and message.expires_at <= act.time:
                _expired(act, message)
            elif lane is Lane.NEXT_TURN and not message.is_goal:
                break  # one follow-up is claimed


def _expired(act: Act, message: Message) -> None:
    act.append("inbox/expired", {"messageId": message.message_id})
    if message.is_goal:
        goal.pause(act, "expired")


def sweep(act: Act) -> None:
    """Append what time alone has changed, in the order of its times: messages that became due, or expired (M11)."""
    waiting = act.session.waiting.values()
    rung = [(message.alarm, message) for message in waiting if message.alarm is not None and message.alarm <= act.now]
    for _, message in sorted(rung, key=lambda found: (found[0], found[1].queued_seq)):
        if message.expires_at is not None and message.expires_at <= act.now:
            _expired(act, message)
        else:
            act.append("inbox/due", {"messageId": message.message_id})
            activity.wake(act)  # right after the message that wakes (S2)
    activity.rest(act)


def clear(act: Act, cause: str) -> list[str]:
    """Cancel everything that is queued, next-step first, what is not yet due last (semantics C2)."""
    cleared = activity.queued_messages(act.session)
    for message_id in cleared:
        act.append("inbox/cancelled", {"messageId": message_id, "cause": cause})
    return cleared


def release(act: Act) -> None:
    """End a hold because somebody asked for it (semantics S7)."""
    act.session.check_open()
    if act.session.hold is None:
        raise Refused("not-held", f"session {act.session.session_id} is not on hold")
    activity.release(act, "release")


# Times belong to the first life: whoever asks for another one wants it now.
ONCE = frozenset({"notBefore", "expiresAt"})


def revived(data: Data, lane: Lane, *, wake: bool) -> dict[str, Any]:
    """The `inbox/queued` data of a dead message's next life (semantics R5), in the lane to which it may have moved."""
    kept = {name: value for name, value in data.items() if name not in ONCE}
    return {**kept, "lane": lane.value, "wake": wake, "redrive": True}


def redrivable(letter_id: str, dead: Sequence[Submission]) -> list[Submission]:
    """Those of a letter's dead messages that may live again: a goal's round may not, the goal goes on by itself."""
    found = [submission for submission in dead if goal_of(submission.data["source"]) is None]
    if dead and not found:
        raise Refused("not-allowed", f"dead letter {letter_id} holds a goal's round: resume the goal instead")
    if not found:
        raise Refused("not-dead", f"no message of dead letter {letter_id} is dead")
    return found


def redrive(act: Act, submissions: Sequence[Submission], *, room: Room) -> tuple[Receipt, ...]:
    """Queue dead messages again, each with its old id (semantics M5, R5)."""
    session = act.session
    session.check_open()
    for submission in submissions:
        message = session.messages.get(submission.message_id)
        if message is None or message.state is not MessageState.DEAD:
            raise Refused("not-dead", f"message {submission.message_id} of session {session.session_id} is not dead")
    check_room(session, room, len(submissions), sum(len(frame(submission.data)) for submission in submissions))
    return tuple(_queue(act, submission, "redrive") for submission in submissions)

"""What must hold of every ledger, as numbered checks. The doctor, the tests and the simulation run all of them.

 1 seq starts at 1 and has no gaps (L1)               8 status changes only when it changes (S1)
 2 time never goes back (L1)                          9 nobody sees a waking message or an open turn
 3 epoch never goes back (L3)                           at an idle agent (S2, S3)
 4 turns are numbered and enclosed, one at a time    10 queued = settled + pending (M5)
 5 steps are numbered and enclosed; each fact is     11 an aborted turn has a cancel that names it (C3)
   where it belongs, each call has one result (T3)   12 a claim takes what is next in the lanes (T2, M4)
 6 a message has one terminal state a life (M5)      13 no turn completes while a steer waits (T6)
 7 a user/message was claimed by its turn (T2, T3)   14 a goal's revisions count on; what does not
                                                        complete pauses it (G1, G4)
15 nothing comes to a session that is closing or      17 a message is due or expired when its time came,
   closed, and nothing is left in a closed one (M9)      not before, and only while it is queued; what is
                                                        over is not claimed (M11)
16 nothing is claimed behind a hold (S7)              18 a dead message, and no other, is redriven (R5)
                                                      19 a turn ends with nothing claimed left (M10)

A rule looks at one event with what came before it, and gives a sentence if the event breaks it. Checks 1 to 3 are the
order; 4 to 8 and 11 follow turns, messages and status by the tables below; the others fold the ledger and look between.
Rule 1: a check that needs sound ground runs only on it: the fold follows no ledger that broke an earlier check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mailslot_core import activity, goal
from mailslot_core.session import TERMINAL, Event, Lane, MessageState, Session, Status, apply

# -- order --------------------------------------------------------------------------------------------------


def order(events: Sequence[Event]) -> Iterator[str]:
    """Checks 1, 2, 3."""
    for number, event in enumerate(events, 1):
        if event.seq != number:
            yield f"seq {event.seq} stands at place {number}"
            return
    for before, after in pairwise(events):
        if after.time < before.time:
            yield f"time goes back at seq {after.seq}"
        if after.epoch < before.epoch:
            yield f"epoch goes back at seq {after.seq}"


# -- turns: checks 4, 5, 11 ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """Where in its turns a ledger is."""

    turn: int = 0
    step: int = 0
    is_open: bool = False
    in_step: bool = False
    answered: bool = False
    calls: set[str] = field(default_factory=set)  # that have no result
    cancelled: set[int] = field(default_factory=set)  # turns that a cancel names


def _turn_start(place: _Place, event: Event) -> str | None:
    follows = not place.is_open and event.data["turn"] == place.turn + 1
    said = None if follows else f"turn {event.data['turn']} starts at seq {event.seq} after turn {place.turn}"
    place.turn, place.step, place.is_open = event.data["turn"], 0, True
    return said


def _turn_recovered(place: _Place, event: Event) -> str | None:
    fits = place.is_open and event.data["turn"] == place.turn
    return None if fits else f"turn {event.data['turn']} is recovered at seq {event.seq} and is not open"


def _turn_end(place: _Place, event: Event) -> str | None:
    fits = place.is_open and not place.in_step and event.data["turn"] == place.turn
    place.is_open = False
    if not fits:
        return f"turn {event.data['turn']} ends at seq {event.seq}, which is not open or inside a step"
    if event.data["reason"]["kind"] == "aborted" and place.turn not in place.cancelled:
        return f"turn {place.turn} was aborted at seq {event.seq} and no cancel names it"
    return None


def _cancel(place: _Place, event: Event) -> str | None:
    place.cancelled.add(event.data.get("turn", 0))
    return None


def _step_start(place: _Place, event: Event) -> str | None:
    follows = place.is_open and not place.in_step and event.data["step"] == place.step + 1
    said = None if follows else f"step {event.data['step']} starts at seq {event.seq} after step {place.step}"
    place.step, place.in_step, place.answered = event.data["step"], True, False
    place.calls.clear()
    return said


def _step_end(place: _Place, event: Event) -> str | None:
    fits = place.in_step and not place.calls
    place.in_step = False
    return None if fits else f"step {event.data['step']} ends at seq {event.seq} with open calls {sorted(place.calls)}"


def _before_answer(place: _Place, event: Event) -> str | None:
    fits = place.in_step and not place.answered
    return None if fits else f"{event.type} at seq {event.seq} stands outside a step or after its answer"


def _answer(place: _Place, event: Event) -> str | None:
    said = _before_answer(place, event)
    place.answered = True
    place.calls = {call["callId"] for call in event.data.get("toolCalls", ())}
    return said


def _call(place: _Place, event: Event) -> str | None:
    return None if event.data["callId"] in place.calls else f"tool/call at seq {event.seq} was not asked for"


def _result(place: _Place, event: Event) -> str | None:
    fits = event.data["callId"] in place.calls
    place.calls.discard(event.data["callId"])
    return None if fits else f"tool/result at seq {event.seq} answers no open call"


TURN_RULES: dict[str, Callable[[_Place, Event], str | None]] = {
    "turn/start": _turn_start,
    "turn/recovered": _turn_recovered,
    "turn/end": _turn_end,
    "cancel/requested": _cancel,
    "step/start": _step_start,
    "user/message": _before_answer,
    "llm/retry": _before_answer,
    "assistant/message": _answer,
    "tool/call": _call,
    "tool/result": _result,
    "step/end": _step_end,
}


def turns(events: Sequence[Event]) -> Iterator[str]:
    """Checks 4, 5, 11."""
    place = _Place()
    for event in events:
        rule = TURN_RULES.get(event.type)
        said = rule(place, event) if rule else None
        if said:
            yield said


# -- messages and status: checks 6, 7, 8 --------------------------------------------------------------------


@dataclass(slots=True)
class _Lives:
    """Messages whose life is not over, the turns that claimed them, and the agent's status."""

    queued: set[str] = field(default_factory=set)
    claimed: dict[str, int] = field(default_factory=dict)
    status: Status = Status.IDLE


def _queued(lives: _Lives, event: Event) -> Iterator[str]:
    message_id = event.data["messageId"]
    if message_id in lives.queued:
        yield f"message {message_id} is queued twice, again at seq {event.seq}"
    lives.queued.add(message_id)


def _claimed(lives: _Lives, event: Event) -> Iterator[str]:
    for message_id in event.data["messageIds"]:
        if message_id not in lives.queued or message_id in lives.claimed:
            yield f"message {message_id} is claimed at seq {event.seq} without being queued"
        lives.claimed[message_id] = event.data["turn"]


def _admitted(lives: _Lives, event: Event) -> Iterator[str]:
    """A message that was never queued was added by a hook (semantics T4)."""
    message_id = event.data["messageId"]
    if message_id in lives.queued and lives.claimed.get(message_id) != event.data["turn"]:
        yield f"message {message_id} is admitted at seq {event.seq} by a turn that did not claim it"
    lives.queued.discard(message_id)
    lives.claimed.pop(message_id, None)


def _settled(lives: _Lives, event: Event) -> Iterator[str]:
    message_id = event.data["messageId"]
    if message_id not in lives.queued:
        yield f"message {message_id} is settled twice, again at seq {event.seq}"
    lives.queued.discard(message_id)
    lives.claimed.pop(message_id, None)


def _status(lives: _Lives, event: Event) -> Iterator[str]:
    if event.data["status"] == lives.status:
        yield f"status is {lives.status} again at seq {event.seq}"
    lives.status = Status(event.data["status"])


LIFE_RULES: dict[str, Callable[[_Lives, Event], Iterator[str]]] = {
    "inbox/queued": _queued,
    "inbox/claimed": _claimed,
    "user/message": _admitted,
    "inbox/cancelled": _settled,
    "inbox/rejected": _settled,
    "inbox/expired": _settled,
    "inbox/dead": _settled,
    "agent/status": _status,
}


def lives(events: Sequence[Event]) -> Iterator[str]:
    """Checks 6, 7, 8."""
    seen = _Lives()
    for event in events:
        rule = LIFE_RULES.get(event.type)
        if rule:
            yield from rule(seen, event)


# -- folded: checks 9, 10, 12 to 19 -------------------------------------------------------------------------

# Facts that follow another one in the same act, so that the act is not over before them (semantics S2, S7, G3).
SAME_ACT = {"agent/status", "inbox/released", "inbox/cancelled", "turn/start", "goal/change", "inbox/held"}


def _next_in_lanes(session: Session, event: Event, following: str) -> str | None:
    """Check 12, before the event is folded."""
    if event.type != "inbox/claimed":
        return None
    wanted = [message.message_id for message in session.lane(Lane.NEXT_STEP)]
    if "step" not in event.data:
        wanted += [message.message_id for message in session.lane(Lane.NEXT_TURN)[:1]]
    claimed = list(event.data["messageIds"])
    return None if claimed == wanted else f"{claimed} is claimed at seq {event.seq} where {wanted} was next"


def _no_steer_left(session: Session, event: Event, following: str) -> str | None:
    """Check 13, before the event is folded."""
    completes = event.type == "turn/end" and event.data["reason"]["kind"] in ("completed", "max-tokens")
    if completes and not session.hold and activity.steers(session):
        return f"turn {session.turn} completes at seq {event.seq} while a steer waits"
    return None


def _counts_on(session: Session, event: Event, following: str) -> str | None:
    """Check 14, before the event is folded: the revision."""
    if event.type != "goal/change":
        return None
    changed, known = event.data["goal"], session.goal
    of = changed["goalId"] if event.data["operation"] == "create" else known["goalId"] if known else ""
    fits = (changed["goalId"], changed["revision"]) == (of, session.goal_revision + 1)
    return None if fits else f"goal {changed['goalId']} is at revision {changed['revision']} at seq {event.seq}"


def _pauses(session: Session, event: Event, following: str) -> str | None:
    """Check 14, before the event is folded: the pause."""
    fails = event.type == "turn/end" and event.data["reason"]["kind"] != "completed"
    if fails and session.goal and session.goal["phase"] == goal.ACTIVE and following != "goal/change":
        return f"turn {session.turn} does not complete at seq {event.seq} and its goal goes on"
    return None


def _stays_closed(session: Session, event: Event, following: str) -> str | None:
    """Check 15, before the event is folded."""
    if session.closed or (session.closing and event.type == "inbox/queued"):
        return f"{event.type} at seq {event.seq} comes to a session that is {'closed' if session.closed else 'closing'}"
    if event.type == "session/closed" and (session.open or session.pending):
        return f"the session is closed at seq {event.seq} with {session.pending} messages left"
    return None


def _respects_hold(session: Session, event: Event, following: str) -> str | None:
    """Check 16, before the event is folded."""
    claims = event.type == "inbox/claimed" and session.hold
    return f"{event.data['messageIds']} is claimed at seq {event.seq} behind a hold" if claims else None


def _in_time(session: Session, event: Event, following: str) -> str | None:
    """Check 17, before the event is folded."""
    if event.type not in ("inbox/due", "inbox/expired"):
        return None
    message = session.messages[event.data["messageId"]]
    time = message.expires_at if event.type == "inbox/expired" else None if message.due else message.not_before
    fits = message.state is MessageState.QUEUED and time is not None and time <= event.time
    return None if fits else f"{event.type} of message {message.message_id} stands at seq {event.seq} out of time"


def _not_over(session: Session, event: Event, following: str) -> str | None:
    """Check 17, before the event is folded: what is over is not claimed."""
    claimed = event.data["messageIds"] if event.type == "inbox/claimed" else ()
    times = [(name, session.messages[name].expires_at) for name in claimed if name in session.messages]
    over = [name for name, expires_at in times if expires_at is not None and expires_at <= event.time]
    return f"{over} is claimed at seq {event.seq}, and over" if over else None


def _dead_before(session: Session, event: Event, following: str) -> str | None:
    """Check 18, before the event is folded."""
    if event.type != "inbox/queued":
        return None
    before = session.messages.get(event.data["messageId"])
    dead = before is not None and before.state is MessageState.DEAD
    was = "was dead" if dead else "was not dead"
    fits = dead is bool(event.data.get("redrive"))
    return None if fits else f"message {event.data['messageId']} is queued at seq {event.seq} and {was}"


def _leaves_nothing(session: Session, event: Event, following: str) -> str | None:
    """Check 19, before the event is folded."""
    left = session.claimed if event.type == "turn/end" else []
    return f"turn {session.turn} ends at seq {event.seq} with {left} claimed" if left else None


def _conserves(session: Session, event: Event, following: str) -> str | None:
    """Check 10."""
    return f"conservation is {session.conservation} at seq {event.seq}" if session.conservation else None


def _wakes(session: Session, event: Event, following: str) -> str | None:
    """Check 9: the waking message."""
    if session.status is Status.IDLE and activity.waking(session) and following not in SAME_ACT:
        return f"a waking message waits at an idle agent at seq {event.seq}"
    return None


def _rests(session: Session, event: Event, following: str) -> str | None:
    """Check 9: the open turn, and what it claimed."""
    if session.status is Status.IDLE and (session.open or session.claimed):
        return f"turn {session.turn} is open while the agent is idle at seq {event.seq}"
    return None


Look = Callable[[Session, Event, str], str | None]
BEFORE: tuple[Look, ...] = (
    *(_next_in_lanes, _no_steer_left, _counts_on, _pauses),
    *(_stays_closed, _respects_hold, _in_time, _not_over, _dead_before, _leaves_nothing),
)
AFTER: tuple[Look, ...] = (_conserves, _wakes, _rests)


def folded(events: Sequence[Event]) -> Iterator[str]:
    """Checks 9, 10, 12 to 19: fold step by step and look at the session before and after each event."""
    session = Session("ledger")
    types = [event.type for event in events]
    for event, following in zip(events, [*types[1:], ""], strict=False):
        yield from filter(None, [look(session, event, following) for look in BEFORE])
        apply(session, event)
        yield from filter(None, [look(session, event, following) for look in AFTER])


# -- all ----------------------------------------------------------------------------------------------------

Check = Callable[[Sequence[Event]], Iterator[str]]
GROUNDS: tuple[tuple[Check, ...], ...] = ((order,), (turns, lives), (folded,))


def violations(events: Sequence[Event]) -> list[str]:
    """Every sentence of every check that stands on sound ground (rule 1); empty for a sound ledger."""
    broken: list[str] = []
    for checks in GROUNDS:
        broken = broken or [sentence for check in checks for sentence in check(events)]
    return broken


def unsettled(session: Session) -> list[str]:
    """Messages that have not reached a terminal state: what must be empty once everything rests."""
    return [message.message_id for message in session.messages.values() if message.state not in TERMINAL]

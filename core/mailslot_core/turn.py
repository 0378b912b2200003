"""The agent's own unit of work: `turn/start` ... `turn/end`, and the steps inside.

                 take                step/start            assistant/message
     [CLOSED] ----------> [BOUNDARY] ----------> [OPEN] ---------------------> [ANSWERED]
         ^                 |      ^                | step/end (the model failed)    | tool/call, tool/result
         |    turn/end     |      +----------------+---------------- step/end ------+
         +-----------------+

Rule 1: `turn/start` and its first claim are one act; it claims all due next-step messages, then one follow-up (T2).
Rule 2: nothing stands between a tool call and its result: a step ends when all its calls have results (T3).
Rule 3: a turn that could complete goes on while a steer waits; the check and the close are one act (T6).
Rule 4: a recorded cancel wins over any other ending; the first cause wins over later ones (C3, R5).
Rule 5: the act that ends a turn first settles what the turn claimed and did not admit (M10).
Rule 6: whoever ends a turn takes the next batch or rests, in the same act (S3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from mailslot_core import activity, goal, inbox
from mailslot_core.errors import Refused
from mailslot_core.session import Act, Data, Lane, Phase, Session


class Draft(NamedTuple):
    """A fact that a worker wants to append: an event without seq, time and epoch."""

    type: str
    data: Data


# Which fact may stand in which phase, and the phase after it (semantics T3). Rule 2 is checked beside it.
GRAMMAR: dict[str, dict[Phase, Phase]] = {
    "step/start": {Phase.BOUNDARY: Phase.OPEN},
    "user/message": {Phase.OPEN: Phase.OPEN},
    "llm/retry": {Phase.OPEN: Phase.OPEN},
    "usage/recorded": {Phase.OPEN: Phase.OPEN, Phase.ANSWERED: Phase.ANSWERED, Phase.BOUNDARY: Phase.BOUNDARY},
    "assistant/message": {Phase.OPEN: Phase.ANSWERED},
    "tool/call": {Phase.ANSWERED: Phase.ANSWERED},
    "tool/result": {Phase.ANSWERED: Phase.ANSWERED},
    "step/end": {Phase.OPEN: Phase.BOUNDARY, Phase.ANSWERED: Phase.BOUNDARY},
    "inbox/rejected": {Phase.BOUNDARY: Phase.BOUNDARY},
}

# What becomes of a claimed message that was not admitted, by the kind of the turn's end (semantics M10).
# None: such an end is refused while a claimed message is left.
LEFTOVER: dict[str, str | None] = {
    "completed": None,
    "max-tokens": None,
    "blocked": None,
    "aborted": "inbox/cancelled",
    "error": "inbox/rejected",
    "interrupted": "inbox/dead",
}

ENDS = frozenset(LEFTOVER) - {"interrupted"}  # how a worker may end its turn; `interrupted` is recovery's alone (T5)
COULD_COMPLETE = frozenset({"completed", "max-tokens"})
FAILURES = frozenset({"error", "blocked", "interrupted"})  # after which `onFailure: hold` holds the queue (T7)


class Then(StrEnum):
    """What the worker wants after its turn: the session's next batch, or to give the session back."""

    TAKE = "take"
    YIELD = "yield"


class Outcome(StrEnum):
    """What a settle came to."""

    CONTINUE = "continue"  # the turn goes on with another step: a steer waited (semantics T6)
    TURN = "turn"  # the turn ended and the next one has begun
    IDLE = "idle"  # the turn ended and the agent rests
    RELEASED = "released"  # the turn ended and more waits for whoever acquires next


@dataclass(frozen=True, slots=True)
class End:
    """How the worker wants its turn to end: `reason` is the `turn/end` reason, `kind` included."""

    reason: Data
    usage: Data | None = None

    @property
    def kind(self) -> str:
        """The reason's kind."""
        return str(self.reason["kind"])


# -- claiming -----------------------------------------------------------------------------------------------


def _claim(act: Act, messages: Sequence[str], step: int | None) -> None:
    data: dict[str, Any] = {"turn": act.session.turn, "messageIds": list(messages)}
    if step is not None:
        data["step"] = step
    act.append("inbox/claimed", data)


def _followup(act: Act) -> list[str]:
    """The one follow-up a new turn claims; a goal message makes way for a person's (semantics G3)."""
    waiting = act.session.lane(Lane.NEXT_TURN)
    people = [message for message in waiting if not message.is_goal]
    if people and len(people) < len(waiting):
        act.append("inbox/cancelled", {"messageId": act.session.goal_message, "cause": "preempted"})
    return [message.message_id for message in (people or waiting)[:1]]


def take(act: Act) -> bool:
    """Open a turn and claim its batch (semantics T2). False, and no trace, when there is nothing to claim."""
    session = act.session
    if session.open or not activity.waking(session):
        return False
    inbox.expire(act, Lane.NEXT_STEP, Lane.NEXT_TURN)
    if not activity.waking(session):
        return False
    batch = [message.message_id for message in session.lane(Lane.NEXT_STEP)]
    batch += _followup(act)
    act.append("turn/start", {"turn": session.turn + 1})
    _claim(act, batch, step=None)
    return True


def take_step(act: Act) -> bool:
    """At a step boundary claim all due next-step messages and nothing else (semantics T2)."""
    session = act.session
    if session.phase is not Phase.BOUNDARY:
        raise Refused("grammar", f"turn {session.turn} is not at a step boundary")
    if session.hold or session.cancel:
        return False
    inbox.expire(act, Lane.NEXT_STEP)
    batch = [message.message_id for message in session.lane(Lane.NEXT_STEP)]
    if not batch:
        return False
    _claim(act, batch, step=session.step + 1)
    return True


# -- committing ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _View:
    """The turn as it will be when the next fact comes."""

    turn: int
    step: int
    phase: Phase
    claimed: set[str]
    calls: dict[str, str]
    known: Mapping[str, Any]


def _starts(view: _View, data: Data) -> bool:
    view.step += 1
    return True


def _admits(view: _View, data: Data) -> bool:
    """Only what this turn claimed, or what a hook added: that was never queued (semantics T4)."""
    fits = data["messageId"] in view.claimed or data["messageId"] not in view.known
    view.claimed.discard(data["messageId"])
    return fits


def _rejects(view: _View, data: Data) -> bool:
    fits = data["messageId"] in view.claimed
    view.claimed.discard(data["messageId"])
    return fits


def _answers(view: _View, data: Data) -> bool:
    view.calls = {call["callId"]: "asked" for call in data.get("toolCalls", ())}
    return True


def _calls(view: _View, data: Data) -> bool:
    fits = view.calls.get(data["callId"]) == "asked"
    view.calls[data["callId"]] = "started"
    return fits


def _results(view: _View, data: Data) -> bool:
    return view.calls.pop(data["callId"], None) is not None


def _ends(view: _View, data: Data) -> bool:
    return not view.calls


# What a fact must name to stand where it does, beside its turn and step.
NAMES: dict[str, Callable[[_View, Data], bool]] = {
    "step/start": _starts,
    "user/message": _admits,
    "inbox/rejected": _rejects,
    "assistant/message": _answers,
    "tool/call": _calls,
    "tool/result": _results,
    "step/end": _ends,
}


def check(session: Session, drafts: Sequence[Draft]) -> _View:
    """The turn as it will be after these facts; refuses all of them if one may not stand where it does."""
    view = _View(session.turn, session.step, session.phase, set(session.claimed), dict(session.calls), session.messages)
    for draft in drafts:
        after = GRAMMAR.get(draft.type, {}).get(view.phase)
        if after is None:
            raise Refused("grammar", f"{draft.type} may not stand in turn {view.turn}, which is {view.phase}")
        names = NAMES.get(draft.type)
        if not ((names is None or names(view, draft.data)) and _in_place(view, draft)):
            raise Refused("grammar", f"{draft.type} in turn {view.turn} names what is not open there")
        view.phase = after
    return view


def _in_place(view: _View, draft: Draft) -> bool:
    """A fact says in which turn and step it stands: the fold believes it (semantics L2). A rejection has no step."""
    in_step = draft.type == "inbox/rejected" or draft.data.get("step") == view.step
    return in_step and draft.data.get("turn") == view.turn


def commit(act: Act, drafts: Sequence[Draft], *, take_next_step: bool = False) -> None:
    """Append a worker's facts; then, if asked, claim what waits for the next step."""
    if check(act.session, drafts).phase is not Phase.BOUNDARY and take_next_step:
        raise Refused("grammar", f"turn {act.session.turn} is not at a step boundary")
    _append(act, drafts)
    if take_next_step:
        take_step(act)


def _append(act: Act, drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        act.append(draft.type, draft.data)
        if draft.type == "inbox/rejected" and _is_its_round(act.session, draft.data["messageId"]):
            goal.pause(act, "rejected")


def _is_its_round(session: Session, message_id: str) -> bool:
    message = session.messages.get(message_id)
    return message is not None and session.serves(message)


# -- ending -------------------------------------------------------------------------------------------------


def settle(act: Act, drafts: Sequence[Draft], end: End, *, then: Then = Then.TAKE) -> Outcome:
    """Append the last facts, close the turn or go on with it, and take the next batch or rest (T6, S3)."""
    session = act.session
    view = check(session, drafts)
    if view.phase is not Phase.BOUNDARY:
        raise Refused("grammar", f"turn {session.turn} cannot end inside a step")
    if end.kind not in ENDS:
        raise Refused("grammar", f"a turn cannot end as {end.kind}")
    if session.cancel is None and LEFTOVER[end.kind] is None and view.claimed:
        raise Refused("grammar", f"turn {session.turn} cannot end as {end.kind}: it has messages it did not admit")
    _append(act, drafts)
    if session.cancel is None and end.kind in COULD_COMPLETE and not session.hold:
        inbox.expire(act, Lane.NEXT_STEP)
        if activity.steers(session):
            take_step(act)
            return Outcome.CONTINUE
    close(act, end)
    return proceed(act, then)


def close(act: Act, end: End) -> None:
    """Settle what was claimed and not admitted, then end the turn, pause the goal, hold (M10, G4, T7)."""
    session = act.session
    if end.kind == "aborted" and session.cancel is None:
        cause = end.reason["cause"]
        act.append("cancel/requested", {"cause": cause, "queue": "keep", "turn": session.turn})
    reason: Data = {"kind": "aborted", "cause": session.cancel} if session.cancel else end.reason
    kind = str(reason["kind"])
    for message_id in list(session.claimed):
        act.append(*_leftover(session, message_id, kind, reason))
    act.append("turn/end", {"turn": session.turn, "reason": reason, **({"usage": end.usage} if end.usage else {})})
    if kind != "completed":
        goal.pause(act, kind)
    if kind in FAILURES and session.on_failure == "hold":
        activity.hold(act, "failure")


def _leftover(session: Session, message_id: str, kind: str, reason: Data) -> tuple[str, Data]:
    event_type = LEFTOVER[kind] or "inbox/rejected"
    if event_type == "inbox/cancelled":
        return event_type, {"messageId": message_id, "cause": "cancel"}
    if event_type == "inbox/dead":
        return event_type, {"messageId": message_id, "reason": kind, "attempts": session.attempt}
    why = str(reason.get("code", kind))
    return event_type, {"messageId": message_id, "turn": session.turn, "reason": why}


def proceed(act: Act, then: Then) -> Outcome:
    """After a turn: the next batch, or idle, or more work for somebody else."""
    if then is Then.TAKE and take(act):
        return Outcome.TURN
    return Outcome.IDLE if activity.rest(act) else Outcome.RELEASED


# -- cancelling ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel came to: `outcome` is `requested` or `nothing_to_cancel` (semantics C1, C2)."""

    outcome: str
    turn: int | None
    still_queued: tuple[str, ...]


# Whether a cancel that says this of the queue changes anything there (semantics C1, C2).
QUEUE_CHANGES: dict[str, Callable[[Session], bool]] = {
    "keep": lambda _session: False,
    "clear": lambda session: bool(session.waiting),
    "hold": lambda session: session.hold is None and (session.open or goal.is_active(session) or _waits(session)),
}


def _waits(session: Session) -> bool:
    """Something waits that a hold would keep, now or when it is due."""
    return any(message.wake for message in session.waiting.values())


def cancel(act: Act, *, cause: str, queue: str = "keep", turn: int | None = None) -> Cancelled:
    """Record a cancel of the open turn, and do to the queue what it says (semantics C1-C3)."""
    session = act.session
    if turn is not None and not (session.open and session.turn == turn):
        raise Refused("not-open", f"cannot cancel turn {turn} of session {session.session_id}: it is not open")
    pauses = cause == "user" and goal.is_active(session)
    queued = activity.queued_messages(session)
    changes = QUEUE_CHANGES[queue](session)
    if session.open or pauses or changes:
        target = session.turn if session.open else None
        if session.cancel is None or changes or pauses:
            data: dict[str, Any] = {"cause": cause, "queue": queue}
            act.append("cancel/requested", {**data, "turn": target} if target else data)
        _to_queue(act, queue)
        if pauses:
            goal.pause(act, "cancelled")
        activity.rest(act)
        return Cancelled("requested", target, tuple(activity.queued_messages(session)))
    return Cancelled("nothing_to_cancel", None, tuple(queued))


def _to_queue(act: Act, queue: str) -> None:
    if queue == "clear":
        inbox.clear(act, "cancel")
    elif queue == "hold":
        activity.hold(act, "cancel")


def close_session(act: Act) -> bool:
    """Stop the open turn, cancel what is queued, and close the session once it rests; true when it is closed now
    (semantics M9). Closing twice changes nothing."""
    session = act.session
    if session.closed or session.closing:
        return session.closed
    if session.open:
        act.append("cancel/requested", {"cause": "user", "queue": "clear", "turn": session.turn, "closing": True})
    inbox.clear(act, "closed")
    goal.pause(act, "closed")
    if activity.rest(act):
        act.append("session/closed", {"cause": "closed"})
    return session.closed


# -- recovering ---------------------------------------------------------------------------------------------


def recover(act: Act, reason: str) -> None:
    """A new owner of an open turn says so; only a crash counts as an attempt (semantics R3)."""
    attempt = act.session.attempt + (1 if reason == "crash" else 0)
    act.append("turn/recovered", {"turn": act.session.turn, "attempt": attempt, "reason": reason})


# What stands for the result of a call that has none (semantics R3, R5, C4), by how far the call was.
NO_RESULT: dict[str, dict[str, str]] = {
    "started": {"code": "TOOL_OUTCOME_UNKNOWN", "message": "the call was started and its outcome is not known"},
    "asked": {"code": "ABORTED_BEFORE_DISPATCH", "message": "the turn was aborted before the call was started"},
}


def spent(session: Session, reason: str, crashes_max: int) -> bool:
    """Whether the crash that a new owner finds is the open turn's last one (semantics R5)."""
    return session.open and reason == "crash" and session.attempt >= crashes_max


def give_up(act: Act) -> bool:
    """Close a turn that crashed too often: results for open calls, `step/end`, M10, `turn/end` (semantics R5); a
    recorded cancel wins. False when one did: then nothing died."""
    session = act.session
    aborted = session.cancel is not None
    for call_id, state in sorted(session.calls.items()):
        data = {"turn": session.turn, "step": session.step, "callId": call_id, "content": ""}
        act.append("tool/result", {**data, "error": NO_RESULT[state]})
    if session.phase in (Phase.OPEN, Phase.ANSWERED):
        act.append("step/end", {"turn": session.turn, "step": session.step})
    close(act, End({"kind": "interrupted"}))
    return not aborted

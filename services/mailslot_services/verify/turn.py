"""Rules of turns, of the transcript, and of the agent's status (semantics T1-T9, S1-S7, R3, C3).

    turn/start  claimed  ( step/start  user/message*  assistant/message  (tool/call tool/result)*  step/end )*  turn/end

Rule 1: turns are numbered from 1, one at a time; each has one start and one end.
Rule 2: between an assistant's calls and their results stands no user and no assistant message, and no call stays open:
        after every step the transcript is one that a provider takes.
Rule 3: when somebody else goes on with a turn (the epoch rose), `turn/recovered` says so first; but a turn that is
        given up or was cancelled may be closed without it.
Rule 4: a turn that was aborted was cancelled, and a turn that was cancelled is aborted.
Rule 5: status alternates. Idle is said when nothing is left, and between two acts nobody sees an idle agent with
        something left. Events of one act share their time, so where time moves on, an act was over.
"""

from __future__ import annotations

from typing import Final

from mailslot_services.verify.ledger import Entry
from mailslot_services.verify.report import Kind
from mailslot_services.verify.walk import IDLE, NEXT_STEP, Broken, Rule, Walk

COULD_COMPLETE: Final = frozenset({"completed", "max-tokens"})
CLOSED_BY_OTHERS: Final = frozenset({"interrupted", "aborted"})
WORK: Final = frozenset(
    {
        *("step/start", "user/message", "assistant/message", "llm/retry", "usage/recorded"),
        *("tool/call", "inbox/claimed"),
    }
)
"""What only an owner of the turn writes that goes on with it."""
WRITTEN: Final = WORK | {"turn/start", "turn/recovered", "step/end", "tool/result", "inbox/rejected"}
"""Everything that an owner of the turn writes while it is open."""


# -- turns ----------------------------------------------------------------------------------------------------


def turn_start(walk: Walk, entry: Entry) -> Broken:
    """Rule 1."""
    turn = entry.data["turn"]
    if walk.open:
        yield Kind.TURN, f"turn {turn} starts at seq {entry.seq} while turn {walk.turn} is open"
    elif turn != walk.turn + 1:
        yield Kind.TURN, f"turn {turn} starts at seq {entry.seq} after turn {walk.turn}"
    walk.turn, walk.step, walk.open, walk.in_step = turn, 0, True, False
    walk.claim_follows, walk.unannounced = True, False
    walk.epoch, walk.crashes = entry.epoch, 0
    walk.asked.clear()


def turn_recovered(walk: Walk, entry: Entry) -> Broken:
    """Rule 3. Its attempt counts the crashes (R3)."""
    turn, attempt, reason = entry.data["turn"], entry.data["attempt"], entry.data["reason"]
    if not walk.open or turn != walk.turn:
        yield Kind.TURN, f"turn {turn} is recovered at seq {entry.seq} and is not open"
        return
    if not walk.unannounced:
        yield Kind.TURN, f"turn {turn} is recovered at seq {entry.seq} and nobody else took it over"
    walk.crashes += reason == "crash"
    if attempt != walk.crashes + 1:
        yield Kind.TURN, f"turn {turn} is at attempt {attempt} at seq {entry.seq} after {walk.crashes} crashes"
    walk.unannounced = False
    walk.recovered.append(reason)
    if reason == "crash":
        walk.recovery_ms.append(entry.time - walk.written_ms)


def taken_over(walk: Walk, entry: Entry) -> Broken:
    """Rule 3, before the entry is taken in."""
    if not walk.open:
        return
    if entry.epoch > walk.epoch:
        walk.epoch, walk.unannounced = entry.epoch, True
    goes_on = entry.type in WORK or (entry.type == "turn/end" and entry.data["reason"]["kind"] not in CLOSED_BY_OTHERS)
    if walk.unannounced and goes_on:
        walk.unannounced = False
        yield Kind.TURN, f"another owner goes on with turn {walk.turn} at seq {entry.seq} without turn/recovered"


def turn_end(walk: Walk, entry: Entry) -> Broken:
    """Rules 1, 2, 4; and T6: a turn does not complete while a steer waits; M10: what it claimed was settled."""
    turn, kind = entry.data["turn"], entry.data["reason"]["kind"]
    if not walk.open or turn != walk.turn:
        yield Kind.TURN, f"turn {turn} ends at seq {entry.seq} and is not open"
        return
    if walk.in_step:
        yield Kind.TURN, f"turn {turn} ends at seq {entry.seq} inside step {walk.step}"
    if walk.claimed:
        yield Kind.LIFE, f"turn {turn} ends at seq {entry.seq} and leaves {sorted(walk.claimed)} claimed"
    if (kind == "aborted") != (turn in walk.cancelled):
        named = "a cancel names it" if turn in walk.cancelled else "no cancel names it"
        yield Kind.CANCEL, f"turn {turn} ends as {kind} at seq {entry.seq} and {named}"
    steers = [life.message_id for life in walk.lanes[NEXT_STEP].values() if life.wake]
    if kind in COULD_COMPLETE and steers and not walk.held:
        yield Kind.TURN, f"turn {turn} completes at seq {entry.seq} while {steers} wait for its next step"
    walk.open, walk.in_step, walk.unannounced = False, False, False
    walk.ends.append(kind)


def cancel_requested(walk: Walk, entry: Entry) -> Broken:
    """A cancel names the turn that is open, or none (C3)."""
    turn = entry.data.get("turn")
    if turn is not None:
        if not walk.open or turn != walk.turn:
            yield Kind.CANCEL, f"the cancel at seq {entry.seq} names turn {turn}, which is not open"
        walk.cancelled.add(turn)
    if entry.data.get("queue") == "clear":
        walk.cleared_seq = entry.seq
    if entry.data.get("closing"):
        walk.closing = True
        walk.cleared_seq = entry.seq


# -- steps and the transcript ---------------------------------------------------------------------------------


def _in_place(walk: Walk, entry: Entry) -> bool:
    return walk.in_step and (entry.data["turn"], entry.data["step"]) == (walk.turn, walk.step)


def step_start(walk: Walk, entry: Entry) -> Broken:
    """Steps are numbered from 1 in each turn."""
    step = entry.data["step"]
    if not walk.open or walk.in_step or (entry.data["turn"], step) != (walk.turn, walk.step + 1):
        yield Kind.TURN, f"step {step} starts at seq {entry.seq} out of its place"
    walk.step, walk.in_step, walk.answered = step, True, False
    walk.started.clear()


def step_end(walk: Walk, entry: Entry) -> Broken:
    """Rule 2: no call stays open."""
    if not _in_place(walk, entry):
        yield Kind.TURN, f"step {entry.data['step']} ends at seq {entry.seq} and is not open"
    if walk.asked:
        yield Kind.TRANSCRIPT, f"step {walk.step} ends at seq {entry.seq} and calls {sorted(walk.asked)} have no result"
    walk.in_step = False
    walk.asked.clear()


def before_answer(walk: Walk, entry: Entry) -> Broken:
    """Rule 2: a user message, or an attempt at an answer, comes before the step's answer."""
    if not _in_place(walk, entry) or walk.answered:
        kind = Kind.TRANSCRIPT if entry.type in ("user/message", "assistant/message") else Kind.TURN
        yield kind, f"{entry.type} at seq {entry.seq} stands outside of its step, or after its answer"
    elif walk.asked:
        yield Kind.TRANSCRIPT, f"{entry.type} at seq {entry.seq} stands between calls and their results"


def assistant_message(walk: Walk, entry: Entry) -> Broken:
    """One answer a step (T9)."""
    yield from before_answer(walk, entry)
    walk.answered = True
    walk.asked = {call["callId"] for call in entry.data.get("toolCalls") or ()}


def tool_call(walk: Walk, entry: Entry) -> Broken:
    """A call is started once, after the answer that asked for it and before its result (T3)."""
    call_id = entry.data["callId"]
    if call_id not in walk.asked or call_id in walk.started or not _in_place(walk, entry):
        yield Kind.TRANSCRIPT, f"call {call_id} is started at seq {entry.seq} and was not asked for, or twice"
    walk.started.add(call_id)


def tool_result(walk: Walk, entry: Entry) -> Broken:
    """A result has its call, once."""
    call_id = entry.data["callId"]
    if call_id not in walk.asked or not _in_place(walk, entry):
        yield Kind.TRANSCRIPT, f"the result at seq {entry.seq} belongs to no open call: {call_id}"
    walk.asked.discard(call_id)


# -- the agent ------------------------------------------------------------------------------------------------


def status(walk: Walk, entry: Entry) -> Broken:
    """Rule 5."""
    said = entry.data["status"]
    if said == walk.status:
        yield Kind.STATUS, f"status is {said} again at seq {entry.seq}"
    walk.status = said
    if said == IDLE and walk.left:
        yield Kind.IDLE, f"idle is said at seq {entry.seq} and {' and '.join(walk.left)}"


def held(walk: Walk, entry: Entry) -> Broken:
    """A hold begins (S7)."""
    walk.held = True
    yield from ()


def released(walk: Walk, entry: Entry) -> Broken:
    """A hold ends (S7)."""
    if not walk.held:
        yield Kind.STATUS, f"a hold is released at seq {entry.seq} and there was none"
    walk.held = False


def closed(walk: Walk, entry: Entry) -> Broken:
    """A session is closed once it is idle, with nothing queued (M9)."""
    if walk.status != IDLE or walk.pending:
        yield Kind.LIFE, f"the session is closed at seq {entry.seq} with something left"
    walk.closing = True


def between_acts(walk: Walk, entry: Entry) -> Broken:
    """Rule 5, after the last entry of an act."""
    if walk.status == IDLE and walk.left:
        yield Kind.IDLE, f"after seq {entry.seq} the agent is idle and {' and '.join(walk.left)}"


RULES: Final[dict[str, Rule]] = {
    "turn/start": turn_start,
    "turn/recovered": turn_recovered,
    "turn/end": turn_end,
    "cancel/requested": cancel_requested,
    "step/start": step_start,
    "step/end": step_end,
    "user/message": before_answer,
    "llm/retry": before_answer,
    "assistant/message": assistant_message,
    "tool/call": tool_call,
    "tool/result": tool_result,
    "agent/status": status,
    "inbox/held": held,
    "inbox/released": released,
    "session/closed": closed,
}

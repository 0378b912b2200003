"""What must hold of every ledger, as numbered checks. The doctor, the tests and the simulation run all of them.

 1 seq starts at 1 and has no gaps (L1)               6 a message has one terminal state a life (M5)
 2 time never goes back (L1)                          7 a user/message was claimed by its turn (T2, T3)
 3 epoch never goes back (L3)                         8 status changes only when it changes (S1)
 4 turns are numbered and enclosed, one at a time     9 nobody sees a waking message and an idle agent (S2)
 5 steps are numbered and enclosed; calls have       10 queued = settled + pending (M5)
   results before the step ends (T3)                 11 every aborted turn has a cancel that names it (C3)

A check is a generator over the ledger that yields a sentence for each violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mailslot_core import activity
from mailslot_core.session import TERMINAL, Event, Session, Status, apply

Check = Callable[[Sequence[Event]], Iterator[str]]


def order(events: Sequence[Event]) -> Iterator[str]:
    """Checks 1, 2, 3."""
    for number, event in enumerate(events, 1):
        if event.seq != number:
            yield f"seq {event.seq} stands at place {number}"
            return
    for before, after in zip(events, events[1:], strict=False):
        if after.time < before.time:
            yield f"time goes back at seq {after.seq}"
        if after.epoch < before.epoch:
            yield f"epoch goes back at seq {after.seq}"


def turns(events: Sequence[Event]) -> Iterator[str]:
    """Checks 4, 5, 11."""
    turn, step, is_open, in_step = 0, 0, False, False
    calls: set[str] = set()
    cancels: set[int] = set()
    for event in events:
        data = event.data
        if event.type == "turn/start":
            if is_open or data["turn"] != turn + 1:
                yield f"turn {data['turn']} starts at seq {event.seq} after turn {turn}"
            turn, step, is_open = data["turn"], 0, True
        elif event.type == "turn/end":
            if not is_open or in_step or data["turn"] != turn:
                yield f"turn {data['turn']} ends at seq {event.seq}, which is not open or inside a step"
            if data["reason"]["kind"] == "aborted" and turn not in cancels:
                yield f"turn {turn} was aborted at seq {event.seq} and no cancel names it"
            is_open = False
        elif event.type == "cancel/requested" and data.get("turn"):
            cancels.add(data["turn"])
        elif event.type == "step/start":
            if not is_open or in_step or data["step"] != step + 1:
                yield f"step {data['step']} starts at seq {event.seq} after step {step}"
            step, in_step, calls = data["step"], True, set()
        elif event.type == "step/end":
            if not in_step or calls:
                yield f"step {data['step']} ends at seq {event.seq} with open calls {sorted(calls)}"
            in_step = False
        elif event.type == "assistant/message":
            calls = {call["callId"] for call in data.get("toolCalls", ())}
        elif event.type == "tool/result":
            if data["callId"] not in calls:
                yield f"tool/result at seq {event.seq} answers no open call"
            calls.discard(data["callId"])
        elif event.type == "user/message" and (not in_step or calls):
            yield f"user/message at seq {event.seq} stands outside a step or inside tool calls"


def lives(events: Sequence[Event]) -> Iterator[str]:
    """Checks 6, 7."""
    queued: set[str] = set()
    claimed: dict[str, int] = {}
    for event in events:
        data = event.data
        if event.type == "inbox/queued":
            if data["messageId"] in queued:
                yield f"message {data['messageId']} is queued twice, again at seq {event.seq}"
            queued.add(data["messageId"])
        elif event.type == "inbox/claimed":
            for message_id in data["messageIds"]:
                if message_id not in queued or message_id in claimed:
                    yield f"message {message_id} is claimed at seq {event.seq} without being queued"
                claimed[message_id] = data["turn"]
        elif event.type == "user/message" and data["messageId"] in queued:
            if claimed.pop(data["messageId"], None) != data["turn"]:
                yield f"message {data['messageId']} is admitted at seq {event.seq} by a turn that did not claim it"
            queued.discard(data["messageId"])
        elif event.type in ("inbox/cancelled", "inbox/rejected", "inbox/expired", "inbox/dead"):
            if data["messageId"] not in queued:
                yield f"message {data['messageId']} is settled twice, again at seq {event.seq}"
            queued.discard(data["messageId"])
            claimed.pop(data["messageId"], None)


def status(events: Sequence[Event]) -> Iterator[str]:
    """Check 8."""
    before = Status.IDLE
    for event in events:
        if event.type == "agent/status":
            if event.data["status"] == before:
                yield f"status is {before} again at seq {event.seq}"
            before = Status(event.data["status"])


# Facts that follow another one in the same act, so that the act is not over before them (semantics S2, S7, G3).
SAME_ACT = {"agent/status", "inbox/released", "inbox/cancelled", "turn/start", "goal/change", "inbox/held"}


def indexes(events: Sequence[Event]) -> Iterator[str]:
    """Checks 9, 10: fold step by step and look at the session between the acts."""
    session = Session("ledger")
    for number, event in enumerate(events):
        apply(session, event)
        following = events[number + 1].type if number + 1 < len(events) else ""
        if session.conservation != 0:
            yield f"conservation is {session.conservation} at seq {event.seq}"
        if session.status is Status.IDLE and activity.waking(session) and following not in SAME_ACT:
            yield f"a waking message waits at an idle agent at seq {event.seq}"
        if session.status is Status.IDLE and session.open:
            yield f"turn {session.turn} is open while the agent is idle at seq {event.seq}"


CHECKS: tuple[Check, ...] = (order, turns, lives, status, indexes)


def violations(events: Sequence[Event]) -> list[str]:
    """Every sentence of every check; empty for a sound ledger. Later checks need a gapless one."""
    broken = list(order(events))
    return broken or [sentence for check in CHECKS[1:] for sentence in check(events)]


def unsettled(session: Session) -> list[str]:
    """Messages that have not reached a terminal state: what must be empty once everything rests."""
    return [message.message_id for message in session.messages.values() if message.state not in TERMINAL]

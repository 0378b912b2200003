"""Whether the whole agent runs, rests or is held; never the status of one message.

              wake: a waking message appears
     [IDLE] ---------------------------------> [RUNNING]
        ^                                          |
        +------------------------------------------+
              rest: nothing is left to do

Rule 1: `running` follows the fact that made a waking message appear, in the same act (semantics S2).
Rule 2: `idle` is appended by whichever act removes the last reason to run (semantics S3, S6).
Rule 3: injected context alone neither wakes the agent nor keeps it from resting (semantics S5).
Rule 4: held messages do not wake; a hold ends by `release` (semantics S7).
Rule 5: a session that was asked to close while it ran is closed by the act that lets it rest (semantics M9).
"""

from __future__ import annotations

from mailslot_core.session import Act, Lane, Session, Status


def followups(session: Session) -> int:
    """Due queued follow-ups."""
    return len(session.lane(Lane.NEXT_TURN))


def steers(session: Session) -> int:
    """Due queued steers; injected context does not count."""
    return sum(1 for message in session.lane(Lane.NEXT_STEP) if message.wake)


def waking(session: Session) -> int:
    """Waking messages: due, queued, and not on hold."""
    return 0 if session.hold else followups(session) + steers(session)


def reasons(session: Session) -> list[str]:
    """Why the agent is running, for people (semantics S4); empty when it is idle."""
    if session.status is Status.IDLE:
        return []
    found = [f"turn {session.turn}"] if session.open else []
    queued = waking(session)
    return [*found, f"{queued} queued"] if queued else found


def wake(act: Act) -> None:
    """Append `running` if a waking message makes an idle agent run (semantics S2)."""
    if act.session.status is Status.IDLE and waking(act.session):
        act.append("agent/status", {"status": "running"})


def rest(act: Act) -> bool:
    """Append `idle` if nothing is left (semantics S3); true if the agent is idle afterwards."""
    session = act.session
    if session.status is Status.RUNNING and not (waking(session) or session.open or session.claimed):
        held = followups(session) + steers(session) if session.hold else 0
        act.append("agent/status", {"status": "idle", **({"held": held} if session.hold else {})})
        if session.closing:
            act.append("session/closed", {"cause": "closed"})
    return session.status is Status.IDLE


def hold(act: Act, cause: str) -> None:
    """Keep what is queued from waking the agent (semantics S7). Holding twice changes nothing."""
    if act.session.hold is None:
        act.append("inbox/held", {"cause": cause})


def release(act: Act, cause: str) -> None:
    """End a hold if there is one, and wake for what waited behind it (semantics S7)."""
    if act.session.hold is not None:
        act.append("inbox/released", {"cause": cause})
    wake(act)


def queued_messages(session: Session) -> list[str]:
    """Ids of all queued messages in the order they would be claimed: next-step, next-turn, then those not yet due."""
    due = [message.message_id for lane in (Lane.NEXT_STEP, Lane.NEXT_TURN) for message in session.lane(lane)]
    return due + [message.message_id for message in session.later()]

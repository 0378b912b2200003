"""Which round a resting session's goal is due for. Pure: a level and a notice in, a proposal or nothing out.

    idle notice {session, goal, revision, idle seq}  +  level read now  -->  Round, or None when the notice is stale

Rule 1: a notice proposes something only while the level still says what the notice says: same goal, same revision,
        active, idle, and the idle it names is the last one. Anything else is stale (semantics G2).
Rule 2: the message id is a function of goal, revision, round and idle, so two services propose the same message (G2).
Rule 3: this is a proposal. The store checks the same again in the act that queues it, so being late does no harm.
"""

from __future__ import annotations

from typing import Final

from mailslot_contracts.ids import goal_message_id
from mailslot_core import goal as goals
from mailslot_core.goal import Round
from mailslot_core.session import Data, Lane, Status
from mailslot_core.store import IdleNotice, Level

SOURCE_KIND: Final = "goal"


def proposal(level: Level | None, notice: IdleNotice) -> Round | None:
    """The next round of the goal that the notice names, None when the notice is stale."""
    if level is None or level.goal is None or is_stale(level, level.goal, notice):
        return None
    number = level.goal["rounds"] + 1
    message_id = goal_message_id(notice.goal_id, notice.revision, number, notice.idle_seq)
    return Round(
        goal_id=notice.goal_id,
        revision=notice.revision,
        round=number,
        idle_seq=notice.idle_seq,
        message_id=message_id,
        data=message(message_id, level.goal, number),
    )


def is_stale(level: Level, goal: Data, notice: IdleNotice) -> bool:
    """Whether something happened since the notice was written (rule 1)."""
    named = (notice.goal_id, notice.revision, notice.idle_seq)
    found = (goal["goalId"], goal["revision"], level.idle_cursor)
    return named != found or goal["phase"] != goals.ACTIVE or level.status is not Status.IDLE


def message(message_id: str, goal: Data, number: int) -> Data:
    """The round's `inbox/queued` data: a follow-up that wakes the agent."""
    return {
        "messageId": message_id,
        "lane": str(Lane.NEXT_TURN),
        "wake": True,
        "content": [{"type": "text", "text": goals.round_text(goal)}],
        "source": {
            "kind": SOURCE_KIND,
            "goalId": goal["goalId"],
            "revision": goal["revision"],
            "round": number,
        },
    }

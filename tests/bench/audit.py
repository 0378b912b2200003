"""A fast answer that is wrong is worth nothing: every ledger is read back after it was measured.

Rule 1: each ledger is without gaps and sound by every check of `mailslot_core.invariants`.
Rule 2: each message that was sent is queued once and admitted once, in the order it was sent.
Rule 3: conservation is 0 and every agent rests.
"""

from collections.abc import Mapping, Sequence

from mailslot_core import invariants
from mailslot_core.session import Event, Status
from mailslot_core.store import Store
from tests.bench.traffic import message_of, session_of

LEDGER_EVENTS_MAX = 1_000_000


def expected(count: int, group: str = "s") -> dict[str, list[str]]:
    """Which messages each session of the group was sent, in order, when messages 0 .. count-1 were."""
    sent: dict[str, list[str]] = {}
    for number in range(count):
        sent.setdefault(session_of(number, group), []).append(message_of(number))
    return sent


async def audit(store: Store, sent: Mapping[str, Sequence[str]]) -> int:
    """The number of events in these sessions' ledgers, all of which are as they must be."""
    total = 0
    for session_id, message_ids in sent.items():
        events = await store.events(session_id, after=0, limit=LEDGER_EVENTS_MAX)
        wrong = invariants.violations(events)
        assert not wrong, f"ledger of {session_id}: {wrong[:3]}"
        for kind in ("inbox/queued", "user/message"):
            found = _named(events, kind)
            assert found == list(message_ids), f"{session_id}: {kind} of {len(found)} messages, {len(message_ids)} sent"
        level = await store.level(session_id)
        assert level is not None
        assert (level.conservation, level.status, level.cursor) == (0, Status.IDLE, len(events)), level
        total += len(events)
    return total


def _named(events: Sequence[Event], kind: str) -> list[str]:
    return [event.data["messageId"] for event in events if event.type == kind]

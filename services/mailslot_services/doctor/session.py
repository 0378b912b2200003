"""One session against its ledger: does folding the ledger give the indexes that are kept?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mailslot_core import invariants
from mailslot_core.errors import CursorExpired
from mailslot_core.session import TERMINAL, Data, Event, Session, fold, indexes
from mailslot_core.store import Level, Store
from mailslot_services.doctor.finding import DAMAGE, reading, reason

PAGE_EVENTS: Final = 1_000
"""Events that are read at a time."""
TRIES_MAX: Final = 20
"""How often the level and the indexes of a busy session are read until both stand at the same seq."""


@dataclass
class Examined:
    """One session's ledger against its indexes."""

    events: int = 0
    conservation: int = 0
    violations: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    kept: Data | None = None  # the indexes


async def examine(store: Store, session_id: str) -> Examined:
    """Read a session and compare; works while others write to it (rule 1). `Unreadable` when its indexes are."""
    found = Examined()
    level, kept = await read_indexes(store, session_id)
    if level is None or kept is None:
        found.differences.append("is listed and has no state")
        return found
    events, unreadable = await read_ledger(store, session_id, newest=kept["seq"])
    found.events = len(events)
    found.conservation, found.kept = level.conservation, kept
    if level.conservation:
        found.differences.append(f"conservation is {level.conservation}: queued messages were lost or counted twice")
    if unreadable:
        found.differences.append(unreadable)
        return found
    found.violations, folded = check(session_id, events)
    if folded is not None:
        found.conservation = level.conservation or folded.conservation
        with reading("indexes"):
            found.differences += differences(folded, kept)
        if level.cursor == folded.seq:
            found.differences += pending_differences(folded, level)
    return found


async def read_indexes(store: Store, session_id: str) -> tuple[Level | None, Data | None]:
    """The level and the indexes at the same seq, if the session keeps still for as long as that takes."""
    level, kept = await _read_once(store, session_id)
    for _ in range(TRIES_MAX):
        if level is None or kept is None or level.cursor == kept["seq"]:
            break
        level, kept = await _read_once(store, session_id)
    return level, kept


async def _read_once(store: Store, session_id: str) -> tuple[Level | None, Data | None]:
    with reading("state"):
        level = await store.level(session_id)
    with reading("lanes or messages"):  # the state belongs to it, and was just read
        return level, await store.indexes(session_id)


async def read_ledger(store: Store, session_id: str, *, newest: int) -> tuple[list[Event], str | None]:
    """The events up to seq `newest`, and why reading ended before that, if it did."""
    events: list[Event] = []
    while len(events) < newest:
        after = events[-1].seq if events else 0
        try:
            page = await store.events(session_id, after=after, limit=min(PAGE_EVENTS, newest - len(events)))
        except CursorExpired as gap:
            if gap.oldest > gap.newest:
                return events, f"ledger is empty, the indexes stand at seq {newest}"
            return events, missing(after + 1, gap.oldest, newest)
        except DAMAGE as error:
            return events, f"ledger has an event after seq {after} that cannot be read: {reason(error)}"
        if not page:
            return events, missing(after + 1, after, newest)
        for event in page:
            if event.seq != len(events) + 1:
                return events, missing(len(events) + 1, event.seq, newest)
            events.append(event)
    return events, None


def missing(seq: int, following: int, newest: int) -> str:
    """The sentence for an event that is not there; `following` is the next one that is, if that is known."""
    if following > seq:
        return f"ledger has no event {seq}: it goes on at seq {following}"
    return f"ledger has no event {seq}, the indexes stand at seq {newest}"


def check(session_id: str, events: Sequence[Event]) -> tuple[list[str], Session | None]:
    """What the ledger breaks, and its fold; None when there is none (rule 4)."""
    try:
        broken = invariants.violations(events)
        return broken, fold(session_id, events)
    except DAMAGE as error:
        unfolded = f"ledger cannot be folded ({reason(error)})"
    return list(invariants.order(events)) or [unfolded], None


def differences(folded: Session, kept: Data) -> list[str]:
    """Each index that is not what the ledger gives, messages one by one (rule 2)."""
    given = indexes(folded)
    records = given.pop("messages")
    found = [f"index {said}" for said in unlike(kept, given)]
    messages: Mapping[str, Any] = kept["messages"]
    for message_id, record in records.items():
        if message_id in messages:
            found += [f"message {message_id}: {said}" for said in unlike(messages[message_id], record)]
        elif record["state"] not in TERMINAL:
            found.append(f"message {message_id} has no record, the ledger says it is {record['state']}")
    strangers = sorted(messages.keys() - records.keys())
    return found + [f"message {message_id} has a record, the ledger does not know it" for message_id in strangers]


def unlike(kept: Data, given: Data) -> list[str]:
    """What differs: `state is 'queued', the ledger gives 'admitted'`."""
    names = [name for name in sorted(given) if kept.get(name) != given[name]]
    return [f"{name} is {kept.get(name)!r}, the ledger gives {given[name]!r}" for name in names]


def pending_differences(folded: Session, level: Level) -> list[str]:
    """The counter of waiting messages, which only the level shows."""
    if level.pending == folded.pending:
        return []
    return [f"{level.pending} messages are counted as pending, the ledger gives {folded.pending}"]

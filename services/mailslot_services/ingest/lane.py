"""What the broker door works on: entries in hand, and the lanes they wait in.

    read --> Hand (count and bytes are bounded: no room, no reading)
               |
               +--> Lane of session A: head being submitted, or waiting until `due`; the rest behind it
               +--> Lane of session B: ...

Rule 1: an entry is in hand from when it was read until it is settled, or left to recovery. It is in one hand once.
Rule 2: a lane is there while it has letters. Its head is tried by one caller at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mailslot_contracts import Code, IntakeEntry, Problem
from mailslot_services.broker import Arrival
from mailslot_services.ingest.letter import Letter, Verdict
from mailslot_services.ingest.limit import IntakeLimits


@dataclass(eq=False)
class Lane:
    """The letters of one session, in stream order. `problem` is what its head met last, `attempts` how often in a row;
    `due` is when a waiting lane is tried again."""

    session_id: str
    letters: deque[tuple[Letter, IntakeEntry]] = field(default_factory=deque)
    verdicts: list[Verdict] = field(default_factory=list)
    problem: Problem | None = None
    attempts: int = 0
    due: float | None = None

    def is_full(self, limit: int) -> bool:
        """Too many letters wait for room in the session's queue."""
        return self.problem is not None and self.problem.code == Code.QUEUE_FULL and len(self.letters) >= limit

    def entry_ids(self) -> list[str]:
        """Every entry that this lane has and that is not settled."""
        waiting = [letter.entry_id for letter, _ in self.letters]
        return [*waiting, *(verdict.letter.entry_id for verdict in self.verdicts)]

    def take_verdicts(self) -> list[Verdict]:
        """What came of those that were submitted."""
        taken, self.verdicts = self.verdicts, []
        return taken


class Hand:
    """The entries that this process works on, and whether there is room for more."""

    def __init__(self, limits: IntakeLimits) -> None:
        self._limits = limits
        self._sizes: dict[str, int] = {}
        self._size_bytes = 0
        self._changed = asyncio.Event()

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def grasp(self, batch: Iterable[Arrival]) -> list[Arrival]:
        """What of a batch was not in hand yet; now it is."""
        fresh = [arrival for arrival in batch if arrival.entry_id not in self._sizes]
        for arrival in fresh:
            self._sizes[arrival.entry_id] = size = sum(map(len, arrival.fields.values()))
            self._size_bytes += size
        return fresh

    def release(self, entry_ids: Iterable[str]) -> None:
        """These are settled, or left to recovery."""
        for entry_id in entry_ids:
            self._size_bytes -= self._sizes.pop(entry_id, 0)
        self.wake()

    async def room(self, beside: Sequence[Arrival], still: Callable[[], bool]) -> None:
        """Return when there is room beside these, or it is not wanted any more."""
        while still() and (
            len(self) - len(beside) >= self._limits.in_flight_count
            or self._size_bytes - sum(self._sizes[arrival.entry_id] for arrival in beside)
            >= self._limits.in_flight_bytes
        ):
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        """Whoever waits for room looks again."""
        self._changed.set()

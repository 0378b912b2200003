"""Conservation as a metric: what all sessions together miss (semantics M5).

Rule 1: each scrape looks at the next AUDIT_COUNT sessions, so its cost is bounded however many there are; the gauges
        change when a round through all of them is complete.
Rule 2: a session that misses something is logged by name, because a gauge cannot name it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mailslot_core.store import Store
from mailslot_services.ingest.door import level_or_none
from mailslot_services.ingest.metric import Metrics

AUDIT_COUNT: Final = 500
"""Sessions looked at in one scrape."""

log = logging.getLogger("mailslot.ingest")


class Audit:
    """One round after the other through all sessions."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._after = ""
        self._missing = 0
        self._sessions = 0
        self._one_at_a_time = asyncio.Lock()

    async def advance(self) -> None:
        """Look at the next sessions; publish the sum when that was the last of them."""
        async with self._one_at_a_time:
            await self._look()

    async def _look(self) -> None:
        names = await self._store.sessions(after=self._after, limit=AUDIT_COUNT)
        levels = await asyncio.gather(*(level_or_none(self._store, name) for name in names))
        for name, level in zip(names, levels, strict=True):
            if level is not None and level.conservation:
                log.error("conservation broken", extra={"session": name, "conservation": level.conservation})
                self._missing += abs(level.conservation)
        self._sessions += len(names)
        if len(names) == AUDIT_COUNT:
            self._after = names[-1]
            return
        self._metrics.conservation.set(self._missing)
        self._metrics.audited_sessions.set(self._sessions)
        self._after, self._missing, self._sessions = "", 0, 0

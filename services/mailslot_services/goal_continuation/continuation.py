"""Answering idle notices, and looking through durable goals for those whose notice was lost. One act for both.

    notice ──────────┐
                     ├──> read level ──> round.proposal ──> store.goal_advance ──> count
    resting goals ───┘       (pure)         one atomic act: queued, blocked, or nothing

Rule 1: a notice says where to look and nothing else; what is true is read (semantics G2).
Rule 2: doing it twice, late, or in two services at once comes to the same as doing it once (G2).
Rule 3: what the store did not answer is asked again by the next reconcile (G8); nothing is repeated here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from mailslot_contracts.codec import decode
from mailslot_contracts.problems import CodecError
from mailslot_core.errors import OutcomeUnknown, StoreUnavailable
from mailslot_core.goal import spent_budget
from mailslot_core.store import IdleNotice, Store
from mailslot_services.goal_continuation.metrics import GoalMetrics, Outcome, Path
from mailslot_services.goal_continuation.round import proposal

AT_ONCE: Final = 64
"""Goals that are answered at the same time; their store calls leave in one write."""

log = logging.getLogger("mailslot.goals")


def read_notice(data: bytes) -> IdleNotice:
    """The notice in a stream entry's `data`. CodecError when it is none."""
    value: Any = decode(data)
    try:
        return IdleNotice(value["sessionId"], value["goalId"], int(value["revision"]), int(value["idleSeq"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"an idle notice lacks or garbles {error}") from None


class Continuation:
    """Goes on with goals whose agent rests."""

    def __init__(self, store: Store, metrics: GoalMetrics) -> None:
        self._store = store
        self._metrics = metrics

    async def answer(self, notice: IdleNotice, path: Path) -> Outcome:
        """The goal's next round is queued, or the goal is blocked, or there was nothing to do."""
        try:
            outcome = await self._advance(notice)
        except (StoreUnavailable, OutcomeUnknown) as error:
            log.warning("goal %s of session %s waits: %s", notice.goal_id, notice.session_id, error)
            outcome = Outcome.FAILED
        self._metrics.answers.labels(path, outcome).inc()
        return outcome

    async def answer_all(self, notices: Sequence[IdleNotice], path: Path) -> None:
        """Every notice is answered, a bounded number at a time."""
        for start in range(0, len(notices), AT_ONCE):
            await asyncio.gather(*(self.answer(notice, path) for notice in notices[start : start + AT_ONCE]))

    async def reconcile(self) -> None:
        """Every goal that rests was looked at (semantics G8)."""
        with self._metrics.reconcile_seconds.time():
            for partition in range(self._store.partitions):
                try:
                    resting = await self._store.resting_goals(partition)
                except (StoreUnavailable, OutcomeUnknown) as error:
                    log.warning("goals cannot be looked through: %s", error)
                    return
                await self.answer_all(resting, Path.RECONCILE)

    async def _advance(self, notice: IdleNotice) -> Outcome:
        level = await self._store.level(notice.session_id)
        proposed = proposal(level, notice)
        if proposed is None or level is None or level.goal is None:
            return Outcome.STALE
        if not await self._store.goal_advance(notice.session_id, proposed):
            return Outcome.STALE
        return Outcome.BLOCKED if spent_budget(level.goal) else Outcome.ADVANCED

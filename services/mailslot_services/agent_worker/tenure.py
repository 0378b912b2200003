"""A session in this worker's hands: its lease, how long it still holds, and whether it gets anywhere.

    acquire --> [HELD] --renewed while it makes progress--> [HELD] --settle--> given back
                   |
                   +-- no renewal in time, or no progress --> [LOST]: the task is stopped; the store fences it anyway

Rule 1: the end of a lease is counted from before the call that set it, by this process's monotonic clock (R2).
Rule 2: a turn that is inside a declared call with a hard cap makes progress until the cap; a frozen event loop
        renews nothing, so it loses its sessions (R2).
Rule 3: what is learnt here of a cancel is a hint; the store decides it in the act that ends the turn (C3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mailslot_core.clock import Clock
from mailslot_core.errors import OutcomeUnknown, StoreFault, StoreUnavailable
from mailslot_core.store import Grant, Lease, Renewal, Store
from mailslot_services.agent_worker.metrics import WorkerMetrics

RENEWALS_PER_LEASE = 3  # two may fail before the lease is in danger
SAFETY = 0.9  # share of a lease after which it counts as over: the rest pays for clock drift and the last write

log = logging.getLogger("mailslot.worker")


@dataclass(slots=True)
class Slot:
    """One of the worker's places for a session; the store knows it as the lease's owner. Calls are numbered (L3)."""

    owner: str
    call: int = 0
    turns: int = 0  # settled since the slot last answered the doorbell
    asked: float = 0.0  # monotonic time before its last call: a lease that came with the answer counts from there

    def next_call(self) -> int:
        """The number of the next call."""
        self.call += 1
        return self.call


@dataclass(slots=True, eq=False)
class Tenure:
    """One session under one lease."""

    lease: Lease
    until: float
    progressed: float
    calling_until: float = 0.0
    turn: int = 0
    cause: str | None = None
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    begun: bool = False  # the task has begun to drive it
    lost: str | None = None  # why the session was taken from us
    hand_back: bool = False  # the worker drains: give the session back as it stands

    def cancel(self, turn: int, cause: str | None) -> None:
        """A cancel was recorded against a turn. Word of an earlier turn changes nothing; the first cause stays."""
        if cause is not None and turn == self.turn and not self.cancelled.is_set():
            self.cause = cause
            self.cancelled.set()

    def stop(self) -> None:
        """End the task that drives it. One that has not begun is not cancelled, or it would never run, not even to
        give its slot back: it looks at `lost` and `hand_back` first."""
        if self.task is not None and self.begun:
            self.task.cancel()

    def see(self, grant: Grant) -> None:
        """The store said how the session is: its open turn, and whether a cancel is recorded against it."""
        if grant.turn != self.turn:
            self.turn, self.cause = grant.turn, None
            self.cancelled.clear()
        self.cancel(grant.turn, grant.cancel)


class Keeper:
    """Renews the leases of all sessions in this worker's hands, and lets go of those it may not keep."""

    def __init__(self, store: Store, clock: Clock, *, lease_ms: int, stall_ms: int, metrics: WorkerMetrics) -> None:
        self._store = store
        self._clock = clock
        self._lease_ms = lease_ms
        self._stall_s = stall_ms / 1000
        self._metrics = metrics
        self._held: dict[str, Tenure] = {}

    @property
    def held(self) -> list[Tenure]:
        """Every session in our hands."""
        return list(self._held.values())

    def begin(self, grant: Grant, asked: float) -> Tenure:
        """A session came into our hands; `asked` is the monotonic time before the call that leased it."""
        tenure = Tenure(grant.lease, asked + self._lease_s(), self._clock.monotonic())
        tenure.see(grant)
        self._held[grant.lease.session_id] = tenure
        self._metrics.sessions.set(len(self._held))
        return tenure

    def end(self, tenure: Tenure) -> None:
        """The session left our hands."""
        if self._held.get(tenure.lease.session_id) is tenure:
            del self._held[tenure.lease.session_id]
        self._metrics.sessions.set(len(self._held))

    def progress(self, tenure: Tenure) -> None:
        """The turn got somewhere."""
        tenure.progressed = self._clock.monotonic()

    @contextmanager
    def calling(self, tenure: Tenure, cap_s: float) -> Iterator[None]:
        """The turn is inside a call that may take up to `cap_s` seconds."""
        tenure.calling_until = self._clock.monotonic() + cap_s
        try:
            yield
        finally:
            tenure.calling_until = 0.0
            self.progress(tenure)

    def cancel(self, session_id: str, epoch: int, turn: int, cause: str) -> None:
        """Word came that a cancel was recorded against a turn of ours."""
        tenure = self._held.get(session_id)
        if tenure is not None and tenure.lease.epoch == epoch:
            tenure.cancel(turn, cause)

    async def guard(self) -> None:
        """Let go of what may not be kept, for ever. Apart from renewing, because a renewal may hang (R2)."""
        while True:
            self.let_go()
            await self._clock.sleep(self._lease_ms / 1000 * (1 - SAFETY) / 2)

    def let_go(self) -> None:
        """Stop working on every session whose lease is over, or that gets nowhere."""
        now = self._clock.monotonic()
        for tenure in self.held:
            reason = self._must_go(tenure, now)
            if reason is not None:
                self.lose(tenure, reason)

    async def renew(self) -> None:
        """Renew for ever. A round that hangs is given up in time for the next one."""
        interval_s = self._lease_ms / 1000 / RENEWALS_PER_LEASE
        while True:
            await self._clock.sleep(interval_s)
            try:
                async with asyncio.timeout(interval_s):
                    await self.renew_all()
            except TimeoutError:
                log.warning("leases were not renewed within %.1f s", interval_s)

    async def renew_all(self) -> None:
        """One round."""
        self.let_go()  # a loop that was frozen renews nothing that is over by now
        now = self._clock.monotonic()
        tenures = [tenure for tenure in self.held if tenure.lost is None]
        if not tenures:
            return
        try:
            renewals = await self._renewals(tenures)
        except (StoreUnavailable, OutcomeUnknown) as error:
            log.warning("leases were not renewed: %s", error)
            return
        for tenure, renewal in zip(tenures, renewals, strict=True):
            if renewal is not None:
                self._renewed(tenure, renewal, now)

    async def _renewals(self, tenures: Sequence[Tenure]) -> Sequence[Renewal | None]:
        """The answer for each session; None for one that the store cannot read, which must not cost the others."""
        try:
            return await self._store.renew([tenure.lease for tenure in tenures], self._lease_ms)
        except StoreFault as error:
            if len(tenures) == 1:
                log.warning("the lease of session %s was not renewed: %s", tenures[0].lease.session_id, error)
                return [None]
        return [renewal for tenure in tenures for renewal in await self._renewals([tenure])]

    def lose(self, tenure: Tenure, reason: str) -> None:
        """Stop working on a session that is no longer ours, or that we may not keep."""
        if tenure.lost is None:
            tenure.lost = reason
            self._metrics.lost.labels(reason=reason).inc()
            log.warning("lost session %s: %s", tenure.lease.session_id, reason)
            tenure.stop()

    def _must_go(self, tenure: Tenure, now: float) -> str | None:
        if now >= tenure.until:
            return "lease-over"
        if now < tenure.calling_until or now - tenure.progressed < self._stall_s:
            return None
        return "stalled"

    def _renewed(self, tenure: Tenure, renewal: Renewal, asked: float) -> None:
        if self._held.get(tenure.lease.session_id) is not tenure:
            return
        if not renewal.alive:
            self.lose(tenure, "taken-over")
            return
        tenure.until = asked + self._lease_s()
        tenure.cancel(renewal.turn, renewal.cancel)

    def _lease_s(self) -> float:
        return self._lease_ms / 1000 * SAFETY

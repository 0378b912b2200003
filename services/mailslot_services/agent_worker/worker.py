"""The process that drives sessions: slots, the doorbell, the sweeper, the keeper, and the way out.

    doorbell --> acquire --> [slot: turn, turn, ...] --settle--> the next ready session, or a free slot

Rule 1: a worker without a free slot does not answer the doorbell; a lost ring costs one interval (architecture 2).
Rule 2: a session's task ends in one of four ways: the session rests, it is given back, it was lost, it was fenced.
Rule 3: shutdown acquires nothing new and gives back at step boundaries; it never touches the inbox (R6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mailslot_core.agent import Entry
from mailslot_core.clock import Clock, SystemClock
from mailslot_core.errors import CoreError, Fenced, OutcomeUnknown, StoreUnavailable
from mailslot_core.settings import WorkerSettings
from mailslot_core.store import Grant, Settled, Store, Swept
from mailslot_core.turn import Draft, End, Outcome, Then
from mailslot_services.agent_worker.agents import Agent
from mailslot_services.agent_worker.metrics import WorkerMetrics
from mailslot_services.agent_worker.tenure import Keeper, Slot, Tenure
from mailslot_services.agent_worker.transcript import TranscriptCache, extend
from mailslot_services.agent_worker.turn import Desk, HandBack, LeaseLost, Past, Turn, persist

PAGE_EVENTS = 1000  # events read from a ledger at once
ACQUIRES = 8  # acquires in flight for one ring: a burst fills the slots, a single message costs one call

log = logging.getLogger("mailslot.worker")


class Worker:
    """One worker process. `name` is unique among all that ever run on the store."""

    def __init__(
        self,
        store: Store,
        agent_named: Callable[[str], Agent | None],
        settings: WorkerSettings,
        *,
        name: str,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.metrics = WorkerMetrics()
        self._store, self._agent_named, self._settings = store, agent_named, settings
        self._clock: Clock = clock or SystemClock()
        self._keeper = Keeper(
            store, self._clock, lease_ms=settings.lease_ms, stall_ms=settings.stall_ms, metrics=self.metrics
        )
        self._desk = Desk(
            store, self._clock, self._keeper, self.metrics, settings.lease_ms, draining=lambda: self._draining
        )
        self._free = [Slot(f"{name}/{number}") for number in range(settings.concurrency)]
        self._slot_freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cache = TranscriptCache()
        self._draining = False

    def cancel(self, session_id: str, epoch: int, turn: int, cause: str) -> None:
        """Word from the control topic: a cancel was recorded for a session of ours. A hint."""
        self._keeper.cancel(session_id, epoch, turn, cause)

    async def run(self, stop: asyncio.Event) -> None:
        """Drive sessions until `stop`, then drain."""
        loops = [asyncio.create_task(loop) for loop in (self._answer_bell(), self._sweep(), self._keeper.run())]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done():
                    loop.result()  # a loop never ends by itself: this raises what ended it
            loops[0].cancel()
            await asyncio.gather(loops[0], return_exceptions=True)
            await self._drain()
        finally:
            for task in (stopping, *loops, *self._tasks):
                task.cancel()
            await asyncio.gather(stopping, *loops, *self._tasks, return_exceptions=True)

    # -- loops ------------------------------------------------------------------------------------------------

    async def _answer_bell(self) -> None:
        while True:
            while not self._free:
                self._slot_freed.clear()
                await self._slot_freed.wait()
            try:
                rung = await self._store.wait_ready(self._settings.sweep_ms)
                partitions = range(self._store.partitions) if rung is None else (rung,)
                for partition in partitions:
                    await self._fill(partition)
            except (StoreUnavailable, OutcomeUnknown) as error:
                log.warning("the doorbell is not heard: %s", error)
                await self._clock.sleep(1)

    async def _fill(self, partition: int) -> None:
        """Acquire what is ready in a partition while there are free slots."""
        wanted = 1
        while self._free:
            slots = [self._free.pop() for _ in range(min(wanted, len(self._free)))]
            found = await asyncio.gather(*(self._acquire(partition, slot) for slot in slots))
            if not all(found):
                return
            wanted = min(ACQUIRES, wanted * 2)

    async def _acquire(self, partition: int, slot: Slot) -> bool:
        """Put the partition's next ready session on a slot; False, and the slot is free again, if there is none."""
        asked = self._clock.monotonic()
        try:
            grant = await self._store.acquire(partition, slot.owner, slot.next_call(), self._settings.lease_ms)
        except (StoreUnavailable, OutcomeUnknown) as error:
            # A lease that was granted in vain ends by itself; its session is then recovered like any other.
            log.warning("nothing acquired from partition %d: %s", partition, error)
            grant = None
        if grant is None:
            self._give_back(slot)
            return False
        tenure = self._keeper.begin(grant, asked)
        tenure.task = asyncio.create_task(self._drive(slot, tenure, grant))
        self._tasks.add(tenure.task)
        tenure.task.add_done_callback(self._tasks.discard)
        return True

    def _give_back(self, slot: Slot) -> None:
        self._free.append(slot)
        self._slot_freed.set()

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(self._settings.sweep_ms / 1000)
            for partition in range(self._store.partitions):
                try:
                    swept = await self._store.sweep(partition, forget_after_ms=self._settings.forget_after_ms)
                except (StoreUnavailable, OutcomeUnknown) as error:
                    log.warning("partition %d was not swept: %s", partition, error)
                else:
                    self._count(swept)

    def _count(self, swept: Swept) -> None:
        for kind in ("lapsed", "repaired", "forgotten"):
            found = getattr(swept, kind)
            if found:
                self.metrics.swept.labels(kind=kind).inc(found)

    async def _drain(self) -> None:
        """Let running turns come to a step boundary, then give them back as they are (R6)."""
        self._draining = True
        if self._tasks:
            log.info("draining %d sessions", len(self._tasks))
            await asyncio.wait(self._tasks, timeout=self._settings.drain_ms / 1000)
        for tenure in self._keeper.held:
            tenure.hand_back = True
            if tenure.task is not None:
                tenure.task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- one session ------------------------------------------------------------------------------------------

    async def _drive(self, slot: Slot, tenure: Tenure, grant: Grant) -> None:
        """One slot's work: turn after turn, session after session, until there is none."""
        following: tuple[Tenure, Grant] | None = (tenure, grant)
        try:
            while following is not None:
                tenure, grant = following
                following = await self._session(slot, tenure, grant)
        finally:
            self._give_back(slot)

    async def _session(self, slot: Slot, tenure: Tenure, grant: Grant) -> tuple[Tenure, Grant] | None:
        """Drive one session until it is out of our hands; the session that was handed out with its end, if any."""
        try:
            return await self._turns(slot, tenure, grant)
        except HandBack:
            await self._hand_back(slot, tenure)
        except LeaseLost as error:
            self._keeper.lose(tenure, "store-silent")
            log.warning("session %s: %s", tenure.lease.session_id, error)
        except Fenced as error:
            self.metrics.fenced.inc()
            log.warning("%s", error)
        except asyncio.CancelledError:
            if tenure.hand_back:
                await self._hand_back(slot, tenure)
            elif tenure.lost is None:
                raise
        except Exception:  # a defect: the lease runs out, the session is recovered, and other sessions go on
            self.metrics.lost.labels(reason="defect").inc()
            log.exception("session %s was dropped", tenure.lease.session_id)
        finally:
            self._keeper.end(tenure)
        return None

    async def _hand_back(self, slot: Slot, tenure: Tenure) -> None:
        try:
            await persist(self._desk, slot, tenure, lambda call: self._store.handback(tenure.lease, call))
        except (CoreError, LeaseLost) as error:
            log.warning("session %s was not handed back and will be recovered: %s", tenure.lease.session_id, error)

    async def _turns(self, slot: Slot, tenure: Tenure, grant: Grant) -> tuple[Tenure, Grant] | None:
        if grant.recovered is not None:
            self.metrics.recovered.labels(reason=grant.recovered).inc()
        past = await self._history(grant)
        for number in range(1, self._settings.turns_per_lease + 1):
            then = self._then(number)
            asked = self._clock.monotonic()
            settled, entries = await self._turn(slot, tenure, grant, past, then)
            past = Past(entries)
            if settled.outcome is not Outcome.TURN:
                self._cache.put(grant.lease.session_id, grant.lease.epoch, entries)
                return self._handed_out(settled, tenure, asked)
            if settled.grant is None:
                break
            grant = settled.grant
            tenure.see(grant)
        return None

    def _then(self, number: int) -> Then:
        """After its share of turns, or when the worker drains, a session makes way for others."""
        return Then.YIELD if self._draining or number >= self._settings.turns_per_lease else Then.TAKE

    def _handed_out(self, settled: Settled, tenure: Tenure, asked: float) -> tuple[Tenure, Grant] | None:
        if settled.grant is None:
            return None
        following = self._keeper.begin(settled.grant, asked)
        following.task = tenure.task
        return following, settled.grant

    async def _turn(
        self, slot: Slot, tenure: Tenure, grant: Grant, past: Past, then: Then
    ) -> tuple[Settled, Sequence[Entry]]:
        agent = self._agent_named(grant.agent)
        if agent is None:
            return await self._refuse(slot, tenure, grant, then), past.entries
        turn = Turn(self._desk, slot, tenure, agent, grant, past)
        return await turn.run(then=lambda: Then.YIELD if self._draining else then), turn.entries

    async def _refuse(self, slot: Slot, tenure: Tenure, grant: Grant, then: Then) -> Settled:
        """End a turn of an agent that this worker does not have."""
        message = f"there is no agent {grant.agent} in this worker's configuration"
        end = End({"kind": "error", "code": "unknown-agent", "message": message, "retryable": False})
        error = {"code": "unknown-agent", "message": message}
        drafts: list[Draft] = []
        drafts += [
            Draft(
                "tool/result", {"turn": grant.turn, "step": grant.step, "callId": call, "content": "", "error": error}
            )
            for call in grant.calls
        ]
        if grant.phase != "boundary":
            drafts.append(Draft("step/end", {"turn": grant.turn, "step": grant.step}))
        return await persist(
            self._desk,
            slot,
            tenure,
            lambda call: self._store.settle(
                grant.lease,
                call,
                drafts,
                end,
                then=then,
                hand_out=not self._draining,
                lease_ms=self._settings.lease_ms,
            ),
        )

    async def _history(self, grant: Grant) -> Past:
        """What came before this grant, from the cache or from the ledger (L6)."""
        fresh = grant.recovered is None
        if fresh and grant.turn == 1:
            return Past()
        cached = self._cache.get(grant.lease.session_id, grant.lease.epoch) if fresh else None
        if cached is not None:
            return Past(cached)
        entries: list[Entry] = []
        calls, truncated, after = 0, False, 0
        while after < grant.seq:
            page = await self._store.events(grant.lease.session_id, after=after, limit=PAGE_EVENTS)
            entries = extend(entries, page)
            ours = [event for event in page if event.data.get("turn") == grant.turn]
            calls += sum(event.type == "tool/call" for event in ours)
            truncated = truncated or any(event.data.get("truncated") for event in ours)
            after = page[-1].seq if page else grant.seq
        return Past(entries, calls, truncated)

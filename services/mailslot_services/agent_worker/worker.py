"""The process that drives sessions: slots, the doorbell, the sweeper, the keeper, and the way out.

    doorbell --> acquire --> [slot: turn, turn, ...] --settle--> the next ready session, or a free slot

Rule 1: a worker without a free slot does not answer the doorbell; a lost ring costs one interval (architecture 2).
Rule 2: shutdown acquires nothing new and gives back at step boundaries; it never touches the inbox (R6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import fields

from mailslot_core.clock import Clock, SystemClock
from mailslot_core.errors import CoreError, OutcomeUnknown, StoreUnavailable
from mailslot_core.settings import WorkerSettings
from mailslot_core.store import Grant, Store, Swept
from mailslot_core.task import end
from mailslot_services.agent_worker.agents import Agent
from mailslot_services.agent_worker.drive import Driver
from mailslot_services.agent_worker.metrics import WorkerMetrics
from mailslot_services.agent_worker.tenure import Keeper, Slot, Tenure
from mailslot_services.agent_worker.turn import Desk

BELL_RETRY_S = 1.0  # wait after a doorbell, or a partition of it, that could not be answered
ACQUIRE_RETRY_S = 0.05  # wait before a lost acquire is asked for again, and after the bell of a partition left alone
ACQUIRES = 8  # acquires in flight for one ring: a burst fills the slots, a single message costs one call
SWEPT = tuple(found.name for found in fields(Swept))

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
        self._store, self._settings = store, settings
        self._clock: Clock = clock or SystemClock()
        self._keeper = Keeper(
            store, self._clock, lease_ms=settings.lease_ms, stall_ms=settings.stall_ms, metrics=self.metrics
        )
        self._desk = Desk(
            store,
            self._clock,
            self._keeper,
            self.metrics,
            settings.lease_ms,
            settings.turns_per_slot,
            crowded=lambda: not self._free,
            draining=lambda: self.draining,
        )
        self._free = [Slot(f"{name}/{number}") for number in range(settings.concurrency)]
        self._slot_freed = asyncio.Event()
        self._left_alone: dict[int, float] = {}  # partition -> until when
        self._acquiring: set[asyncio.Task[bool]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._driver = Driver(self._desk, agent_named)
        self.draining = False

    def cancel(self, session_id: str, epoch: int, turn: int, cause: str) -> None:
        """Word from the control topic: a cancel was recorded for a session of ours. A hint."""
        self._keeper.cancel(session_id, epoch, turn, cause)

    async def run(self, stop: asyncio.Event) -> None:
        """Drive sessions until `stop`, then drain."""
        keep = (self._sweep(), self._keeper.renew(), self._keeper.guard())
        bell, *loops = (asyncio.create_task(loop) for loop in (self._answer_bell(), *keep))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopping, bell, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for loop in (bell, *loops):
                if loop.done():
                    loop.result()  # a loop never ends by itself: this raises what ended it
            self.draining = True
            await end(bell)
            await self._drain()
        finally:
            await end(stopping, bell, *loops, *self._acquiring, *self._tasks)

    # -- loops ------------------------------------------------------------------------------------------------

    async def _answer_bell(self) -> None:
        while True:
            while not self._free:
                self._slot_freed.clear()
                await self._slot_freed.wait()
            try:
                rung = await self._store.wait_ready(self._settings.sweep_ms)
            except CoreError as error:
                log.warning("the doorbell is not answered: %s", error)
                await self._clock.sleep(BELL_RETRY_S)
                continue
            for partition in range(self._store.partitions) if rung is None else (rung,):
                if self._clock.monotonic() >= self._left_alone.get(partition, 0.0):
                    await self._serve(partition)
                elif partition == rung:
                    await self._clock.sleep(ACQUIRE_RETRY_S)  # a bell that rings on must not keep us busy

    async def _serve(self, partition: int) -> None:
        """Acquire what is ready in a partition. One that cannot be read is left alone for a while: it must neither
        keep the others waiting nor be asked over and over."""
        try:
            await self._fill(partition)
        except CoreError as error:
            log.warning("partition %d is not answered: %s", partition, error)
            self._left_alone[partition] = self._clock.monotonic() + BELL_RETRY_S

    async def _fill(self, partition: int) -> None:
        """Acquire what is ready in a partition for the slots that are free now. Those that become free meanwhile
        answer the next ring, which may be another partition's."""
        wanted, left = 1, len(self._free)
        while left and self._free:
            slots = [self._free.pop() for _ in range(min(wanted, left, len(self._free)))]
            found = await asyncio.gather(*(self._acquire_anyway(partition, slot) for slot in slots))
            if not all(found):
                return
            left -= len(slots)
            wanted = min(ACQUIRES, wanted * 2)

    def _acquire_anyway(self, partition: int, slot: Slot) -> asyncio.Future[bool]:
        """Acquire, and see it through although the caller is cancelled: what comes of it must be given back."""
        acquiring = asyncio.create_task(self._acquire(partition, slot))
        self._acquiring.add(acquiring)
        acquiring.add_done_callback(self._acquiring.discard)
        return asyncio.shield(acquiring)

    async def _acquire(self, partition: int, slot: Slot) -> bool:
        """Put the partition's next ready session on a slot; False, and the slot is free again, if there is none."""
        asked = self._clock.monotonic()
        grant = None
        try:
            grant = await self._granted(partition, slot, asked)
        finally:
            if grant is None:
                self._give_back(slot)
        if grant is None:
            return False
        tenure = self._keeper.begin(grant, asked)
        slot.turns = 0
        tenure.task = asyncio.create_task(self._drive(slot, tenure, grant))
        self._tasks.add(tenure.task)
        tenure.task.add_done_callback(self._tasks.discard)
        return True

    async def _granted(self, partition: int, slot: Slot, asked: float) -> Grant | None:
        """The session a slot was given. A lost answer is asked for again, as long as the lease that it may have
        brought can hold (semantics L3); after that, that session is recovered like any other."""
        call, lost = slot.next_call(), False
        while not lost or self._clock.monotonic() < asked + self._settings.lease_ms / 2000:
            try:
                return await self._store.acquire(partition, slot.owner, call, self._settings.lease_ms)
            except OutcomeUnknown as error:
                lost = True
                log.warning("what was acquired from partition %d is not known: %s; asking again", partition, error)
            except StoreUnavailable as error:
                log.warning("nothing acquired from partition %d: %s", partition, error)
                if not lost:
                    break
            await self._clock.sleep(ACQUIRE_RETRY_S)
        return None

    def _give_back(self, slot: Slot) -> None:
        self._free.append(slot)
        self._slot_freed.set()

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(self._settings.sweep_ms / 1000)
            for partition in range(self._store.partitions):
                try:
                    swept = await self._store.sweep(partition, forget_after_ms=self._settings.forget_after_ms)
                except CoreError as error:
                    log.warning("partition %d was not swept: %s", partition, error)
                else:
                    self._count(swept)

    def _count(self, swept: Swept) -> None:
        for kind in SWEPT:
            found = getattr(swept, kind)
            if found:
                self.metrics.swept.labels(kind=kind).inc(found)

    async def _drain(self) -> None:
        """Let running turns come to a step boundary, then give them back as they are (R6)."""
        if self._acquiring:
            await asyncio.wait(self._acquiring)
        if self._tasks:
            log.info("draining %d sessions", len(self._tasks))
            await asyncio.wait(self._tasks, timeout=self._settings.drain_ms / 1000)
        for tenure in self._keeper.held:
            tenure.hand_back = True
            tenure.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _drive(self, slot: Slot, tenure: Tenure, grant: Grant) -> None:
        """One slot's work: session after session, until none was handed out."""
        following: tuple[Tenure, Grant] | None = (tenure, grant)
        try:
            while following is not None:
                following = await self._driver.session(slot, *following)
        finally:
            self._give_back(slot)

"""The broker door: from the intake stream into sessions' inboxes, losing nothing and stuck on nothing.

    XADD mailslot:intake --> FastStream subscriber --batch--> lanes, one a session --> submit --> Verdict
                                    ^                            |   retryable: the lane waits      |
                                    |                            +--- and is tried again            v
             entries of lost consumers, and of lost reads     reply, dead entry, XACK, XDEL: one transaction

Rule 1: an entry is acknowledged after its message is durable, or its dead entry is; then it is deleted.
Rule 2: entries of one session are submitted in stream order, those of different sessions at the same time. A lane
        whose head must wait holds back its own session and nobody else.
Rule 3: what can never become a message goes to `mailslot:intake:dead` with its reason; a problem that may pass is
        tried again as RETRIES says, and then goes there too.
Rule 4: an entry that was read and not settled is found again (`recovery`). Submitting it twice is one message.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from faststream import AckPolicy
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis

from mailslot_contracts import INTAKE, INTAKE_DEAD, INTAKE_GROUP, Code, ContractError, IntakeEntry, Problem
from mailslot_core.clock import Clock
from mailslot_core.errors import CoreError, StoreUnavailable
from mailslot_core.redis.wire import UNREACHABLE
from mailslot_core.settings import IngestSettings
from mailslot_core.task import end
from mailslot_services.broker import BLOCK_MS, Arrival, arrivals, consumer_name, ensure_group, undecoded
from mailslot_services.ingest.admission import Admission
from mailslot_services.ingest.lane import Hand, Lane
from mailslot_services.ingest.letter import (
    Letter,
    Verdict,
    dead_fields,
    message_id_of,
    read_letter,
    reply_bytes,
    unwrap,
)
from mailslot_services.ingest.limit import DEAD_COUNT_MAX, RETRIES, RETRY_CAP_S, RETRY_FIRST_S, IntakeLimits
from mailslot_services.ingest.metric import Metrics
from mailslot_services.ingest.problem import problem_of
from mailslot_services.ingest.recovery import Found, Recovery

log = logging.getLogger("mailslot.intake")


class Intake:
    """Consumes the intake stream while its context (`running`) is open."""

    def __init__(
        self,
        broker: RedisBroker,
        admission: Admission,
        settings: IngestSettings,
        clock: Clock,
        metrics: Metrics,
        limits: IntakeLimits,
    ) -> None:
        self.consumer = consumer_name()
        self._broker = broker
        self._admission = admission
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._client: Redis
        self._recovery: Recovery
        self._hand = Hand(limits)
        self._lanes: dict[str, Lane] = {}
        self._waiting = asyncio.Event()
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._subscriber = broker.subscriber(
            stream=StreamSub(
                INTAKE,
                group=INTAKE_GROUP,
                consumer=self.consumer,
                batch=True,
                last_id=">",
                max_records=limits.batch_count,
                polling_interval=BLOCK_MS,
            ),
            parser=arrivals,
            decoder=undecoded,
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
        )
        self._subscriber(self._take)

    # -- life -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Entries are consumed. Afterwards none is in hand; what was waiting is left to other processes."""
        self._client = await self._broker.connect()
        self._recovery = Recovery(self._client, self.consumer, self._limits)
        try:
            await ensure_group(self._client, INTAKE, INTAKE_GROUP)
            await self._broker.start()
        except UNREACHABLE as error:
            raise StoreUnavailable(f"the intake stream cannot be read: {error}") from error
        loops = (self._recover_forever, self._be_heard_forever, self._retry_forever)
        self._tasks = [asyncio.create_task(loop()) for loop in loops]
        try:
            yield
        finally:
            await end(*self._tasks)
            self._ending = True
            self._hand.wake()
            await self._subscriber.stop()
            await self._leave()
            await self._broker.stop()

    async def check(self) -> str | None:
        """Readiness: the subscriber runs and the server answers."""
        if not all(subscriber.running for subscriber in self._broker.subscribers):
            return "the intake stream is not being read"
        if any(task.done() for task in self._tasks):
            return "entries of the intake stream are not being recovered"
        try:
            await self._client.ping()
        except UNREACHABLE as error:
            return f"the broker does not answer: {error}"
        return None

    async def observe(self) -> None:
        """Set the gauges that are read from the server."""
        try:
            self._metrics.intake_entries.set(await self._client.xlen(INTAKE))
            self._metrics.dead_entries.set(await self._client.xlen(INTAKE_DEAD))
        except UNREACHABLE as error:
            log.warning("the intake could not be measured", extra={"cause": str(error)})

    async def _leave(self) -> None:
        try:
            await self._recovery.leave()
        except UNREACHABLE as error:
            log.warning("the consumer could not be removed", extra={"cause": str(error)})

    # -- reading ----------------------------------------------------------------------------------------------

    async def _take(self, batch: list[Any]) -> None:
        """One read of the subscriber. Waits while too much is in hand, so that reading pauses."""
        fresh = self._hand.grasp(batch)
        await self._hand.room(fresh, lambda: not self._ending)
        await self._handle(fresh)

    async def _handle(self, batch: Iterable[Arrival]) -> None:
        """Settle what can be settled now; the rest waits in its lane."""
        self._metrics.intake_in_flight.set(len(self._hand))
        verdicts: list[Verdict] = []
        started: list[Lane] = []
        for letter in map(unwrap, batch):
            try:
                entry = read_letter(letter, self._settings.body_bytes_max)
            except ContractError as error:
                verdicts.append(Verdict(letter, problem=error.problem()))
                continue
            lane = self._lanes.get(entry.session_id)
            if lane is None:
                lane = self._lanes[entry.session_id] = Lane(entry.session_id)
                started.append(lane)
            if lane.is_full(self._limits.lane_count):
                verdicts.append(Verdict(letter, problem=lane.problem))
            else:
                lane.letters.append((letter, entry))
        await self._drain(started, verdicts)

    # -- lanes ------------------------------------------------------------------------------------------------

    async def _drain(self, lanes: Sequence[Lane], verdicts: list[Verdict]) -> None:
        """Submit what is in these lanes, then settle it together with the verdicts that are known already."""
        outcomes = await asyncio.gather(*(self._submit_all(lane) for lane in lanes), return_exceptions=True)
        for lane, outcome in zip(lanes, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._drop(lane, outcome)
            else:
                verdicts += lane.take_verdicts()
        await self._settle(verdicts)

    def _drop(self, lane: Lane, defect: BaseException) -> None:
        """A defect stopped a lane. Its letters are not in hand any more, so recovery tries them again, a bounded
        number of times (rule 4); those that were submitted are then found to be duplicates."""
        log.error("a lane of the intake failed", exc_info=defect, extra={"session": lane.session_id})
        del self._lanes[lane.session_id]
        self._hand.release(lane.entry_ids())

    async def _submit_all(self, lane: Lane) -> None:
        """Submit one after the other until the lane is empty or its head has to wait (rule 2)."""
        lane.due = None
        while lane.letters:
            letter, entry = lane.letters[0]
            verdict = await self._submit(lane, letter, entry)
            if verdict is None:
                self._wait(lane)
                return
            lane.letters.popleft()
            lane.verdicts.append(verdict)
        del self._lanes[lane.session_id]

    async def _submit(self, lane: Lane, letter: Letter, entry: IntakeEntry) -> Verdict | None:
        """What came of a letter; None when it is to be tried again (rule 3)."""
        message_id = message_id_of(letter, entry)
        try:
            receipt = await self._admission.submit(entry.session_id, message_id, entry, entry.agent)
        except CoreError as error:
            lane.problem = problem_of(error)
            if error.code not in RETRIES:
                lane.attempts = 0
                return Verdict(letter, problem=lane.problem)
            lane.attempts += 1
            return None if lane.attempts < RETRIES[error.code] else Verdict(letter, problem=lane.problem)
        lane.attempts, lane.problem = 0, None
        self._metrics.intake("duplicate" if receipt.duplicate else "accepted")
        return Verdict(letter, message_id=message_id)

    def _wait(self, lane: Lane) -> None:
        delay_s = min(RETRY_CAP_S, RETRY_FIRST_S * 2 ** min(lane.attempts - 1, 16))
        lane.due = self._clock.monotonic() + delay_s * random.uniform(0.5, 1)  # noqa: S311 - spreads load, no secret
        self._metrics.intake("retried")
        self._waiting.set()

    async def _retry_forever(self) -> None:
        while True:
            await self._waiting.wait()
            waiting = [lane for lane in self._lanes.values() if lane.due is not None]
            now = self._clock.monotonic()
            due = [lane for lane in waiting if lane.due is not None and lane.due <= now]
            if due:
                await self._drain(due, [])
            elif waiting:
                await self._clock.sleep(min(RETRY_FIRST_S, *(lane.due - now for lane in waiting if lane.due)))
            else:
                self._waiting.clear()

    # -- settling ---------------------------------------------------------------------------------------------

    async def _settle(self, verdicts: Sequence[Verdict]) -> None:
        """Replies, dead entries and acknowledgements in one transaction, in stream order. When it fails nothing is in
        hand any more, and recovery finds the entries again (rule 4)."""
        if not verdicts:
            return
        verdicts = sorted(verdicts, key=lambda verdict: verdict.letter.place)
        entry_ids = [verdict.letter.entry_id for verdict in verdicts]
        try:
            async with self._client.pipeline(transaction=True) as pipe:
                for verdict in verdicts:
                    if verdict.letter.reply_to is not None:
                        pipe.publish(verdict.letter.reply_to, await reply_bytes(verdict))
                    if verdict.dead:
                        pipe.xadd(INTAKE_DEAD, dead_fields(verdict), maxlen=DEAD_COUNT_MAX, approximate=True)  # type: ignore[arg-type]
                pipe.xack(INTAKE, INTAKE_GROUP, *entry_ids)
                pipe.xdel(INTAKE, *entry_ids)
                await pipe.execute()
            self._metrics.intake("dead", sum(verdict.dead for verdict in verdicts))
        except UNREACHABLE as error:
            log.warning("entries could not be settled; trying again", extra={"cause": str(error)})
        finally:
            self._hand.release(entry_ids)
            self._metrics.intake_in_flight.set(len(self._hand))

    # -- recovery ---------------------------------------------------------------------------------------------

    async def _recover_forever(self) -> None:
        while True:
            try:
                await self._recover()
            except UNREACHABLE as error:
                log.warning("recovery failed; trying again", extra={"cause": str(error)})
            await self._clock.sleep(self._limits.recover_ms / 1000)

    async def _be_heard_forever(self) -> None:
        """On its own, because a round of recovery takes as long as the store lets it."""
        while True:
            try:
                await self._recovery.be_heard()
            except UNREACHABLE as error:
                log.warning("this consumer could not make itself heard", extra={"cause": str(error)})
            await self._clock.sleep(self._limits.recover_ms / 1000)

    async def _recover(self) -> None:
        """One round: read again if reading stopped, take up what was lost, remove who is gone."""
        if not self._subscriber.running:  # the stream was deleted or flushed
            await ensure_group(self._client, INTAKE, INTAKE_GROUP)
            await self._subscriber.start()
        async for found in self._recovery.lost(self._hand):
            await self._handle_again(found)
        await self._recovery.remove_gone()

    async def _handle_again(self, found: Sequence[Found]) -> None:
        """Handle entries that were handed out before; those handed out too often are dead."""
        self._metrics.intake_reclaimed.inc(len(found))
        self._hand.grasp(each.arrival for each in found)
        poison = [each.arrival for each in found if each.deliveries >= self._limits.deliveries]
        problem = Problem.of(Code.INTERNAL, f"handed out {self._limits.deliveries} times and never settled")
        await self._settle([Verdict(unwrap(arrival), problem=problem) for arrival in poison])
        await self._handle(each.arrival for each in found if each.arrival not in poison)

"""The port on dictionaries: the pure acts, and the leases around them. The simulation runs on it; so may any test.

Rule 1: no act awaits anything: on one event loop that makes it atomic.
Rule 2: it decides nothing itself about messages, turns or goals: that is `inbox`, `turn`, `goal`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mailslot_contracts.codec import frame, unframe
from mailslot_core import activity, goal, inbox
from mailslot_core import turn as turns
from mailslot_core.clock import Clock, SystemClock
from mailslot_core.errors import CursorExpired, Fenced, Refused
from mailslot_core.goal import Change, Round
from mailslot_core.inbox import Receipt, Room, Submission
from mailslot_core.session import (
    TERMINAL,
    Act,
    Data,
    Event,
    Lane,
    Message,
    MessageState,
    Phase,
    Session,
    Status,
    indexes,
    retry_reason,
)
from mailslot_core.store import (
    CLAIMED,
    CRASHES_MAX_DEFAULT,
    LATER,
    NEXT_STEP,
    NEXT_TURN,
    PAGE_BYTES_MAX,
    PENDING_BYTES_MAX_DEFAULT,
    PENDING_MAX_DEFAULT,
    Claimed,
    Closing,
    Created,
    DeadLetter,
    DeadMessage,
    Grant,
    IdleNotice,
    Lease,
    LetterId,
    Level,
    Load,
    Notices,
    Page,
    Place,
    QueuePage,
    Record,
    Renewal,
    Settled,
    Swept,
    Waiting,
    letter_named,
)
from mailslot_core.turn import Cancelled, Draft, End, Outcome, Then


@dataclass(slots=True)
class _Kept:
    """A session with what is not a fact: who drives it, until when, and how the last owner went."""

    session: Session
    created: Data | None = None
    ledger: list[Event] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)
    settled_at: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    owner: str | None = None
    lease_end: int = 0
    lease_ms: int = 0
    call: int = 0
    outcome: Outcome = Outcome.TURN  # of the last settle that kept the session, for whoever lost its answer
    back: str = "resume"  # why the next owner of an open turn recovers it: crash | handback | resume
    recovered: str | None = None


@dataclass(slots=True)
class _Slot:
    """The last acquire, settle or handback of a worker's slot, so that a lost answer can be given again."""

    call: int
    outcome: Outcome | None = None
    lease: Lease | None = None


@dataclass(slots=True)
class _Partition:
    ready: dict[str, int] = field(default_factory=dict)  # session id -> since when, oldest first
    slots: dict[str, _Slot] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    erasing: set[str] = field(default_factory=set)  # sessions to erase once they are closed
    fenced: int = 0


class MemoryStore:
    """All sessions in this process. Durability is `memory` and means it: nothing survives the process."""

    def __init__(
        self,
        *,
        partitions: int = 16,
        clock: Clock | None = None,
        pending_max: int = PENDING_MAX_DEFAULT,
        pending_bytes_max: int = PENDING_BYTES_MAX_DEFAULT,
        crashes_max: int = CRASHES_MAX_DEFAULT,
    ) -> None:
        self.partitions = partitions
        self.durability = "memory"
        self._clock: Clock = clock or SystemClock()
        self._room = Room(pending_max, pending_bytes_max)
        self._crashes_max = crashes_max
        self._kept: dict[str, _Kept] = {}
        self._parts = [_Partition() for _ in range(partitions)]
        self._watchers: dict[str, set[Notices]] = {}
        self._bell = asyncio.Event()
        self._first = 0  # where the next look for something ready begins

    def partition(self, session_id: str) -> int:
        """The partition of a session."""
        return zlib.crc32(session_id.encode()) % self.partitions

    # -- doors ------------------------------------------------------------------------------------------------

    async def create(self, session_id: str, created: Data) -> Created:
        """See `Store.create`."""
        kept = self._kept.get(session_id)
        if kept is None:
            act, kept = self._open(session_id, created)
            self._done(kept, act)
            return Created(1, fresh=True)
        if kept.created != created:
            raise Refused("session-exists", f"session {session_id} exists with other settings")
        return Created(kept.session.seq, fresh=False)

    async def submit(self, session_id: str, submission: Submission, created: Data | None) -> Receipt:
        """See `Store.submit`."""
        kept = self._kept.get(session_id)
        if kept is not None and submission.message_id in kept.fingerprints:
            return self._duplicate(kept, submission)
        if kept is None and created is None:
            raise Refused("not-found", f"there is no session {session_id}")
        now = self._clock.now_ms()
        inbox.check_submit(kept.session if kept else Session(session_id), submission, now=now, room=self._room)
        act, kept = self._open(session_id, created or {})
        receipt = inbox.submit(act, submission, room=self._room)
        kept.fingerprints[submission.message_id] = submission.fingerprint
        self._done(kept, act)
        return receipt

    def _duplicate(self, kept: _Kept, submission: Submission) -> Receipt:
        if kept.fingerprints[submission.message_id] != submission.fingerprint:
            raise Refused("conflict", f"message {submission.message_id} was already submitted with another body")
        message = kept.session.messages[submission.message_id]
        return Receipt(submission.message_id, message.queued_seq, duplicate=True)

    async def cancel(self, session_id: str, *, cause: str, queue: str = "keep", turn: int | None = None) -> Cancelled:
        """See `Store.cancel`."""
        act, kept = self._existing(session_id)
        answer = turns.cancel(act, cause=cause, queue=queue, turn=turn)
        self._done(kept, act)
        return answer

    async def replace(self, session_id: str, message_id: str, content: list[Any]) -> Record:
        """See `Store.replace`."""
        act, kept = self._existing(session_id)
        inbox.replace(act, message_id, content, room=self._room)
        return self._revised(kept, act, message_id)

    async def withdraw(self, session_id: str, message_id: str) -> Record:
        """See `Store.withdraw`."""
        act, kept = self._existing(session_id)
        inbox.withdraw(act, message_id)
        return self._revised(kept, act, message_id)

    async def move(self, session_id: str, message_id: str) -> Record:
        """See `Store.move`."""
        act, kept = self._existing(session_id)
        inbox.move(act, message_id)
        return self._revised(kept, act, message_id)

    def _revised(self, kept: _Kept, act: Act, message_id: str) -> Record:
        self._done(kept, act)
        return _record(kept.session, kept.session.messages[message_id])

    async def release(self, session_id: str) -> int:
        """See `Store.release`."""
        act, kept = self._existing(session_id)
        inbox.release(act)
        self._done(kept, act)
        return kept.session.seq

    async def close_session(self, session_id: str, *, erase: bool = False) -> Closing:
        """See `Store.close_session`."""
        act, kept = self._existing(session_id)
        closed = turns.close_session(act)
        self._done(kept, act)
        if erase and not closed:
            self._parts[self.partition(session_id)].erasing.add(session_id)
        return self._erase(session_id) if erase and closed else Closing(closed, kept.session.seq)

    def _erase(self, session_id: str) -> Closing:
        """Drop whatever is kept of a closed session."""
        part, kept = self._parts[self.partition(session_id)], self._kept.pop(session_id)
        part.letters = [letter for letter in part.letters if letter.session_id != session_id]
        part.erasing.discard(session_id)
        part.ready.pop(session_id, None)
        return Closing(True, kept.session.seq, True, len(kept.ledger), len(kept.session.messages))

    async def redrive(self, letter_id: str) -> tuple[Receipt, ...]:
        """See `Store.redrive`."""
        wanted = str(letter_named(letter_id))
        letter = next((found for part in self._parts for found in part.letters if found.letter_id == wanted), None)
        if letter is None or letter.session_id not in self._kept:
            raise Refused("not-found", f"there is no dead letter {letter_id}")
        act, kept = self._existing(letter.session_id)
        submissions = [
            self._revived(kept, message_id)
            for message_id, state in self._states(letter).messages
            if state is MessageState.DEAD
        ]
        receipts = inbox.redrive(act, inbox.redrivable(letter_id, submissions), room=self._room)
        self._done(kept, act)
        return receipts

    def _revived(self, kept: _Kept, message_id: str) -> Submission:
        message = kept.session.messages[message_id]
        data = inbox.revived(self._claimed(kept, message_id).data, message.lane, wake=message.wake)
        return Submission(message_id, message.lane, message.wake, data, kept.fingerprints[message_id])

    def _states(self, letter: DeadLetter) -> DeadLetter:
        """The letter with what is known of its messages by now."""
        kept = self._kept.get(letter.session_id)
        known = kept.session.messages if kept else {}
        states = (known[name].state if name in known else None for name, _ in letter.messages)
        names = [name for name, _ in letter.messages]
        return replace(letter, messages=tuple(map(DeadMessage, names, states)))

    async def goal_change(self, session_id: str, change: Change, created: Data | None = None) -> Data:
        """See `Store.goal_change`."""
        kept = self._kept.get(session_id)
        if kept is None and created is None:
            raise Refused("not-found", f"there is no session {session_id}")
        goal.next_goal(kept.session if kept else Session(session_id), change)
        act, kept = self._open(session_id, created or {})
        changed = goal.change(act, change)
        self._done(kept, act)
        return changed

    # -- workers ----------------------------------------------------------------------------------------------

    async def acquire(self, partition: int, owner: str, call: int, lease_ms: int) -> Grant | None:
        """See `Store.acquire`."""
        part = self._parts[partition]
        slot = part.slots.get(owner)
        if slot is not None and slot.call == call and slot.lease is not None:
            return self._still(slot.lease)
        grant = self._lease_next(partition, owner, lease_ms)
        if grant is not None:
            part.slots[owner] = _Slot(call, lease=grant.lease)
        return grant

    def _lease_next(self, partition: int, owner: str, lease_ms: int) -> Grant | None:
        """Lease the longest-ready session that has something to do; drop the others from the ready queue."""
        ready, now = self._parts[partition].ready, self._clock.now_ms()
        while ready:
            kept = self._kept[next(iter(ready))]
            del ready[kept.session.session_id]
            session = kept.session
            if kept.owner is None and turns.spent(session, kept.back, self._crashes_max):
                self._give_up(kept)
            if kept.owner is None and not session.open:
                self._expire(kept, now)
            if kept.owner is not None or not (session.open or activity.waking(session)):
                continue
            kept.epoch += 1
            kept.owner, kept.call, kept.recovered = owner, 0, None
            self._prolong(kept, lease_ms)
            act = Act(session, now=now, epoch=kept.epoch)
            if session.open:
                kept.recovered = kept.back
                turns.recover(act, kept.back)
            else:
                turns.take(act)
            kept.back = "crash"
            self._done(kept, act)
            return self._grant(kept)
        return None

    def _expire(self, kept: _Kept, now: int) -> None:
        """What a turn would claim now and is over expires; the agent rests if that was all (semantics M11, S6)."""
        act = Act(kept.session, now=now, epoch=kept.epoch)
        if activity.waking(kept.session):
            inbox.expire(act, Lane.NEXT_STEP, Lane.NEXT_TURN)
            activity.rest(act)
        self._done(kept, act)
        self._parts[self.partition(kept.session.session_id)].ready.pop(kept.session.session_id, None)

    def _give_up(self, kept: _Kept) -> None:
        """End a turn that crashed too often, keep a dead letter, and go on or rest (semantics R5)."""
        session, act = kept.session, self._act(kept)
        turn, attempts = session.turn, session.attempt
        claimed = [name for seq in session.claims for name in kept.ledger[seq - 1].data["messageIds"]]
        died = turns.give_up(act)
        activity.rest(act)
        self._done(kept, act)
        self._parts[self.partition(session.session_id)].ready.pop(session.session_id, None)
        if died:
            self._keep_letter(session.session_id, turn, attempts, claimed)

    def _keep_letter(self, session_id: str, turn: int, attempts: int, claimed: Sequence[str]) -> None:
        partition, now = self.partition(session_id), self._clock.now_ms()
        letters = self._parts[partition].letters
        number = sum(letter.time == now for letter in letters)
        names = tuple(DeadMessage(message_id, None) for message_id in claimed)
        letter_id = LetterId(now, number, partition)
        letters.append(DeadLetter(str(letter_id), session_id, turn, "interrupted", attempts, now, names))

    def _still(self, lease: Lease | None) -> Grant | None:
        """The session under this lease, None when the lease was lost: it is nobody's to give any more."""
        if lease is None:
            return None
        kept = self._kept.get(lease.session_id)
        return self._grant(kept) if kept and (kept.epoch, kept.owner) == (lease.epoch, lease.owner) else None

    async def take(self, lease: Lease, call: int) -> Grant:
        """See `Store.take`."""
        return await self.commit(lease, call, (), take=True)

    async def commit(self, lease: Lease, call: int, drafts: Sequence[Draft], *, take: bool = False) -> Grant:
        """See `Store.commit`."""
        kept = self._owned(lease)
        if not self._repeated(kept, call):
            act = self._act(kept)
            turns.commit(act, drafts, take_next_step=take)
            kept.call = call
            self._done(kept, act)
        return self._grant(kept)

    async def settle(
        self,
        lease: Lease,
        call: int,
        drafts: Sequence[Draft],
        end: End,
        *,
        then: Then,
        hand_out: bool,
        lease_ms: int,
    ) -> Settled:
        """See `Store.settle`."""
        partition = self.partition(lease.session_id)
        part = self._parts[partition]
        slot = part.slots.get(lease.owner)
        if slot is not None and slot.call == call and slot.outcome is not None:
            return Settled(slot.outcome, self._still(slot.lease))
        kept = self._owned(lease)
        if self._repeated(kept, call):
            return Settled(kept.outcome, self._grant(kept))
        act = self._act(kept)
        outcome = turns.settle(act, drafts, end, then=then)
        kept.call = call
        if outcome in (Outcome.CONTINUE, Outcome.TURN):
            kept.outcome = outcome
            kept.recovered = kept.recovered if outcome is Outcome.CONTINUE else None
            self._done(kept, act)
            return Settled(outcome, self._grant(kept))
        self._release(kept, back="resume")
        self._done(kept, act)
        following = self._lease_next(partition, lease.owner, lease_ms) if hand_out else None
        part.slots[lease.owner] = _Slot(call, outcome, following.lease if following else None)
        return Settled(outcome, following)

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Renewal]:
        """See `Store.renew`."""
        answers = []
        for lease in leases:
            kept = self._kept.get(lease.session_id)
            alive = kept is not None and (kept.epoch, kept.owner) == (lease.epoch, lease.owner)
            if kept is not None and alive:
                self._prolong(kept, lease_ms)
                answers.append(Renewal(True, kept.session.cancel, kept.session.turn))
            else:
                answers.append(Renewal(False))
        return answers

    async def handback(self, lease: Lease, call: int) -> None:
        """See `Store.handback`."""
        slots = self._parts[self.partition(lease.session_id)].slots
        if slots.get(lease.owner) == _Slot(call):
            return
        kept = self._owned(lease)
        self._release(kept, back="handback")
        self._done(kept, self._act(kept))
        slots[lease.owner] = _Slot(call)

    async def sweep(self, partition: int, *, forget_after_ms: int) -> Swept:
        """See `Store.sweep`."""
        now, lapsed, repaired, forgotten, due, expired = self._clock.now_ms(), 0, 0, 0, 0, 0
        for kept in self._in(partition):
            session = kept.session
            if kept.owner is not None:
                kept.lease_end = min(kept.lease_end, now + kept.lease_ms)  # the clock may have gone back (R1)
            if kept.owner is not None and kept.lease_end <= now:
                self._release(kept, back="crash")
                lapsed += 1
            elif kept.owner is None and session.status is Status.RUNNING:
                repaired += session.session_id not in self._parts[partition].ready
            act = self._act(kept)
            inbox.sweep(act)
            due += sum(event.type == "inbox/due" for event in act.events)
            expired += sum(event.type == "inbox/expired" for event in act.events)
            self._done(kept, act)
            forgotten += self._forget(kept, now - forget_after_ms)
        self._forget_letters(self._parts[partition], now - forget_after_ms)
        erased = [name for name in self._parts[partition].erasing if self._kept[name].session.closed]
        for session_id in erased:
            self._erase(session_id)
        return Swept(lapsed, repaired, forgotten, due, expired, len(erased))

    def _forget_letters(self, part: _Partition, kept_until: int) -> None:
        part.letters = [letter for letter in part.letters if letter.time > kept_until or self._redrivable(letter)]

    def _redrivable(self, letter: DeadLetter) -> bool:
        kept = self._kept.get(letter.session_id)
        dead = any(state is MessageState.DEAD for _, state in self._states(letter).messages)
        return dead and kept is not None and not kept.session.closed

    def _forget(self, kept: _Kept, settled_until: int) -> int:
        old = [message_id for message_id, settled in kept.settled_at.items() if settled <= settled_until]
        for message_id in old:
            del kept.settled_at[message_id], kept.fingerprints[message_id], kept.session.messages[message_id]
        return len(old)

    # -- goals ------------------------------------------------------------------------------------------------

    async def goal_advance(self, session_id: str, proposed: Round) -> bool:
        """See `Store.goal_advance`."""
        if session_id not in self._kept:
            return False
        act, kept = self._existing(session_id)
        advanced = goal.advance(act, proposed)
        if proposed.message_id in kept.session.messages:
            kept.fingerprints.setdefault(proposed.message_id, "")
        self._done(kept, act)
        return advanced

    async def resting_goals(self, partition: int) -> list[IdleNotice]:
        """See `Store.resting_goals`."""
        found = []
        for kept in self._in(partition):
            session = kept.session
            if session.goal and session.goal["phase"] == goal.ACTIVE and session.status is Status.IDLE:
                record = session.goal
                found.append(IdleNotice(session.session_id, record["goalId"], record["revision"], session.idle_seq))
        return found

    # -- reading ----------------------------------------------------------------------------------------------

    async def level(self, session_id: str) -> Level | None:
        """See `Store.level`."""
        kept = self._kept.get(session_id)
        if kept is None:
            return None
        session = kept.session
        waiting = activity.followups(session) + activity.steers(session)
        return Level(
            session_id=session_id,
            agent=session.agent,
            status=session.status,
            cursor=session.seq,
            idle_cursor=session.idle_seq,
            reasons=(*activity.reasons(session), *retry_reason(session.retry_at, self._clock.now_ms())),
            turn=session.turn if session.open else None,
            pending=session.pending,
            held=waiting if session.hold else 0,
            conservation=session.conservation,
            goal=session.goal,
            usage=dict(session.usage),
            hold=session.hold,
            closed=session.closed,
        )

    async def message(self, session_id: str, message_id: str) -> Record | None:
        """See `Store.message`."""
        kept = self._kept.get(session_id)
        found = kept.session.messages.get(message_id) if kept else None
        return _record(kept.session, found) if kept and found else None

    async def queue(self, session_id: str, *, after: str, limit: int) -> QueuePage:
        """See `Store.queue`."""
        _, kept = self._existing(session_id)
        begin = Place.read(after) if after else Place(-1, 0)
        unsettled = filter(_unsettled, kept.session.messages.values())
        places = sorted(((_place(message), message) for message in unsettled), key=lambda found: found[0])
        places = [(place, message) for place, message in places if place > begin]
        page, size_bytes = list[Waiting](), 0
        for _, message in places[:limit]:
            page.append(Waiting(_record(kept.session, message), self._claimed(kept, message.message_id).data))
            size_bytes += message.size
            if size_bytes >= PAGE_BYTES_MAX:
                break
        more = len(page) < len(places)
        return QueuePage(tuple(page), str(places[len(page) - 1][0]) if more else None)

    async def dead(self, *, after: str, limit: int) -> list[DeadLetter]:
        """See `Store.dead`."""
        begin = LetterId.read(after) if after else LetterId(-1, 0, 0)
        letters = ((LetterId.read(letter.letter_id), letter) for part in self._parts for letter in part.letters)
        found = sorted(((name, letter) for name, letter in letters if name > begin), key=lambda pair: pair[0])
        return [self._states(letter) for _, letter in found[:limit]]

    async def indexes(self, session_id: str) -> Data | None:
        """See `Store.indexes`."""
        kept = self._kept.get(session_id)
        return indexes(kept.session) if kept else None

    async def events(self, session_id: str, *, after: int, limit: int) -> Page:
        """See `Store.events`."""
        kept = self._kept.get(session_id)
        ledger = kept.ledger if kept else []
        if after > len(ledger):
            newest = len(ledger)
            sentence = f"cursor {after} is beyond the newest event {newest} of session {session_id}"
            raise CursorExpired(sentence, oldest=min(1, newest), newest=newest)
        page, size_bytes = Page(), 0
        for event in ledger[after : after + limit]:
            if page and size_bytes >= PAGE_BYTES_MAX:
                break
            page.append(event)
            size_bytes += len(frame(event.data))
        page.more = after + len(page) < len(ledger)
        return page

    async def sessions(self, *, after: str, limit: int) -> list[str]:
        """See `Store.sessions`."""
        return sorted(session_id for session_id in self._kept if session_id > after)[:limit]

    async def load(self, partition: int) -> Load:
        """See `Store.load`."""
        part, kept = self._parts[partition], self._in(partition)
        oldest = min(part.ready.values(), default=None)
        return Load(
            ready=len(part.ready),
            oldest_ready_ms=0 if oldest is None else max(0, self._clock.now_ms() - oldest),
            active=sum(1 for k in kept if k.session.status is Status.RUNNING),
            leased=sum(1 for k in kept if k.owner is not None),
            sessions=len(kept),
            fenced=part.fenced,
            dead=len(part.letters),
        )

    # -- hints ------------------------------------------------------------------------------------------------

    async def wait_ready(self, timeout_ms: int) -> int | None:
        """See `Store.wait_ready`."""
        if self._rung() is None:
            self._bell.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), timeout_ms / 1000)
        rung = self._rung()
        if rung is not None:
            self._first = (rung + 1) % self.partitions
        return rung

    def _rung(self) -> int | None:
        """A partition with something ready, the first one after the last that was told."""
        order = [*range(self._first, self.partitions), *range(self._first)]
        return next((number for number in order if self._parts[number].ready), None)

    @asynccontextmanager
    async def watch(self, session_id: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """See `Store.watch`."""
        notices = Notices()
        watchers = self._watchers.setdefault(session_id, set())
        watchers.add(notices)
        try:
            yield notices
        finally:
            watchers.discard(notices)

    async def publish_delta(self, session_id: str, data: Data) -> None:
        """See `Store.publish_delta`."""
        self._notify(session_id, {"v": 1, "sessionId": session_id, "type": "assistant/delta", "data": dict(data)})

    async def close(self) -> None:
        """See `Store.close`."""

    # -- inside -----------------------------------------------------------------------------------------------

    def _in(self, partition: int) -> list[_Kept]:
        return [kept for session_id, kept in sorted(self._kept.items()) if self.partition(session_id) == partition]

    def _open(self, session_id: str, created: Data) -> tuple[Act, _Kept]:
        """An act on a session that is made if it is missing."""
        kept = self._kept.get(session_id)
        if kept is not None:
            return self._act(kept), kept
        kept = self._kept[session_id] = _Kept(Session(session_id), created)
        act = self._act(kept)
        act.append("session/created", created)
        return act, kept

    def _existing(self, session_id: str) -> tuple[Act, _Kept]:
        kept = self._kept.get(session_id)
        if kept is None:
            raise Refused("not-found", f"there is no session {session_id}")
        return self._act(kept), kept

    def _act(self, kept: _Kept) -> Act:
        return Act(kept.session, now=self._clock.now_ms(), epoch=kept.epoch)

    def _owned(self, lease: Lease) -> _Kept:
        kept = self._kept.get(lease.session_id)
        if kept is None or (kept.epoch, kept.owner) != (lease.epoch, lease.owner):
            self._parts[self.partition(lease.session_id)].fenced += 1
            raise Fenced(f"{lease.owner} no longer owns session {lease.session_id} at epoch {lease.epoch}")
        return kept

    def _repeated(self, kept: _Kept, call: int) -> bool:
        if call < kept.call:
            raise Refused("stale-call", f"call {call} of session {kept.session.session_id} is older than {kept.call}")
        return call == kept.call

    def _prolong(self, kept: _Kept, lease_ms: int) -> None:
        kept.lease_end, kept.lease_ms = self._clock.now_ms() + lease_ms, lease_ms

    def _release(self, kept: _Kept, *, back: str) -> None:
        kept.owner, kept.lease_end, kept.back = None, 0, back

    def _grant(self, kept: _Kept) -> Grant:
        session = kept.session
        return Grant(
            lease=Lease(session.session_id, kept.epoch, kept.owner or ""),
            agent=session.agent,
            seq=session.seq,
            turn=session.turn,
            step=session.step,
            phase=session.phase if session.open else Phase.CLOSED,
            attempt=session.attempt,
            cancel=session.cancel,
            batch=tuple(self._claimed(kept, message_id) for message_id in session.claimed),
            calls=dict(session.calls),
            recovered=kept.recovered,
            born=session.born,
        )

    def _claimed(self, kept: _Kept, message_id: str) -> Claimed:
        message = kept.session.messages[message_id]
        data = dict(kept.ledger[message.queued_seq - 1].data)
        data["content"] = kept.ledger[message.body_seq - 1].data["content"]
        return Claimed(message_id, data)

    def _done(self, kept: _Kept, act: Act) -> None:
        """Keep what the act appended, queue the session for a worker if it wants one, tell who watches."""
        session = kept.session
        for appended in act.events:
            event = appended._replace(data=unframe(frame(appended.data)))  # a copy: nobody else can change the ledger
            kept.ledger.append(event)
            self._note_settled(kept, event)
            envelope = {"v": 1, "sessionId": session.session_id, **event._asdict()}
            self._notify(session.session_id, envelope)
        wanted = kept.owner is None and (session.open or activity.waking(session) > 0)
        ready = self._parts[self.partition(session.session_id)].ready
        if wanted and session.session_id not in ready:
            ready[session.session_id] = self._clock.now_ms()
            self._bell.set()

    def _note_settled(self, kept: _Kept, event: Event) -> None:
        message = kept.session.messages.get(event.data.get("messageId", ""))
        if message is not None and message.state in TERMINAL and message.state is not MessageState.DEAD:
            kept.settled_at.setdefault(message.message_id, event.time)

    def _notify(self, session_id: str, notice: dict[str, Any]) -> None:
        for watcher in self._watchers.get(session_id, ()):
            watcher.tell(notice)


def _record(session: Session, message: Message) -> Record:
    queued = message.state is MessageState.QUEUED
    return Record(
        message_id=message.message_id,
        state=message.state,
        lane=message.lane,
        wake=message.wake,
        due=message.due,
        held=queued and message.wake and message.due and session.hold is not None,
        cursor=message.queued_seq,
        turn=message.turn,
        step=message.step,
        why=message.why,
    )


def _unsettled(message: Message) -> bool:
    return message.state not in TERMINAL


def _place(message: Message) -> Place:
    """Where an unsettled message stands (see `Store.queue`)."""
    if message.state is MessageState.CLAIMED:
        return Place(CLAIMED, message.place)
    if not message.due:
        return Place(LATER, message.place)
    return Place(NEXT_STEP if message.lane is Lane.NEXT_STEP else NEXT_TURN, message.place)

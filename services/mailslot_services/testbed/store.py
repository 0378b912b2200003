"""Sessions in memory, and the lines on which others reach them.

    doors --DoorLine--+                          a fault of the doors' store strikes on their line, and nowhere else
                      +--> WatchedStore --told--> engine: waits, idle notices, words of cancels
    worker -WorkerLine+                          a worker that was killed reaches nothing any more

Rule 1: the store is the port's model, whole. What it does not say by itself, that something was appended, and what
        nobody else may do, end a dead worker's leases, is added here.
Rule 2: a line refuses or loses answers; it never makes one up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

from mailslot_core import inbox
from mailslot_core.clock import Clock
from mailslot_core.errors import OutcomeUnknown, Refused, StoreUnavailable
from mailslot_core.goal import ACTIVE
from mailslot_core.inbox import Room, Submission
from mailslot_core.memory import MemoryStore
from mailslot_core.session import Event, Session, Status
from mailslot_core.store import IdleNotice, Store
from mailslot_services.testbed.switch import Switches

PARTITIONS: Final = 4
"""Each is swept on its own; a test has few sessions."""

CHANGES: Final = frozenset(
    {"create", "submit", "cancel", "replace", "withdraw", "move", "release", "close_session", "redrive", "goal_change"}
)
"""What a door asks that changes something: its outcome can be unknown."""

READS: Final = frozenset({"level", "message", "queue", "dead", "indexes", "events", "sessions", "load"})
"""What a door asks beside it."""

Told = Callable[[str, Mapping[str, Any]], None]


class WatchedStore(MemoryStore):
    """The store of an engine. `told` hears of every event, in the act that appends it."""

    def __init__(self, clock: Clock, told: Told, *, pending_max: int, crashes_max: int) -> None:
        super().__init__(partitions=PARTITIONS, clock=clock, pending_max=pending_max, crashes_max=crashes_max)
        self._told = told

    def count(self, session_id: str) -> int:
        """How many events the session's ledger has."""
        kept = self._kept.get(session_id)
        return len(kept.ledger) if kept else 0

    def ledger(self, session_id: str) -> list[Event]:
        """The session's whole ledger."""
        kept = self._kept.get(session_id)
        return list(kept.ledger) if kept else []

    def session(self, session_id: str) -> Session:
        """The session as it stands; a new one when it is not there."""
        kept = self._kept.get(session_id)
        return kept.session if kept else Session(session_id)

    def lapse(self, worker: str) -> None:
        """The leases of a worker that is dead are over; the next sweep finds them."""
        for kept in self._kept.values():
            if kept.owner is not None and kept.owner.startswith(f"{worker}/"):
                kept.lease_end = 0

    def carry(self, ms: int) -> None:
        """So much time passes, in which those who live renew their leases."""
        for kept in self._kept.values():
            if kept.owner is not None and kept.lease_end:
                kept.lease_end += ms

    def resting_goal(self, session_id: str) -> IdleNotice | None:
        """The notice that the session's goal can go on, None when there is no such goal or the agent runs."""
        session = self.session(session_id)
        goal = session.goal
        if goal is None or goal["phase"] != ACTIVE or session.status is not Status.IDLE:
            return None
        return IdleNotice(session_id, goal["goalId"], goal["revision"], session.idle_seq)

    def _notify(self, session_id: str, notice: dict[str, Any]) -> None:
        super()._notify(session_id, notice)
        if "seq" in notice:
            self._told(session_id, notice)


class DoorLine:
    """The store as the doors reach it."""

    def __init__(self, store: WatchedStore, clock: Clock, switches: Switches) -> None:
        self._store, self._clock, self._switches = store, clock, switches
        self.partitions, self.durability = store.partitions, store.durability

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name in CHANGES or name in READS:
            return partial(self._call, name)
        act: Callable[..., Awaitable[Any]] = getattr(self._store, name)
        return act

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self._switches.refusing.strikes():
            raise StoreUnavailable("the store refuses everything: a fault of the test")
        if name == "submit":
            await self._check_room(*arguments)
        act = partial(getattr(self._store, name), *arguments, **options)
        if name not in CHANGES:
            return await act()
        if self._switches.forgetting.strikes():
            raise OutcomeUnknown("the store's answer was lost: a fault of the test")
        answer = await act()
        if self._switches.unknowing.strikes():
            raise OutcomeUnknown("the store's answer was lost: a fault of the test")
        return answer

    async def _check_room(self, session_id: str, submission: Submission, *_: Any) -> None:
        """With no room for anything, what is not there yet is refused, by the code that refuses it in earnest."""
        full = self._switches.full
        if full.on and await self._store.message(session_id, submission.message_id) is None and full.strikes():
            session, now = self._store.session(session_id), self._clock.now_ms()
            try:
                inbox.check_submit(session, submission, now=now, room=Room(0, 0))
            except Refused as refused:
                if refused.retry_after_ms is not None:
                    refused.retry_after_ms = self._switches.full_retry_after_ms
                raise

    @asynccontextmanager
    async def watch(self, session_id: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """See `Store.watch`. Lost notices are not heard."""
        async with self._store.watch(session_id) as notices:
            yield self._heard(notices)

    async def _heard(self, notices: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        async for notice in notices:
            if not self._switches.deaf.strikes():
                yield notice


class WorkerLine:
    """The store as a worker reaches it, until it is dead: then it gets no answer, and nothing it asks is done."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.partitions, self.durability = store.partitions, store.durability
        self.dead = False

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(self._call, name)

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self.dead:
            await asyncio.Event().wait()
        return await getattr(self._store, name)(*arguments, **options)


def as_store(line: DoorLine | WorkerLine) -> Store:
    """A line, as the port it is."""
    return cast("Store", line)

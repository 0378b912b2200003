"""The port to whatever keeps the sessions. Each method says what is true once it has returned.

    submit ----> [ledger + indexes + ready queue] <---- acquire, take, commit, settle, renew, handback
    cancel ----^            |                    ^---- sweep, goal_change, goal_advance
                            +--> notices (a hint; losing all of them loses no fact)

Rule 1: each method is one atomic act: all of it happened, or none of it.
Rule 2: a worker's write carries its lease. If the lease is not the session's present one the store raises
        `Fenced`, writes nothing, and counts it (semantics L3).
Rule 3: a worker's write carries its call number, which rises with each call of a slot. Repeating the last number
        appends nothing and answers as the first time, so a lost reply is repaired by asking again (semantics L3).
        A grant in it shows the session as it is now; a session whose lease was lost since is not granted again.
Rule 4: whatever is refused (`Refused`, `Fenced`, `StoreUnavailable`) changed nothing. `OutcomeUnknown` may have.
Rule 5: the clock is the store's.

Implementations: `memory.MemoryStore`, `redis.store.RedisStore`; `tests/conformance` holds both to every line here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from mailslot_core.errors import Refused
from mailslot_core.goal import Change, Round
from mailslot_core.inbox import Receipt, Submission
from mailslot_core.session import Data, Event, Lane, MessageState, Phase, Status
from mailslot_core.turn import Cancelled, Draft, End, Outcome, Then

PENDING_MAX_DEFAULT = 10_000  # queued messages per session before submit answers `queue-full`
PENDING_BYTES_MAX_DEFAULT = 64 * 1024 * 1024  # of their bodies, likewise
DIGITS_MAX = 18  # of a number in a place or a letter's id
CRASHES_MAX_DEFAULT = 3  # of one turn, before recovery gives it up (semantics R5)
PAGE_BYTES_MAX = 8 * 1024 * 1024  # of event data in one page, about: what a reader holds in memory at once


class Lease(NamedTuple):
    """Who drives a session now: `owner` names a worker's slot (`<worker>/<slot>`), `epoch` rises with each (T1)."""

    session_id: str
    epoch: int
    owner: str


class Claimed(NamedTuple):
    """A message that the turn claimed and has not admitted; `data` is its `inbox/queued` data with present content."""

    message_id: str
    data: Data


@dataclass(frozen=True, slots=True)
class Grant:
    """A session as its owner sees it: the open turn, what it claimed, and how far it is.

    `recovered` is the reason of the `turn/recovered` that this acquire appended, None for a turn of our own.
    `cancel` is the first cause recorded against the turn (semantics C3). `calls` maps the callIds of the open step
    that have no result to `asked` or `started` (semantics R3). `born` is when the session was created: what a worker
    remembers of another one, which had this name before it was erased, is not this one's.
    """

    lease: Lease
    agent: str
    seq: int
    turn: int
    step: int
    phase: Phase
    attempt: int
    cancel: str | None
    batch: tuple[Claimed, ...]
    calls: Data = field(default_factory=dict)
    recovered: str | None = None
    born: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settle came to. `grant` is the session's next batch (CONTINUE, TURN), or the next ready session
    (IDLE, RELEASED with `hand_out`), or None."""

    outcome: Outcome
    grant: Grant | None


class Renewal(NamedTuple):
    """Answer to one renewal: `alive` is False once the lease is lost; `cancel` is the first cause recorded against
    `turn`, so that an answer that comes late cannot hit the next turn (C3)."""

    alive: bool
    cancel: str | None = None
    turn: int = 0


class Created(NamedTuple):
    """`fresh` is False when the session was there already with the same body."""

    cursor: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Level:
    """A session's indexes at `cursor` (semantics S4): what can be read without folding."""

    session_id: str
    agent: str
    status: Status
    cursor: int
    idle_cursor: int  # seq of the last published idle, 0 when none was
    reasons: tuple[str, ...]
    turn: int | None  # the open turn
    pending: int
    held: int
    conservation: int
    goal: Data | None
    usage: Data
    hold: str | None = None  # the cause of the hold in force
    closed: bool = False


class Record(NamedTuple):
    """What happened to a message, and never how a turn ended (semantics M6).

    `cursor` is the seq of its `inbox/queued`; `turn` and `step` those that took it; `why` the cause of a cancellation
    or the reason of a rejection or death. `held`: it waits behind a hold.
    """

    message_id: str
    state: MessageState
    lane: Lane
    wake: bool
    due: bool
    held: bool
    cursor: int
    turn: int | None
    step: int | None
    why: str | None


class Waiting(NamedTuple):
    """A message that is not settled; `data` is its `inbox/queued` data with present content."""

    record: Record
    data: Data


class Place(NamedTuple):
    """Where a message stands among those that are not settled: the group, then the seq that orders it there."""

    group: int
    number: int

    def __str__(self) -> str:
        return f"{self.group}-{self.number}"

    @classmethod
    def read(cls, text: str) -> Place:
        """The place that a page ended with. Refused: `bad-input`."""
        return cls(*_numbers(text, 2))


CLAIMED, NEXT_STEP, NEXT_TURN, LATER = range(4)  # the groups, in the order in which they enter


class LetterId(NamedTuple):
    """What a dead letter is called: when it was kept, and where. It sorts as letters were kept."""

    time: int
    number: int
    partition: int

    def __str__(self) -> str:
        return f"{self.time}-{self.number}-{self.partition}"

    @classmethod
    def read(cls, text: str) -> LetterId:
        """The id that a door was given. Refused: `bad-input`."""
        return cls(*_numbers(text, 3))


def letter_named(text: str) -> LetterId:
    """The id of a dead letter that somebody wants. Refused: `not-found`, for what cannot be an id too."""
    try:
        return LetterId.read(text)
    except Refused:
        raise Refused("not-found", f"there is no dead letter {text}") from None


def _numbers(text: str, count: int) -> list[int]:
    parts = text.split("-")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in parts):
        raise Refused("bad-input", f"{text!r} is no place in this list")
    return [int(part) for part in parts]


class QueuePage(NamedTuple):
    """Some unsettled messages of a session in the order they will enter; `next` is where the next page goes on."""

    messages: tuple[Waiting, ...]
    next: str | None


class Closing(NamedTuple):
    """`closed` is False while a turn still ends. `erased`: nothing of the session is kept any more; `events` and
    `messages` say how many of each are gone."""

    closed: bool
    cursor: int
    erased: bool = False
    events: int = 0
    messages: int = 0


class DeadMessage(NamedTuple):
    """A message of a dead letter, and its state by now; None when nothing is known of it any more."""

    message_id: str
    state: MessageState | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A turn that was given up, and all messages that it had claimed: those that it had not admitted are dead
    (semantics R5). `time` is the store's, in ms."""

    letter_id: str
    session_id: str
    turn: int
    reason: str
    attempts: int
    time: int
    messages: tuple[DeadMessage, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep found: leases that had lapsed, running sessions that nobody would have served (R1), message
    records whose window was over (M3), messages that became due or expired (M11), and sessions that were erased."""

    lapsed: int = 0
    repaired: int = 0
    forgotten: int = 0
    due: int = 0
    expired: int = 0
    erased: int = 0

    def __add__(self, other: Swept) -> Swept:
        return Swept(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class Page(list[Event]):
    """Events in order, without gaps. `more` says that a limit cut the page: the next one may hold something."""

    def __init__(self, events: Iterable[Event] = (), *, more: bool = False) -> None:
        super().__init__(events)
        self.more = more


class IdleNotice(NamedTuple):
    """A session with an active goal rests since `idle_seq` (0: it never ran)."""

    session_id: str
    goal_id: str
    revision: int
    idle_seq: int


class Load(NamedTuple):
    """A partition's state for metrics and autoscaling: sizes, and the age in ms of the oldest ready session."""

    ready: int
    oldest_ready_ms: int
    active: int
    leased: int
    sessions: int
    fenced: int  # refused writes of former owners, ever
    dead: int = 0  # dead letters that are kept
    damaged: int = 0  # times that a session was set aside because it cannot be read


class Notices:
    """What one watcher hears, in order. Waiting for a notice may be given up and taken up again: an asynchronous
    generator would be over after the first timeout."""

    def __init__(self, kept_max: int = 0) -> None:
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(kept_max)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        return await self._queue.get()

    def tell(self, notice: dict[str, Any]) -> None:
        """One more notice. When `kept_max` of them wait (0: no limit), the oldest makes way."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(notice)


class Store(Protocol):
    """See the module: one method, one atomic act."""

    @property
    def partitions(self) -> int:
        """How many partitions sessions are spread over; fixed for the life of the store."""
        ...

    @property
    def durability(self) -> str:
        """The level that receipts state: `memory`, `fsync` or `replicated` (semantics M2)."""
        ...

    # -- doors ------------------------------------------------------------------------------------------------

    async def create(self, session_id: str, created: Data) -> Created:
        """The session exists with this `session/created` data. Other data than before is refused `session-exists`."""
        ...

    async def submit(self, session_id: str, submission: Submission, created: Data | None) -> Receipt:
        """The message is in the ledger exactly once, and the agent runs if the message wakes it (M1, M3, S2).

        A missing session is made with `created`; when that is None it is refused `not-found`. Also refused:
        `conflict` (same id, other body), `closed`, `expired` (its time is over), `queue-full`, and by the submission's
        own conditions `busy`, `idle`, `turn-mismatch` (U5, M8).
        """
        ...

    async def cancel(self, session_id: str, *, cause: str, queue: str = "keep", turn: int | None = None) -> Cancelled:
        """A cancel of the open turn is recorded and its owner told, or there was nothing to cancel (C1-C3).

        `queue` says what became of what was queued: kept, on hold, or cancelled (`clear`). Refused: `not-open`,
        `not-found`.
        """
        ...

    async def replace(self, session_id: str, message_id: str, content: list[Any]) -> Record:
        """The queued message has this content, in its old place (M7). Refused: `not-found`, `already-claimed`,
        `already-settled`, `queue-full` (bytes)."""
        ...

    async def withdraw(self, session_id: str, message_id: str) -> Record:
        """The queued message is cancelled (M7, S6). Refused: `not-found`, `already-claimed`, `already-settled`."""
        ...

    async def move(self, session_id: str, message_id: str) -> Record:
        """The queued message steers: it is due, last in next-step, and no hold is in force (M7, S7). Refused:
        `not-found`, `already-claimed`, `already-settled`."""
        ...

    async def release(self, session_id: str) -> int:
        """No hold is in force and what waited behind it wakes the agent; the newest seq (S7). Refused: `not-held`,
        `closed`, `not-found`."""
        ...

    async def close_session(self, session_id: str, *, erase: bool = False) -> Closing:
        """The session takes nothing more: its turn is cancelled, its queue cleared, and it is closed at once or at its
        next idle (M9). With `erase`, nothing of it is kept once it is closed. Refused: `not-found`."""
        ...

    async def redrive(self, letter_id: str) -> tuple[Receipt, ...]:
        """The messages of a dead letter that are dead are queued again, each with its id (R5).

        Refused: `not-found`, `not-dead` (none is, any more), `not-allowed` (they are rounds of a goal: resume that),
        `closed`, `queue-full`.
        """
        ...

    async def goal_change(self, session_id: str, change: Change, created: Data | None = None) -> Data:
        """The goal is at the returned state (G1). Refused: `revision`, `goal-exists`, `not-allowed`, `not-found`."""
        ...

    # -- workers ----------------------------------------------------------------------------------------------

    async def acquire(self, partition: int, owner: str, call: int, lease_ms: int) -> Grant | None:
        """`owner` leases the longest-ready session of the partition and its turn is open (T2, R1, R3), or None:
        nothing there was ready. Sessions with nothing to do are dropped from the ready queue without a trace. A turn
        that has crashed too often is given up on the way, with a dead letter, and its session goes on (R5)."""
        ...

    async def take(self, lease: Lease, call: int) -> Grant:
        """At a step boundary, all due next-step messages are claimed (T2). None there: nothing is appended."""
        ...

    async def commit(self, lease: Lease, call: int, drafts: Sequence[Draft], *, take: bool = False) -> Grant:
        """The facts are in the ledger, in order; with `take`, what waits for the next step is claimed too."""
        ...

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
        """The facts are in the ledger and the turn is over, or goes on because a steer waited (T6). Then the
        session's next turn has begun, or the lease is given back; only then, and with `hand_out`, the owner may
        have been given the partition's next ready session."""
        ...

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Renewal]:
        """Each lease that is still the session's own ends `lease_ms` from now (R2)."""
        ...

    async def handback(self, lease: Lease, call: int) -> None:
        """The lease is given back and the session is ready again; its open turn is not counted as crashed (R6)."""
        ...

    async def sweep(self, partition: int, *, forget_after_ms: int) -> Swept:
        """Lapsed leases are taken away and their sessions ready again; each running session is leased or ready (R1).
        What became due or expired says so (M11). Message records settled longer ago than `forget_after_ms` are dropped
        (M3), but for those of dead messages; so are dead letters as old of which nothing can be redriven any more."""
        ...

    # -- goals ------------------------------------------------------------------------------------------------

    async def goal_advance(self, session_id: str, proposed: Round) -> bool:
        """The round is queued, or the goal blocked by a spent budget; False: the notice was stale (G2)."""
        ...

    async def resting_goals(self, partition: int) -> list[IdleNotice]:
        """Sessions of the partition that rest while their goal is active, by name: where reconciling starts (G8)."""
        ...

    # -- reading ----------------------------------------------------------------------------------------------

    async def level(self, session_id: str) -> Level | None:
        """The session's indexes as they are now; None when there is no such session."""
        ...

    async def message(self, session_id: str, message_id: str) -> Record | None:
        """The message's own record (M6); None when there is none, or its window is over (M3)."""
        ...

    async def queue(self, session_id: str, *, after: str, limit: int) -> QueuePage:
        """Up to `limit` unsettled messages, fewer when their bodies come to more than about PAGE_BYTES_MAX: claimed
        ones, then next-step, next-turn, then those not yet due. `after` is the `next` of the page before, at first
        empty. Refused: `not-found`, `bad-input` (what is no place)."""
        ...

    async def dead(self, *, after: str, limit: int) -> list[DeadLetter]:
        """Up to `limit` dead letters kept after the one of this id, oldest first. Refused: `bad-input` (no id)."""
        ...

    async def indexes(self, session_id: str) -> Data | None:
        """Every index the store keeps for the session, named as `session.indexes` names them. Folding the ledger
        gives the same, but for message records that `sweep` has dropped (L2)."""
        ...

    async def events(self, session_id: str, *, after: int, limit: int) -> Page:
        """Up to `limit` events with seq > after, without gaps; fewer when they come to more than about
        PAGE_BYTES_MAX, at least one if there is one. Raises `CursorExpired` if the next one is gone or `after` lies
        beyond the newest (L7)."""
        ...

    async def sessions(self, *, after: str, limit: int) -> list[str]:
        """Up to `limit` session ids > after, ascending."""
        ...

    async def load(self, partition: int) -> Load:
        """Sizes and ages for metrics."""
        ...

    # -- hints ------------------------------------------------------------------------------------------------

    async def wait_ready(self, timeout_ms: int) -> int | None:
        """A partition in which a session became ready, or None after the timeout. A hint: `acquire` decides.
        A wait that is given up may take one hint with it."""
        ...

    def watch(self, session_id: str) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """Notices of one session from the opening of the context on, in ledger order: envelopes of all its events, and
        deltas (type `assistant/delta`, no seq). A hint: notices may be lost, the ledger is the truth."""
        ...

    async def publish_delta(self, session_id: str, data: Data) -> None:
        """Whoever watches may see this transient fact. Nothing is kept."""
        ...

    async def close(self) -> None:
        """Connections are closed; callers that still waited got `OutcomeUnknown`."""
        ...

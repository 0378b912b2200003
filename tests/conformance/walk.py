"""A random walk over the port, the same on every store, and the smallest walk that still goes wrong.

    number --random--> call --> memory, a server --> equal answers, equal ledgers, sound ledgers, true indexes

Rule 1: a walk is a list of numbers, one a step. What a step does comes from its number and from what the stores have
        answered so far, so a walk can be repeated, and a part of a walk is a walk as well.
Rule 2: after each call all stores have given the same answer, and every session it could touch is compared: its new
        events, its level, its indexes (which must be what folding the ledger gives); its ledger breaks no invariant.
Rule 3: a walk ends by letting every lease lapse and driving every session until nothing is ready; then all that waits
        for its time comes. Then all rest, and nothing but injected context and held messages is unsettled.
Rule 4: all stores stand on clocks that the walk moves, and tell the same times. Each clock goes on before each call, so
        that no two sessions become ready in the same ms.
Rule 5: a session that is gone was erased; one of its name that comes after it starts a new ledger.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from mailslot_core import invariants
from mailslot_core.errors import CoreError
from mailslot_core.inbox import Submission
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import TERMINAL, Data, Event, MessageState, Session, apply, indexes
from mailslot_core.store import DeadLetter, Grant, Lease, Settled, Store
from mailslot_core.turn import Draft, Then
from tests.conformance.dialogue import LEASE_MS, NEVER_MS, ending
from tests.conformance.pen import finishing
from tests.conformance.worlds import PARTITIONS, World

OWNERS: Final = ("worker-1/0", "worker-1/1", "worker-2/0")
LONG_MS: Final = 3_600_000
"""Longer than any time that a walk gives a message, and than any lease."""
SERVED_MAX: Final = 500
"""Turns after which driving a partition to its rest has gone wrong."""


class Diverged(AssertionError):
    """Two stores, or a store and the rules, do not agree."""


class Failed(NamedTuple):
    """An answer that is an error: its class and code. Sentences may differ."""

    error: str
    code: str


class Numbered(NamedTuple):
    """A numbered call of a slot, kept so that it can be made again."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass
class Place:
    """A worker's slot: its calls, the session in it, and its last numbered call."""

    owner: str
    calls: int = 0
    grant: Grant | None = None
    last: Numbered | None = None

    def next_call(self) -> int:
        self.calls += 1
        return self.calls

    def hold(self, answer: Any) -> None:
        """What the slot holds after an answer of the store."""
        found = answer.grant if isinstance(answer, Settled) else answer
        if found is None or isinstance(found, Grant):
            self.grant = found
        elif found.error == "Fenced":
            self.grant = None


@dataclass
class Walk:
    """One walk over several stores at once. `log` says what was done, for whoever reads a failure."""

    worlds: Sequence[World]
    births: dict[str, Data]
    log: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=lambda: [Place(owner) for owner in OWNERS])
    sent: dict[str, list[Submission]] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)  # the last lease of each session
    old_leases: list[Lease] = field(default_factory=list)
    ledgers: dict[str, list[Event]] = field(default_factory=dict)
    folded: list[dict[str, Session]] = field(default_factory=list)
    forgetful: bool = False  # a sweep has dropped message records
    serial: int = 0

    def __post_init__(self) -> None:
        self.sent = {session_id: [] for session_id in self.births}
        self.ledgers = {session_id: [] for session_id in self.births}
        self.folded = [{session_id: Session(session_id) for session_id in self.births} for _ in self.worlds]

    async def run(self, numbers: Sequence[int], step: Callable[[Walk, random.Random], Awaitable[None]]) -> None:
        for number in numbers:
            await step(self, random.Random(number))
        await self.come_to_rest()

    def next_name(self, letter: str) -> str:
        self.serial += 1
        return f"{letter}{self.serial}"

    def session(self, session_id: str) -> Session:
        """The session as the first store's ledger has it."""
        return self.folded[0][session_id]

    # -- calling and comparing --------------------------------------------------------------------------------

    async def call(self, name: str, *arguments: Any, touches: Sequence[str], **options: Any) -> Any:
        """Make one call on every store; return the answer that all gave. `touches`: the sessions it could change."""
        await asyncio.gather(*(world.tick() for world in self.worlds))
        answers = await asyncio.gather(*(answer(world.store, name, arguments, options) for world in self.worlds))
        self.log.append(f"{name}{arguments} {options or ''} -> {answers[0]}")
        for other in answers[1:]:
            agree("answers", answers[0], other)
        for session_id in touches:
            await self.compare(session_id)
        return answers[0]

    def sharing(self, partition: int) -> list[str]:
        """The sessions of a partition."""
        return [session_id for session_id in self.births if partition_of(session_id, PARTITIONS) == partition]

    def touched(self, subject: Lease | int, options: dict[str, Any]) -> list[str]:
        """What a slot's call can change: its own session; all of the partition if it may be handed another one."""
        if isinstance(subject, int):
            return self.sharing(subject)
        own = subject.session_id
        return self.sharing(partition_of(own, PARTITIONS)) if options.get("hand_out") else [own]

    async def compare(self, session_id: str) -> None:
        """Rule 2 for one session."""
        seen = await asyncio.gather(*(self.look(number, session_id) for number in range(len(self.worlds))))
        for other in seen[1:]:
            agree(f"events or level of {session_id}", seen[0], other)
        agree(f"violations in the ledger of {session_id}", [], invariants.violations(self.ledgers[session_id]))

    async def look(self, number: int, session_id: str) -> object:
        """What one store shows of a session; its indexes must be its own ledger's."""
        store = self.worlds[number].store
        found, level = await asyncio.gather(store.indexes(session_id), store.level(session_id))
        if found is None:
            self.forget(number, session_id)
        folded = self.folded[number][session_id]
        fresh = await store.events(session_id, after=folded.seq, limit=1000)
        for event in fresh:
            apply(folded, event)
        if number == 0:
            self.ledgers[session_id].extend(fresh)
        if found is not None:
            agree(f"indexes of {session_id} and those that folding gives", self.expected(folded, found), dict(found))
        return list(fresh), level

    def forget(self, number: int, session_id: str) -> None:
        """Rule 5."""
        self.folded[number][session_id] = Session(session_id)
        if number == 0:
            self.ledgers[session_id] = []

    async def letters(self) -> list[DeadLetter]:
        """The dead letters, as all stores have them."""
        found = await self.call("dead", touches=(), after="", limit=100)
        assert isinstance(found, list)
        return found

    def now_ms(self) -> int:
        times = {world.now_ms() for world in self.worlds}
        assert len(times) == 1, f"the clocks differ: {times}"
        return times.pop()

    async def pass_ms(self, ms: int) -> None:
        self.log.append(f"{ms} ms pass")
        for world in self.worlds:
            await world.pass_ms(ms)

    def expected(self, folded: Session, found: Data) -> dict[str, Any]:
        """The indexes that folding gives, without the settled records that a sweep has dropped."""
        wanted = indexes(folded)
        if self.forgetful:
            dropped = {name for name in wanted["messages"] if name not in found["messages"]}
            kept = {n: m for n, m in wanted["messages"].items() if n not in dropped or m["state"] not in TERMINAL}
            wanted["messages"] = kept
            for name in dropped & {n for n, m in folded.messages.items() if m.state in TERMINAL}:
                del folded.messages[name]  # so that the name may be used anew
        return wanted

    # -- slots ------------------------------------------------------------------------------------------------

    async def numbered(self, place: Place, name: str, *arguments: Any, **options: Any) -> Any:
        """A numbered call of a slot; what it answers is what the slot then holds."""
        place.last = Numbered(name, arguments, options)
        return await self.ask(place, place.last)

    async def ask(self, place: Place, numbered: Numbered) -> Any:
        name, arguments, options = numbered
        touches = self.touched(arguments[0], options)
        return self.note(place, await self.call(name, *arguments, touches=touches, **options))

    def note(self, place: Place, given: Any) -> Any:
        place.hold(given)
        if place.grant is not None:
            lease = place.grant.lease
            before = self.leases.get(lease.session_id)
            if before is not None and before != lease:
                self.old_leases.append(before)
            self.leases[lease.session_id] = lease
        return given

    async def settle(
        self,
        place: Place,
        drafts: Sequence[Draft],
        end: str | Data,
        *,
        then: Then = Then.TAKE,
        hand_out: bool = True,
        usage: Data | None = None,
    ) -> Any:
        assert place.grant is not None
        return await self.numbered(
            place,
            "settle",
            place.grant.lease,
            place.next_call(),
            drafts,
            ending(end, usage),
            then=then,
            hand_out=hand_out,
            lease_ms=LEASE_MS,
        )

    # -- rule 3 -----------------------------------------------------------------------------------------------

    async def come_to_rest(self) -> None:
        await self.lapse(list(self.births))
        for partition in range(PARTITIONS):
            await self.serve(partition)
        await self.pass_ms(LONG_MS)
        for partition in range(PARTITIONS):
            await self.call("sweep", partition, touches=self.sharing(partition), forget_after_ms=NEVER_MS)
            await self.serve(partition)
        await self.letters()
        for session_id in self.births:
            self.check_rest(self.session(session_id))

    async def lapse(self, session_ids: Sequence[str]) -> None:
        """The leases of these sessions run out and are swept; whoever held them knows nothing of it."""
        leases = [self.leases[session_id] for session_id in session_ids if session_id in self.leases]
        await self.call("renew", leases, 1, touches=())
        for partition in {partition_of(lease.session_id, PARTITIONS) for lease in leases}:
            await self.call("sweep", partition, touches=self.sharing(partition), forget_after_ms=NEVER_MS)

    async def serve(self, partition: int) -> None:
        """Drive every session of the partition that is ready, and those that are handed out."""
        place = Place("worker-9/0")
        for _ in range(SERVED_MAX):
            if place.grant is None:
                given = await self.numbered(place, "acquire", partition, place.owner, place.next_call(), LEASE_MS)
                if given is None:
                    return
            assert place.grant is not None
            given = await self.settle(place, finishing(place.grant), "completed")
            agree("the end of a finished step", Settled, type(given))
        raise Diverged(f"partition {partition} does not come to rest")

    def check_rest(self, session: Session) -> None:
        agree(f"rest of {session.session_id}", ("idle", False, []), (session.status, session.open, session.claimed))
        waiting = [session.messages[name] for name in invariants.unsettled(session)]
        left = [m.message_id for m in waiting if m.state is not MessageState.QUEUED or (m.wake and not session.hold)]
        agree(f"messages of {session.session_id} that nobody will serve", [], left)


async def answer(store: Store, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What a store answers; a refusal is an answer too."""
    try:
        given = await getattr(store, name)(*arguments, **options)
    except CoreError as error:
        return Failed(type(error).__name__, error.code)
    return given._replace(oldest_ready_ms=0) if name == "load" else given


def agree(what: str, one: object, other: object) -> None:
    if one != other:
        raise Diverged(f"{what} differ:\n  {one}\n  {other}")


async def smallest(numbers: list[int], fails: Callable[[list[int]], Awaitable[bool]]) -> list[int]:
    """A part of a walk that still fails and from which no single step can be left out."""
    size = max(1, len(numbers) // 2)
    while size:
        at = 0
        while at < len(numbers):
            fewer = numbers[:at] + numbers[at + size :]
            if await fails(fewer):
                numbers = fewer
            else:
                at += size
        size //= 2
    return numbers

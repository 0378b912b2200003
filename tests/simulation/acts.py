"""What must be true of the answer of an act, at the moment of the act: compared with the ledger before and after it.

    Seen(name, arguments, answer or refusal, appended) --> check --yield--> (the book reads the act) --> check goes on

Rule 1: a check is a generator. Up to its `yield` the book is as before the act, after it as after the act.
Rule 2: it gives sentences to `complain`; that a refusal appended nothing is checked for all acts by the witness.
Rule 3: who owns a lease until when is followed here from the answers alone (R1, R2, L3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mailslot_core.session import Event
from mailslot_core.store import Grant, Lease
from tests.simulation.book import Book, Life


@dataclass(frozen=True, slots=True)
class Seen:
    """One act of the store as it was seen."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    value: Any
    refused: str | None  # the code
    appended: Sequence[Event]  # to the session that the act names, if it names one

    def has(self, event_type: str, **data: Any) -> bool:
        """Such an event was appended."""
        return any(
            event.type == event_type and all(event.data.get(name) == value for name, value in data.items())
            for event in self.appended
        )


Complain = Callable[[str], None]
Check = Callable[[Book, Seen, Complain], Iterator[None]]


# -- doors ----------------------------------------------------------------------------------------------------


def submit(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
    """M1, M3, M8, M9, U5: the receipt, and each refusal, by what was there."""
    submission = seen.arguments[1]
    known, queued = submission.message_id in book.lives, book.queued()
    busy = not book.idle or any(life.wake and life.place is not None for life in queued)
    mismatch = submission.expect_turn is not None and not (book.open and book.turn == submission.expect_turn)
    wrong = {
        "closed": not (book.closed or book.closing),
        "busy": not (submission.if_busy and busy),
        "idle": not (submission.if_idle and book.idle),
        "turn-mismatch": not mismatch,
        "conflict": not known,
        "not-found": book.seq > 0,
    }
    if wrong.get(seen.refused or ""):
        complain(f"submit of {submission.message_id} is refused {seen.refused}, and may not be")
    accepted = seen.refused is None and not seen.value.duplicate
    broken = (submission.if_busy and busy) or (submission.if_idle and book.idle) or mismatch
    if accepted and (known or broken or book.closed or book.closing):
        complain(f"submit of {submission.message_id} is accepted, and may not be")
    yield
    if accepted != seen.has("inbox/queued", messageId=submission.message_id):
        complain(f"submit of {submission.message_id} was answered {seen.value or seen.refused} for what it appended")


def cancel(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
    """C1-C3: what was open was cancelled, what was queued obeys, and a turn that is not open is not hit."""
    turn, queue = seen.options.get("turn"), seen.options.get("queue", "keep")
    was_open, cancelled, held = (book.turn if book.open else None), book.cancel, book.hold
    queued, waking = {life.message_id for life in book.queued()}, any(life.wake for life in book.queued())
    yield
    if turn is not None and turn != was_open and seen.refused not in ("not-open", "not-found"):
        complain(f"a cancel of turn {turn} was answered {seen.refused or seen.value}; turn {was_open} was open")
    if seen.refused is not None:
        if seen.refused == "not-open" and turn is not None and turn == was_open:
            complain(f"a cancel of turn {turn}, which was open, was refused")
        return
    if was_open and cancelled is None and not seen.has("cancel/requested", turn=was_open):
        complain(f"a cancel was answered {seen.value.outcome}; nothing names turn {was_open}, which was open")
    left = {life.message_id for life in book.queued()}
    wanted = {"clear": set[str](), "hold": queued, "keep": queued}[queue]
    cancelled_now = (event.data for event in seen.appended if event.type == "inbox/cancelled")
    stale = {data["messageId"] for data in cancelled_now if data["cause"] == "stale"}
    if left != wanted - stale or set(seen.value.still_queued) != left:
        complain(f"a cancel that would {queue} {sorted(queued)} left {sorted(left)}, said {seen.value.still_queued}")
    if queue == "hold" and not book.hold and (was_open or waking):
        complain("a cancel that would hold did not")
    if queue != "hold" and held != book.hold:
        complain(f"a cancel that would {queue} changed the hold")


def changes(event_type: str) -> Check:
    """M7: withdraw, replace and move meet a message that is queued, or are told why not."""

    def check(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
        message_id = seen.arguments[1]
        state = _state(book, message_id)
        expected = {"queued": None, "claimed": "already-claimed", None: "not-found"}.get(state, "already-settled")
        if seen.refused != expected and not (expected is None and seen.refused == "queue-full"):
            complain(f"{seen.name} of {message_id}, which is {state}, is answered {seen.refused or 'done'}")
        yield
        if seen.refused is None and not seen.has(event_type, messageId=message_id):
            complain(f"{seen.name} of {message_id} was done, and the ledger does not say so")
        if seen.refused is None and seen.name == "move" and book.hold:
            complain(f"the hold outlives the move of {message_id}")

    return check


def release(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
    """S7."""
    held = book.hold
    yield
    if (seen.refused == "not-held") == held and seen.refused not in ("not-found", "closed"):
        complain(f"a release was answered {seen.refused or seen.value}; on hold: {held}")
    if seen.refused is None and book.hold:
        complain("a release did not end the hold")


def close_session(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
    """M9."""
    was_open = book.open
    yield
    if seen.refused is None and not seen.value.erased:
        if seen.value.closed != book.closed or book.closed == was_open:
            complain(f"a close was answered {seen.value} with a turn open: {was_open}")
        if book.queued():
            complain("a close left messages queued")


# -- reading --------------------------------------------------------------------------------------------------


def _state(book: Book, message_id: str) -> str | None:
    lives = book.lives.get(message_id)
    if not lives:
        return None
    return lives[-1].end or ("claimed" if lives[-1].claimed else "queued")


def message(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
    """M6: the record says what the ledger says."""
    yield
    record, message_id = seen.value, seen.arguments[1]
    if seen.refused is None and (record.state if record else None) != _state(book, message_id):
        complain(f"the record of {message_id} is {record}; the ledger says {_state(book, message_id)}")


def level(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
    """S4: the level is that of the newest event, and says why the agent runs."""
    yield
    found = seen.value
    if found is None:
        return
    told = (found.cursor, found.status, found.turn, found.pending, found.conservation, found.closed)
    pending = len(book.queued()) + len(book.claims())
    said = (book.seq, "idle" if book.idle else "running", book.turn if book.open else None, pending, 0, book.closed)
    if told != said or bool(found.reasons) == book.idle:
        complain(f"the level is {found}; the ledger says {said}")


def queue(book: Book, seen: Seen, complain: Complain) -> Iterator[None]:
    """M7: the list shows what waits, in the order in which it will enter."""
    yield
    if seen.refused is not None or seen.options.get("after"):
        return
    later = sorted((life for life in book.queued() if life.place is None), key=lambda life: life.queued)
    lives: list[Life] = [*book.due("next-step"), *book.due("next-turn"), *later]
    wanted = [life.message_id for life in lives]
    shown = [waiting.record.message_id for waiting in seen.value.messages]
    claimed = {life.message_id for life in book.claims()}
    listed = [name for name in shown if name not in claimed]
    if listed != wanted[: len(listed)] or (seen.value.next is None and len(shown) != len(wanted) + len(claimed)):
        complain(f"the queue shows {shown}; {sorted(claimed)} are claimed and {wanted} wait")


CHECKS: Final[dict[str, Check]] = {
    "submit": submit,
    "cancel": cancel,
    "withdraw": changes("inbox/cancelled"),
    "replace": changes("inbox/replaced"),
    "move": changes("inbox/moved"),
    "release": release,
    "close_session": close_session,
    "message": message,
    "level": level,
    "queue": queue,
}
"""What is checked of acts that name their session first."""


ROUNDED_S: Final = 0.001
"""A store's clock counts ms: what is less than that before its end may be over."""


# -- leases ---------------------------------------------------------------------------------------------------


@dataclass
class Leases:
    """Who may drive which session until when, by the answers that the store gave. Times are virtual seconds."""

    complain: Complain
    holders: dict[str, tuple[Lease, float]] = field(default_factory=dict)
    written: set[tuple[Lease, int]] = field(default_factory=set)
    acquired: dict[tuple[str, int], Lease] = field(default_factory=dict)
    jumped: bool = False

    def see(self, seen: Seen, now: float, appended: Sequence[tuple[str, Event]]) -> None:
        """An act of a worker."""
        if seen.name in ("commit", "take", "settle", "handback"):
            self._wrote(seen, appended)
        if seen.name == "acquire" and seen.refused is None:
            self._acquired(seen, now, fresh=bool(appended))
        follow = FOLLOW.get(seen.name)
        if follow is not None and seen.refused is None:
            follow(self, seen, now)

    def renew(self, seen: Seen, now: float) -> None:
        leases, lease_ms = seen.arguments
        for lease, renewal in zip(leases, seen.value, strict=True):
            self._renewed(lease, renewal.alive, now, lease_ms / 1000)

    def acquire(self, seen: Seen, now: float) -> None:
        self._granted(seen.value, now, seen.arguments[3] / 1000)

    def settle(self, seen: Seen, now: float) -> None:
        own, grant = seen.arguments[0], seen.value.grant
        if grant is None or grant.lease != own:
            self._let_go(own)
            self._granted(grant, now, seen.options["lease_ms"] / 1000)

    def handback(self, seen: Seen, now: float) -> None:
        self._let_go(seen.arguments[0])

    def sweep(self, seen: Seen, now: float) -> None:
        if seen.value.repaired:
            self.complain(f"a sweep repaired {seen.value.repaired} sessions that nobody had damaged")

    def _acquired(self, seen: Seen, now: float, *, fresh: bool) -> None:
        """L3: asked again, an acquire gives the session that it gave before, or none. (One that gave none is not
        remembered.)"""
        _, owner, call, _ = seen.arguments
        given, before = seen.value.lease if seen.value else None, self.acquired.get((owner, call))
        held = self.holders.get(before.session_id) if before else None
        if before and fresh and given:
            self.complain(f"acquire {call} of {owner} was answered anew")
        if before and held and held[0] == before and now < held[1] - ROUNDED_S and given != before:
            self.complain(f"acquire {call} of {owner} was answered {given}; it had been given {before}")
        if given:
            self.acquired[owner, call] = given

    def _wrote(self, seen: Seen, appended: Sequence[tuple[str, Event]]) -> None:
        """L3: facts carry the epoch of who wrote them, and one call appends once."""
        lease, call = seen.arguments[0], seen.arguments[1]
        own = [event for session_id, event in appended if session_id == lease.session_id]
        if own and own[0].epoch != lease.epoch:
            self.complain(f"{seen.name} under epoch {lease.epoch} of {lease.session_id} appended at {own[0].epoch}")
        if own and (lease, call) in self.written:
            self.complain(f"call {call} of {lease.owner} appended twice to {lease.session_id}")
        if own:
            self.written.add((lease, call))

    def _renewed(self, lease: Lease, alive: bool, now: float, lease_s: float) -> None:
        held = self.holders.get(lease.session_id)
        if alive and (held is None or held[0] != lease):
            self.complain(f"{lease} was renewed; the session is {held[0] if held else 'nobody'}'s")
        if held is not None and held[0] == lease:
            if alive:
                self.holders[lease.session_id] = (lease, now + lease_s)
            elif now < held[1] - ROUNDED_S and not self.jumped:
                self.complain(f"{lease} was lost at {now:.4f}; it was to hold until {held[1]:.4f}")

    def _let_go(self, lease: Lease) -> None:
        held = self.holders.get(lease.session_id)
        if held is not None and held[0] == lease:
            del self.holders[lease.session_id]

    def _granted(self, grant: Grant | None, now: float, lease_s: float) -> None:
        if grant is None:
            return
        name = grant.lease.session_id
        held = self.holders.get(name)
        if held is not None and held[0] == grant.lease:
            return  # the same answer, given again
        if held is not None and now < held[1] - ROUNDED_S and not self.jumped:
            self.complain(f"{name} is given to {grant.lease.owner}; {held[0].owner} holds it until {held[1]:.4f}")
        self.holders[name] = (grant.lease, now + lease_s)


FOLLOW: Final[dict[str, Callable[[Leases, Seen, float], None]]] = {
    "renew": Leases.renew,
    "acquire": Leases.acquire,
    "settle": Leases.settle,
    "handback": Leases.handback,
    "sweep": Leases.sweep,
}
"""What an answer of a worker's act says about leases."""

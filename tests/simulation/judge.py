"""What must be true of a run that came to rest. It reads ledgers, clients' histories and what the witness saw.

    ledger  -->  invariants (the product's own)     history  -->  receipts, refusals, answers
            -->  Book (`book`, written anew)        calls    -->  who called a model, and how often

Rule 1: beside `invariants` nothing of the product decides here.
Rule 2: who was refused for good finds nothing in the ledger; who holds a receipt finds exactly one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from mailslot_core import invariants
from mailslot_core.session import Event, fold, indexes
from mailslot_core.store import DeadLetter
from tests.simulation.book import Book
from tests.simulation.line import at_once
from tests.simulation.load import Attempt
from tests.simulation.witness import ModelCall
from tests.simulation.world import World

NOT_KNOWN: Final = frozenset({"outcome-unknown", "store-refused"})
"""Answers after which a client knows nothing of its earlier attempts."""


# -- a run ----------------------------------------------------------------------------------------------------


def verdict(world: World) -> list[str]:
    """Everything that is wrong with a run; empty when every promise was kept."""
    witness = world.witness
    wrong = list(witness.broken)
    if world.rested_s is None:
        wrong.append("liveness: the world did not come to rest; " + "; ".join(_restless(world)))
    wrong += [f"{name} dropped {number:g} sessions because of a defect" for name, number in world.defects()]
    present = [(name, ledger, witness.books[name]) for name, ledger in witness.ledgers.items()]
    for session_id, ledger, book in [*witness.erased, *present]:
        wrong += [f"{session_id}: {sentence}" for sentence in invariants.violations(ledger)]
        wrong += [*book.wrong, *_order(book)]
    for session_id, ledger, book in present:
        wrong += [*_store(world, session_id, ledger), *_letters(world, book), *_records(world, book)]
        wrong += _calm(book) if world.plan.is_calm else ()
        wrong += _in_time(book) if not world.plan.jumps else ()
        if world.rested_s is not None:
            wrong += _rested(book)
        attempts = [attempt for attempt in world.load.history if attempt.session_id == session_id]
        before = [old for name, _, old in witness.erased if name == session_id]
        wrong += _receipts([*before, book], attempts)
        if not before:
            wrong += _cancels(book, attempts)
            wrong += _model_calls(book, [call for call in witness.model_calls if call.session_id == session_id])
    return wrong


def _restless(world: World) -> Iterator[str]:
    for session_id, session in world.sessions.items():
        yield f"{session_id} is {session.status}, turn {session.turn} {session.phase}, {session.pending} pending"


def _order(book: Book) -> Iterator[str]:
    """M4: follow-ups enter in the order in which they were queued, or became due."""
    plain = [life for lives in book.lives.values() for life in lives if not life.moved and life.lane == "next-turn"]
    entered = sorted((life for life in plain if life.claimed and not life.goal), key=lambda life: life.claimed or 0)
    for before, after in pairwise(entered):
        if (before.place or 0) > (after.place or 0):
            yield f"M4 {book.session_id}: {after.message_id} was before {before.message_id} and entered after it"


def _calm(book: Book) -> Iterator[str]:
    """R2: while nothing breaks no session is lost."""
    if book.crashes:
        yield f"R2 {book.session_id}: turns {sorted(book.crashes)} were recovered from crashes, and nobody crashed"


def _in_time(book: Book) -> Iterator[str]:
    """M11: nothing enters after its time, as long as the store's clock is right."""
    for life in (life for lives in book.lives.values() for life in lives):
        if life.claimed_at and life.expires_at and life.claimed_at >= life.expires_at:
            yield f"M11 {book.session_id}: {life.message_id} is claimed at {life.claimed_at}, over at {life.expires_at}"


def _store(world: World, session_id: str, ledger: Sequence[Event]) -> Iterator[str]:
    """L2: what the store keeps is what folding its ledger gives, and the ledger is what was seen to be appended."""
    kept = at_once(world.kept.indexes(session_id))
    if kept is None:
        return
    if list(at_once(world.kept.events(session_id, after=0, limit=100_000))) != list(ledger):
        yield f"L1 {session_id}: the ledger is not what was appended"
    wanted = indexes(fold(session_id, ledger))
    for name, value in wanted.items():
        if kept[name] != value:
            yield f"L2 {session_id}: index {name} is {kept[name]}, the ledger gives {value}"


def _records(world: World, book: Book) -> Iterator[str]:
    """M6: at the end each record says what became of the message, by the ledger."""
    for name, lives in book.lives.items():
        record, life = at_once(world.kept.message(book.session_id, name)), lives[-1]
        state = life.end or ("claimed" if life.claimed else "queued")
        admitted = (life.claimed_by, life.step) if life.end == "admitted" else (record.turn, record.step)
        if (record.state, record.turn, record.step) != (state, *admitted) or (life.ended and record.why != life.why):
            yield f"M6 {book.session_id}: the record of {name} is {record}; the ledger says {life}"


def _rested(book: Book) -> Iterator[str]:
    """M5, M8, M11: at rest every message has its end, but for injected context and what is held."""
    for lives in book.lives.values():
        for life in lives:
            waits = life.claimed is None and (not life.wake or book.hold)
            if life.ended is None and not waits:
                yield f"M5 {book.session_id}: {life.message_id} has no end at rest (queued at seq {life.queued})"
    queued = sum(len(lives) for lives in book.lives.values())
    ended = sum(life.ended is not None for lives in book.lives.values() for life in lives)
    if queued - ended != len(book.queued()):
        yield f"M5 {book.session_id}: {queued} queued, {ended} ended, {len(book.queued())} wait"


def _receipts(books: Sequence[Book], attempts: Sequence[Attempt]) -> Iterator[str]:
    """M1, M3, M4: what clients were told of their messages is so. `books`: of the sessions that had this name."""
    by_name: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.operation == "submit":
            by_name.setdefault(attempt.message_id, []).append(attempt)
    for name, tries in by_name.items():
        yield from _told(books, name, tries)
    fresh = [a for tries in by_name.values() for a in tries if a.answer is not None and not a.answer.duplicate]
    for one in fresh if len(books) == 1 else ():
        for other in fresh:
            if (one.ended or 0) < other.begun and one.answer.cursor > other.answer.cursor:
                yield f"M4 {books[0].session_id}: {one.message_id} was received before {other.message_id} was sent"


def _told(books: Sequence[Book], name: str, tries: Sequence[Attempt]) -> Iterator[str]:
    """One message: what its sender was told at each try."""
    lives = [life for book in books for life in book.lives.get(name, ())]
    receipts = [attempt.answer for attempt in tries if attempt.answer is not None]
    for receipt in receipts:
        if not any(life.queued == receipt.cursor for life in lives):
            yield f"M1 {books[0].session_id}: the receipt of {name} names seq {receipt.cursor}, where it is not"
    if sum(not receipt.duplicate for receipt in receipts) > len(books):
        yield f"M3 {books[0].session_id}: {name} was accepted as new twice"
    if lives and all(attempt.refused and attempt.refused not in NOT_KNOWN for attempt in tries):
        yield f"M1 {books[0].session_id}: {name} was refused ({tries[0].refused}) and is in the ledger"


def _cancels(book: Book, attempts: Sequence[Attempt]) -> Iterator[str]:
    """C1, C3: a cancel that was requested of a turn ends that turn, and no cancel is there that nobody asked for."""
    asked = [a for a in attempts if a.operation in ("cancel", "close") and a.refused not in ("not-open", "not-found")]
    for attempt in asked:
        turn = getattr(attempt.answer, "turn", None)
        if turn is not None and turn in book.ends and book.ends[turn] != "aborted":
            yield f"C3 {book.session_id}: turn {turn} was cancelled and ended {book.ends[turn]}"
    if len(book.cancels) > len(asked):
        yield f"C3 {book.session_id}: {len(book.cancels)} cancels in the ledger, {len(asked)} were asked for"


def _model_calls(book: Book, calls: Sequence[ModelCall]) -> Iterator[str]:
    """T8, R3: a step's model is called again only after a failure that the ledger names, or by a new owner."""
    counted = Counter((call.turn, call.step) for call in calls)
    for (turn, step), number in counted.items():
        may = (1 + book.recoveries[turn]) * 2 + book.retries[turn, step]
        if number > may:
            yield f"R3 {book.session_id} turn {turn} step {step}: {number} model calls where {may} may be"


def _letters(world: World, book: Book) -> Iterator[str]:
    """R5: a turn that was given up has one dead letter, which names its messages; nothing else has."""
    found: list[DeadLetter] = at_once(world.kept.dead(after="", limit=10_000))
    own = {letter.turn: letter for letter in found if letter.session_id == book.session_id}
    for turn, kind in book.ends.items():
        if (kind == "interrupted") != (turn in own):
            yield f"R5 {book.session_id}: turn {turn} ended {kind}; its dead letter is {own.get(turn)}"
    claimed: dict[int, set[str]] = {}
    for name, lives in book.lives.items():
        for life in lives:
            if life.claimed_by is not None:
                claimed.setdefault(life.claimed_by, set()).add(name)
    for turn, letter in own.items():
        names = {message.message_id for message in letter.messages}
        if names != claimed.get(turn, set()):
            yield f"R5 {book.session_id}: turn {turn} had {sorted(claimed.get(turn, ()))}, its letter names {names}"

"""What must be true of a run that came to rest. It reads ledgers, clients' histories and what the witness saw.

    ledger  -->  invariants (the product's own)     history  -->  receipts, refusals, answers
            -->  Book: one pass, written anew        calls   -->  who called a model, and how often

Rule 1: beside `invariants` nothing of the product decides here: the pass over a ledger is written from the semantics.
Rule 2: a sentence names the rule that is broken, the session, and the place.
Rule 3: who was refused for good finds nothing in the ledger; who holds a receipt finds exactly one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from mailslot_core import invariants
from mailslot_core.session import Event, fold, indexes
from mailslot_core.store import DeadLetter
from tests.simulation.line import at_once
from tests.simulation.load import Attempt
from tests.simulation.witness import ModelCall
from tests.simulation.world import World

ENDS: Final = {
    "inbox/cancelled": "cancelled",
    "inbox/rejected": "rejected",
    "inbox/expired": "expired",
    "inbox/dead": "dead",
    "user/message": "admitted",
}
"""Events that end a message's life."""

NOT_KNOWN: Final = frozenset({"outcome-unknown", "store-refused"})
"""Answers after which a client knows nothing of its earlier attempts."""


@dataclass(slots=True)
class Life:
    """One life of a message, as a reader of the ledger sees it."""

    message_id: str
    queued: int
    lane: str
    wake: bool
    goal: str | None
    place: int | None  # None: not due yet
    not_before: int | None
    expires_at: int | None
    words: str
    claimed: int | None = None
    claimed_by: int | None = None
    ended: int | None = None
    end: str | None = None
    why: str | None = None
    moved: bool = False


@dataclass
class Book:
    """One pass over one ledger. `wrong` is what breaks a rule."""

    session_id: str
    lives: dict[str, list[Life]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    idle: bool = True
    hold: bool = False
    turn: int = 0
    open: bool = False
    step: int = 0
    step_open: bool = False
    cancel: str | None = None
    closed: bool = False
    ends: dict[int, str] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    recoveries: Counter[int] = field(default_factory=Counter)
    crashes: Counter[int] = field(default_factory=Counter)
    retries: Counter[tuple[int, int]] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    cancels: list[tuple[int, int | None]] = field(default_factory=list)  # seq, the turn that it names
    goal: Mapping[str, Any] | None = None
    order: list[str] = field(default_factory=list)  # follow-ups as they were admitted

    def read(self, events: Sequence[Event]) -> Book:
        for event, following in zip(events, [*events[1:], None], strict=False):
            rule = RULES.get(event.type)
            if rule is not None:
                rule(self, event)
            self._after(event, following)
        return self

    def complain(self, rule: str, event: Event, sentence: str) -> None:
        self.wrong.append(f"{rule} {self.session_id} seq {event.seq} {event.type}: {sentence}")

    def alive(self, message_id: str) -> Life | None:
        """The message's present life."""
        lives = self.lives.get(message_id)
        return lives[-1] if lives and lives[-1].ended is None else None

    def queued(self) -> list[Life]:
        return [life for lives in self.lives.values() for life in lives if life.claimed is None and life.ended is None]

    def due(self, lane: str) -> list[Life]:
        found = [life for life in self.queued() if life.lane == lane and life.place is not None]
        return sorted(found, key=lambda life: life.place or 0)

    def waking(self) -> bool:
        return not self.hold and any(life.wake and life.place is not None for life in self.queued())

    def _after(self, event: Event, following: Event | None) -> None:
        """S2, S3: nobody sees an idle agent with something to do. Acts are seen whole: only their last event counts."""
        settled = following is None or following.type not in SAME_ACT
        if self.idle and settled and self.waking():
            self.complain("S2", event, "an idle agent has a waking message")
        if self.idle and self.open:
            self.complain("S3", event, "an idle agent has an open turn")


SAME_ACT: Final = frozenset(
    {"agent/status", "inbox/released", "inbox/held", "inbox/cancelled", "turn/start", "goal/change", "session/closed"}
)
"""Events that may belong to the act of the event before them and complete it."""


def _queued(book: Book, event: Event) -> None:
    data = event.data
    lives = book.lives.setdefault(data["messageId"], [])
    if lives and (lives[-1].end != "dead" or not data.get("redrive")):
        book.complain("M3", event, f"{data['messageId']} is queued again and was not dead")
    if book.closed:
        book.complain("M9", event, "a closed session takes a message")
    not_before = data.get("notBefore")
    source = data["source"]
    if source["kind"] == "goal" and not (book.idle and not book.hold and not book.waking()):
        book.complain("G2", event, "a round is queued while the agent has something else to do")
    lives.append(
        Life(
            message_id=data["messageId"],
            queued=event.seq,
            lane=data["lane"],
            wake=data["wake"],
            goal=source.get("goalId") if source["kind"] == "goal" else None,
            place=event.seq if not_before is None or not_before <= event.time else None,
            not_before=not_before,
            expires_at=data.get("expiresAt"),
            words="".join(block["text"] for block in data["content"]),
        )
    )


def _claimed(book: Book, event: Event) -> None:
    data, names = event.data, list(event.data["messageIds"])
    if book.hold:
        book.complain("S7", event, "something is claimed while the queue is on hold")
    if not book.open or data["turn"] != book.turn:
        book.complain("T2", event, f"turn {data['turn']} claims and is not open")
    wanted = [life.message_id for life in book.due("next-step")]
    followups = book.due("next-turn")
    if "step" not in data:
        wanted += [life.message_id for life in followups[:1]]
        if followups and followups[0].goal and any(life.goal is None for life in followups):
            book.complain("G3", event, "a round is claimed while a person waits")
    if names != wanted:
        book.complain("T2", event, f"{names} is claimed and {wanted} was next")
    for name in names:
        life = book.alive(name)
        if life is None or life.claimed is not None:
            book.complain("M5", event, f"{name} is claimed and is not queued")
        else:
            life.claimed, life.claimed_by = event.seq, data["turn"]


def _ended(book: Book, event: Event) -> None:
    name, life = event.data["messageId"], book.alive(event.data["messageId"])
    if life is None:
        if event.type != "user/message" or name in book.lives:
            book.complain("M5", event, f"{name} ends a second time")
        return
    if event.type == "user/message":
        _admitted(book, event, life)
    elif event.type in ("inbox/rejected", "inbox/dead") and life.claimed is None:
        book.complain("M5", event, f"{name} was not claimed")
    elif event.type == "inbox/expired" and (life.claimed is not None or (life.expires_at or 0) > event.time):
        book.complain("M11", event, f"{name} expires and may not")
    life.ended, life.end = event.seq, ENDS[event.type]
    life.why = event.data.get("cause") or event.data.get("reason")


def _admitted(book: Book, event: Event, life: Life) -> None:
    if life.claimed_by != event.data["turn"] or not book.open:
        book.complain("T2", event, f"{life.message_id} is admitted by a turn that did not claim it")
    words = "".join(block["text"] for block in event.data["content"])
    if words != life.words:
        book.complain("M7", event, f"{life.message_id} says {words!r} and was {life.words!r}")
    if life.goal:
        book.rounds[life.goal] += 1
    if life.lane == "next-turn":
        book.order.append(life.message_id)


def _replaced(book: Book, event: Event) -> None:
    life = book.alive(event.data["messageId"])
    if life is None or life.claimed is not None:
        book.complain("M7", event, f"{event.data['messageId']} is replaced and is not queued")
    else:
        life.words = "".join(block["text"] for block in event.data["content"])


def _moved(book: Book, event: Event) -> None:
    life = book.alive(event.data["messageId"])
    if life is None or life.claimed is not None:
        book.complain("M7", event, f"{event.data['messageId']} is moved and is not queued")
    else:
        life.lane, life.place, life.moved, life.wake = event.data["lane"], event.seq, True, life.wake


def _due(book: Book, event: Event) -> None:
    life = book.alive(event.data["messageId"])
    if life is None or life.place is not None or (life.not_before or 0) > event.time:
        book.complain("M11", event, f"{event.data['messageId']} becomes due and may not")
    else:
        life.place = event.seq


def _status(book: Book, event: Event) -> None:
    idle = event.data["status"] == "idle"
    if idle == book.idle:
        book.complain("S1", event, "the status does not change")
    if idle and (book.open or book.waking()):
        book.complain("S3", event, "idle, and something is left")
    if idle and event.data.get("held", 0) != _held_count(book):
        book.complain("S7", event, f"says held {event.data.get('held')}; {_held_count(book)} are")
    book.idle = idle


def _held_count(book: Book) -> int:
    return sum(life.wake and life.place is not None for life in book.queued()) if book.hold else 0


def _hold(book: Book, event: Event) -> None:
    book.hold = event.type == "inbox/held"


def _turn_start(book: Book, event: Event) -> None:
    if book.open or event.data["turn"] != book.turn + 1 or book.closed:
        book.complain("T2", event, f"after turn {book.turn}")
    book.turn, book.open, book.cancel, book.step = event.data["turn"], True, None, 0
    book.starts[book.turn] = event.seq


def _turn_end(book: Book, event: Event) -> None:
    turn, kind = event.data["turn"], event.data["reason"]["kind"]
    if not book.open or turn != book.turn or turn in book.ends or book.step_open:
        book.complain("T3", event, f"turn {turn} ends and may not")
    if (kind == "aborted") != (book.cancel is not None):
        book.complain("C3", event, f"turn {turn} ends {kind}; its cancel is {book.cancel}")
    if kind == "aborted" and event.data["reason"].get("cause") != book.cancel:
        book.complain("C3", event, f"turn {turn} is aborted by {event.data['reason'].get('cause')}, not {book.cancel}")
    left = [life for lives in book.lives.values() for life in lives if life.claimed and life.ended is None]
    if left:
        book.complain("M10", event, f"{[life.message_id for life in left]} are claimed and have no end")
    steers = [life for life in book.due("next-step") if life.wake]
    if kind in ("completed", "max-tokens") and steers and not book.hold:
        book.complain("T6", event, f"turn {turn} completes while {steers[0].message_id} waits to steer it")
    book.open, book.ends[turn], book.cancel = False, kind, None


def _recovered(book: Book, event: Event) -> None:
    turn = event.data["turn"]
    if not book.open or turn != book.turn:
        book.complain("R3", event, f"turn {turn} is recovered and is not open")
    book.recoveries[turn] += 1
    book.crashes[turn] += event.data["reason"] == "crash"
    if event.data["attempt"] != 1 + book.crashes[turn]:
        book.complain("R3", event, f"attempt {event.data['attempt']} after {book.crashes[turn]} crashes")


def _cancel(book: Book, event: Event) -> None:
    turn = event.data.get("turn")
    book.cancels.append((event.seq, turn))
    if turn is not None and (not book.open or turn != book.turn):
        book.complain("C3", event, f"a cancel names turn {turn}, which is not open")
    if turn is None and book.open:
        book.complain("C3", event, "a cancel names no turn while one is open")
    if turn is not None and book.cancel is None:
        book.cancel = event.data["cause"]


def _step(book: Book, event: Event) -> None:
    starts = event.type == "step/start"
    if starts == book.step_open or not book.open or event.data["step"] != book.step + starts:
        book.complain("T3", event, f"in turn {book.turn} step {book.step}")
    book.step_open, book.step = starts, event.data["step"]


def _retry(book: Book, event: Event) -> None:
    book.retries[event.data["turn"], event.data["step"]] += 1


def _goal(book: Book, event: Event) -> None:
    goal = event.data["goal"]
    before = book.goal["revision"] if book.goal else 0
    if goal["revision"] != before + 1:
        book.complain("G1", event, f"revision {goal['revision']} after {before}")
    if event.data["operation"] != "clear" and goal["rounds"] != book.rounds[goal["goalId"]]:
        book.complain("G3", event, f"{goal['rounds']} rounds are counted, {book.rounds[goal['goalId']]} were admitted")
    book.goal = goal


def _closed(book: Book, event: Event) -> None:
    if not book.idle or book.open or book.queued():
        book.complain("M9", event, "a session is closed that has something to do")
    book.closed = True


RULES: Final[dict[str, Callable[[Book, Event], None]]] = {
    "inbox/queued": _queued,
    "inbox/claimed": _claimed,
    **dict.fromkeys(ENDS, _ended),
    "inbox/replaced": _replaced,
    "inbox/moved": _moved,
    "inbox/due": _due,
    "agent/status": _status,
    "inbox/held": _hold,
    "inbox/released": _hold,
    "turn/start": _turn_start,
    "turn/end": _turn_end,
    "turn/recovered": _recovered,
    "cancel/requested": _cancel,
    "step/start": _step,
    "step/end": _step,
    "llm/retry": _retry,
    "goal/change": _goal,
    "session/closed": _closed,
}


# -- a run ----------------------------------------------------------------------------------------------------


def verdict(world: World) -> list[str]:
    """Everything that is wrong with a run; empty when every promise was kept."""
    wrong = list(world.witness.broken)
    if world.rested_s is None:
        wrong.append("liveness: the world did not come to rest; " + "; ".join(_restless(world)))
    for session_id, ledger in world.witness.ledgers.items():
        wrong += [f"{session_id}: {sentence}" for sentence in invariants.violations(ledger)]
        book = Book(session_id).read(ledger)
        wrong += book.wrong
        wrong += _order(ledger, book)
        wrong += _store(world, session_id, ledger)
        if world.rested_s is not None:
            wrong += _rested(book)
        attempts = [attempt for attempt in world.load.history if attempt.session_id == session_id]
        wrong += [*_receipts(book, attempts), *_cancels(book, ledger, attempts)]
        calls = [call for call in world.witness.model_calls if call.session_id == session_id]
        wrong += _model_calls(book, calls)
    return wrong


def _restless(world: World) -> Iterator[str]:
    for session_id, session in world.sessions.items():
        yield f"{session_id} is {session.status}, turn {session.turn} {session.phase}, {session.pending} pending"


def _order(ledger: Sequence[Event], book: Book) -> Iterator[str]:
    """L1, L3, M4."""
    for number, event in enumerate(ledger, 1):
        if event.seq != number:
            yield f"L1 {book.session_id}: seq {event.seq} at place {number}"
    for one, other in pairwise(ledger):
        if other.time < one.time or other.epoch < one.epoch:
            yield f"L1 {book.session_id}: seq {other.seq} goes back in time or epoch"
    plain = [life for lives in book.lives.values() for life in lives if not life.moved and life.lane == "next-turn"]
    entered = sorted((life for life in plain if life.claimed and not life.goal), key=lambda life: life.claimed or 0)
    for before, after in pairwise(entered):
        if (before.place or 0) > (after.place or 0):
            yield f"M4 {book.session_id}: {after.message_id} was before {before.message_id} and entered after it"


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


def _receipts(book: Book, attempts: Sequence[Attempt]) -> Iterator[str]:
    """M1, M3, M4: what clients were told of their messages is so."""
    by_name: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.operation in ("queue", "steer", "inject"):
            by_name.setdefault(attempt.message_id, []).append(attempt)
    for name, tries in by_name.items():
        yield from _told(book, name, tries)
    fresh = [a for tries in by_name.values() for a in tries if a.answer is not None and not a.answer.duplicate]
    for one in fresh:
        for other in fresh:
            if (one.ended or 0) < other.begun and one.answer.cursor > other.answer.cursor:
                yield f"M4 {book.session_id}: {one.message_id} was received before {other.message_id} was sent"


def _told(book: Book, name: str, tries: Sequence[Attempt]) -> Iterator[str]:
    """One message: what its sender was told at each try."""
    lives = book.lives.get(name, [])
    receipts = [attempt.answer for attempt in tries if attempt.answer is not None]
    for receipt in receipts:
        if not any(life.queued == receipt.cursor for life in lives):
            yield f"M1 {book.session_id}: the receipt of {name} names seq {receipt.cursor}, where it is not"
    if sum(not receipt.duplicate for receipt in receipts) > 1:
        yield f"M3 {book.session_id}: {name} was accepted as new twice"
    if lives and all(attempt.refused and attempt.refused not in NOT_KNOWN for attempt in tries):
        yield f"M1 {book.session_id}: {name} was refused ({tries[0].refused}) and is in the ledger"


def _cancels(book: Book, ledger: Sequence[Event], attempts: Sequence[Attempt]) -> Iterator[str]:
    """C1, C3: a cancel that was requested of a turn is there and names it; a refused one is not."""
    for attempt in attempts:
        if attempt.operation == "cancel" and attempt.answer is not None:
            turn = attempt.answer.turn
            named = [seq for seq, of in book.cancels if of == turn]
            if attempt.answer.outcome == "requested" and turn is not None and not named:
                yield f"C1 {book.session_id}: a cancel of turn {turn} was requested and is not in the ledger"
            if turn is not None and turn in book.ends and book.ends[turn] != "aborted":
                yield f"C3 {book.session_id}: turn {turn} was cancelled and ended {book.ends[turn]}"
    asked = [a for a in attempts if a.operation in ("cancel", "close") and a.refused not in ("not-open", "not-found")]
    if len(book.cancels) > len(asked):
        yield f"C3 {book.session_id}: {len(book.cancels)} cancels in the ledger, {len(asked)} were asked for"


def _model_calls(book: Book, calls: Sequence[ModelCall]) -> Iterator[str]:
    """T8, R3: a step's model is called again only after a failure that the ledger names, or by a new owner."""
    counted = Counter((call.turn, call.step) for call in calls)
    for (turn, step), number in counted.items():
        may = (1 + book.recoveries[turn]) * 2 + book.retries[turn, step]
        if number > may:
            yield f"R3 {book.session_id} turn {turn} step {step}: {number} model calls where {may} may be"


def letters(world: World) -> list[DeadLetter]:
    """All dead letters."""
    found: list[DeadLetter] = at_once(world.kept.dead(after="", limit=10_000))
    return found

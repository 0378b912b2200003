"""A ledger as somebody reads it who knows the semantics and nothing else: one pass, one act after the other.

    act = events that one call of the store appended --> Book.read(act) --> lives, turns, status ... and what is wrong

Rule 1: nothing of the product decides here. This is written from the semantics anew, so that an error of the core's
        own rules, which `invariants` would share, shows.
Rule 2: between two acts everything must hold; inside of one nobody can look.
Rule 3: a sentence names the rule that is broken, the session, and the place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mailslot_core.session import Event

ENDS: Final = {
    "inbox/cancelled": "cancelled",
    "inbox/rejected": "rejected",
    "inbox/expired": "expired",
    "inbox/dead": "dead",
    "user/message": "admitted",
}
"""Events that end a message's life."""

DOOR_KINDS: Final = frozenset({"user", "system", "plugin"})
"""Whose waking message ends a hold (S7)."""

FAILURES: Final = frozenset({"error", "blocked", "interrupted"})
"""Ends of a turn after which a session of `onFailure: hold` holds its queue (T7)."""


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
    claimed_at: int | None = None  # store clock
    claimed_by: int | None = None
    ended: int | None = None
    end: str | None = None
    why: str | None = None
    step: int | None = None  # that admitted it
    moved: bool = False


@dataclass
class Book:
    """One pass over one ledger. `wrong` is what breaks a rule."""

    session_id: str
    crashes_max: int = 3
    rewrites: bool = False  # a hook may change what a message says
    seq: int = 0
    epoch: int = 0
    time: int = 0
    on_failure: str = "continue"
    closing: bool = False
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
    answered: set[tuple[int, int]] = field(default_factory=set)
    calls: dict[str, str] = field(default_factory=dict)  # of the open step, without those that have a result
    cancels: list[tuple[int, int | None]] = field(default_factory=list)  # seq, the turn that it names
    goal: Mapping[str, Any] | None = None
    goal_cleared: bool = False

    def read(self, act: Sequence[Event]) -> None:
        """The events of one act."""
        for event in act:
            if event.seq != self.seq + 1 or event.epoch < self.epoch or event.time < self.time:
                self.complain("L1", event, f"after seq {self.seq}, epoch {self.epoch}, time {self.time}")
            self.seq, self.epoch, self.time = event.seq, event.epoch, event.time
            rule = RULES.get(event.type)
            if rule is not None:
                rule(self, event)
        if act:
            self._between_acts(act)

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

    def claims(self) -> list[Life]:
        """What is claimed and has no end, in the order of the claims."""
        found = [life for lives in self.lives.values() for life in lives if life.claimed and life.ended is None]
        return sorted(found, key=lambda life: life.claimed or 0)

    @property
    def goal_goes_on(self) -> bool:
        return self.goal is not None and self.goal["phase"] == "active" and not self.goal_cleared

    def _between_acts(self, act: Sequence[Event]) -> None:
        """Rule 2: what holds whenever somebody can look."""
        last = act[-1]
        if self.idle and self.waking():
            self.complain("S2", last, "an idle agent has a waking message")
        if not (self.idle or self.open or self.claims() or self.waking()):
            self.complain("S6", last, "a running agent has nothing left to do")
        if self.idle and (self.open or self.claims()):
            self.complain("S3", last, "an idle agent has an open turn")
        ended = {event.data["reason"]["kind"] for event in act if event.type == "turn/end"}
        if ended - {"completed"} and self.goal_goes_on:
            self.complain("G4", last, f"a turn ended {ended} and the goal goes on")
        if ended & FAILURES and self.on_failure == "hold" and not self.hold:
            self.complain("T7", last, f"a turn ended {ended} and the queue is not on hold")
        if (
            any(event.type == "cancel/requested" and event.data["cause"] == "user" for event in act)
            and self.goal_goes_on
        ):
            self.complain("C1", last, "a user has cancelled and the goal goes on")
        if self.hold and any(_wakes_through_door(event) for event in act):
            self.complain("S7", last, "the hold outlives a person's message")
        if self.closed and (self.queued() or not self.idle):
            self.complain("M9", last, "a closed session has something to do")


def _wakes_through_door(event: Event) -> bool:
    data = event.data
    due = event.type == "inbox/queued" and data.get("notBefore", 0) <= event.time
    return due and data["wake"] and data["source"]["kind"] in DOOR_KINDS


def _created(book: Book, event: Event) -> None:
    book.on_failure = event.data["onFailure"]


def _queued(book: Book, event: Event) -> None:
    data = event.data
    lives = book.lives.setdefault(data["messageId"], [])
    if lives and (lives[-1].end != "dead" or not data.get("redrive")):
        book.complain("M3", event, f"{data['messageId']} is queued again and was not dead")
    if book.closed or book.closing:
        book.complain("M9", event, "a session that is closed takes a message")
    not_before = data.get("notBefore")
    source = data["source"]
    if source["kind"] == "goal":
        _round(book, event)
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


def _round(book: Book, event: Event) -> None:
    source, goal = event.data["source"], book.goal
    if not book.idle or book.hold or book.waking():
        book.complain("G2", event, "a round is queued while the agent has something else to do")
    named = (source["goalId"], source["revision"], source["round"])
    if goal is None or not book.goal_goes_on or named != (goal["goalId"], goal["revision"], book.rounds[named[0]] + 1):
        book.complain("G2", event, f"round {named} is queued and the goal is {goal}")


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
            life.claimed, life.claimed_at, life.claimed_by = event.seq, event.time, data["turn"]


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
    if words != life.words and not book.rewrites:
        book.complain("M7", event, f"{life.message_id} says {words!r} and was {life.words!r}")
    life.step = event.data["step"]
    if life.goal:
        book.rounds[life.goal] += 1


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
    if not idle and not book.waking():
        book.complain("S2", event, "running, and nothing wakes")
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
    if left := book.claims():
        book.complain("M10", event, f"{[life.message_id for life in left]} are claimed and have no end")
    if kind == "interrupted" and book.crashes[turn] != book.crashes_max - 1:
        book.complain("R5", event, f"turn {turn} is given up after {book.crashes[turn]} recoveries from crashes")
    steers = [life for life in book.due("next-step") if life.wake]
    if kind in ("completed", "max-tokens") and steers and not book.hold:
        book.complain("T6", event, f"turn {turn} completes while {steers[0].message_id} waits to steer it")
    book.open, book.ends[turn], book.cancel = False, kind, None


def _recovered(book: Book, event: Event) -> None:
    turn = event.data["turn"]
    if not book.open or turn != book.turn:
        book.complain("R3", event, f"turn {turn} is recovered and is not open")
    book.recoveries[turn] += 1
    if event.data["reason"] == "crash":
        book.crashes[turn] += 1
    if event.data["attempt"] != 1 + book.crashes[turn]:
        book.complain("R3", event, f"attempt {event.data['attempt']} after {book.crashes[turn]} crashes")
    if event.data["attempt"] > book.crashes_max:
        book.complain("R5", event, f"attempt {event.data['attempt']} of at most {book.crashes_max}")


def _cancel(book: Book, event: Event) -> None:
    turn = event.data.get("turn")
    book.cancels.append((event.seq, turn))
    if turn is not None and (not book.open or turn != book.turn):
        book.complain("C3", event, f"a cancel names turn {turn}, which is not open")
    if turn is None and book.open:
        book.complain("C3", event, "a cancel names no turn while one is open")
    if turn is not None and book.cancel is None:
        book.cancel = event.data["cause"]
    book.closing = book.closing or event.data.get("closing", False)


def _step(book: Book, event: Event) -> None:
    starts = event.type == "step/start"
    if starts == book.step_open or not book.open or event.data["step"] != book.step + starts:
        book.complain("T3", event, f"in turn {book.turn} step {book.step}")
    if book.calls:
        book.complain("T3", event, f"calls {sorted(book.calls)} have no result")
    book.step_open, book.step = starts, event.data["step"]


def _answer(book: Book, event: Event) -> None:
    place = (event.data["turn"], event.data["step"])
    if place != (book.turn, book.step) or not book.step_open or place in book.answered:
        book.complain("T9", event, f"a second answer, or one outside its step, in turn {book.turn} step {book.step}")
    if event.data.get("interrupted") and book.cancel is None:
        book.complain("T9", event, "an answer is interrupted, and nobody cancelled")
    book.answered.add(place)
    book.calls = {call["callId"]: "asked" for call in event.data.get("toolCalls", ())}


def _call(book: Book, event: Event) -> None:
    if book.calls.get(event.data["callId"]) != "asked":
        book.complain("T3", event, f"call {event.data['callId']} was not asked for, or was started before")
    book.calls[event.data["callId"]] = "started"


def _result(book: Book, event: Event) -> None:
    if book.calls.pop(event.data["callId"], None) is None:
        book.complain("T3", event, f"call {event.data['callId']} has a result already, or was not asked for")


def _retry(book: Book, event: Event) -> None:
    book.retries[event.data["turn"], event.data["step"]] += 1


def _goal(book: Book, event: Event) -> None:
    goal = event.data["goal"]
    before = book.goal["revision"] if book.goal else 0
    if goal["revision"] != before + 1:
        book.complain("G1", event, f"revision {goal['revision']} after {before}")
    if event.data["operation"] != "clear" and goal["rounds"] != book.rounds[goal["goalId"]]:
        book.complain("G3", event, f"{goal['rounds']} rounds are counted, {book.rounds[goal['goalId']]} were admitted")
    book.goal, book.goal_cleared = goal, event.data["operation"] == "clear"


def _closed(book: Book, event: Event) -> None:
    if book.closed:
        book.complain("M9", event, "a session is closed twice")
    book.closed, book.closing = True, False


RULES: Final[dict[str, Callable[[Book, Event], None]]] = {
    "session/created": _created,
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
    "assistant/message": _answer,
    "tool/call": _call,
    "tool/result": _result,
    "llm/retry": _retry,
    "goal/change": _goal,
    "session/closed": _closed,
}

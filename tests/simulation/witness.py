"""Who sees everything as it happens: each event in the moment it is appended, each call of a model or a tool.

    store --acts--> World --events--> Witness.ledgers
    mind  --begins, ends------------> Witness.model_calls, .tool_runs, .broken

Rule 1: it looks at ledgers only, and shares no code with what it watches: what it expects it computes by itself.
Rule 2: a promise that is about a moment is checked in that moment (what was committed before a tool ran); all others
        are checked at the end, by `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from mailslot_core.agent import AssistantEntry, Effect, Entry, Request, UserEntry
from mailslot_core.session import Event
from tests.simulation.acts import CHECKS, Leases, Seen
from tests.simulation.book import Book
from tests.simulation.scheduler import OWNER, Process, Scheduler

CANCELS: Final = frozenset({"cancel", "close_session"})
"""Acts that may cancel a turn: no hook of the simulation aborts."""


RELEASES: Final = frozenset({"submit", "move", "release", "redrive", "goal_change"})
"""Acts that may end a hold (S7): those of people and backends."""

THAWED_S: Final = 0.25
"""How long a process that was frozen may take to find out that its leases are over: it looks 20 times a lease."""


@dataclass(eq=False, slots=True)
class ModelCall:
    """One call of a model. `freezes` is how often its process had been frozen when it began."""

    session_id: str
    turn: int
    step: int
    model: str
    process: Process
    begun: float
    seq: int
    freezes: int
    ended: float | None = None

    @property
    def goes_on(self) -> bool:
        """Somebody is really waiting for it: its process lives, and was not frozen since."""
        return self.ended is None and self.process.runs and self.process.freezes == self.freezes


@dataclass(slots=True)
class ToolRun:
    """One run of a tool."""

    name: str
    effect: Effect
    key: str
    process: str
    begun: float


@dataclass
class Witness:
    """What was seen, and what was wrong with it at once."""

    rng: Random
    loop: Scheduler
    ledgers: dict[str, list[Event]]
    now_ms: Callable[[], int]  # the store's clock
    partition: Callable[[str], int]
    model_calls: list[ModelCall] = field(default_factory=list)
    tool_runs: list[ToolRun] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    erased: list[tuple[str, list[Event], Book]] = field(default_factory=list)
    books: dict[str, Book] = field(default_factory=dict)
    crashes_max: int = 3
    _serial: int = 0
    _active: dict[str, list[ModelCall]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leases = Leases(self.complain)
        for session_id in self.ledgers:
            self.books[session_id] = Book(session_id, self.crashes_max)

    def clock_jumps(self) -> None:
        """Leases may end early from now on."""
        self.leases.jumped = True

    def next_call_id(self) -> str:
        self._serial += 1
        return f"c{self._serial}"

    def complain(self, sentence: str) -> None:
        self.broken.append(f"at {self.loop.time():.4f} s: {sentence}")

    # -- acts -------------------------------------------------------------------------------------------------

    def acted(self, seen: Seen, appended: Sequence[tuple[str, Event]]) -> None:
        """An act of the store: hold its answer to the ledger before and after it."""
        if seen.refused is not None and appended:
            self.complain(f"{seen.name} was refused {seen.refused} and appended {appended[0]}")
        if seen.name not in RELEASES and any(event.type == "inbox/released" for _, event in appended):
            self.complain(f"{seen.name} ended a hold")
        if seen.name not in CANCELS and any(event.type == "cancel/requested" for _, event in appended):
            self.complain(f"{seen.name} appended a cancel that nobody asked for")
        named = seen.arguments[0] if seen.arguments and isinstance(seen.arguments[0], str) else ""
        book, check = self.books.get(named), CHECKS.get(seen.name)
        going = check(book, seen, self.complain) if book is not None and check is not None else iter(())
        next(going, None)
        acts: dict[str, list[Event]] = {}
        for session_id, event in appended:
            self.ledgers[session_id].append(event)
            acts.setdefault(session_id, []).append(event)
        for session_id, events in acts.items():
            self.books[session_id].read(events)
            if any(event.type == "agent/status" and event.data["status"] == "idle" for event in events):
                self._ended(session_id)
        next(going, None)
        if seen.name == "sweep" and seen.refused is None:
            self._swept(seen.arguments[0])
        self.leases.see(seen, self.loop.time(), appended)

    def _swept(self, partition: int) -> None:
        """M11: a sweep leaves nothing behind whose time has come."""
        now = self.now_ms()
        for session_id, book in self.books.items():
            if self.partition(session_id) != partition:
                continue
            for life in book.queued():
                late = life.place is None and (life.not_before or 0) <= now
                if late or (life.expires_at is not None and life.expires_at <= now):
                    self.complain(f"a sweep left {life.message_id} of {session_id} behind, whose time had come")

    def forgotten(self, session_id: str) -> None:
        """The session was erased; another one may take its name."""
        book = self.books[session_id]
        if book.open:
            self.complain(f"{session_id} is erased while turn {book.turn} is open")
        self.erased.append((session_id, self.ledgers[session_id], book))
        self.ledgers[session_id] = []
        self.books[session_id] = Book(session_id, self.crashes_max, book.rewrites)

    # -- models -----------------------------------------------------------------------------------------------

    def model_begins(self, request: Request) -> object:
        """The call, once it was held to what must be so before a model is called."""
        ledger = self.ledgers[request.session_id]
        process = OWNER.get()
        assert process is not None
        call = ModelCall(
            request.session_id,
            request.turn,
            request.step,
            "",
            process,
            self.loop.time(),
            len(ledger),
            process.freezes,
        )
        self._alone(call)
        self._told_the_truth(request, call, ledger)
        self.model_calls.append(call)
        self._active.setdefault(call.session_id, []).append(call)
        return call

    def model_ends(self, call: object) -> None:
        if self.loop.closing:
            return
        assert isinstance(call, ModelCall)
        call.ended = self.loop.time()
        self._active[call.session_id].remove(call)

    def _alone(self, call: ModelCall) -> None:
        """T1: one worker drives a session at a time. When a clock jumps, leases end early and only the fence holds."""
        others = [other for other in self._active.get(call.session_id, ()) if other.goes_on]
        # Who was frozen between the store's answer and the call cannot know better: it looks at its lease soon after.
        just_thawed = self.loop.time() - call.process.thawed_s < THAWED_S
        if others and not self.leases.jumped and not just_thawed:
            self.complain(
                f"{call.process.name} calls a model for {call.session_id} turn {call.turn} step {call.step} "
                f"while {others[0].process.name} is waiting for one since {others[0].begun:.4f} s"
            )

    def _ended(self, session_id: str) -> None:
        """C4: idle is said when work has really ended, by everybody who is not cut off from knowing."""
        now = self.loop.time()
        on = [call for call in self._active.get(session_id, ()) if call.goes_on]
        aware = [call for call in on if now - call.process.thawed_s >= THAWED_S]
        if aware and not self.leases.jumped:
            self.complain(f"{session_id} is idle, and {aware[0].process.name} waits for its model")

    def _told_the_truth(self, request: Request, call: ModelCall, ledger: Sequence[Event]) -> None:
        """L6: the transcript is the ledger's, up to what this step admitted."""
        told, step = [plain(entry) for entry in request.transcript], (request.turn, request.step)
        wrong = shape(told)
        if wrong:
            self.complain(f"{request.session_id} turn {step[0]} step {step[1]}: the model is told {wrong}")
        known = transcript(until_answer(ledger, *step))
        begun = any(e.type == "step/start" and (e.data["turn"], e.data["step"]) == step for e in ledger)
        over = any(e.type == "turn/end" and e.data["turn"] == request.turn for e in ledger)
        # A model that answers at once is asked before its step is committed, by a zombie even after it was closed.
        fits = told == known if begun else over or told[: len(known)] == known
        # One that lost its lease unawares may have read what its successor wrote: its answer will be refused.
        unaware = call.process.freezes > 0 or self.leases.jumped
        fits = fits or (unaware and told == transcript(ledger)[: len(told)])
        if not fits:
            self.complain(f"{request.session_id} turn {step[0]} step {step[1]}: the model is told {told}, not {known}")

    # -- tools ------------------------------------------------------------------------------------------------

    def tool_begins(self, name: str, effect: Effect, arguments: Mapping[str, Any], effect_key: str) -> None:
        """R3: what runs was committed as started before; what is unsafe runs once."""
        process = OWNER.get()
        assert process is not None
        session_id, *_, call_id = effect_key.split("/")
        started = [e for e in self.ledgers[session_id] if e.type == "tool/call" and e.data["callId"] == call_id]
        if not started:
            self.complain(f"tool {name} runs for {effect_key}, and no tool/call says so")
        elif (started[0].data["name"], dict(started[0].data["arguments"])) != (name, dict(arguments)):
            self.complain(f"tool {name} runs for {effect_key} with what was not asked for")
        before = [run for run in self.tool_runs if run.key == effect_key]
        if before and effect is Effect.UNSAFE:
            self.complain(f"unsafe tool {name} runs again for {effect_key}; {before[0].process} ran it before")
        recovered = sum(e.type == "turn/recovered" for e in self.ledgers[session_id])
        if len(before) > recovered:
            self.complain(f"tool {name} runs {len(before) + 1} times for {effect_key}, after {recovered} recoveries")
        self.tool_runs.append(ToolRun(name, effect, effect_key, process.name, self.loop.time()))


# -- what a model should be told ------------------------------------------------------------------------------


def until_answer(ledger: Sequence[Event], turn: int, step: int) -> Iterable[Event]:
    """The ledger up to the end of this step's question: what its model may know."""
    for event in ledger:
        over = event.type in ("assistant/message", "step/end") and event.data["step"] == step
        if (over or event.type == "turn/end") and event.data["turn"] == turn:
            return
        yield event


def transcript(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """What was said, in plain tuples."""
    said: list[tuple[Any, ...]] = []
    for event in events:
        data = event.data
        if event.type == "user/message":
            said.append(("user", _words(data["content"])))
        elif event.type == "assistant/message":
            calls = tuple((call["callId"], call["name"]) for call in data.get("toolCalls", ()))
            said.append(("assistant", _words(data["content"]), calls))
        elif event.type == "tool/result":
            said.append(("tool", data["callId"], data.get("error", {}).get("code")))
    return said


def plain(entry: Entry) -> tuple[Any, ...]:
    """An entry of a request in the same tuples."""
    if isinstance(entry, UserEntry):
        return ("user", _words(entry.content))
    if isinstance(entry, AssistantEntry):
        return ("assistant", entry.text, tuple((call.call_id, call.name) for call in entry.calls))
    return ("tool", entry.call_id, entry.error)


def _words(content: Iterable[Mapping[str, Any]]) -> str:
    return "".join(block.get("text", "") for block in content)


def shape(said: Sequence[tuple[Any, ...]]) -> str | None:
    """What a provider would refuse a history for: results right after the calls, one each, and somebody to answer."""
    open_calls: set[str] = set()
    for number, entry in enumerate(said):
        if entry[0] == "tool":
            if entry[1] not in open_calls:
                return f"a result of {entry[1]} at place {number}, which no call before it asked for"
            open_calls.discard(entry[1])
            continue
        if open_calls:
            return f"a message at place {number} before the results of {sorted(open_calls)}"
        if entry[0] == "assistant":
            open_calls = {call_id for call_id, _ in entry[2]}
    if open_calls:
        return f"no results of {sorted(open_calls)}"
    if said and said[0][0] != "user":
        return "an answer to nobody"
    return None if said else "nothing"

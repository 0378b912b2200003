"""Models under a test's hand: held, scripted, watched.

    request --noted--> [held?] --> cues (scripts)  --the scripted model--> answer
                                   none at all     --the agent's own-----> answer

Rule 1: a script is read and played by the code that reads and plays those of agents.toml; here it is only decided
        which rule comes first.
Rule 2: `per: session` counts the answers since the rule was given. They are counted in the ledger, so a recovered step
        is answered as it was the first time.
Rule 3: a script that crashes its process kills the worker, not the test.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from mailslot.testing.port import PATIENCE_S, ModelCall
from mailslot_core.agent import Answer, AssistantEntry, Entry, Model, ModelError, OnDelta, Request, ToolEntry
from mailslot_services.agent_worker.models import Gates, ScriptedModel
from mailslot_services.agent_worker.models.script import Failure, Rule, Say, Script, Seen, parse_script
from mailslot_services.agent_worker.transcript import newest_user_text

CRASHED: Final = "testbed-crashed"
"""Code of the failure that stands for a crash until it is caught here."""

CALLS_MAX: Final = 100_000
"""Model calls that are remembered; a test that makes more has other questions."""

AnsweredBefore = Callable[[], Mapping[str, int]]
"""How many answers each session has by now."""


class Stage:
    """The handle of all models of an engine: it implements `mailslot.testing.Model`. `wake` runs something on the
    engine's loop."""

    def __init__(self, wake: Callable[[Callable[[], object]], object]) -> None:
        self._wake = wake
        self._state = threading.Condition()
        self._holds = 0
        self._calls: list[ModelCall] = []
        self._held: list[ModelCall] = []
        self._let_go = asyncio.Event()
        self._let_go.set()
        self._reached: set[str] = set()
        self.gates = Gates()

    # -- for the test -------------------------------------------------------------------------------------------

    @property
    def calls(self) -> Sequence[ModelCall]:
        """See `Model.calls`."""
        with self._state:
            return tuple(self._calls)

    @contextmanager
    def held(self) -> Iterator[None]:
        """See `Model.held`."""
        self.hold()
        try:
            yield
        finally:
            self.let_go()

    def hold(self) -> None:
        """See `Model.hold`. Holds are counted: who is held twice is let go twice."""
        with self._state:
            self._holds += 1
        self._wake(self._let_go.clear)

    def let_go(self) -> None:
        """See `Model.let_go`."""
        with self._state:
            if not self._holds:
                raise RuntimeError("the model is not held")
            self._holds -= 1
            if self._holds:
                return
        self._wake(self._let_go.set)

    def wait_held(self, *, count: int = 1, timeout: float = PATIENCE_S) -> Sequence[ModelCall]:
        """See `Model.wait_held`."""
        self._wait(lambda: len(self._held) >= count, timeout, f"{count} model calls to be held")
        with self._state:
            return tuple(self._held)

    def wait_gate(self, name: str, *, timeout: float = PATIENCE_S) -> None:
        """See `Model.wait_gate`."""
        self._wait(lambda: name in self._reached, timeout, f"a model to come to gate {name}")

    def open_gate(self, name: str) -> None:
        """See `Model.open_gate`."""
        self._wake(lambda: self.gates.open(name))

    def close_gate(self, name: str) -> None:
        """See `Model.close_gate`."""
        with self._state:
            self._reached.discard(name)
        self._wake(lambda: self.gates.close(name))

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        with self._state:
            if not self._state.wait_for(condition, timeout):
                raise AssertionError(f"waited {timeout:g} s for {what}; asked so far: {[c.text for c in self._calls]}")

    # -- for the models -----------------------------------------------------------------------------------------

    async def enter(self, call: ModelCall) -> None:
        """A model is asked; it goes on once nobody holds it."""
        with self._state:
            if len(self._calls) < CALLS_MAX:
                self._calls.append(call)
        if self._let_go.is_set():
            return
        try:
            self._note(lambda: self._held.append(call))
            await self._let_go.wait()
        finally:
            self._note(lambda: self._held.remove(call))

    async def wait(self, name: str) -> None:
        """See `GateKeeper.wait`."""
        self._note(lambda: self._reached.add(name))
        await self.gates.wait(name)

    def _note(self, change: Callable[[], object]) -> None:
        with self._state:
            change()
            self._state.notify_all()


# -- cues ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cue:
    """A rule, and how many answers each session had when it was given."""

    rule: Rule
    before: Mapping[str, int]
    first: bool


class _Since(Seen):
    """A request as a rule sees it that was given later than the session began."""

    def __init__(self, request: Request, before: int) -> None:
        super().__init__(request)
        self._before = before

    def answered(self, per: str) -> int:
        """See `Seen.answered`."""
        found = super().answered(per)
        return found if per == "message" else found - self._before


class Cues:
    """What an agent was given to say: what has a condition first, then what was given last (`Server.answers`), then the
    agent's script. The scripted model takes it for a script."""

    def __init__(self, script: Sequence[object], named: str) -> None:
        self._named = named
        rules = parse_script(list(script), named).rules if script else ()
        self._cues = [Cue(rule, {}, first=False) for rule in rules]
        self.gate_names: Sequence[str] = ()  # whoever opens them is there

    def __bool__(self) -> bool:
        return bool(self._cues)

    def add(self, rule: Mapping[str, Any], before: Mapping[str, int], *, first: bool) -> None:
        """Another rule. Misconfigured says what is wrong with it."""
        (parsed,) = parse_script([dict(rule)], self._named).rules
        behind = 0 if first else sum(cue.first for cue in self._cues)
        self._cues.insert(behind, Cue(parsed, before, first))

    def answer(self, seen: Seen) -> Say | None:
        """See `Script.answer`."""
        request = seen.request
        found = (cue.rule.answer(_Since(request, cue.before.get(request.session_id, 0))) for cue in self._cues)
        say = next((each for each in found if each is not None), None)
        if say is not None and say.crash:
            failed = Failure(code=CRASHED, message="the worker crashes", retryable=False)
            return say.model_copy(update={"crash": False, "fail": failed})
        return say


class StagedModel:
    """The model of an agent: what it was given to say, else its own."""

    instant = False  # whoever may be held is waited for

    def __init__(self, agent: str, own: Model, cues: Cues, stage: Stage, crash: Callable[[], object]) -> None:
        self._agent, self._own, self._cues, self._stage, self._crash = agent, own, cues, stage, crash
        self._scripted = ScriptedModel(cast("Script", cues), gates=stage)

    @property
    def name(self) -> str:
        """What `assistant/message.model` says."""
        return self._scripted.name if self._cues else self._own.name

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """See `Model.answer`."""
        await self._stage.enter(noted(self._agent, request))
        if not self._cues:
            return await self._own.answer(request, on_delta)
        try:
            return await self._scripted.answer(request, on_delta)
        except ModelError as error:
            if error.code != CRASHED:
                raise
        self._crash()
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never  # until the worker is dead


def noted(agent: str, request: Request) -> ModelCall:
    """A request as a test is shown it."""
    return ModelCall(
        agent=agent,
        session_id=request.session_id,
        turn=request.turn,
        step=request.step,
        attempt=request.attempt,
        text=newest_user_text(request.transcript),
        instructions=request.instructions,
        tools=tuple(spec.name for spec in request.tools),
        transcript=tuple(_shown(entry) for entry in request.transcript),
    )


def _shown(entry: Entry) -> Mapping[str, Any]:
    if isinstance(entry, AssistantEntry):
        calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in entry.calls]
        return {"role": "assistant", "text": entry.text, **({"calls": calls} if calls else {})}
    if isinstance(entry, ToolEntry):
        return {
            "role": "tool",
            "name": entry.name,
            "text": entry.content,
            **({"error": entry.error} if entry.error else {}),
        }
    return {"role": "user", "text": newest_user_text([entry])}

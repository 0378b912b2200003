"""Whatever thinks and acts in the simulation: a model and three tools that do as the seed says, in front of a witness.

    Turn --Model port--> Mind: thinks, streams, fails, calls tools          each call is told to the witness,
         --Tool port---> look (readonly) pay (idempotent) launch (unsafe)   which knows the ledger of that moment
         --hook--------> Usher: enters, rewrites, adds, rejects, fails

Rule 1: nothing here knows the store or the worker; what they promise of a call is checked by the witness.
Rule 2: a model that answers at once (`instant`) waits for nothing, or it would break its own promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from mailslot.hooks import Batch, Rejection
from mailslot_core.agent import (
    Answer,
    Effect,
    Finish,
    Model,
    ModelError,
    OnDelta,
    Request,
    Tool,
    ToolCall,
    ToolError,
    ToolSpec,
    Usage,
)
from mailslot_services.agent_worker.agents import Agent, Limits
from mailslot_services.agent_worker.hooks import AdmissionHook

STEPS_WITH_TOOLS: Final = 3
"""Steps of a turn in which the model may still ask for tools."""


@dataclass(frozen=True, slots=True)
class Mood:
    """How the models and tools of a run are. Times in seconds, the rest are chances."""

    thinks_s: float = 0.3
    thinks_long: float = 0.1  # chance of a think of up to `long_s`, longer than a lease
    long_s: float = 6.0
    calls: float = 0.4
    fails: float = 0.1
    fails_for_good: float = 0.03
    breaks: float = 0.01  # raises what no model may raise
    truncates: float = 0.03
    tool_fails: float = 0.1


class Witness(Protocol):
    """Who sees every call, and knows whether it may be."""

    rng: Random

    def model_begins(self, request: Request) -> object:
        """A model was called."""
        ...

    def model_ends(self, call: object) -> None:
        """It answered, failed or was stopped."""
        ...

    def tool_begins(self, name: str, effect: Effect, arguments: Mapping[str, Any], effect_key: str) -> None:
        """A tool was called."""
        ...

    def next_call_id(self) -> str:
        """A callId that no other call has."""
        ...


@dataclass(frozen=True, slots=True)
class Mind:
    """A model. Its words mean nothing; when it says them does."""

    name: str
    witness: Witness
    mood: Mood
    instant: bool = False

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """One attempt."""
        call = self.witness.model_begins(request)
        try:
            if not self.instant:
                await self._think(on_delta)
            return self._say(request)
        finally:
            self.witness.model_ends(call)

    async def _think(self, on_delta: OnDelta) -> None:
        rng, mood = self.witness.rng, self.mood
        seconds = rng.uniform(0, mood.long_s if rng.random() < mood.thinks_long else mood.thinks_s)
        for word in ("well, ", "yes"):
            await asyncio.sleep(seconds / 3)
            await on_delta(word)
        await asyncio.sleep(seconds / 3)

    def _say(self, request: Request) -> Answer:
        rng, mood = self.witness.rng, self.mood
        luck = rng.random()
        if luck < mood.breaks:
            raise ZeroDivisionError("the model is broken")
        if luck < mood.breaks + mood.fails_for_good:
            raise ModelError("bad-request", "the model refuses this request", retryable=False)
        if luck < mood.breaks + mood.fails_for_good + mood.fails:
            after_ms = rng.choice((None, 100, 3_000))
            raise ModelError("overloaded", "the model is overloaded", retryable=True, retry_after_ms=after_ms)
        finish = Finish.LENGTH if rng.random() < mood.truncates else Finish.STOP
        calls = self._calls(request)
        usage = Usage(rng.randrange(20), rng.randrange(20))
        return Answer("well, yes", calls, Finish.CALLS if calls else finish, usage, self.name)

    def _calls(self, request: Request) -> tuple[ToolCall, ...]:
        rng = self.witness.rng
        if self.instant or request.step > STEPS_WITH_TOOLS or rng.random() >= self.mood.calls:
            return ()
        names = [*(spec.name for spec in request.tools), "no-such-tool"]
        weights = [*(10 for _ in request.tools), 1]
        wanted = rng.choices(names, weights, k=rng.choice((1, 1, 2, 3)))
        return tuple(ToolCall(self.witness.next_call_id(), name, {"of": request.turn}) for name in wanted)


@dataclass(frozen=True, slots=True)
class Hand:
    """A tool. The witness is its world: what it did there is what it did."""

    name: str
    effect: Effect
    witness: Witness
    mood: Mood
    timeout_ms: int = 60_000

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, "does what it is called", {"type": "object"})

    async def run(self, arguments: Mapping[str, Any], effect_key: str) -> str:
        """The effect, and then the time it takes to hear of it."""
        self.witness.tool_begins(self.name, self.effect, arguments, effect_key)
        rng, mood = self.witness.rng, self.mood
        seconds = rng.uniform(0, mood.long_s if rng.random() < mood.thinks_long else mood.thinks_s)
        await asyncio.sleep(seconds)
        if rng.random() < mood.tool_fails:
            raise ToolError("broken", "the tool is broken")
        return f"done {effect_key}"


@dataclass(frozen=True, slots=True)
class Usher:
    """An admission hook: enters, rewrites, adds, leaves out, rejects, or fails."""

    witness: Witness
    mood: Mood

    async def __call__(self, batch: Batch) -> Batch | Rejection | None:
        rng, mood = self.witness.rng, self.mood
        await asyncio.sleep(rng.uniform(0, mood.long_s if rng.random() < mood.thinks_long / 3 else mood.thinks_s / 3))
        luck, first = rng.random(), batch.messages[0]
        if luck < 0.1:
            return batch.rewrite(first.message_id, f"{first.text}, please") if first.message_id else None
        if luck < 0.2:
            return batch.add("by the way", first=rng.random() < 0.5)
        if luck < 0.3:
            return batch.without(first.message_id, "not now") if first.message_id else None
        if luck < 0.4:
            return Rejection("not at all")
        if luck < 0.43:
            raise ZeroDivisionError("the hook is broken")
        return None


def agents(witness: Witness, mood: Mood) -> dict[str, Agent]:
    """Who answers: one who thinks and acts, one with a hook, one who answers at once, one who has little patience."""
    hands = [
        Hand("look", Effect.READONLY, witness, mood),
        Hand("pay", Effect.IDEMPOTENT, witness, mood),
        Hand("launch", Effect.UNSAFE, witness, mood),
    ]
    tools: Mapping[str, Tool] = {hand.name: hand for hand in hands}
    limits = Limits(steps_per_turn=8, tool_calls_per_turn=12, attempts=3)
    usher = Usher(witness, mood)
    thinker: Model = Mind("thinker", witness, mood)
    spare: Model = Mind("spare", witness, mood)
    quick: Model = Mind("quick", witness, mood, instant=True)
    found = [
        Agent("default", thinker, spare, "", tools, limits),
        Agent("hooked", thinker, None, "", tools, limits, (AdmissionHook("usher", usher),)),
        Agent("quick", quick, None, "", {}, limits),
        Agent("brief", thinker, None, "", tools, Limits(steps_per_turn=2, tool_calls_per_turn=2, attempts=1)),
    ]
    return {agent.name: agent for agent in found}

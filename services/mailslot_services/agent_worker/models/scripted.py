"""The model that says what a script says: the double for tests, and the demo of what needs a clever model.

    request --script (pure)--> what to say --play--> waits, deltas, then a failure or an answer

Rule 1: what is said depends on the request alone (`script`); only waiting and streaming happen here.
Rule 2: a script stands for a real model: its steps are checkpointed like theirs (`instant` is False).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from mailslot_core.agent import Answer, Finish, ModelError, OnDelta, Request, ToolCall, Usage
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models.echo import split
from mailslot_services.agent_worker.models.gate import FolderGates, GateKeeper
from mailslot_services.agent_worker.models.script import Call, Delta, Say, Script, Seen, parse_script, read_script

CRASH_EXIT_CODE: Final = 137
"""What a process that a script crashes ends with: the code of one that was killed with -9."""

QUOTE_CHARACTERS_MAX: Final = 200
"""How much of a text that no rule answers is quoted."""


class ScriptedModel:
    """Answers by a script. `gates` lets whoever holds them stop it in mid stream."""

    def __init__(self, script: Script, *, gates: GateKeeper | None = None, source: str = "script") -> None:
        if script.gate_names and gates is None:
            raise Misconfigured(
                f"{source} waits at {', '.join(script.gate_names)}, but nobody keeps its gates: name a folder `gates`"
            )
        self._script = script
        self._gates = gates

    @classmethod
    def of(cls, rules: Sequence[object], *, gates: GateKeeper | None = None) -> Self:
        """By rules written as plain data."""
        return cls(parse_script(list(rules), "in Python"), gates=gates)

    @classmethod
    def sequence(cls, answers: Sequence[object], *, loop: bool = False, gates: GateKeeper | None = None) -> Self:
        """The n-th model call of a session gets the n-th answer."""
        return cls.of([{"answers": list(answers), "per": "session", "loop": loop}], gates=gates)

    @classmethod
    def load(cls, path: Path, *, gates: GateKeeper | None = None) -> Self:
        """By a file. Misconfigured names the line and the rule of a mistake."""
        script = read_script(path)
        if gates is None and script.gates is not None:
            gates = FolderGates(path.parent / script.gates)
        return cls(script, gates=gates, source=f"script {path}")

    @property
    def name(self) -> str:
        """What `assistant/message.model` says."""
        return "scripted"

    @property
    def instant(self) -> bool:
        """Never (rule 2)."""
        return False

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """What the first rule that applies says."""
        seen = Seen(request)
        say = self._script.answer(seen)
        if say is None:
            quote = repr(seen.text[:QUOTE_CHARACTERS_MAX])
            sentence = f"no rule of the script answers step {request.step} of turn {request.turn}: {quote}"
            raise ModelError("script-ended", sentence, retryable=False)
        await asyncio.sleep(say.delay_ms / 1000)
        await self._pass(say.wait)
        await self._stream(say, seen, on_delta)
        await _come_to_nothing(say, request.attempt)
        return _answer(say, seen, self.name)

    async def _stream(self, say: Say, seen: Seen, on_delta: OnDelta) -> None:
        """The deltas as they are written, or the text in pieces."""
        pieces = [Delta(text=piece) for piece in split(seen.filled(say.text), say.pieces)]
        for delta in say.deltas or pieces:
            await asyncio.sleep((say.delta_ms + delta.ms) / 1000)
            await self._pass(delta.wait)
            text = seen.filled(delta.text) if say.deltas else delta.text
            if text:
                await on_delta(text)

    async def _pass(self, gate: str | None) -> None:
        if gate is not None and self._gates is not None:
            await self._gates.wait(gate)


async def _come_to_nothing(say: Say, attempt: int) -> None:
    """Hang, crash or fail, if the script wants that."""
    if say.hang:
        await asyncio.Event().wait()
    if say.crash:
        os._exit(CRASH_EXIT_CODE)
    fail = say.fail
    if fail is not None and (fail.times is None or attempt <= fail.times):
        raise ModelError(fail.code, fail.message, retryable=fail.retryable, retry_after_ms=fail.retry_after_ms)


def _answer(say: Say, seen: Seen, model: str) -> Answer:
    calls = tuple(_call(call, number, seen.request) for number, call in enumerate(say.calls, start=1))
    finish = say.finish or (Finish.CALLS if calls else Finish.STOP)
    return Answer(seen.filled(say.text), calls, finish, Usage(say.usage.input, say.usage.output), model)


def _call(call: Call, number: int, request: Request) -> ToolCall:
    return ToolCall(call.id or f"call-{request.turn}-{request.step}-{number}", call.name, call.arguments)

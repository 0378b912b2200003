"""The model that needs nothing: it answers with the text it got.

    user: "hello" --echo--> assistant: "hello"

Rule 1: the answer is what people said last: the texts of the newest run of user messages, a line each.
Rule 2: `delay_ms` is how long the whole answer takes, `deltas` in how many pieces it is streamed, evenly spread.
Rule 3: without either it answers in the same instant, so its step needs no checkpoint before the call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mailslot_core.agent import Answer, OnDelta, Request
from mailslot_services.agent_worker.transcript import newest_user_text

DELAY_MS_MAX: Final = 600_000
"""Longest answer of the echo, in ms."""

DELTAS_MAX: Final = 10_000
"""Most pieces of one answer of the echo."""


@dataclass(frozen=True, slots=True)
class EchoModel:
    """Answers with the text it got."""

    delay_ms: int = 0
    deltas: int = 0

    @property
    def name(self) -> str:
        """What `assistant/message.model` says."""
        return "echo"

    @property
    def instant(self) -> bool:
        """True when nothing is waited for and nothing streamed."""
        return not self.delay_ms and not self.deltas

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """The newest text, at once or in pieces."""
        text = newest_user_text(request.transcript)
        pieces = split(text, self.deltas)
        for piece in pieces:
            await asyncio.sleep(self.delay_ms / 1000 / len(pieces))
            await on_delta(piece)
        if self.delay_ms and not pieces:
            await asyncio.sleep(self.delay_ms / 1000)
        return Answer(text=text, model=self.name)


def split(text: str, count: int) -> list[str]:
    """The text in `count` pieces of nearly the same length; fewer when it has fewer characters."""
    count = min(count, len(text))
    edges = [len(text) * number // count for number in range(count + 1)] if count else []
    return [text[start:end] for start, end in pairwise(edges)]

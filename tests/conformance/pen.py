"""Writes the facts of a turn in an order that the grammar allows, from wherever a grant says that the turn stands.

    pen = Pen(grant); pen.start(); pen.admit("A"); pen.say("hello"); pen.end_step(); pen.drafts

The pen knows how far the turn will be once its facts are committed, so that a random walk and a worker that only
finishes what it finds can go on from any place. What is not allowed is written by hand.
"""

from __future__ import annotations

from typing import Any

from mailslot_core.session import Phase
from mailslot_core.store import Grant
from mailslot_core.turn import Draft
from tests.conformance.dialogue import text


class Pen:
    """The facts so far, and the turn as it will be after them."""

    def __init__(self, grant: Grant) -> None:
        self.drafts: list[Draft] = []
        self.turn, self.step, self.phase = grant.turn, grant.step, grant.phase
        self.calls = dict(grant.calls)
        self.batch = [message.message_id for message in grant.batch]

    @property
    def place(self) -> dict[str, int]:
        return {"turn": self.turn, "step": self.step}

    def write(self, kind: str, **data: Any) -> None:
        self.drafts.append(Draft(kind, {**self.place, **data}))

    def start(self) -> None:
        self.step += 1
        self.phase = Phase.OPEN
        self.write("step/start")

    def admit(self, message_id: str) -> None:
        if message_id in self.batch:
            self.batch.remove(message_id)
        self.write("user/message", messageId=message_id, content=text("hello"), source={"kind": "user"})

    def reject(self, message_id: str) -> None:
        self.batch.remove(message_id)
        self.drafts.append(Draft("inbox/rejected", {"messageId": message_id, "turn": self.turn, "reason": "hook"}))

    def retry(self) -> None:
        self.write("llm/retry", attempt=1, delayMs=0, code="overloaded", message="busy")

    def spend(self, input_tokens: int, output_tokens: int, **more: float) -> None:
        tokens = {"inputTokens": input_tokens, "outputTokens": output_tokens}
        self.write("usage/recorded", attempt=1, model="m", **tokens, **more)

    def say(self, words: str, *call_ids: str) -> None:
        self.calls = dict.fromkeys(call_ids, "asked")
        self.phase = Phase.ANSWERED
        calls = [{"callId": call_id, "name": "clock", "arguments": {}} for call_id in call_ids]
        self.write("assistant/message", content=text(words), model="m", **({"toolCalls": calls} if calls else {}))

    def call(self, call_id: str) -> None:
        self.calls[call_id] = "started"
        self.write("tool/call", callId=call_id, name="clock", arguments={})

    def result(self, call_id: str) -> None:
        del self.calls[call_id]
        self.write("tool/result", callId=call_id, content="noon")

    def end_step(self) -> None:
        self.phase = Phase.BOUNDARY
        self.write("step/end")


def finishing(grant: Grant) -> list[Draft]:
    """The facts that bring the turn to a boundary at which nothing is claimed and unadmitted."""
    pen = Pen(grant)
    if pen.phase is Phase.BOUNDARY and pen.batch:
        pen.start()
    if pen.phase is Phase.OPEN:
        for message_id in list(pen.batch):
            pen.admit(message_id)
        pen.say("done")
    if pen.phase is Phase.ANSWERED:
        for call_id in list(pen.calls):
            pen.result(call_id)
        pen.end_step()
        if pen.batch:
            pen.start()
            for message_id in list(pen.batch):
                pen.admit(message_id)
            pen.end_step()
    return pen.drafts

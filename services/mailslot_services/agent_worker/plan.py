"""What a worker does next in a turn, as tables. No await, no clock, no random: the loop in `drive` asks and acts.

    phase of the turn, what is claimed, what is called, is a cancel recorded  --next_move-->  Move

Rule 1: a recorded cancel comes before everything else (semantics C3).
Rule 2: a step boundary is always followed by a step: what needs none was closed in one act with its end (T6).
Rule 3: a call that was started and has no result runs again only if its tool is harmless (semantics R3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from mailslot_contracts.codec import encode
from mailslot_contracts.problems import ContractError
from mailslot_core.agent import Answer, Effect, Finish, ToolCall, Usage
from mailslot_core.session import Data, Phase
from mailslot_core.store import Claimed
from mailslot_core.turn import NO_RESULT, Draft

ANSWER_BYTES_MAX = 4 * 1024 * 1024  # of text in one answer: it must fit into one event with its calls
RETRY_BASE_MS = 500
RETRY_CAP_MS = 30_000


class Move(IntEnum):
    """What comes next. (A plain enum's members are hashed in Python.)"""

    ABORT = auto()
    START_STEP = auto()
    ASK_MODEL = auto()
    RUN_TOOLS = auto()


MOVES: dict[Phase, Move] = {
    Phase.BOUNDARY: Move.START_STEP,
    Phase.OPEN: Move.ASK_MODEL,
    Phase.ANSWERED: Move.RUN_TOOLS,
}


def next_move(phase: Phase, *, cancelled: bool) -> Move:
    """The move for an open turn."""
    return Move.ABORT if cancelled else MOVES[phase]


def step_start(turn: int, step: int, batch: Sequence[Claimed]) -> list[Draft]:
    """A step and the messages it admits (semantics T2)."""
    admitted = [
        Draft(
            "user/message",
            {
                "messageId": message.message_id,
                "turn": turn,
                "step": step,
                "content": message.data["content"],
                "source": message.data["source"],
            },
        )
        for message in batch
    ]
    return [Draft("step/start", {"turn": turn, "step": step}), *admitted]


def refusal(answer: Answer) -> str | None:
    """Why an answer cannot be kept, None when it can: the ledger takes well-formed text of a bounded size (L5)."""
    try:
        size_bytes = len(answer.text.encode())
        if size_bytes > ANSWER_BYTES_MAX:
            return f"the answer has {size_bytes} bytes; the limit is {ANSWER_BYTES_MAX}"
        for call in answer.calls:
            encode({"toolCalls": [{"name": call.name, "arguments": dict(call.arguments)}], "callId": call.call_id})
    except (UnicodeEncodeError, ContractError) as error:
        return f"the answer cannot be kept: {error}"
    return None


def answered(turn: int, step: int, attempt: int, answer: Answer) -> list[Draft]:
    """One `assistant/message` for a model call that succeeded (semantics T9). Truncated calls are not kept (T5)."""
    calls = () if answer.finish is Finish.LENGTH else answer.calls
    data: dict[str, Any] = {"turn": turn, "step": step, "content": text_blocks(answer.text), "model": answer.model}
    if calls:
        data["toolCalls"] = [{"callId": c.call_id, "name": c.name, "arguments": dict(c.arguments)} for c in calls]
    if answer.finish is Finish.LENGTH:
        data["truncated"] = True  # so that a recovered turn still ends as max-tokens (semantics T5: sticky)
    recorded = usage_recorded(turn, step, attempt, answer)
    if recorded is not None:
        data["usage"] = usage_data(answer.usage)
        return [recorded, Draft("assistant/message", data)]
    return [Draft("assistant/message", data)]


def usage_recorded(turn: int, step: int, attempt: int, answer: Answer) -> Draft | None:
    """What the call cost, None for a model that counts nothing."""
    if not (answer.usage.input_tokens or answer.usage.output_tokens):
        return None
    data: dict[str, Any] = {"turn": turn, "step": step, "attempt": attempt, "model": answer.model}
    data |= usage_data(answer.usage)
    return Draft("usage/recorded", {**data, "requestId": answer.request_id} if answer.request_id else data)


def usage_data(usage: Usage) -> dict[str, Any]:
    """Usage with the wire's names."""
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}


def text_blocks(text: str) -> list[dict[str, Any]]:
    """Text as content; no text is no block."""
    return [{"type": "text", "text": text}] if text else []


def calls_started(turn: int, step: int, calls: Sequence[ToolCall]) -> list[Draft]:
    """`tool/call` for each call that is about to run: after this it is not known to be harmless (R3)."""
    return [
        Draft(
            "tool/call",
            {"turn": turn, "step": step, "callId": c.call_id, "name": c.name, "arguments": dict(c.arguments)},
        )
        for c in calls
    ]


def result(turn: int, step: int, call_id: str, content: str, error: Data | None = None) -> Draft:
    """The one result of a call."""
    data: dict[str, Any] = {"turn": turn, "step": step, "callId": call_id, "content": content}
    return Draft("tool/result", {**data, "error": dict(error)} if error else data)


def may_run(state: str, effect: Effect | None) -> bool:
    """Whether a call without result may be run: never started, or started and harmless to repeat (R3)."""
    return state == "asked" or effect in (Effect.READONLY, Effect.IDEMPOTENT)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model had said when it was stopped."""

    text: str = ""
    model: str = ""


def abort_step(turn: int, step: int, phase: Phase, calls: Mapping[str, str], seen: Seen) -> list[Draft]:
    """How an open step is closed when the turn is aborted: what was visible is kept (T9), each call gets a
    result (C4)."""
    drafts: list[Draft] = []
    if phase is Phase.OPEN and seen.text:
        data = {"turn": turn, "step": step, "content": text_blocks(seen.text), "model": seen.model, "interrupted": True}
        drafts.append(Draft("assistant/message", data))
    for call_id, state in calls.items():
        drafts.append(result(turn, step, call_id, "", NO_RESULT[state]))
    if phase is not Phase.BOUNDARY:
        drafts.append(Draft("step/end", {"turn": turn, "step": step}))
    return drafts


def retry_delay_ms(attempt: int, retry_after_ms: int | None, jitter: float) -> int:
    """How long to wait before attempt + 1: what the provider asked for, else doubling with jitter in [0, 1) (T8)."""
    if retry_after_ms is not None:
        return retry_after_ms
    ceiling = min(RETRY_CAP_MS, RETRY_BASE_MS * 2 ** (attempt - 1))
    return int(ceiling * (0.5 + jitter / 2))

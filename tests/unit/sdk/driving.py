"""Driving an operation by hand: a test answers each step and looks at what was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mailslot.step import (
    Abandoned,
    Answer,
    Exchange,
    Give,
    Open,
    Opened,
    Operation,
    Pause,
    Request,
    Response,
    Shut,
    Step,
)

STREAM = Opened("text/event-stream; charset=utf-8")


@dataclass
class Played:
    """What an operation did until it ended, or until its script did."""

    result: Any = None
    error: BaseException | None = None
    steps: list[Step] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    ended: bool = False

    @property
    def requests(self) -> list[Request]:
        return [step.request for step in self.steps if isinstance(step, Exchange | Open)]

    @property
    def pauses(self) -> list[float]:
        return [step.seconds for step in self.steps if isinstance(step, Pause)]


def play(operation: Operation[Any], answers: Iterable[Answer], before_each: Callable[[], None] | None = None) -> Played:
    """Answer exchanges, opens and reads from the script, in order; everything else is answered by itself."""
    played = Played()
    script = iter(answers)
    answer: Answer = None
    while True:
        try:
            step = operation.send(answer)
        except StopIteration as stop:
            played.result, played.ended = stop.value, True
            return played
        except Exception as error:  # noqa: BLE001 - the test looks at whatever it is
            played.error, played.ended = error, True
            return played
        played.steps.append(step)
        if before_each is not None:
            before_each()
        answer = None
        if isinstance(step, Give):
            played.given.append(step.item)
        elif not isinstance(step, Pause | Shut):
            try:
                answer = next(script)
            except StopIteration:
                return played


def abandon(operation: Operation[Any], answers: Iterable[Answer]) -> Played:
    """Walk away from an operation, and answer its last steps."""
    played = Played()
    script = iter(answers)
    try:
        step = operation.throw(Abandoned())
        while True:
            played.steps.append(step)
            step = operation.send(next(script))
    except (StopIteration, Abandoned):
        played.ended = True
    return played


def good(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(status, {"content-type": "application/json"}, json.dumps(body).encode())


def refused(status: int, code: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    problem = {
        "type": f"urn:mailslot:problem:{code}",
        "status": status,
        "code": code,
        "detail": f"it is {code}",
        **more,
    }
    return Response(
        status, {"content-type": "application/problem+json", **(headers or {})}, json.dumps(problem).encode()
    )


def receipt(message_id: str, cursor: int = 1, *, duplicate: bool = False) -> Response:
    return good({"messageId": message_id, "cursor": cursor, "duplicate": duplicate, "durability": "memory"}, status=202)


def level(session_id: str, cursor: int, status: str = "idle", **more: Any) -> Response:
    return good(level_json(session_id, cursor, status, **more))


def level_json(session_id: str, cursor: int, status: str = "idle", **more: Any) -> dict[str, Any]:
    return {
        "sessionId": session_id,
        "status": status,
        "reasons": [],
        "cursor": cursor,
        "pending": 0,
        "held": 0,
        "usage": {"inputTokens": 0, "outputTokens": 0},
        "conservation": 0,
        **more,
    }


def envelope(seq: int, kind: str, data: Mapping[str, Any], session_id: str = "s") -> dict[str, Any]:
    return {
        "v": 1,
        "seq": seq,
        "sessionId": session_id,
        "type": kind,
        "time": 1_764_554_400_000 + seq,
        "epoch": 1,
        "data": dict(data),
    }


def frame(value: Mapping[str, Any]) -> bytes:
    """An event as the server writes it."""
    name = "session.status" if value["type"] == "agent/status" else "session.event"
    return f"id: {value['seq']}\nevent: {name}\ndata: {json.dumps(value)}\n\n".encode()


def frames(seqs: Iterable[int], session_id: str = "s") -> bytes:
    """Any events with these seqs."""
    return b"".join(frame(envelope(seq, "inbox/due", {"messageId": f"m{seq}"}, session_id)) for seq in seqs)


def level_frame(session_id: str, cursor: int, status: str = "idle") -> bytes:
    """The first frame of every stream."""
    return f"event: session.status\ndata: {json.dumps(level_json(session_id, cursor, status))}\n\n".encode()


def history(message_id: str, first: int, text: str = "hello", *, kind: str = "completed") -> list[dict[str, Any]]:
    """What one follow-up on an idle agent looks like in the ledger."""
    turn = {"turn": 1}
    step = {"turn": 1, "step": 1}
    content = [{"type": "text", "text": text}]
    events: list[tuple[str, dict[str, Any]]] = [
        ("inbox/queued", {"messageId": message_id, "lane": "next-turn", "wake": True, "content": content}),
        ("agent/status", {"status": "running"}),
        ("turn/start", turn),
        ("inbox/claimed", turn | {"messageIds": [message_id]}),
        ("step/start", step),
        ("user/message", step | {"messageId": message_id, "content": content, "source": {"kind": "user"}}),
        ("assistant/message", step | {"content": [{"type": "text", "text": f"answer to {text}"}], "model": "echo"}),
        ("step/end", step),
        ("turn/end", turn | {"reason": {"kind": kind}}),
        ("agent/status", {"status": "idle"}),
    ]
    return [envelope(first + place, kind, data) for place, (kind, data) in enumerate(events)]

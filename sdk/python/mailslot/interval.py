"""The interval of a run: which events belong to it, when it is over, and what is reported of it. Pure.

    … │ inbox/queued (its own message)   … everything …   agent/status idle │ …
        first                                                          last

Rule 1: everything before the `inbox/queued` of its own message is skipped, whatever it is: an idle that was
        published late, somebody else's answer, yesterday.
Rule 2: everything from there through the first `agent/status{idle}` with a greater seq belongs to it, both ends
        included. Other people's messages, steering and several turns are part of it.
Rule 3: the end is an event. No saved cursor and no clock has a say.
Rule 4: what is reported is about the interval: the text that was said last in it, and how the turn that ended last
        in it ended. Neither is claimed to be the message's.
Rule 5: what comes again or late (its seq is not greater than that of the last event taken) and what is another
        session's is ignored, so frames may be repeated or mixed. A missing event is not found here but where the
        stream is read (`subscription`).
Rule 6: an interval that is owned from idle to idle (`whole=True`, what the command line does) is the same, but begins
        with the first event it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mailslot.event import Event, read_event
from mailslot.record import Life, MessageRecord, after, queued


@dataclass(frozen=True, slots=True)
class RunResult:
    """One interval of activity that the caller owned. It has no status and claims no success."""

    session_id: str
    message_id: str
    final_response: str
    """The text that was said last in the interval; empty when none was."""
    finish_reason: str | None
    """Kind of the last `turn/end` in the interval: `completed`, `max-tokens`, `aborted`, `blocked`, `error`,
    `interrupted`, or one that is not known here. None when no turn ended in it."""
    events: tuple[Event, ...]
    from_seq: int
    to_seq: int
    message: MessageRecord
    """What became of the message itself, as an observation."""

    def wire(self) -> dict[str, Any]:
        """As the protocol writes a run's result in JSON."""
        return {
            "sessionId": self.session_id,
            "messageId": self.message_id,
            "finalResponse": self.final_response,
            "finishReason": self.finish_reason,
            "events": [event.envelope(self.session_id) for event in self.events],
            "from": self.from_seq,
            "to": self.to_seq,
            "message": self.message.wire(),
        }


class Interval:
    """Feed it the events of the session; it keeps those that are its own."""

    def __init__(self, session_id: str, message_id: str, *, whole: bool = False) -> None:
        self._session_id = session_id
        self._message_id = message_id
        self._whole = whole
        self._seq = 0  # of the last event taken
        self._events: list[Event] = []
        self._life: Life | None = None
        self.done = False
        """Whether the last event of the interval was seen."""

    @property
    def turn(self) -> int | None:
        """The turn that took the message, as far as that was seen. It may be over, and another one open."""
        return None if self._life is None else self._life.record.turn

    def feed(self, event: Event) -> bool:
        """Take the next event; whether it belongs to the interval."""
        if self.done or event.seq <= self._seq:
            return False
        self._seq = event.seq
        self._life = self._life_after(event)
        if self._life is None and not self._whole:
            return False
        self._events.append(event)
        self.done = self._life is not None and is_idle(event)
        return True

    def feed_envelope(self, envelope: Mapping[str, Any]) -> bool:
        """Take an envelope as it came, of whatever session; whether it belongs to the interval."""
        if envelope.get("sessionId") != self._session_id:
            return False
        return self.feed(read_event(envelope, self._session_id))

    def result(self) -> RunResult:
        """What is reported of the interval, once it is done."""
        if not self.done or self._life is None:
            raise ValueError(f"the run of message {self._message_id} is not over")
        return RunResult(
            session_id=self._session_id,
            message_id=self._message_id,
            final_response=final_response(self._events),
            finish_reason=finish_reason(self._events),
            events=tuple(self._events),
            from_seq=self._events[0].seq,
            to_seq=self._events[-1].seq,
            message=self._life.record,
        )

    def _life_after(self, event: Event) -> Life | None:
        if self._life is not None:
            return after(self._life, event)
        if event.type == "inbox/queued" and event.data.get("messageId") == self._message_id:
            return queued(event)
        return None


def is_idle(event: Event) -> bool:
    """Whether the event says that the whole agent is idle."""
    return event.type == "agent/status" and event.data.get("status") == "idle"


def final_response(events: list[Event]) -> str:
    """The text of the last `assistant/message` that has text; empty when none has."""
    said = (text_of(event.data.get("content")) for event in reversed(events) if event.type == "assistant/message")
    return next((text for text in said if text.strip()), "")


def finish_reason(events: list[Event]) -> str | None:
    """The kind of the last `turn/end`; None when there is none. A kind that is not known here is passed on."""
    ends = (event.data.get("reason") for event in reversed(events) if event.type == "turn/end")
    reason = next(ends, None)
    kind = reason.get("kind") if isinstance(reason, Mapping) else None
    return kind if isinstance(kind, str) else None


def text_of(content: object) -> str:
    """The text blocks of a content, joined; a bare string is one text block."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, Mapping) and block.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))

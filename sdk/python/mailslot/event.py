"""What a session's stream carries: events, which are facts, and deltas, which are not.

    Event    seq 1, 2, 3 … without gaps; kept in the ledger; reading it again gives the same
    Delta    a piece of text that the model is saying right now; no seq; may be lost

They are two classes because one of them can be relied on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mailslot.errors import BadAnswer
from mailslot.reading import JsonMap, field

ENVELOPE_VERSION: Final = 1
"""The highest envelope version that this package reads."""


@dataclass(frozen=True, slots=True)
class Event:
    """One durable fact in a session's ledger. `data` is as it came, with every field, known here or not."""

    seq: int
    type: str
    time: int
    """Milliseconds since 1970 by the store's clock."""
    epoch: int
    data: dict[str, Any]

    def envelope(self, session_id: str) -> dict[str, Any]:
        """As it stands on the wire."""
        return {
            "v": ENVELOPE_VERSION,
            "seq": self.seq,
            "sessionId": session_id,
            "type": self.type,
            "time": self.time,
            "epoch": self.epoch,
            "data": self.data,
        }


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of text that the model is saying right now. The whole text comes as an event later."""

    turn: int
    step: int
    text: str

    def notice(self, session_id: str) -> dict[str, Any]:
        """As it stands on the wire."""
        said = {"turn": self.turn, "step": self.step, "text": self.text}
        return {"v": ENVELOPE_VERSION, "sessionId": session_id, "type": "assistant/delta", "data": said}


Item: TypeAlias = Event | Delta


def read_event(envelope: JsonMap, session_id: str) -> Event:
    """The event in an envelope of this session."""
    _check(envelope, session_id)
    return Event(
        seq=field(envelope, "seq", int),
        type=field(envelope, "type", str),
        time=field(envelope, "time", int),
        epoch=field(envelope, "epoch", int),
        data=field(envelope, "data", dict),
    )


def read_delta(envelope: JsonMap, session_id: str) -> Delta:
    """The delta in a notice of this session."""
    _check(envelope, session_id)
    data = field(envelope, "data", dict)
    return Delta(turn=field(data, "turn", int), step=field(data, "step", int), text=field(data, "text", str))


def _check(envelope: JsonMap, session_id: str) -> None:
    version = field(envelope, "v", int)
    if version > ENVELOPE_VERSION:
        raise BadAnswer(
            f"envelope version {version} is newer than {ENVELOPE_VERSION}, the newest known here; upgrade mailslot"
        )
    found = field(envelope, "sessionId", str)
    if found != session_id:
        raise BadAnswer(f"asked for session {session_id}, got an event of session {found}")

"""Admission hooks: what looks at messages before they enter an agent's transcript.

    claimed messages --> hook --> hook --> ... --> user/message
                          |
                          +-- None          all of them enter as they are
                          +-- a Batch       what it rewrote, added and left out is heeded
                          +-- a Rejection   none of them enters

    from mailslot.hooks import Batch, Rejection

    def polite(batch: Batch) -> Batch | Rejection | None:
        if "at once!" in batch.text:
            return Rejection("ask again, nicely")
        return batch.add("The customer is known to us.", first=True)

Rule 1: these are values. A hook changes nothing; it returns a changed copy, which the methods of `Batch` make.
Rule 2: claimed messages keep their order, their ids and where they come from; only their content can be rewritten.
Rule 3: a message that a hook adds was never in the inbox. The worker gives it an id, the same one every time.
Rule 4: a hook is asked again when a worker died after it answered and before the messages entered: it should not act
        on the world.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Content: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A text, or blocks as they are on the wire: `{"type": "text", "text": "…"}`, `{"type": "image", …}`."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that the turn claimed, or one that a hook adds; that one has no id yet."""

    content: Content
    message_id: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What it says, a line for each text block."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")


@dataclass(frozen=True, slots=True)
class Batch:
    """What would enter `step` of `turn`, in order; `left_out` says why which messages do not enter."""

    session_id: str
    agent: str
    turn: int
    step: int
    messages: tuple[Message, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What all messages say, a line for each text block."""
        return "\n".join(filter(None, (message.text for message in self.messages)))

    def rewrite(self, message_id: str, content: Content) -> Batch:
        """With other content in the message's place."""
        self._message(message_id)
        changed = (replace(m, content=content) if m.message_id == message_id else m for m in self.messages)
        return replace(self, messages=tuple(changed))

    def add(self, content: Content, *, first: bool = False) -> Batch:
        """With another message behind the others, or before them. It enters only if a claimed one does."""
        added = (Message(content),)
        return replace(self, messages=added + self.messages if first else self.messages + added)

    def without(self, message_id: str, reason: str) -> Batch:
        """Without the message: it is rejected, and its record says why."""
        self._message(message_id)
        left = tuple(message for message in self.messages if message.message_id != message_id)
        return replace(self, messages=left, left_out={**self.left_out, message_id: reason})

    def _message(self, message_id: str) -> Message:
        for message in self.messages:
            if message_id and message.message_id == message_id:
                return message
        raise ValueError(f"there is no message {message_id!r} in this batch")


@dataclass(frozen=True, slots=True)
class Rejection:
    """Nothing of the batch enters; each message's record says why."""

    reason: str


Decision: TypeAlias = Batch | Rejection | None
Hook: TypeAlias = Callable[[Batch], Decision | Awaitable[Decision]]

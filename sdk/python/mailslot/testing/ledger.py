"""What a ledger says of a message, and what an assertion says when it says otherwise. Pure.

    events --queued(what)--> its inbox/queued --told--> its life as the ledger tells it

Rule 1: `what` is a message id, or the whole text of a message.
Rule 2: a redrive is another life of the same message, no second message.
Rule 3: this is about messages and stops at their admission; nothing here knows how a turn ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from mailslot import record
from mailslot.event import Event

Lane: TypeAlias = Literal["next-turn", "next-step"]

LABEL_CHARACTERS_MAX = 24
"""How much of a text stands for its message in a failure."""

ID_CHARACTERS_MAX = 16
"""An id of up to so many characters was chosen by a person, and is shown as it is."""


def text_of(content: Any) -> str:
    """What content says: its text blocks, a line each."""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content if block.get("type") == "text")


def queued(events: Sequence[Event], what: str) -> list[Event]:
    """The messages of that id or text, by their `inbox/queued`."""
    return [
        event
        for event in events
        if event.type == "inbox/queued"
        and not event.data.get("redrive")
        and what in (event.data["messageId"], text_of(event.data["content"]))
    ]


def told(events: Sequence[Event], placed: Event) -> record.Life:
    """The life of a queued message, as the events after its `inbox/queued` tell it."""
    life = record.queued(placed)
    for event in events:
        if event.seq > placed.seq:
            life = record.after(life, event)
    return life


def differences(
    events: Sequence[Event], placed: Event, *, lane: Lane | None, wake: bool | None, due: bool | None
) -> list[str]:
    """What is otherwise than asked for, in words."""
    asked: list[tuple[str, object, object]] = [
        ("lane", lane, placed.data["lane"]),
        ("wake", wake, placed.data["wake"]),
        ("due", due, told(events, placed).due),
    ]
    return [f"{name} is {found!r}, not {want!r}" for name, want, found in asked if want is not None and want != found]


def labels(events: Sequence[Event]) -> Mapping[str, str]:
    """Short names for messages whose ids nobody chose: the beginnings of their texts."""
    found: dict[str, str] = {}
    for event in events:
        message_id = event.data.get("messageId", "")
        if event.type == "inbox/queued" and len(message_id) > ID_CHARACTERS_MAX:
            text = text_of(event.data["content"])
            more = "…" if len(text) > LABEL_CHARACTERS_MAX else ""
            found[message_id] = f"{text[:LABEL_CHARACTERS_MAX]!r}{more}"
    return found

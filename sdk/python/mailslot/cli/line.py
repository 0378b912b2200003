"""An event as one line that people read. Pure.

    12  10:02:41  inbox/queued        messageId=m-7 lane=next-turn "hello"

Rule 1: what is short in the data is shown by name, and the beginning of its text at the end.
Rule 2: nothing in the data can end the line, or steer the terminal that shows it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from mailslot.cli.terminal import one_line, painted
from mailslot.event import Delta, Event, Item
from mailslot.interval import text_of

TEXT_CHARACTERS_MAX: Final = 120
"""How much of a text is shown on a line."""

TYPE_CHARACTERS: Final = 18
"""The width of most types."""

COLOUR_OF: Final[dict[str, str]] = {
    "assistant/message": "green",
    "user/message": "cyan",
    "inbox/rejected": "red",
    "inbox/dead": "red",
    "llm/retry": "red",
    "turn/recovered": "red",
    "inbox": "blue",
    "tool": "yellow",
    "approval": "yellow",
    "goal": "magenta",
    "subagent": "magenta",
    "cancel": "yellow",
    "agent": "dim",
    "step": "dim",
    "usage": "dim",
}
"""Event type, or what stands before its slash -> colour; the rest has none."""

GOOD_END: Final = "completed"


def readable(item: Item, *, coloured: bool) -> str:
    """The line of an event or of a delta."""
    if isinstance(item, Delta):
        start, kind, rest = f"{'':>6}  {'':8}  ", f"{'assistant/delta':<{TYPE_CHARACTERS}}", quoted(item.text)
        colour: str | None = "dim"
    else:
        at = time.strftime("%H:%M:%S", time.localtime(item.time / 1000))
        start, kind = f"{item.seq:>6}  {at}  ", f"{one_line(item.type, TEXT_CHARACTERS_MAX):<{TYPE_CHARACTERS}}"
        rest, colour = summary(item.data), colour_of(item)
    shown = painted(kind, colour) if coloured and colour is not None else kind
    return f"{start}{shown}  {rest}".rstrip()


def colour_of(event: Event) -> str | None:
    """The colour of an event's type."""
    if event.type == "turn/end":
        reason = event.data.get("reason")
        good = isinstance(reason, Mapping) and reason.get("kind") == GOOD_END
        return "green" if good else "red"
    return COLOUR_OF.get(event.type) or COLOUR_OF.get(event.type.partition("/")[0])


def summary(data: Mapping[str, Any]) -> str:
    """What is short in the data, and the beginning of its text."""
    words = [(name, _word(value)) for name, value in data.items() if name != "content"]
    shown = [
        f"{one_line(name, TEXT_CHARACTERS_MAX)}={one_line(word, TEXT_CHARACTERS_MAX)}"
        for name, word in words
        if word is not None
    ]
    text = text_of(data.get("content"))
    return " ".join([*shown, quoted(text)] if text else shown)


def quoted(text: str) -> str:
    """The beginning of a text, in quotes."""
    return f'"{one_line(text, TEXT_CHARACTERS_MAX)}"'


def _word(value: object) -> str | None:
    """A value in a word; None for one that has no short form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        return ",".join(value)
    if isinstance(value, Mapping) and isinstance(value.get("kind"), str):
        return str(value["kind"])
    return None

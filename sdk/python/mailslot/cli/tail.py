"""`mailslot tail s`: a session's events as they come, one line each, until Ctrl-C.

    12  10:02:41  inbox/queued  messageId=m-7 lane=next-turn "hello"

A cut connection is taken up again without loss. With `--json` each line is the whole envelope.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mailslot.cli.exits import Exit
from mailslot.cli.options import identifier, parser, transport
from mailslot.cli.terminal import one_line, put
from mailslot.event import Delta, Event, Item
from mailslot.interval import text_of
from mailslot.operation import Address
from mailslot.subscription import followed

TEXT_CHARACTERS_MAX = 120
"""How much of a text is shown on a line."""


def command(argv: Sequence[str]) -> int:
    """Print a session's events as they come."""
    made = _parser()
    options = made.parse_args(argv)
    session_id = options.session or options.named
    if session_id is None or (options.session and options.named):
        made.error("name one session")
    with contextlib.closing(transport(made, options)) as way:
        operation = followed(way.terms, Address(session_id), options.after, deltas=options.deltas)
        for item in way.follow(operation):
            put(_json(item, session_id) if options.json else _readable(item))
    return Exit.COMPLETED


def _parser() -> argparse.ArgumentParser:
    made = parser("tail", "Print a session's events as they come, until Ctrl-C.")
    made.add_argument("named", nargs="?", type=identifier, metavar="session", help="the session")
    made.add_argument("--session", type=identifier, help="the session, as an option")
    made.add_argument(
        "--after", type=_seq, default=0, metavar="SEQ", help="only events after this seq (default 0: all)"
    )
    made.add_argument("--json", action="store_true", help="print each event whole, as one line of JSON")
    made.add_argument("--deltas", action="store_true", help="also print the model's text while it is being said")
    return made


def _seq(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a seq: a whole number from 0")
    return int(text)


def _json(item: Item, session_id: str) -> str:
    if isinstance(item, Event):
        value = item.envelope(session_id)
    else:
        data = {"turn": item.turn, "step": item.step, "text": item.text}
        value = {"v": 1, "sessionId": session_id, "type": "assistant/delta", "data": data}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _readable(item: Item) -> str:
    if isinstance(item, Delta):
        return f"{'':>6}  {'':8}  {'assistant/delta':<18}  {_quoted(item.text)}"
    at = time.strftime("%H:%M:%S", time.localtime(item.time / 1000))
    return f"{item.seq:>6}  {at}  {item.type:<18}  {_summary(item.data)}".rstrip()


def _summary(data: Mapping[str, Any]) -> str:
    """What is short in the data, and the beginning of its text."""
    words = [(name, _word(value)) for name, value in data.items() if name != "content"]
    shown = [f"{name}={one_line(word, TEXT_CHARACTERS_MAX)}" for name, word in words if word is not None]
    text = text_of(data.get("content"))
    return " ".join([*shown, _quoted(text)] if text else shown)


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


def _quoted(text: str) -> str:
    return f'"{one_line(text, TEXT_CHARACTERS_MAX)}"'

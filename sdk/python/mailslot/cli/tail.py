"""`mailslot tail s`: a session's events, one line each; with `-f` also those that come, until Ctrl-C.

    level ──> its cursor is where history ends ──> events up to there ──> with -f: what comes

Rule 1: without `-f` it ends at the event that was the newest when it began.
Rule 2: a cut connection is taken up again without loss. Events that are not kept any more are never skipped in
        silence: with `--after` that is an error, else it is said on stderr where the history begins.
Rule 3: with `--json` each line is the whole envelope, to the letter.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from mailslot.cli.exits import Exit
from mailslot.cli.line import readable
from mailslot.cli.options import Command, Parser, add_json, add_session, counted, parser, session_of, transport
from mailslot.cli.output import line_of
from mailslot.cli.terminal import is_coloured, put, put_safe, say
from mailslot.errors import CursorExpired
from mailslot.event import Event, Item
from mailslot.operation import Address, level
from mailslot.subscription import followed
from mailslot.transport import Transport


def _parser() -> Parser:
    made = parser(
        "tail",
        "Print a session's events, one line each; with -f also those that come, until Ctrl-C.",
        "mailslot tail demo",
        "mailslot tail -f -n 20 demo",
        "mailslot tail -f --types 'turn/*,agent/status' demo",
        "mailslot tail --json demo | jq 'select(.type == \"assistant/message\") | .data.content'",
    )
    add_session(made)
    made.add_argument("-f", "--follow", action="store_true", help="do not end at the newest event")
    made.add_argument(
        "-n", "--lines", type=counted("a count", 0), metavar="COUNT", help="only the newest so many events"
    )
    made.add_argument(
        "--after", type=counted("a seq", 0), metavar="SEQ", help="only events after this seq (default: all)"
    )
    made.add_argument(
        "--types", type=_types, metavar="TYPES", help="only these types: turn/end,assistant/message; or 'inbox/*'"
    )
    made.add_argument("--deltas", action="store_true", help="with -f: also the model's text while it is being said")
    add_json(made, "print each event whole, as one line of JSON")
    return made


def _types(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("name at least one type, such as turn/end or 'inbox/*'")
    return found


def _act(made: Parser, options: argparse.Namespace) -> int:
    address = Address(session_of(made, options))
    show = _shower(address.session_id, json=options.json)
    with contextlib.closing(transport(made, options)) as way:
        newest = way.perform(level(way.terms, address)).cursor
        for item in _chosen(_read(way, address, options, newest), options, newest):
            show(item)
    return Exit.COMPLETED


def _shower(session_id: str, *, json: bool) -> Callable[[Item], None]:
    if json:
        return lambda item: put(line_of(_envelope(item, session_id)))
    coloured = is_coloured()
    return lambda item: put_safe(readable(item, coloured=coloured))


def _envelope(item: Item, session_id: str) -> dict[str, Any]:
    if isinstance(item, Event):
        return item.envelope(session_id)
    data = {"turn": item.turn, "step": item.step, "text": item.text}
    return {"v": 1, "sessionId": session_id, "type": "assistant/delta", "data": data}


def _read(way: Transport, address: Address, options: argparse.Namespace, newest: int) -> Iterator[Item]:
    """Everything after where the command line says, and with `-f` what comes."""
    after = options.after or 0
    if options.lines is not None and options.types is None:
        after = max(after, newest - options.lines)
    while options.follow or after < newest:
        operation = followed(way.terms, address, after, deltas=options.deltas and options.follow)
        try:
            with contextlib.closing(way.follow(operation)) as given:
                for item in given:
                    yield item
                    if not options.follow and isinstance(item, Event) and item.seq >= newest:
                        return
        except CursorExpired as gap:
            if options.after is not None or gap.oldest is None or gap.oldest - 1 <= after:
                raise
            after = gap.oldest - 1
            say(f"mailslot tail: events before seq {gap.oldest} are not kept any more")


def _chosen(items: Iterator[Item], options: argparse.Namespace, newest: int) -> Iterator[Item]:
    """Those of the types that are asked for; of history only the last so many."""
    kept: deque[Item] = deque(maxlen=options.lines)
    history = options.lines is not None and options.types is not None and (options.after or 0) < newest
    for item in items:
        if options.types is None or not isinstance(item, Event) or _fits(item, options.types):
            if not history:
                yield item
            elif isinstance(item, Event) and item.seq <= newest:
                kept.append(item)
        if history and isinstance(item, Event) and item.seq >= newest:
            history = False
            yield from kept


def _fits(event: Event, types: tuple[str, ...]) -> bool:
    return any(fnmatchcase(event.type, pattern) for pattern in types)


TAIL: Final = Command(_parser, _act)

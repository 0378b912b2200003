"""Sessions, how they stand, and how they are stopped: `status`, `sessions`, `cancel`, `release`, `close`, `erase`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Final

from mailslot import inbox, operation
from mailslot.answer import Level, StoreReceipt
from mailslot.cli.exits import Exit
from mailslot.cli.inbox import asked, show
from mailslot.cli.options import Command, Parser, add_json, add_session, counted, parser, seconds, session_of, transport
from mailslot.cli.output import line_of, put_json, put_table
from mailslot.cli.terminal import asked as confirmed
from mailslot.cli.terminal import put, say
from mailslot.operation import Address

SESSIONS_COLUMNS: Final = ("SESSION", "STATUS", "PENDING", "HELD", "TURN", "CURSOR", "GOAL", "REASONS")


def _about(command: str, description: str, *examples: str) -> Parser:
    """A parser of a command that is about one session."""
    made = parser(command, description, *examples)
    add_session(made)
    add_json(made, "print the answer as one line of JSON")
    return made


# -- how they stand -----------------------------------------------------------------------------------------------


def _status_parser() -> Parser:
    return _about(
        "status", "Say how a session's whole agent stands: running or idle, why, what waits.", "mailslot status demo"
    )


def _status(made: Parser, options: argparse.Namespace) -> int:
    address = Address(session_of(made, options))
    level = asked(made, options, lambda terms: operation.level(terms, address))
    return show(options, level if options.json else _pairs(level))


def _pairs(level: Level) -> dict[str, object]:
    """A level in words: what is nested is said in one line."""
    goal, usage = level.goal, level.usage
    cost = "" if usage.cost is None else f", cost {usage.cost:g}"
    return {
        "sessionId": level.session_id,
        "status": level.status,
        "reasons": level.reasons or None,
        "turn": level.turn,
        "pending": level.pending,
        "held": level.held,
        "hold": level.hold,
        "goal": None if goal is None else f"{goal.phase}, round {goal.rounds}: {goal.objective}",
        "usage": f"{usage.input_tokens} tokens in, {usage.output_tokens} out{cost}",
        "closed": level.closed,
        "cursor": level.cursor,
        "conservation": level.conservation,
    }


def _sessions_parser() -> Parser:
    made = parser(
        "sessions", "List all sessions and how they stand.", "mailslot sessions", "mailslot sessions --status running"
    )
    made.add_argument("--status", choices=("running", "idle"), help="only those")
    add_json(made, "print each session whole, as one line of JSON")
    return made


def _sessions(made: Parser, options: argparse.Namespace) -> int:
    with contextlib.closing(transport(made, options)) as way:
        levels = way.follow(operation.levels(way.terms, options.status))
        if options.json:
            for level in levels:
                put(line_of(level))
        else:
            put_table(SESSIONS_COLUMNS, map(_row, levels))
    return Exit.COMPLETED


def _row(level: Level) -> tuple[object, ...]:
    phase = None if level.goal is None else level.goal.phase
    reasons = ("closed",) if level.closed and not level.reasons else level.reasons
    return (level.session_id, level.status, level.pending, level.held, level.turn, level.cursor, phase, reasons)


# -- how they are stopped -----------------------------------------------------------------------------------------


def _cancel_parser() -> Parser:
    made = _about(
        "cancel",
        "Stop the open turn of a session, and say what becomes of what is queued.",
        "mailslot cancel demo",
        "mailslot cancel demo --queue hold    # then: mailslot release demo",
        "mailslot cancel demo --turn 7 --wait 30",
    )
    made.add_argument(
        "--queue",
        choices=("keep", "hold", "clear"),
        default="keep",
        help="what is queued: the agent goes on with it (default), it waits for a release, or is cancelled too",
    )
    made.add_argument("--turn", type=counted("a turn", 1), help="only this turn; refused when it is not open")
    made.add_argument("--wait", type=seconds, metavar="DURATION", help="wait so long until it has stopped, at most 60s")
    return made


def _cancel(made: Parser, options: argparse.Namespace) -> int:
    address = Address(session_of(made, options))
    outcome = asked(
        made,
        options,
        lambda terms: operation.cancel(terms, address, queue=options.queue, turn=options.turn, wait_s=options.wait),
    )
    show(options, outcome)
    if options.wait is not None and outcome.outcome == "requested":
        say(f"mailslot cancel: session {address.session_id} has not stopped yet; it is asked to")
        return Exit.TIMEOUT
    return Exit.COMPLETED


def _release_parser() -> Parser:
    return _about("release", "End a session's hold: what waited behind it wakes the agent.", "mailslot release demo")


def _release(made: Parser, options: argparse.Namespace) -> int:
    address = Address(session_of(made, options))
    return show(options, {"cursor": asked(made, options, lambda terms: inbox.release(terms, address))})


def _close_parser() -> Parser:
    return _about(
        "close",
        "Close a session for good: its open turn is stopped, what is queued is cancelled, nothing more is taken.\n\n"
        "Its history stays readable; `mailslot erase` takes that away as well.",
        "mailslot close demo",
    )


def _close(made: Parser, options: argparse.Namespace) -> int:
    address = Address(session_of(made, options))
    return show(options, asked(made, options, lambda terms: inbox.close(terms, address)))


def _erase_parser() -> Parser:
    made = _about(
        "erase",
        "Close a session and erase everything of it, history included. Asks first.",
        "mailslot erase demo",
        "mailslot erase demo --yes --wait 30",
    )
    made.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
    made.add_argument("--wait", type=seconds, metavar="DURATION", help="wait so long for its last turn, at most 60s")
    return made


def _erase(made: Parser, options: argparse.Namespace) -> int:
    address = Address(session_of(made, options))
    if not options.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            made.error("nobody can be asked here; say --yes")
        if not confirmed(f"Erase session {address.session_id} and everything it holds? This cannot be undone."):
            say("mailslot erase: nothing was erased")
            return Exit.DECLINED
    erasure = asked(made, options, lambda terms: inbox.erase(terms, address, options.wait))
    if options.json:
        put_json(erasure)
    else:
        show(
            options, {"erased": erasure.erased, "stores": [_store(name, kept) for name, kept in erasure.stores.items()]}
        )
    if options.wait is not None and not erasure.erased:
        say(f"mailslot erase: session {address.session_id} is closed, and erased when its last turn has ended")
        return Exit.TIMEOUT
    return Exit.COMPLETED


def _store(name: str, kept: StoreReceipt) -> str:
    found = ((kept.events, "events"), (kept.messages, "messages"))
    counts = [f"{count} {what}" for count, what in found if count is not None]
    return f"{name} ({', '.join(counts)})" if counts else name


STATUS: Final = Command(_status_parser, _status)
SESSIONS: Final = Command(_sessions_parser, _sessions)
CANCEL: Final = Command(_cancel_parser, _cancel)
RELEASE: Final = Command(_release_parser, _release)
CLOSE: Final = Command(_close_parser, _close)
ERASE: Final = Command(_erase_parser, _erase)

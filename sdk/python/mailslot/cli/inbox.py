"""What waits in a session, and one message: `queue`, `message`, `replace`, `withdraw`, `move`.

A message that no turn has taken yet can be changed. Who comes too late is refused, and nothing was changed.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from mailslot import inbox
from mailslot.cli.exits import Exit
from mailslot.cli.options import (
    Command,
    Parser,
    add_json,
    add_session,
    add_text,
    identifier,
    parser,
    session_of,
    text_of,
    transport,
)
from mailslot.cli.output import clock, put_json, put_record, put_table, wire
from mailslot.interval import text_of as words_in
from mailslot.operation import Address
from mailslot.record import MessageRecord
from mailslot.step import Operation, Terms

T = TypeVar("T")

QUEUE_COLUMNS: Final = ("MESSAGE", "STATE", "DELIVERY", "NOT BEFORE", "EXPIRES", "TEXT")


def asked(made: Parser, options: argparse.Namespace, operation: Callable[[Terms], Operation[T]]) -> T:
    """Carry out one operation at the server."""
    with contextlib.closing(transport(made, options)) as way:
        return way.perform(operation(way.terms))


def show(options: argparse.Namespace, value: object) -> int:
    """Show one thing that the server answered."""
    if options.json:
        put_json(value)
    else:
        put_record(wire(value))
    return Exit.COMPLETED


# -- the queue ----------------------------------------------------------------------------------------------------


def _queue_parser() -> Parser:
    made = parser(
        "queue",
        "List what waits in a session, in the order in which it would be taken.\n\n"
        "Change it with `mailslot replace`, `withdraw` and `move`.",
        "mailslot queue demo",
        "mailslot queue demo | cut -f1 | xargs -n1 mailslot withdraw demo",
    )
    add_session(made)
    add_json(made, "print each message whole, as one line of JSON")
    return made


def _queue(made: Parser, options: argparse.Namespace) -> int:
    address = Address(session_of(made, options))
    messages = asked(made, options, lambda terms: inbox.queue(terms, address))
    if options.json:
        for message in messages:
            put_json(message)
        return Exit.COMPLETED
    rows = [
        (
            message.message_id,
            message.state,
            message.delivery,
            clock(message.not_before),
            clock(message.expires_at),
            words_in(message.content),
        )
        for message in messages
    ]
    put_table(QUEUE_COLUMNS, rows)
    return Exit.COMPLETED


# -- one message --------------------------------------------------------------------------------------------------


def _named(made: Parser) -> Parser:
    made.add_argument("session", type=identifier, help="the session")
    made.add_argument("message", type=identifier, help="the message's id, as in its receipt and in `mailslot queue`")
    add_json(made, "print the message's record as one line of JSON")
    return made


def _message_parser() -> Parser:
    return _named(
        parser(
            "message",
            "Say what happened to a message: queued, claimed, admitted, cancelled … never how a turn ended.",
            "mailslot message demo daily-7",
        )
    )


def _withdraw_parser() -> Parser:
    return _named(
        parser(
            "withdraw",
            "Take a queued message back. Refused once a turn has taken it: then there is `mailslot cancel`.",
            "mailslot withdraw demo daily-7",
        )
    )


def _move_parser() -> Parser:
    return _named(
        parser(
            "move",
            "Steer with a queued message: it joins the running turn at its next step, or wakes the agent.\n\n"
            "Steer with new words by `mailslot send --delivery steer`.",
            "mailslot move demo daily-7",
        )
    )


def _replace_parser() -> Parser:
    made = parser(
        "replace",
        "Give a queued message other words; it keeps its place. Refused once a turn has taken it.",
        'mailslot replace demo daily-7 "write the weekly report"',
    )
    add_text(_named(made), "text")
    return made


def _message(made: Parser, options: argparse.Namespace) -> int:
    return _recorded(made, options, inbox.message)


def _withdraw(made: Parser, options: argparse.Namespace) -> int:
    return _recorded(made, options, inbox.withdraw)


def _move(made: Parser, options: argparse.Namespace) -> int:
    return _recorded(made, options, inbox.move)


def _replace(made: Parser, options: argparse.Namespace) -> int:
    text = text_of(made, options, "text")
    return _recorded(made, options, lambda terms, address, name: inbox.replace(terms, address, name, text))


def _recorded(
    made: Parser, options: argparse.Namespace, operation: Callable[[Terms, Address, str], Operation[MessageRecord]]
) -> int:
    address = Address(options.session)
    return show(options, asked(made, options, lambda terms: operation(terms, address, options.message)))


QUEUE: Final = Command(_queue_parser, _queue)
MESSAGE: Final = Command(_message_parser, _message)
REPLACE: Final = Command(_replace_parser, _replace)
WITHDRAW: Final = Command(_withdraw_parser, _withdraw)
MOVE: Final = Command(_move_parser, _move)

"""What is dead, and how it lives again: `dead`, `redrive`."""

from __future__ import annotations

import argparse
import contextlib
from typing import Final

from mailslot import inbox
from mailslot.answer import DeadLetter
from mailslot.cli.exits import Exit
from mailslot.cli.inbox import asked
from mailslot.cli.options import Command, Parser, add_json, identifier, parser, transport
from mailslot.cli.output import clock, put_json, put_table

DEAD_COLUMNS: Final = ("LETTER", "SESSION", "TURN", "TIME", "ATTEMPTS", "MESSAGES", "REASON")
RECEIPT_COLUMNS: Final = ("MESSAGE", "CURSOR", "DUPLICATE", "DURABILITY")


def _dead_parser() -> Parser:
    made = parser(
        "dead",
        "List the dead letters: turns that were given up after too many crashes, and the messages that died with them.",
        "mailslot dead",
        "mailslot dead | cut -f1 | xargs -n1 mailslot redrive",
    )
    add_json(made, "print each letter whole, as one line of JSON")
    return made


def _dead(made: Parser, options: argparse.Namespace) -> int:
    with contextlib.closing(transport(made, options)) as way:
        letters = way.follow(inbox.dead(way.terms))
        if options.json:
            for letter in letters:
                put_json(letter)
        else:
            put_table(DEAD_COLUMNS, map(_row, letters))
    return Exit.COMPLETED


def _row(letter: DeadLetter) -> tuple[object, ...]:
    messages = [f"{message.message_id} ({message.state or 'unknown'})" for message in letter.messages]
    at = clock(letter.time)
    return (letter.letter_id, letter.session_id, letter.turn, at, letter.attempts, messages, letter.reason)


def _redrive_parser() -> Parser:
    made = parser(
        "redrive",
        "Queue a dead letter's messages again, each under its own id. Prints a receipt for each.",
        "mailslot redrive 1-0",
    )
    made.add_argument("letter", type=identifier, help="the letter, as in `mailslot dead`")
    add_json(made, "print each receipt as one line of JSON")
    return made


def _redrive(made: Parser, options: argparse.Namespace) -> int:
    receipts = asked(made, options, lambda terms: inbox.redrive(terms, options.letter))
    if options.json:
        for receipt in receipts:
            put_json(receipt)
    else:
        rows = [(receipt.message_id, receipt.cursor, receipt.duplicate, receipt.durability) for receipt in receipts]
        put_table(RECEIPT_COLUMNS, rows)
    return Exit.COMPLETED


DEAD: Final = Command(_dead_parser, _dead)
REDRIVE: Final = Command(_redrive_parser, _redrive)

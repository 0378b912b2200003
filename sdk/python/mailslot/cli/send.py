"""`mailslot send --session s "message"`: queue a message and print its receipt as one line of JSON.

The receipt proves that the message is kept, and nothing more; exit code 0 says the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from typing import Final

from mailslot.cli.exits import Exit
from mailslot.cli.options import (
    Command,
    Parser,
    add_json,
    add_text,
    counted,
    identifier,
    moment,
    parser,
    seconds,
    text_of,
    transport,
)
from mailslot.cli.terminal import put
from mailslot.operation import Address, draft, prompt


def _parser() -> Parser:
    made = parser(
        "send",
        "Queue a message and print its receipt: it is kept, and nothing more.",
        'mailslot send --session demo "look at the mail"',
        'mailslot send --session demo --delivery steer "to the left"',
        'mailslot send --session demo --in 2h --message-id daily-7 "write the daily report"',
    )
    add_text(made, "message")
    made.add_argument("--session", type=identifier, required=True, help="the session; it is made if it does not exist")
    made.add_argument("--agent", type=identifier, help="the agent of a session that does not exist yet")
    made.add_argument(
        "--delivery",
        choices=("queue", "steer", "inject"),
        default="queue",
        help="queue: a turn of its own (default); steer: the next step, waking; inject: the next step, not waking",
    )
    made.add_argument(
        "--message-id", type=identifier, help="your own id for the message: sending the same twice queues it once"
    )
    _add_times(made)
    _add_conditions(made)
    add_json(made, "nothing changes: a receipt is JSON anyway")
    return made


def _add_times(made: Parser) -> None:
    begins, ends = made.add_mutually_exclusive_group(), made.add_mutually_exclusive_group()
    begins.add_argument(
        "--not-before", type=moment, metavar="TIME", help="do nothing with it before 2026-01-31T09:00, or ms since 1970"
    )
    begins.add_argument(
        "--in", dest="begins_in", type=seconds, metavar="DURATION", help="do nothing with it for 5m, 2h"
    )
    ends.add_argument("--expires-at", type=moment, metavar="TIME", help="drop it if it is still queued then")
    ends.add_argument(
        "--expires-in", type=seconds, metavar="DURATION", help="drop it if it is still queued after so long"
    )


def _add_conditions(made: Parser) -> None:
    made.add_argument("--if-busy", choices=("reject",), help="refuse it unless the agent is idle and nothing waits")
    made.add_argument("--if-idle", choices=("reject",), help="refuse a steer that would open a turn")
    made.add_argument(
        "--expect-turn", type=counted("a turn", 1), metavar="TURN", help="refuse a steer unless this turn is open"
    )


def _act(made: Parser, options: argparse.Namespace) -> int:
    now_ms = int(time.time() * 1000)
    message = draft(
        text_of(made, options, "message"),
        message_id=options.message_id,
        delivery=options.delivery,
        not_before=_at(now_ms, options.not_before, options.begins_in),
        expires_at=_at(now_ms, options.expires_at, options.expires_in),
        if_busy=options.if_busy,
        if_idle=options.if_idle,
        expect_turn=options.expect_turn,
    )
    with contextlib.closing(transport(made, options)) as way:
        receipt = way.perform(prompt(way.terms, Address(options.session, options.agent), message))
    put(json.dumps(receipt.wire(), ensure_ascii=False))
    return Exit.COMPLETED


def _at(now_ms: int, moment_ms: int | None, in_s: float | None) -> int | None:
    return moment_ms if in_s is None else now_ms + round(in_s * 1000)


SEND: Final = Command(_parser, _act)

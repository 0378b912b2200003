"""`mailslot send --session s "message"`: queue a message and print its receipt as one line of JSON.

The receipt proves that the message is kept, and nothing more; exit code 0 says the same.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

from mailslot.cli.exits import Exit
from mailslot.cli.options import add_text, identifier, parser, text_of, transport
from mailslot.cli.terminal import put
from mailslot.operation import Address, draft, prompt


def command(argv: Sequence[str]) -> int:
    """Queue a message and print its receipt."""
    made = parser("send", "Queue a message and print its receipt: it is kept, and nothing more.")
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
    options = made.parse_args(argv)
    message = draft(text_of(made, options, "message"), message_id=options.message_id, delivery=options.delivery)
    with contextlib.closing(transport(made, options)) as way:
        receipt = way.perform(prompt(way.terms, Address(options.session, options.agent), message))
    put(json.dumps(receipt.wire(), ensure_ascii=False))
    return Exit.COMPLETED

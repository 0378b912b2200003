"""A client that nobody wrote: made from the OpenAPI document that the server itself hands out.

Shows: a prompt and its receipt, the level, what waits in the queue, waiting for idle, the ledger page by page, and a
refusal with its code, all of it typed.

Run it beside `mailslot up`, in a folder of your own:

    pip install openapi-python-client
    openapi-python-client generate --url http://127.0.0.1:8080/openapi.json --meta none \\
        --output-path mailslot_generated --config examples/generated_client/openapi-python-client.yaml
    PYTHONPATH=. python examples/generated_client/talk.py

MAILSLOT_URL says where the doors are.
"""

import os
import time
from collections.abc import Iterator

from mailslot_generated import Client
from mailslot_generated.api.events import read_events
from mailslot_generated.api.idle import wait_idle
from mailslot_generated.api.messages import read_message, read_queue, withdraw_message
from mailslot_generated.api.sessions import read_session, submit_prompt
from mailslot_generated.models import Envelope, EventPage, IdleAnswer, Level, MessageRecord, Prompt, QueuePage, Receipt

SESSION = "generated"
PAGE = 5
TOMORROW_MS = int(time.time() * 1000) + 24 * 60 * 60 * 1000


def ledger(client: Client, session: str) -> Iterator[Envelope]:
    """Every event from the first to the newest, a page at a time."""
    after: int | None = 0
    while after is not None:
        page = read_events.sync(session, client=client, after=after, limit=PAGE)
        assert isinstance(page, EventPage), page
        yield from page.events
        after = page.next_


def main() -> None:
    """Send, look, wait, read."""
    # A stream is what a browser gets at this address; whoever asks for JSON gets pages.
    client = Client(os.environ.get("MAILSLOT_URL", "http://127.0.0.1:8080"), headers={"Accept": "application/json"})

    receipt = submit_prompt.sync(SESSION, client=client, body=Prompt(content="hello from a generated client"))
    assert isinstance(receipt, Receipt), receipt
    print("receipt", receipt.message_id, receipt.cursor, receipt.durability)

    later = submit_prompt.sync(SESSION, client=client, body=Prompt(content="not today", not_before=TOMORROW_MS))
    assert isinstance(later, Receipt), later
    idle = wait_idle.sync(SESSION, client=client, after=receipt.cursor)
    assert isinstance(idle, IdleAnswer), idle
    print("idle", idle.status, idle.cursor)

    level = read_session.sync(SESSION, client=client)
    assert isinstance(level, Level), level
    print("level", level.status, level.cursor, level.pending)

    queue = read_queue.sync(SESSION, client=client)
    assert isinstance(queue, QueuePage), queue
    for waiting in queue.messages:
        print("queued", waiting.message_id, waiting.state, waiting.due)

    for event in ledger(client, SESSION):
        print("event", event.seq, event.type_)

    record = withdraw_message.sync(SESSION, later.message_id, client=client)
    assert isinstance(record, MessageRecord), record
    print("withdrawn", record.message_id, record.state, record.cause)

    # A refusal is typed as well: a problem, with a code that stays the same.
    answer = read_message.sync_detailed(SESSION, "nobody-sent-this", client=client)
    print("refused", answer.status_code.value, getattr(answer.parsed, "code", None))


if __name__ == "__main__":
    main()

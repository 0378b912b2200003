"""Operations on what waits in a session's inbox, on its hold, on its end, and on what is dead (see `step`).

| operation               | sent again when its answer was lost? | because                                             |
|-------------------------|--------------------------------------|-----------------------------------------------------|
| queue, message, dead    | yes                                  | they read                                           |
| replace                 | yes                                  | the same content once more changes nothing          |
| withdraw, redrive       | yes                                  | the second is refused                               |
| close, erase            | yes                                  | the second finds what the first did                 |
| move, release           | no                                   | a second would come after what happened in between  |

Rule 1: a change that may have been done and then met a refusal is `OutcomeUnknown`; the message's record tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mailslot.answer import Closing, Erasure, Receipt, read_closing, read_dead, read_erasure, read_receipt
from mailslot.operation import PAGE_COUNT, Address, Content, answered, segment
from mailslot.reading import JsonMap, encode, field, maps, optional
from mailslot.record import MessageRecord, QueuedMessage, read_queued, read_record
from mailslot.retry import Repeat, asked
from mailslot.step import Give, Operation, Request, Terms

# -- one message ------------------------------------------------------------------------------------------------


def message(terms: Terms, address: Address, message_id: str) -> Operation[MessageRecord]:
    """What happened to a message."""
    response = yield from asked(terms, Request("GET", _place(address, message_id)))
    return read_record(answered(response))


def replace(terms: Terms, address: Address, message_id: str, content: Content) -> Operation[MessageRecord]:
    """Give a queued message new content."""
    return (yield from _change(terms, address, message_id, {"content": content}, Repeat.SAFE))


def move(terms: Terms, address: Address, message_id: str) -> Operation[MessageRecord]:
    """Steer with a queued message."""
    return (yield from _change(terms, address, message_id, {"delivery": "steer"}, Repeat.UNSAFE))


def withdraw(terms: Terms, address: Address, message_id: str) -> Operation[MessageRecord]:
    """Take a queued message back."""
    request = Request("DELETE", _place(address, message_id))
    response = yield from asked(terms, request, effect=f"the withdrawal of message {message_id}")
    return read_record(answered(response))


def _change(
    terms: Terms, address: Address, message_id: str, body: Mapping[str, Any], repeat: Repeat
) -> Operation[MessageRecord]:
    request = Request("PATCH", _place(address, message_id), body=encode(body))
    response = yield from asked(terms, request, repeat=repeat, effect=f"the change of message {message_id}")
    return read_record(answered(response))


def _place(address: Address, message_id: str) -> str:
    return address.path("messages", segment(message_id))


# -- the queue --------------------------------------------------------------------------------------------------


def queue(terms: Terms, address: Address) -> Operation[tuple[QueuedMessage, ...]]:
    """Everything that waits, in the order in which it would be taken."""
    found: list[QueuedMessage] = []
    after: str | None = None
    while True:
        page = yield from _page(terms, address.path("messages"), after)
        found += map(read_queued, maps(page, "messages"))
        after = optional(page, "next", str)
        if after is None:
            return tuple(found)


def release(terms: Terms, address: Address) -> Operation[int]:
    """End a hold; the newest seq."""
    request = Request("POST", address.path("release"))
    effect = f"the release of session {address.session_id}"
    response = yield from asked(terms, request, repeat=Repeat.UNSAFE, effect=effect)
    return field(answered(response), "cursor", int)


def _page(terms: Terms, path: str, after: str | None) -> Operation[JsonMap]:
    query = {"limit": str(PAGE_COUNT)} | ({} if after is None else {"after": after})
    return answered((yield from asked(terms, Request("GET", path, query))))


# -- the end of a session ---------------------------------------------------------------------------------------


def close(terms: Terms, address: Address) -> Operation[Closing]:
    """Close the session for good."""
    request = Request("POST", address.path("close"))
    return read_closing(answered((yield from asked(terms, request, effect=f"the end of session {address.session_id}"))))


def erase(terms: Terms, address: Address, wait_s: float | None) -> Operation[Erasure]:
    """Close the session and erase everything of it."""
    query = {} if wait_s is None else {"wait": f"{wait_s:g}"}
    response = yield from asked(
        terms,
        Request("DELETE", address.path(), query),
        effect=f"the erasure of session {address.session_id}",
        timeout_s=terms.settings.request_timeout_s + (wait_s or 0),
    )
    address.made = False
    return read_erasure(answered(response))


# -- what is dead -----------------------------------------------------------------------------------------------


def dead(terms: Terms) -> Operation[None]:
    """Give every dead letter, oldest first, page by page."""
    after: str | None = None
    while True:
        page = yield from _page(terms, "/v1/dead", after)
        for letter in maps(page, "letters"):
            yield Give(read_dead(letter))
        after = optional(page, "next", str)
        if after is None:
            return


def redrive(terms: Terms, letter_id: str) -> Operation[tuple[Receipt, ...]]:
    """Queue a letter's dead messages again; a receipt for each."""
    request = Request("POST", f"/v1/dead/{segment(letter_id)}/redrive")
    response = yield from asked(terms, request, effect=f"the redrive of letter {letter_id}")
    return tuple(map(read_receipt, maps(answered(response), "receipts")))

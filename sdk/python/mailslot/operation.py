"""What a client can ask of the server in one exchange or a few, as operations (see `step`); `inbox` has the rest.

Rule 1: a prompt carries a message id that was made here, so that every prompt is safe to repeat.
Rule 2: what is not safe to repeat (a cancel that names no turn or touches the queue, a change of a goal) is sent again
        only when it was certainly not done.
Rule 3: a session is made with its agent before it is first written to; without an agent the server makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from mailslot.answer import (
    Budgets,
    CancelOutcome,
    Goal,
    Level,
    Receipt,
    Rest,
    read_cancel,
    read_goal,
    read_level,
    read_receipt,
    read_rest,
)
from mailslot.errors import Refused, RunTimeout
from mailslot.ids import new_id
from mailslot.reading import JsonMap, decode, encode, field, optional
from mailslot.retry import Repeat, asked
from mailslot.step import DeadlinePassed, Give, Operation, Request, Response, Terms

Content: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A text, or blocks: `{"type": "text", "text": …}`, `{"type": "image", "mediaType": …, "data" | "url": …}`."""

Delivery: TypeAlias = Literal["queue", "steer", "inject"]
"""queue = a turn of its own; steer = the next step, waking; inject = the next step, not waking."""

Queue: TypeAlias = Literal["keep", "hold", "clear"]
"""What a cancel does to what is queued: the agent goes on with it, it waits for a release, or it is cancelled."""

Reject: TypeAlias = Literal["reject"]
"""What a message says to be refused in a state of the agent instead of queued."""

PAGE_COUNT = 100
"""Sessions, messages or letters asked for at once."""


@dataclass(slots=True)
class Address:
    """A session, and the agent it is to have; `made` once the server has said that it has it."""

    session_id: str
    agent: str | None = None
    made: bool = False

    def path(self, *rest: str) -> str:
        """The path of the session, or of something in it."""
        return "/".join(("/v1/sessions", segment(self.session_id), *rest))


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be sent as often as needed: its id and its body are there before the first attempt."""

    message_id: str
    body: bytes


def draft(  # noqa: PLR0913 - what a prompt can say (protocol section 7)
    content: Content,
    *,
    message_id: str | None = None,
    delivery: Delivery = "queue",
    not_before: int | None = None,
    expires_at: int | None = None,
    if_busy: Reject | None = None,
    if_idle: Reject | None = None,
    expect_turn: int | None = None,
    source: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Draft:
    """A message to send; without an id it gets one here."""
    chosen = new_id() if message_id is None else message_id
    options = {
        "notBefore": not_before,
        "expiresAt": expires_at,
        "ifBusy": if_busy,
        "ifIdle": if_idle,
        "expectTurn": expect_turn,
        "source": source,
        "metadata": metadata,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return Draft(chosen, encode({"messageId": chosen, "content": content, "delivery": delivery, **given}))


def segment(text: str) -> str:
    """A piece of a path, whatever is in it; dots alone would otherwise be read as a way up."""
    try:
        quoted = quote(text, safe="")
    except UnicodeEncodeError:
        raise Refused("bad-input", "an id holds a lone surrogate, which is not UTF-8") from None
    if not quoted:
        raise Refused("bad-input", "an id must not be empty")
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted


# -- sessions ---------------------------------------------------------------------------------------------------


def level(terms: Terms, address: Address) -> Operation[Level]:
    """How the whole agent stands."""
    response = yield from asked(terms, Request("GET", address.path()))
    return read_level(answered(response))


def levels(terms: Terms, status: str | None) -> Operation[None]:
    """Give the level of every session, page by page."""
    query = {"limit": str(PAGE_COUNT)} | ({} if status is None else {"status": status})
    after: str | None = None
    while True:
        page = yield from _page(terms, query if after is None else query | {"after": after})
        for value in field(page, "sessions", list):
            yield Give(read_level(value))
        after = optional(page, "next", str)
        if after is None:
            return


def _page(terms: Terms, query: Mapping[str, str]) -> Operation[JsonMap]:
    response = yield from asked(terms, Request("GET", "/v1/sessions", query))
    return answered(response)


def make(terms: Terms, address: Address) -> Operation[int]:
    """Have the server have the session with its agent; the seq of its newest event."""
    body = {"sessionId": address.session_id} | ({} if address.agent is None else {"agent": address.agent})
    response = yield from asked(terms, Request("POST", "/v1/sessions", body=encode(body)))
    address.made = True
    return field(answered(response), "cursor", int)


def arrive(terms: Terms, address: Address) -> Operation[int]:
    """The seq of the session's newest event; a session that does not exist is made."""
    if address.agent is not None and not address.made:
        return (yield from make(terms, address))
    try:
        return (yield from level(terms, address)).cursor
    except Refused as refused:
        if refused.code != "not-found":
            raise
    return (yield from make(terms, address))


# -- messages ---------------------------------------------------------------------------------------------------


def prompt(terms: Terms, address: Address, message: Draft) -> Operation[Receipt]:
    """Submit a message; the receipt proves that it is kept."""
    if address.agent is not None and not address.made:
        yield from make(terms, address)
    response = yield from asked(
        terms,
        Request("POST", address.path("prompt"), body=message.body),
        effect=f"message {message.message_id}",
        message_id=message.message_id,
    )
    return read_receipt(answered(response))


def cancel(
    terms: Terms, address: Address, *, queue: Queue, turn: int | None, wait_s: float | None
) -> Operation[CancelOutcome]:
    """Stop the open turn, or the named one, and do to the queue what is said."""
    body: dict[str, Any] = {"queue": queue} | ({} if turn is None else {"turn": turn})
    query = {} if wait_s is None else {"wait": f"{wait_s:g}"}
    # Sent twice without naming a turn, the second could stop a later one; and what was queued in between is not meant.
    once = turn is None or queue != "keep"
    response = yield from asked(
        terms,
        Request("POST", address.path("cancel"), query, encode(body)),
        repeat=Repeat.UNSAFE if once else Repeat.SAFE,
        effect=f"the cancel of session {address.session_id}",
        timeout_s=terms.settings.request_timeout_s + (wait_s or 0),
    )
    return read_cancel(answered(response))


# -- idle -------------------------------------------------------------------------------------------------------


def rest(terms: Terms, address: Address, after: int | None) -> Operation[int]:
    """Wait until the agent is idle; the seq of that idle, which is greater than `after`.

    Gives a `Rest` each time a poll ended without one.
    """
    seen: Rest | None = None
    try:
        while True:
            seen = yield from _poll_rest(terms, address, after)
            # At its timeout a poll tells how the agent stands, which may be an idle that was known before.
            if seen.idle and (after is None or seen.cursor > after):
                return seen.cursor
            yield Give(seen)
    except DeadlinePassed:
        raise RunTimeout(_no_idle(address, after, seen)) from None


def _no_idle(address: Address, after: int | None, seen: Rest | None) -> str:
    if seen is not None and seen.idle:
        return f"session {address.session_id} had no idle after seq {after}: it was idle all the time"
    why = f" ({', '.join(seen.reasons)})" if seen is not None and seen.reasons else ""
    return f"session {address.session_id} is still running{why}"


def _poll_rest(terms: Terms, address: Address, after: int | None) -> Operation[Rest]:
    poll_s = terms.left_s(terms.settings.idle_poll_s)
    query = {"timeout": f"{poll_s:.3f}"} | ({} if after is None else {"after": str(after)})
    wait_s = poll_s + (terms.settings.request_timeout_s if terms.deadline is None else terms.settings.idle_grace_s)
    patient = terms if terms.deadline is None else terms.within(wait_s)
    response = yield from asked(patient, Request("GET", address.path("idle"), query), timeout_s=wait_s)
    return read_rest(answered(response))


# -- goals ------------------------------------------------------------------------------------------------------


def goal(terms: Terms, address: Address) -> Operation[Goal | None]:
    """The session's goal; None when it has none."""
    try:
        response = yield from asked(terms, Request("GET", address.path("goal")))
    except Refused as refused:
        if refused.code == "not-found":
            return None
        raise
    return read_goal(answered(response))


def set_goal(terms: Terms, address: Address, objective: str, budgets: Budgets | None) -> Operation[Goal]:
    """Give the session a goal."""
    if address.agent is not None and not address.made:
        yield from make(terms, address)
    return (yield from _change_goal(terms, address, "PUT", goal_edit(objective, budgets), None))


def goal_edit(objective: str | None, budgets: Budgets | None) -> JsonMap:
    """The body that changes a goal's objective or budgets."""
    edit: dict[str, Any] = {} if objective is None else {"objective": objective}
    return edit if budgets is None else edit | {"budgets": budgets.wire()}


def goal_block(code: str | None, message: str | None) -> JsonMap:
    """The body that blocks a goal."""
    reason = {"code": code, "message": message}
    return {"operation": "block"} | {name: value for name, value in reason.items() if value is not None}


def patch_goal(terms: Terms, address: Address, body: Mapping[str, Any], revision: int | None) -> Operation[Goal]:
    """Edit the goal or do something to it, if it is still at the revision that the caller saw."""
    return (yield from _change_goal(terms, address, "PATCH", body, revision))


def clear_goal(terms: Terms, address: Address, revision: int | None) -> Operation[None]:
    """Take the goal away."""
    yield from _send_goal(terms, address, "DELETE", None, revision)


def _change_goal(
    terms: Terms, address: Address, method: str, body: Mapping[str, Any], revision: int | None
) -> Operation[Goal]:
    response = yield from _send_goal(terms, address, method, encode(body), revision)
    return read_goal(answered(response))


def _send_goal(
    terms: Terms, address: Address, method: str, body: bytes | None, revision: int | None
) -> Operation[Response]:
    headers = {} if revision is None else {"if-match": f'"{revision}"'}
    return (
        yield from asked(
            terms,
            Request(method, address.path("goal"), body=body, headers=headers),
            repeat=Repeat.UNSAFE,
            effect=f"the change of the goal of session {address.session_id}",
        )
    )


def answered(response: Response) -> JsonMap:
    """The JSON of a good answer."""
    return decode(response.body, "the answer")

"""A run: an interval of activity that the caller owns, as an operation.

    arrive ──> subscribe ──> submit ──> collect … through the next idle ──> result
                  ^            │ refused `busy`, for one that is to be alone
                  └── wait <───┘

Rule 1: the subscription stands before the message is sent, so nothing that follows the receipt can be missed.
        Whether the message's first events or its receipt arrive first does not matter.
Rule 2: it begins at the session's newest event of that moment: never at a cursor that somebody kept.
Rule 3: leaving a run leaves the agent alone. Only `cancel_on_abort` stops it, and then the turn that took the run's
        own message, by its number: neither somebody else's turn nor a later one is ever hit. While no turn is known
        to have taken it, nothing is stopped, and the message keeps its place in the queue.
Rule 4: what the agent makes of the message does not raise; losing sight of the agent for good does.
"""

from __future__ import annotations

from typing import TypeAlias

from mailslot.answer import Receipt, Rest
from mailslot.errors import MailslotError, Refused, RunTimeout
from mailslot.event import Event
from mailslot.exclusive import insisted
from mailslot.interval import Interval
from mailslot.operation import Address, Draft, arrive, cancel, level, make, prompt, rest
from mailslot.step import Abandoned, DeadlinePassed, Give, Operation, Shut, Terms
from mailslot.subscription import Subscription


def owned_run(
    terms: Terms, address: Address, message: Draft, *, deltas: bool = False, cancel_on_abort: bool = False
) -> Operation[None]:
    """From the message's receipt through the next idle. Gives the receipt, each event, and the result."""
    try:
        after = yield from arrive(terms, address)
        interval = Interval(address.session_id, message.message_id)
        entry = _entry(terms, address, message, after, deltas=deltas)
        yield from _owned(terms, address, interval, entry, cancel_on_abort=cancel_on_abort)
    except DeadlinePassed:
        raise _timed_out(address, message) from None


def exclusive_run(
    terms: Terms,
    address: Address,
    message: Draft,
    patience_s: float | None,
    *,
    deltas: bool = False,
    cancel_on_abort: bool = False,
) -> Operation[None]:
    """As `owned_run`, for a message that is refused while the agent is busy: it is sent once the agent is not."""

    def enter(since: int) -> Operation[_Entered]:
        return _entry(terms, address, message, since, deltas=deltas)

    try:
        after = yield from arrive(terms, address)
        interval = Interval(address.session_id, message.message_id)
        entry = insisted(terms, address, patience_s, enter, after)
        yield from _owned(terms, address, interval, entry, cancel_on_abort=cancel_on_abort)
    except DeadlinePassed:
        raise _timed_out(address, message) from None


def idle_to_idle(terms: Terms, address: Address, message: Draft, *, cancel_on_abort: bool = False) -> Operation[None]:
    """From an idle of the whole agent, which is waited for, through the next one after the message's receipt.

    Gives a `Rest` each time the agent is still running, one when it is idle, then what `owned_run` gives. Who leaves
    before that idle has sent nothing.
    """
    try:
        after = yield from _rested(terms, address)
        yield Give(Rest(idle=True, cursor=after, reasons=()))
        interval = Interval(address.session_id, message.message_id, whole=True)
        entry = _entry(terms, address, message, after)
        yield from _owned(terms, address, interval, entry, cancel_on_abort=cancel_on_abort)
    except DeadlinePassed:
        raise _timed_out(address, message) from None


def _rested(terms: Terms, address: Address) -> Operation[int]:
    """The seq at which the agent is idle; a session that does not exist is made, and is idle from the start."""
    if address.agent is not None and not address.made:
        yield from make(terms, address)
    try:
        now = yield from level(terms, address)
    except Refused as refused:
        if refused.code != "not-found":
            raise
        return (yield from make(terms, address))
    if now.status == "idle":
        return now.cursor
    yield Give(Rest(idle=False, cursor=now.cursor, reasons=now.reasons))
    return (yield from rest(terms, address, now.cursor))


_Entered: TypeAlias = tuple[Subscription, Receipt]
"""A subscription that stands since before the message was sent, and the message's receipt."""


def _entry(terms: Terms, address: Address, message: Draft, after: int, *, deltas: bool = False) -> Operation[_Entered]:
    subscription = Subscription(terms, address, after, deltas=deltas)
    yield from subscription.open()
    try:
        return subscription, (yield from prompt(terms, address, message))
    except MailslotError:
        yield Shut()
        raise


def _owned(
    terms: Terms, address: Address, interval: Interval, entry: Operation[_Entered], *, cancel_on_abort: bool
) -> Operation[None]:
    try:
        subscription, receipt = yield from entry
        yield Give(receipt)
        yield from _collected(subscription, interval)
    except (Abandoned, DeadlinePassed):
        if cancel_on_abort and interval.turn is not None:
            yield from _cancelled(terms, address, interval.turn)
        raise
    yield Give(interval.result())


def _collected(subscription: Subscription, interval: Interval) -> Operation[None]:
    """What was received is all taken before it is given: who leaves in the middle of it may know its turn by then."""
    while not interval.done:
        received = yield from subscription.receive()
        for item in [item for item in received if not isinstance(item, Event) or interval.feed(item)]:
            yield Give(item)


def _cancelled(terms: Terms, address: Address, turn: int) -> Operation[None]:
    """Stop the turn as far as that can be done quickly; a caller who leaves cannot be told more."""
    bounded = Terms(terms.settings, terms.clock, terms.chance).within(terms.settings.abort_timeout_s)
    try:
        yield from cancel(bounded, address, queue="keep", turn=turn, wait_s=None)
    except (MailslotError, DeadlinePassed):
        return


def _timed_out(address: Address, message: Draft) -> RunTimeout:
    return RunTimeout(
        f"session {address.session_id} was not idle in time for the run of message {message.message_id}",
        message_id=message.message_id,
    )

"""Sending only while nobody else is at work, as operations: what `session.exclusive()` is built on.

    submit, if_busy: reject ──> kept: nothing else is under way
        ^        │ refused `busy`
        │        v
        └── wait until the agent is idle      not longer than the caller's patience; then the refusal is the caller's

Rule 1: the server decides, in the act that would queue the message. Waiting for idle only says when to ask again, so
        two messages sent like this never share an interval, whoever sends them.
Rule 2: nobody is first in line: of those who ask at the same idle one gets in, and the others wait for the next one.
Rule 3: an idle agent may be busy as well, when messages are held; it is asked again after a while.
Rule 4: it is the same message each time. `busy` after an answer that was lost leaves open whether it was kept, and so
        does giving up then; asking again settles it.
Rule 5: a wait that is over because the whole operation is, is no refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mailslot.answer import Receipt
from mailslot.errors import OutcomeUnknown, Refused, RunTimeout
from mailslot.operation import Address, Draft, level, prompt, rest
from mailslot.retry import backoff_s
from mailslot.step import DeadlinePassed, Operation, Terms, paused

T = TypeVar("T")


def insisted(
    terms: Terms, address: Address, patience_s: float | None, submit: Callable[[int], Operation[T]], since: int
) -> Operation[T]:
    """What `submit` comes to once the agent is free. It is told after which seq its message can only be kept."""
    patient = terms.at_most(patience_s)
    tries = 0
    doubt = False
    while True:
        try:
            return (yield from submit(since))
        except (Refused, OutcomeUnknown) as error:
            if not _is_busy(error):
                raise
            refusal = error
        doubt = doubt or isinstance(refusal, OutcomeUnknown)
        try:
            newest, tries = yield from _freed(patient, address, tries + 1)
        except (DeadlinePassed, RunTimeout):
            terms.left_s(0)
            raise refusal from refusal.__cause__
        since = since if doubt else newest


def alone(terms: Terms, address: Address, message: Draft, patience_s: float | None) -> Operation[Receipt]:
    """Submit a message that is refused while the agent is busy, once it is not."""
    return (yield from insisted(terms, address, patience_s, lambda _: prompt(terms, address, message), 0))


def _is_busy(error: Refused | OutcomeUnknown) -> bool:
    last = error.__cause__ if isinstance(error, OutcomeUnknown) else error
    return isinstance(last, Refused) and last.code == "busy"


def _freed(terms: Terms, address: Address, tries: int) -> Operation[tuple[int, int]]:
    """Wait until it is worth asking again: the newest seq before, and how often in a row the agent only seemed free."""
    now = yield from level(terms, address)
    if now.status == "running":
        yield from rest(terms, address, now.cursor)
        return now.cursor, 0
    yield from paused(terms, backoff_s(terms.settings, tries, terms.chance()))
    return now.cursor, tries

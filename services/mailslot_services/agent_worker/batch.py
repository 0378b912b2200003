"""A claimed batch before the admission hooks, and what becomes of it. Pure.

    claimed --> [Standing] --what a hook answered, heeded--> [Standing] --> ... --next_move--> a step, or the turn's end

    who is left of the claimed   at the turn's start   after tools   after an answer without calls
    somebody                     step                  step          step
    nobody                       blocked               step          the end that the turn would have had

Rule 1: a hook answers with nothing, its batch or a rejection; anything else is its fault (`HookFailed`), and so is
        whatever no door would have let in (semantics L5, T4).
Rule 2: claimed messages enter in the order of their claim, from the source they came from (M4).
Rule 3: a claimed message that does not enter is rejected, with a reason (M10).
Rule 4: what a hook adds enters only along with a claimed message. Its source is the hook, and its id a function of the
        session, the step, the hook and its place among what that hook adds: a recovered turn gives it the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final

from mailslot.hooks import Batch, Message, Rejection
from mailslot_contracts.door import Door, read
from mailslot_contracts.messages import Content
from mailslot_contracts.problems import ContractError
from mailslot_core.agent import AssistantEntry, Entry
from mailslot_core.store import Claimed
from mailslot_core.turn import Draft

ADDED_COUNT_MAX: Final = 32
"""How many messages one hook may add to one batch."""

REASON_CHARACTERS_MAX: Final = 1_000
"""Longest reason of a rejection: it is kept in the message's record."""


class HookFailed(Exception):
    """A hook raised, took too long, or answered what cannot be; the sentence names it. It ends its turn only."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """Where a batch is about to enter."""

    session_id: str
    agent: str
    turn: int
    step: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What would enter, in order, and which claimed messages do not, with the reasons."""

    messages: tuple[Message, ...]
    added: frozenset[str] = frozenset()  # ids of messages that hooks added
    rejected: Mapping[str, str] = field(default_factory=dict)

    @property
    def claimed(self) -> tuple[Message, ...]:
        """What is left of the claimed messages."""
        return tuple(message for message in self.messages if message.message_id not in self.added)

    def entering(self) -> tuple[Claimed, ...]:
        """What enters (rule 4)."""
        if not self.claimed:
            return ()
        return tuple(Claimed(m.message_id, {"content": m.content, "source": m.source}) for m in self.messages)

    def rejections(self, turn: int) -> list[Draft]:
        """`inbox/rejected` for each message that does not enter (rule 3)."""
        return [
            Draft("inbox/rejected", {"messageId": message_id, "turn": turn, "reason": reason})
            for message_id, reason in self.rejected.items()
        ]


def standing(claimed: Sequence[Claimed]) -> Standing:
    """Before any hook: all of it enters as it is."""
    return Standing(
        tuple(Message(m.data["content"], m.message_id, m.data["source"], m.data.get("metadata") or {}) for m in claimed)
    )


def shown(now: Standing, occasion: Occasion) -> Batch:
    """What the next hook is shown: a copy, so that nothing it does to it counts but what it answers."""
    return Batch(occasion.session_id, occasion.agent, occasion.turn, occasion.step, deepcopy(now.messages))


# -- heeding ------------------------------------------------------------------------------------------------


def heed(now: Standing, occasion: Occasion, hook: str, answer: object) -> Standing:
    """How the batch stands after the hook's answer. Raises `HookFailed`."""
    if answer is None:
        return now
    if isinstance(answer, Rejection):
        reason = _reason(hook, answer.reason)
        return Standing((), rejected={**now.rejected, **{m.message_id: reason for m in now.claimed}})
    if not isinstance(answer, Batch):
        raise HookFailed(f"hook {hook} answered with {type(answer).__name__}, not with None, a Batch or a Rejection")
    named = {m.message_id for m in _messages(hook, answer) if m.message_id}
    out = {m.message_id: answer.left_out.get(m.message_id) for m in now.claimed if m.message_id not in named}
    reasons = {message_id: _reason(hook, reason, f"left out by {hook}") for message_id, reason in out.items()}
    entering = tuple(_entering(now, occasion, hook, answer.messages))
    added = frozenset(m.message_id for m in entering) - {m.message_id for m in now.claimed}
    return Standing(entering, added, {**now.rejected, **reasons})


def _messages(hook: str, answer: Batch) -> Sequence[Message]:
    """The messages of an answer, held to being messages: nobody checked the hook's types."""
    messages: object = answer.messages
    if not isinstance(messages, tuple) or not all(isinstance(message, Message) for message in messages):
        raise HookFailed(f"hook {hook} answered with a batch whose messages are no tuple of Message")
    return answer.messages


def _entering(now: Standing, occasion: Occasion, hook: str, answered: Sequence[Message]) -> Iterator[Message]:
    """What enters of an answer, each with its id, its source and content that may be kept."""
    known = {message.message_id: (place, message) for place, message in enumerate(now.messages)}
    last, added = -1, 0
    for message in answered:
        if not message.message_id:
            added += 1
            if added > ADDED_COUNT_MAX:
                raise HookFailed(f"hook {hook} adds more than {ADDED_COUNT_MAX} messages")
            source = {"kind": "plugin", "name": hook}
            yield Message(_content(hook, message.content), added_id(occasion, hook, added), source)
            continue
        place, before = known.get(message.message_id, (-1, message))
        if place <= last:
            raise HookFailed(f"hook {hook} answered with message {message.message_id} where it was not")
        last = place
        if replace(message, content=before.content) != before:
            raise HookFailed(f"hook {hook} changed more of message {message.message_id} than its content")
        same = message.content == before.content
        yield before if same else replace(before, content=_content(hook, message.content))


def added_id(occasion: Occasion, hook: str, number: int) -> str:
    """The id of the hook's so-manieth message of its own (rule 4)."""
    facts = "\0".join((occasion.session_id, str(occasion.turn), str(occasion.step), hook, str(number)))
    digest = hashlib.blake2b(facts.encode("utf-8"), digest_size=12).hexdigest()
    return f"hook-{occasion.turn}-{occasion.step}-{digest}"


class _Said(Door):
    content: Content


def _content(hook: str, content: object) -> list[dict[str, Any]]:
    """Content as a ledger keeps it, held to what the doors hold a sender's to."""
    try:
        said = read(_Said, {"content": content})
    except ContractError as error:
        raise HookFailed(f"hook {hook}: {error}") from None
    return [block.wire() for block in said.content]


def _reason(hook: str, reason: object, otherwise: str = "") -> str:
    """The reason of a rejection, if it can be kept."""
    told = otherwise if reason is None else reason
    try:
        if isinstance(told, str) and told.strip() and len(told) <= REASON_CHARACTERS_MAX:
            told.encode("utf-8")
            return told
    except UnicodeEncodeError:
        pass
    raise HookFailed(f"hook {hook} rejects without a reason in 1 to {REASON_CHARACTERS_MAX} characters of text")


# -- what follows -------------------------------------------------------------------------------------------


class Place(Enum):
    """Where in its turn a batch is about to enter."""

    START = auto()
    AFTER_TOOLS = auto()
    AFTER_ANSWER = auto()  # the turn could have ended, and a steer waited (semantics T6)


class Verdict(Enum):
    """What the turn does then."""

    STEP = auto()
    BLOCKED = auto()
    END = auto()  # as it would have without what was claimed


VERDICTS: Final[Mapping[tuple[Place, bool], Verdict]] = {
    (Place.START, True): Verdict.STEP,
    (Place.START, False): Verdict.BLOCKED,
    (Place.AFTER_TOOLS, True): Verdict.STEP,
    (Place.AFTER_TOOLS, False): Verdict.STEP,
    (Place.AFTER_ANSWER, True): Verdict.STEP,
    (Place.AFTER_ANSWER, False): Verdict.END,
}


def place(steps: int, transcript: Sequence[Entry]) -> Place:
    """Where a turn of so many steps is, at a boundary: what the transcript ends with tells, also to a new owner."""
    if steps == 0:
        return Place.START
    return Place.AFTER_ANSWER if transcript and isinstance(transcript[-1], AssistantEntry) else Place.AFTER_TOOLS


def verdict(where: Place, now: Standing) -> Verdict:
    """What the turn does with what is left of its batch."""
    return VERDICTS[where, bool(now.claimed)]

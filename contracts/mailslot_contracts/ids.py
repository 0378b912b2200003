"""Names of sessions, messages and goals, and how ids are made.

Rule 1: an id is 1 to 200 bytes of UTF-8 without control characters (C0, DEL, C1, U+2028, U+2029)
        and without lone surrogates. Ids stand in keys, channels and log lines: nothing in one may
        end a line or a frame.
Rule 2: an id is opaque. Nothing reads a time, an order or an owner out of it.
Rule 3: nothing here reads a clock or draws a random number; both come in as arguments.
"""

from __future__ import annotations

import hashlib
import re
from typing import NewType

from mailslot_contracts.problems import BadId

SessionId = NewType("SessionId", str)
MessageId = NewType("MessageId", str)
GoalId = NewType("GoalId", str)

ID_BYTES_MAX = 200
"""Longest id in bytes of UTF-8. Ids are repeated in every event and key, so they stay short."""

UUID7_RANDOM_BYTES = 10
"""Random bytes a UUIDv7 takes; 74 of these 80 bits are used."""

ID_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+$"
"""Rule 1 as a pattern that JSON Schema readers understand too."""

_CONTROL = re.compile("[\u0000-\u001f\u007f-\u009f\u2028\u2029]")
_STREAM_ENTRY_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})", re.ASCII)


def check_id(value: object, what: str = "id") -> str:
    """The id itself when it keeps rule 1; else BadId, in whose sentence `what` names it."""
    if not isinstance(value, str):
        raise BadId(what, "must be text")
    if not value:
        raise BadId(what, "must not be empty")
    try:
        length_bytes = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadId(what, "must not hold a lone surrogate") from None
    if length_bytes > ID_BYTES_MAX:
        raise BadId(what, f"has {length_bytes} bytes; the limit is {ID_BYTES_MAX}")
    found = _CONTROL.search(value)
    if found is not None:
        raise BadId(what, f"must not hold the control character U+{ord(found.group()):04X}")
    return value


def uuid7(unix_ms: int, random_bytes: bytes) -> str:
    """A UUIDv7 (RFC 9562) from a time in ms and ten random bytes, as lower-case text."""
    if not 0 <= unix_ms < 1 << 48:
        raise ValueError(f"unix_ms must fit in 48 bits, got {unix_ms}")
    if len(random_bytes) != UUID7_RANDOM_BYTES:
        raise ValueError(f"random_bytes must be {UUID7_RANDOM_BYTES} bytes, got {len(random_bytes)}")
    drawn = int.from_bytes(random_bytes, "big")
    rand_a = drawn >> 68
    rand_b = drawn & ((1 << 62) - 1)
    number = unix_ms << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def goal_message_id(goal_id: str, revision: int, goal_round: int, idle_seq: int) -> MessageId:
    """The id of a goal's continuation message (semantics G2): the same four facts, the same id.

    `idle_seq` is the seq of the idle that the message answers, 0 when none was published. With it
    a round that was preempted gets a new id when it is tried again at the next idle.
    """
    facts = "\0".join((goal_id, str(revision), str(goal_round), str(idle_seq)))
    digest = hashlib.blake2b(facts.encode("utf-8"), digest_size=12).hexdigest()
    return MessageId(f"goal-{goal_round}-{digest}")


def intake_message_id(stream_entry_id: str) -> MessageId:
    """The id of a message that came by the broker door without one (semantics M3).

    A function of the stream entry's id, so an entry that is delivered twice is the same message.
    """
    found = _STREAM_ENTRY_ID.fullmatch(stream_entry_id)
    if found is None:
        raise BadId("stream entry id", "must look like 1764554400123-0")
    return MessageId(f"intake-{found.group()}")

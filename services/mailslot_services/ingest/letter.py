"""One entry of the broker door: how it is opened, and what comes of it.

    stream entry --unwrap--> Letter --read_letter--> IntakeEntry --> submit --> Verdict --> reply, dead entry, ack

    __data__                           FastStream's envelope: body, `reply_to`, `correlation_id`
    data, reply_to?, correlation_id?   a plain XADD

Rule 1: the body is JSON text, msgpack, or our own encoding (a version byte, then msgpack); the first byte says which.
Rule 2: opening never fails: what is wrong with a letter is kept with it, so that its sender can be answered.
Rule 3: a reply speaks as its letter did: an envelope is answered with an envelope, a plain entry with plain JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from faststream.redis.parser import BinaryMessageFormatV1

from mailslot_contracts import (
    CODEC_VERSION,
    BadInput,
    Code,
    ContractError,
    IntakeEntry,
    Problem,
    TooLarge,
    check_id,
    decode,
    decode_json,
    encode_json,
    intake_message_id,
    read,
    unpack,
)
from mailslot_contracts.problems import CodecError
from mailslot_services.broker import Arrival
from mailslot_services.ingest.limit import DEAD_DATA_BYTES_MAX, RETRIES

ENVELOPE: Final = b"__data__"
DATA: Final = b"data"
REPLY_TO: Final = b"reply_to"
CORRELATION_ID: Final = b"correlation_id"
PLAIN_FIELDS: Final = frozenset({DATA, REPLY_TO, CORRELATION_ID})
MAGIC: Final = BinaryMessageFormatV1.IDENTITY_HEADER

MSGPACK_FROM: Final = 0x80
"""First byte of every msgpack map and list; JSON text in UTF-8 begins below it."""


@dataclass(slots=True)
class Letter:
    """An opened entry. `wrong` is what was found on opening."""

    entry_id: str
    data: bytes
    enveloped: bool = False
    reply_to: str | None = None
    correlation_id: str | None = None
    wrong: ContractError | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Where the entry stood in its stream."""
        milliseconds, _, number = self.entry_id.partition("-")
        return int(milliseconds), int(number)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a letter: accepted under an id, or a problem."""

    letter: Letter
    message_id: str | None = None
    problem: Problem | None = None

    @property
    def dead(self) -> bool:
        """It goes to the dead entries: it was no prompt at all, was tried in vain, or nobody waits for the problem."""
        if self.problem is None:
            return False
        code = self.problem.code
        return code in NEVER_A_MESSAGE or code in RETRIES or self.letter.reply_to is None


NEVER_A_MESSAGE: Final = frozenset({Code.BAD_INPUT, Code.TOO_LARGE, Code.INTERNAL})
"""Codes of letters that go to the dead entries even when their sender was told."""


# -- opening ------------------------------------------------------------------------------------------------


def unwrap(arrival: Arrival) -> Letter:
    """The letter in an entry."""
    if ENVELOPE in arrival.fields:
        return _enveloped(arrival.entry_id, arrival.fields[ENVELOPE])
    return _plain(arrival.entry_id, arrival.fields)


def _enveloped(entry_id: str, raw: bytes) -> Letter:
    if not raw.startswith(MAGIC):
        return Letter(entry_id, raw, enveloped=True)
    body, headers = BinaryMessageFormatV1.parse(raw)
    letter = Letter(entry_id, body, enveloped=True)
    # FastStream writes a header's length in characters and its text in bytes, so one that is not ASCII comes out cut
    # off, or takes the envelope with it, which is then handed over whole.
    if body == raw or not all(f"{name}{value}".isascii() for name, value in headers.items()):
        letter.wrong = BadInput("the entry's envelope is damaged; its headers must be ASCII")
        return letter
    _address(letter, headers.get("reply_to"), headers.get("correlation_id"))
    return letter


def _plain(entry_id: str, fields: dict[bytes, bytes]) -> Letter:
    data = fields.get(DATA)
    if data is None or not fields.keys() <= PLAIN_FIELDS:
        shown = {_text(name): _text(value) for name, value in fields.items()}
        letter = Letter(entry_id, encode_json(shown))
        letter.wrong = BadInput("an entry has the field data, and beside it only reply_to and correlation_id")
    else:
        letter = Letter(entry_id, data)
    _address(letter, fields.get(REPLY_TO), fields.get(CORRELATION_ID))
    return letter


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _address(letter: Letter, reply_to: str | bytes | None, correlation_id: str | bytes | None) -> None:
    """Where the answer goes. An address that cannot be one is what is wrong with the letter."""
    try:
        letter.reply_to = _name(reply_to, "reply_to")
        letter.correlation_id = _name(correlation_id, "correlation_id")
    except ContractError as error:
        letter.wrong = letter.wrong or error


def _name(value: str | bytes | None, what: str) -> str | None:
    if not value:
        return None
    try:
        return check_id(value if isinstance(value, str) else value.decode(), what)
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} is not UTF-8 at byte {error.start}") from None


# -- reading ------------------------------------------------------------------------------------------------


def read_letter(letter: Letter, limit_bytes: int) -> IntakeEntry:
    """The prompt in a letter; ContractError when there is none."""
    if letter.wrong is not None:
        raise letter.wrong
    if len(letter.data) > limit_bytes:
        raise TooLarge("the entry's data", len(letter.data), limit_bytes, "bytes")
    return read(IntakeEntry, _value(letter.data))


def _value(data: bytes) -> object:
    if not data:
        raise CodecError("the entry's data is empty")
    if data[0] == CODEC_VERSION:
        return decode(data)
    return unpack(data) if data[0] >= MSGPACK_FROM else decode_json(data)


def message_id_of(letter: Letter, entry: IntakeEntry) -> str:
    """The sender's own id, else one that is a function of the entry: an entry delivered twice is one message (M3)."""
    return entry.message_id or intake_message_id(letter.entry_id)


# -- answering ----------------------------------------------------------------------------------------------


async def reply_bytes(verdict: Verdict) -> bytes:
    """What goes to the letter's `reply_to`: exactly `{messageId}`, or the problem."""
    wire = _wire(verdict)
    if not verdict.letter.enveloped:
        return encode_json(wire)
    correlation_id = verdict.letter.correlation_id or ""
    return await BinaryMessageFormatV1.encode(
        message=wire,
        reply_to=None,
        headers=None,
        correlation_id=correlation_id if correlation_id.isascii() else "",
    )


def _wire(verdict: Verdict) -> dict[str, Any]:
    if verdict.problem is not None:
        return verdict.problem.wire()
    return {"messageId": verdict.message_id}


def dead_fields(verdict: Verdict) -> dict[str | bytes, str | bytes]:
    """What stands in the stream of dead entries: the entry's id, the reason as a JSON problem, the data as it came."""
    letter = verdict.letter
    fields: dict[str | bytes, str | bytes] = {
        "id": letter.entry_id,
        "reason": encode_json(_wire(verdict)),
        "data": letter.data[:DEAD_DATA_BYTES_MAX],
    }
    if letter.reply_to is not None:
        fields["reply_to"] = letter.reply_to
    if letter.correlation_id is not None:
        fields["correlation_id"] = letter.correlation_id
    return fields

"""Entries of the broker door: every way to write one is read, every way to get it wrong is said (issue: bad input)."""

import json
from typing import Any

import msgpack
import pytest
from faststream.redis.parser import BinaryMessageFormatV1

from mailslot_contracts import Code, ContractError, encode
from mailslot_services.broker import Arrival
from mailslot_services.ingest.letter import (
    Letter,
    Verdict,
    dead_fields,
    message_id_of,
    read_letter,
    reply_bytes,
    unwrap,
)

LIMIT = 64 * 1024
ENTRY = {"sessionId": "s", "content": "hello", "messageId": "m", "metadata": {"n": 1}}


def arrival(**fields: bytes) -> Arrival:
    return Arrival("1764554400123-7", {name.encode(): value for name, value in fields.items()})


async def enveloped(body: Any, reply_to: str = "", correlation_id: str = "c-1") -> Arrival:
    """An entry as a FastStream publisher writes it."""
    raw = await BinaryMessageFormatV1.encode(
        message=body, reply_to=reply_to or None, headers=None, correlation_id=correlation_id
    )
    return arrival(__data__=raw)


BODIES = {
    "JSON": json.dumps(ENTRY).encode(),
    "JSON with white space": b" \n" + json.dumps(ENTRY, indent=2).encode(),
    "msgpack": msgpack.packb(ENTRY),
    "our encoding": encode(ENTRY),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_is_read_however_it_is_written(body: bytes) -> None:
    for each in (arrival(data=body), await enveloped(body), arrival(__data__=body)):
        entry = read_letter(unwrap(each), LIMIT)
        assert (entry.session_id, entry.message_id, entry.metadata) == ("s", "m", {"n": 1})


async def test_what_a_publisher_makes_of_a_plain_object_is_read() -> None:
    letter = unwrap(await enveloped(ENTRY, reply_to="replies", correlation_id="c-9"))
    assert (letter.reply_to, letter.correlation_id, letter.enveloped) == ("replies", "c-9", True)
    assert read_letter(letter, LIMIT).session_id == "s"


def test_a_plain_entry_says_where_its_answer_goes() -> None:
    letter = unwrap(arrival(data=BODIES["JSON"], reply_to=b"replies", correlation_id=b"c"))
    assert (letter.reply_to, letter.correlation_id, letter.enveloped) == ("replies", "c", False)


BAD = {
    "nothing": (arrival(data=b""), Code.BAD_INPUT),
    "no data field": (arrival(body=BODIES["JSON"]), Code.BAD_INPUT),
    "another field beside data": (arrival(data=BODIES["JSON"], replyTo=b"r"), Code.BAD_INPUT),
    "no JSON": (arrival(data=b"hello"), Code.BAD_INPUT),
    "half a msgpack": (arrival(data=BODIES["msgpack"][:-1]), Code.BAD_INPUT),
    "two msgpacks": (arrival(data=BODIES["msgpack"] * 2), Code.BAD_INPUT),
    "a later encoding": (arrival(data=b"\x02" + BODIES["msgpack"]), Code.BAD_INPUT),
    "a list": (arrival(data=b"[]"), Code.BAD_INPUT),
    "no session": (arrival(data=b'{"content": "a"}'), Code.BAD_INPUT),
    "empty content": (arrival(data=b'{"sessionId": "s", "content": ""}'), Code.BAD_INPUT),
    "an unknown field": (arrival(data=b'{"sessionId": "s", "content": "a", "data": "x"}'), Code.BAD_INPUT),
    "an unknown delivery": (arrival(data=b'{"sessionId": "s", "content": "a", "delivery": "x"}'), Code.BAD_INPUT),
    "NUL in an id": (arrival(data=b'{"sessionId": "s\\u0000", "content": "a"}'), Code.BAD_INPUT),
    "invalid UTF-8": (arrival(data=b'{"sessionId": "s", "content": "\xff"}'), Code.BAD_INPUT),
    "a lone surrogate": (arrival(data=b'{"sessionId": "s", "content": "\\ud800"}'), Code.BAD_INPUT),
    "a surrogate in msgpack": (arrival(data=b"\x81\xa1a\xa3\xed\xa0\x80"), Code.BAD_INPUT),
    "bytes in msgpack": (arrival(data=msgpack.packb({"sessionId": b"s", "content": "a"})), Code.BAD_INPUT),
    "a reply address that is none": (arrival(data=BODIES["JSON"], reply_to=b"a\nb"), Code.BAD_INPUT),
    "a reply address that is not UTF-8": (arrival(data=BODIES["JSON"], reply_to=b"\xff"), Code.BAD_INPUT),
    "too much": (arrival(data=b" " * (LIMIT + 1)), Code.TOO_LARGE),
}


@pytest.mark.parametrize(("entry", "code"), BAD.values(), ids=BAD)
def test_an_entry_that_is_no_prompt_is_refused_with_a_sentence(entry: Arrival, code: Code) -> None:
    with pytest.raises(ContractError) as refused:
        read_letter(unwrap(entry), LIMIT)
    assert refused.value.code == code
    assert str(refused.value)


async def test_an_envelope_that_its_own_writer_damaged_is_named_as_such() -> None:
    """A header that is not ASCII: FastStream writes its length in characters and its text in bytes."""
    letter = unwrap(await enveloped(ENTRY, reply_to="répondez"))
    with pytest.raises(ContractError, match="headers must be ASCII"):
        read_letter(letter, LIMIT)


def test_an_entry_without_an_id_is_the_same_message_however_often_it_comes() -> None:
    data = b'{"sessionId": "s", "content": "a"}'
    first, again = unwrap(arrival(data=data)), unwrap(arrival(data=data))
    ids = {message_id_of(letter, read_letter(letter, LIMIT)) for letter in (first, again)}
    assert ids == {"intake-1764554400123-7"}


def problem(code: Code) -> Any:
    class Refusal(ContractError):
        pass

    Refusal.code = code
    return Refusal("no").problem()


async def test_a_reply_speaks_as_its_letter_did() -> None:
    plain = Letter("1-0", b"", reply_to="r")
    assert await reply_bytes(Verdict(plain, message_id="m")) == b'{"messageId":"m"}'
    wrapped = Letter("1-0", b"", enveloped=True, reply_to="r", correlation_id="c")
    body, headers = BinaryMessageFormatV1.parse(await reply_bytes(Verdict(wrapped, message_id="m")))
    assert json.loads(body) == {"messageId": "m"}
    assert (headers["correlation_id"], headers["content-type"]) == ("c", "application/json")
    assert json.loads(await reply_bytes(Verdict(plain, problem=problem(Code.CLOSED))))["code"] == "closed"


@pytest.mark.parametrize(
    ("code", "reply_to", "dead"),
    [
        (Code.BAD_INPUT, "r", True),
        (Code.BAD_INPUT, None, True),
        (Code.TOO_LARGE, "r", True),
        (Code.CONFLICT, "r", False),
        (Code.CONFLICT, None, True),
        (Code.CLOSED, "r", False),
        (Code.CLOSED, None, True),
        (Code.QUEUE_FULL, "r", True),
        (Code.STORE_REFUSED, None, True),
        (Code.STORE_REFUSED, "r", True),
        (Code.BUSY, "r", False),
        (Code.BUSY, None, True),
        (Code.EXPIRED, "r", False),
        (Code.EXPIRED, None, True),
    ],
)
def test_which_entries_are_dead(code: Code, reply_to: str | None, dead: bool) -> None:
    assert Verdict(Letter("1-0", b"", reply_to=reply_to), problem=problem(code)).dead is dead
    assert not Verdict(Letter("1-0", b"", reply_to=reply_to), message_id="m").dead


def test_a_dead_entry_has_its_id_the_reason_and_the_data_as_it_came() -> None:
    fields = dead_fields(Verdict(Letter("1-0", b"\xff\x00", reply_to="r"), problem=problem(Code.BAD_INPUT)))
    assert (fields["id"], fields["data"], fields["reply_to"]) == ("1-0", b"\xff\x00", "r")
    assert json.loads(fields["reason"])["detail"] == "no"

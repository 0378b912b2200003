"""Frames of JSON-RPC: whatever comes in is a call or has an answer, and what is split is put together again."""

import json
import random
from typing import Any

import pytest

from mailslot.rpc import frame
from mailslot.rpc.frame import BATCH_COUNT_MAX, Batch, Call, Failure, Invalid, Splitter, read


def said(data: bytes) -> Any:
    return json.loads(data)


def test_a_call_is_read_with_its_id_and_params() -> None:
    found = read('{"jsonrpc":"2.0","id":"a","method":"session/status","params":{"sessionId":"s"}}')
    assert found == Call("session/status", {"sessionId": "s"}, "a")


def test_a_call_without_id_wants_no_answer_and_one_with_null_does() -> None:
    without, null = read('{"jsonrpc":"2.0","method":"m"}'), read('{"jsonrpc":"2.0","id":null,"method":"m"}')
    assert isinstance(without, Call)
    assert not without.answered
    assert isinstance(null, Call)
    assert null.answered


@pytest.mark.parametrize(
    ("text", "code", "call_id"),
    [
        ("{", -32700, None),
        ("NaN", -32700, None),
        ('{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":Infinity}}', -32700, None),
        ("[" * 100_000, -32700, None),
        ("1" * 5_000, -32700, None),
        ("7", -32600, None),
        ('"text"', -32600, None),
        ("null", -32600, None),
        ("[]", -32600, None),
        ("{}", -32600, None),
        ('{"jsonrpc":"1.0","id":1,"method":"m"}', -32600, 1),
        ('{"id":1,"method":"m"}', -32600, 1),
        ('{"jsonrpc":"2.0","id":1}', -32600, 1),
        ('{"jsonrpc":"2.0","id":1,"method":7}', -32600, 1),
        ('{"jsonrpc":"2.0","id":1,"method":"m","params":"x"}', -32600, 1),
        ('{"jsonrpc":"2.0","id":1,"method":"m","params":null}', -32600, 1),
        ('{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}', -32602, 1),
        ('{"jsonrpc":"2.0","id":{},"method":"m"}', -32600, None),
        ('{"jsonrpc":"2.0","id":[1],"method":"m"}', -32600, None),
        ('{"jsonrpc":"2.0","id":true,"method":"m"}', -32600, None),
    ],
)
def test_what_is_no_call_is_answered_with_its_code_and_the_id_if_it_has_one(
    text: str, code: int, call_id: object
) -> None:
    found = read(text)
    assert isinstance(found, Invalid)
    assert (found.failure.code, found.id) == (code, call_id)
    assert said(frame.error(found.id, found.failure))["id"] == call_id


def test_bytes_that_are_not_utf8_are_a_parse_error() -> None:
    found = read(b'{"jsonrpc":"2.0","id":1,"method":"\xff"}')
    assert isinstance(found, Invalid)
    assert found.failure.code == frame.PARSE_ERROR


def test_the_items_of_a_batch_are_judged_one_by_one() -> None:
    found = read('[{"jsonrpc":"2.0","id":1,"method":"m"}, 7, {"jsonrpc":"2.0","method":"n"}]')
    assert isinstance(found, Batch)
    assert [type(item) for item in found.items] == [Call, Invalid, Call]


def test_a_batch_over_the_limit_is_refused_as_a_whole() -> None:
    found = read(json.dumps([7] * (BATCH_COUNT_MAX + 1)))
    assert isinstance(found, Invalid)
    assert str(BATCH_COUNT_MAX) in found.failure.message


@pytest.mark.parametrize("call_id", ["", "ü\u2028", 0, -7, 2**70, 1.5, None, "\ud800"])
def test_an_id_comes_back_as_it_came(call_id: object) -> None:
    text = json.dumps({"jsonrpc": "2.0", "id": call_id, "method": "m"})
    found = read(text)
    assert isinstance(found, Call)
    answer = frame.result(found.id, {"messageId": "m"})
    assert said(answer)["id"] == call_id
    assert b"\n" not in answer


def test_frames_are_the_same_however_the_bytes_are_cut(rng: random.Random) -> None:
    texts = ["plain", "ünïcödé 😀", "line\u2028and\u2029and\x85and\r", "x" * 500]
    whole = b"".join(json.dumps(text, ensure_ascii=False).encode() + b"\n" for text in texts)
    for _ in range(200):
        splitter, frames, rest = Splitter(), list[bytes | None](), whole
        while rest:
            size = rng.randint(1, 40)
            frames += splitter.feed(rest[:size])
            rest = rest[size:]
        assert [json.loads(found) for found in frames if found is not None] == texts


def test_blank_lines_are_no_frames() -> None:
    assert Splitter().feed(b"\n\r\n  \n{}\r\n") == [b"{}\r"]


def test_a_frame_over_the_limit_is_told_once_and_the_next_one_is_read() -> None:
    splitter = Splitter(10)
    assert splitter.feed(b"x" * 8) == []
    assert splitter.feed(b"x" * 8) == [None]
    assert splitter.feed(b"x" * 1_000) == []
    assert splitter.feed(b'x\n"after"\n') == [b'"after"']


def test_a_failure_carries_its_problem() -> None:
    answer = said(frame.error(3, Failure(-32000, "no", {"code": "busy"})))
    assert answer == {"jsonrpc": "2.0", "id": 3, "error": {"code": -32000, "message": "no", "data": {"code": "busy"}}}

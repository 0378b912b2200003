"""Values survive the trip through bytes, and what no ledger may hold is refused with its place."""

import enum
import json
import math

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailslot_contracts import codec
from mailslot_contracts.problems import BadValue, Code, CodecError, CodecTooLarge, CodecVersionError, ContractError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAF = (
    st.none()
    | st.booleans()
    | st.integers(codec.INT_MIN, codec.INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5))


def same(left: object, right: object) -> bool:
    """Equal, and of the same types all the way down: 1 is not 1.0 and not True."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def framed(packed: bytes) -> bytes:
    return bytes([codec.CODEC_VERSION]) + packed


@given(VALUE)
def test_what_is_encoded_comes_back_the_same_to_the_last_type(value: object) -> None:
    assert same(codec.decode(codec.encode(value)), value)


@given(VALUE)
def test_what_is_written_as_json_comes_back_the_same_to_the_last_type(value: object) -> None:
    assert same(codec.decode_json(codec.encode_json(value)), value)


@given(VALUE)
@example("a\u2028b\u2029c\nd\re")
@example({"\u2028\n": 1})
def test_json_is_one_line_for_every_reader_of_lines(value: object) -> None:
    text = codec.encode_json({"value": value}).decode()
    assert not {"\n", "\r", "\u2028", "\u2029"} & set(text)


@given(st.dictionaries(TEXT, LEAF, min_size=2))
def test_canonical_bytes_do_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))
    assert codec.canonical({"a": [value]}) == codec.canonical({"a": [backwards]})


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_codec_error(data: bytes) -> None:
    for read in (codec.decode, codec.unpack, codec.decode_json, lambda rest: codec.decode(framed(rest))):
        try:
            codec.check_value(read(data))
        except CodecError:
            continue
        except BadValue:
            assert read is codec.decode_json


@given(VALUE, st.data())
def test_no_piece_of_an_encoded_value_is_an_encoded_value(value: object, data: st.DataObject) -> None:
    encoded = codec.encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CodecError):
        codec.decode(encoded[:cut])


@pytest.mark.parametrize("found", [0, 2, 0x7F, 0xC1, 0xFF])
def test_an_unknown_version_byte_is_named_and_refused(found: int) -> None:
    with pytest.raises(CodecVersionError, match=f"version {found};"):
        codec.decode(bytes([found]) + msgpack.packb("x"))


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"", "incomplete|damaged"),
        (b"\xc0\xc0", "extra data"),
        (b"\xc4\x00", "not bytes"),
        (b"\xcf" + b"\xff" * 8, "64 bits"),
        (b"\xcb\x7f\xf0" + b"\x00" * 6, "finite"),
        (b"\xcb\x7f\xf8" + b"\x00" * 6, "finite"),
        (b"\xd4\x01\x00", "extension 1"),
        (b"\xd6\xff\x00\x00\x00\x00", "Timestamp"),
        (b"\x81\x01\x01", "map key"),
        (b"\x81\xc4\x00\x01", "text as map keys"),
        (b"\xa1\xff", "utf-8"),
        (b"\xa3\xed\xa0\x80", "utf-8"),
        (b"\xdf\xff\xff\xff\xff", "max_map_len"),
        (b"\xdd\xff\xff\xff\xff", "max_array_len"),
        (b"\xdb\xff\xff\xff\xff", "incomplete|max_str_len"),
        (b"\xc1", "damaged"),
        (b"\x91" * 5000 + b"\xc0", "damaged|deeper"),
    ],
)
def test_hostile_msgpack_is_refused_with_its_reason(packed: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        codec.decode(framed(packed))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "damaged"),
        (b'{"a":1} {}', "damaged"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"1e999", "finite"),
        (b'"\\ud800"', "lone surrogate"),
        (b'"\xed\xa0\x80"', "UTF-8 at byte 1"),
        (b"\xff", "UTF-8 at byte 0"),
        (b"9223372036854775808", "64 bits"),
        (b"-9223372036854775809", "64 bits"),
        (b"9" * 5000, "too many digits|64 bits"),
        (b"[" * 100_000, "deeper|damaged"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
    ],
)
def test_hostile_json_is_refused_with_its_reason(text: bytes, why: str) -> None:
    with pytest.raises(ContractError, match=why):
        codec.decode_json(text)


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        ("\ud800", "value", "lone surrogate"),
        ("a\udfff", "value", "lone surrogate"),
        ({"a": ["x", "\ud800"]}, "value.a[1]", "lone surrogate"),
        ({"\ud800": 1}, "value.\\ud800", "lone surrogate"),
        ({"a": {1: 2}}, "value.a.1", "text as map keys"),
        ({"a": {b"k": 2}}, "value.a.b'k'", "text as map keys"),
        ([0.5, math.nan], "value[1]", "finite"),
        (math.inf, "value", "finite"),
        (2**63, "value", "64 bits"),
        (-(2**63) - 1, "value", "64 bits"),
        ({"a": {"b": b"x"}}, "value.a.b", "not bytes"),
        ({"a": {1, 2}}, "value.a", "not set"),
        ([object()], "value[0]", "not object"),
        (nested(codec.DEPTH_MAX + 1), "value" + "[0]" * codec.DEPTH_MAX, "deeper than 64"),
    ],
)
def test_what_no_ledger_may_hold_is_refused_at_its_place(value: object, path: str, why: str) -> None:
    for door in (codec.check_value, codec.encode, codec.canonical):
        with pytest.raises(BadValue, match=why) as caught:
            door(value)
        assert caught.value.path.startswith(path[: codec.PATH_CHARACTERS_MAX - 1])
        str(caught.value).encode("utf-8")


@pytest.mark.parametrize(
    "value",
    [
        codec.INT_MAX,
        codec.INT_MIN,
        2**53 + 1,
        -0.0,
        5e-324,
        "\x00",
        "a\u2028b\u2029c\u0085d",
        "\U0010ffff",
        "\ufffe\uffff\ufeff",
        "",
        {"": {"": []}},
        nested(codec.DEPTH_MAX),
        None,
        True,
    ],
)
def test_what_is_strange_but_well_formed_is_kept(value: object) -> None:
    assert same(codec.decode(codec.encode(value)), value)
    assert same(codec.decode_json(codec.encode_json(value)), value)


def test_a_text_enum_is_its_text() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    assert codec.decode(codec.encode({"colour": Colour.RED})) == {"colour": "red"}


@pytest.mark.parametrize("extra_bytes", [-1, 0])
def test_a_value_up_to_the_frame_limit_is_taken(extra_bytes: int) -> None:
    text = "x" * (codec.FRAME_BYTES_MAX - 6 + extra_bytes)
    encoded = codec.encode(text)
    assert len(encoded) == codec.FRAME_BYTES_MAX + extra_bytes
    assert codec.decode(encoded) == text


def test_a_value_over_the_frame_limit_is_too_large_in_both_directions() -> None:
    text = "x" * (codec.FRAME_BYTES_MAX - 5)
    with pytest.raises(CodecTooLarge) as caught:
        codec.encode(text)
    assert caught.value.code is Code.TOO_LARGE
    packed = msgpack.packb(text)
    with pytest.raises(CodecTooLarge):
        codec.decode(framed(packed))
    with pytest.raises(CodecTooLarge):
        codec.unpack(packed + b"xx")
    with pytest.raises(CodecTooLarge):
        codec.decode_json(json.dumps(text + "xxxxxx").encode())


def test_a_refusal_never_repeats_a_huge_key() -> None:
    with pytest.raises(BadValue) as caught:
        codec.check_value({"k" * 100_000: {"l": b""}})
    assert len(str(caught.value)) < 2 * codec.PATH_CHARACTERS_MAX

"""Ids are short, printable and opaque; made ids depend on nothing but what they are made from."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslot_contracts import channels, ids
from mailslot_contracts.problems import BadId, Code


@pytest.mark.parametrize("value", ["a", "x" * 200, "é" * 100, "🎈" * 50, "a b/c:d{e}*", "..", "\ufeff", "é́"])
def test_an_id_of_printable_text_is_taken_as_it_is(value: str) -> None:
    assert ids.check_id(value) == value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"),
        ("x" * 201, "201 bytes; the limit is 200"),
        ("é" * 101, "202 bytes"),
        ("a\x00b", r"U\+0000"),
        ("a\n", r"U\+000A"),
        ("\x1b[2J", r"U\+001B"),
        ("\x7f", r"U\+007F"),
        ("\x85", r"U\+0085"),
        ("\x9f", r"U\+009F"),
        ("a\u2028", r"U\+2028"),
        ("\u2029", r"U\+2029"),
        ("\ud800", "lone surrogate"),
        ("a\udc00", "lone surrogate"),
        (5, "text"),
        (None, "text"),
        (b"a", "text"),
        (["a"], "text"),
        (True, "text"),
    ],
)
def test_an_id_that_no_key_may_hold_is_refused_with_its_reason(value: object, why: str) -> None:
    with pytest.raises(BadId, match=why) as caught:
        ids.check_id(value, "sessionId")
    assert caught.value.code is Code.BAD_INPUT
    assert str(caught.value).startswith("sessionId ")
    str(caught.value).encode("utf-8")


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_made_id_is_a_version_7_uuid_that_holds_the_time(unix_ms: int, drawn: bytes) -> None:
    made = ids.uuid7(unix_ms, drawn)
    parsed = uuid.UUID(made)
    assert str(parsed) == made
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == unix_ms
    assert ids.check_id(made) == made


@given(st.binary(min_size=10, max_size=10), st.integers(6, 79))
def test_each_of_the_74_random_bits_matters(drawn: bytes, bit: int) -> None:
    # Bits 62 to 67 of the 80 fall between the two random fields and are dropped.
    number = int.from_bytes(drawn, "big")
    place = bit - 6 if bit - 6 < 62 else bit
    flipped = (number ^ 1 << place).to_bytes(10, "big")
    assert ids.uuid7(1, drawn) != ids.uuid7(1, flipped)


def test_made_ids_sort_by_time() -> None:
    assert ids.uuid7(5, b"\xff" * 10) < ids.uuid7(6, b"\x00" * 10)


def test_the_published_example_of_a_version_7_uuid_comes_out() -> None:
    # RFC 9562, appendix A.6: unix_ts_ms 0x017F22E279B0, rand_a 0xCC3, rand_b 0x18C4DC0C0C07398F.
    drawn = (0xCC3 << 68 | 0x18C4DC0C0C07398F).to_bytes(10, "big")
    assert ids.uuid7(0x017F22E279B0, drawn) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@pytest.mark.parametrize(("unix_ms", "drawn"), [(-1, b"x" * 10), (2**48, b"x" * 10), (0, b"x" * 9), (0, b"x" * 16)])
def test_a_uuid_is_not_made_from_the_wrong_bits(unix_ms: int, drawn: bytes) -> None:
    with pytest.raises(ValueError, match="must"):
        ids.uuid7(unix_ms, drawn)


GOAL_FACTS = st.tuples(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(0, 10**9),
)


@given(GOAL_FACTS, GOAL_FACTS)
def test_a_goal_message_id_is_a_function_of_goal_revision_round_and_idle(
    left: tuple[str, int, int, int], right: tuple[str, int, int, int]
) -> None:
    made = ids.goal_message_id(*left)
    assert made == ids.goal_message_id(*left) == ids.check_id(made)
    assert (made == ids.goal_message_id(*right)) == (left == right)


def test_digits_that_move_between_the_facts_give_another_goal_message_id() -> None:
    facts = [("g", 1, 11, 1), ("g", 11, 1, 1), ("g", 1, 1, 11), ("g1", 1, 1, 1), ("g", 1, 1, 1)]
    assert len({ids.goal_message_id(*each) for each in facts}) == len(facts)


def test_an_intake_entry_that_is_delivered_twice_is_the_same_message() -> None:
    assert ids.intake_message_id("1764554400123-0") == ids.intake_message_id("1764554400123-0")
    assert ids.intake_message_id("1764554400123-0") != ids.intake_message_id("1764554400123-1")


@pytest.mark.parametrize("entry", ["", "1", "1-", "-1", "1-2-3", "a-1", "1-1\n", " 1-1", "١-١", "1" * 30 + "-0"])
def test_what_is_no_stream_entry_id_makes_no_message_id(entry: str) -> None:
    with pytest.raises(BadId):
        ids.intake_message_id(entry)


def test_the_topics_have_the_names_that_the_protocol_gives() -> None:
    assert channels.event_channel("s-1") == "session.event.s-1"
    assert channels.STATUS_CHANNEL == "session.status"
    assert channels.INTAKE == "mailslot:intake"
    assert channels.INTAKE_DEAD == "mailslot:intake:dead"
    assert channels.control_channel("w-1") == "mailslot:control:w-1"

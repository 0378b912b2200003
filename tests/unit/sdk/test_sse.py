"""The event stream, byte by byte."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslot.errors import BadAnswer
from mailslot.sse import Frame, Parser

FRAME_BYTES_MAX = 1000


def parsed(*chunks: bytes, frame_bytes_max: int = FRAME_BYTES_MAX) -> list[Frame]:
    parser = Parser(frame_bytes_max)
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


def test_a_frame_is_its_event_its_data_and_its_id() -> None:
    assert parsed(b"id: 12\nevent: session.event\ndata: {}\n\n") == [Frame("session.event", "{}", "12")]


def test_a_frame_cut_anywhere_is_the_same_frame() -> None:
    whole = 'id: 1\nevent: a\ndata: {"text":"héllo 你好 🙂"}\n\nid: 2\ndata: x\n\n'.encode()
    expected = parsed(whole)
    assert len(expected) == 2
    for place in range(len(whole) + 1):
        assert parsed(whole[:place], whole[place:]) == expected, place
    assert parsed(*(bytes([byte]) for byte in whole)) == expected


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])), max_size=5),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_any_text_comes_through_any_cuts(texts: list[str], cuts: list[int]) -> None:
    whole = b"".join(b"data: %s\n\n" % text.encode() for text in texts)
    places = [0, *sorted(place for place in cuts if place < len(whole)), len(whole)]
    chunks = [whole[start:end] for start, end in itertools.pairwise(places)]
    assert [frame.data for frame in parsed(*chunks, frame_bytes_max=10_000)] == texts


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_only_byte_0x0a_ends_a_line(separator: str) -> None:
    assert parsed(f"data: a{separator}b\n\n".encode())[0].data == f"a{separator}b"


def test_a_carriage_return_before_the_line_end_is_dropped_and_one_inside_is_text() -> None:
    assert parsed(b"id: 1\r\ndata: a\rb\r\n\r\n") == [Frame("message", "a\rb", "1")]
    assert parsed(b"data: a\r", b"\n\r", b"\n") == [Frame("message", "a", None)]


def test_several_data_lines_are_one_text() -> None:
    assert parsed(b"data: a\ndata: b\ndata\n\n")[0].data == "a\nb\n"


def test_comments_and_frames_without_data_are_nothing() -> None:
    assert parsed(b": still here\n\n", b"event: x\n\n", b"retry: 10\n\n", b"\n\n\n") == []


def test_an_id_is_not_carried_over_to_the_next_frame() -> None:
    assert [frame.id for frame in parsed(b"id: 7\ndata: a\n\ndata: b\n\n")] == ["7", None]


def test_an_unfinished_frame_is_no_frame() -> None:
    assert parsed(b"id: 7\ndata: a\n") == []


def test_a_byte_order_mark_at_the_start_is_skipped() -> None:
    assert parsed(b"\xef\xbb", b"\xbfdata: a\n\n")[0].data == "a"


def test_a_frame_over_the_limit_is_refused_while_it_comes() -> None:
    with pytest.raises(BadAnswer, match="more than 100 bytes"):
        parsed(b"data: " + b"x" * 100, frame_bytes_max=100)
    with pytest.raises(BadAnswer, match="more than 100 bytes"):
        parsed(*[b"data: 0123456789\n"] * 7, frame_bytes_max=100)
    assert len(parsed(*[b"data: 0123456789\n\n"] * 50, frame_bytes_max=100)) == 50


def test_a_line_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(BadAnswer, match="not UTF-8"):
        parsed(b"data: \xff\xfe\n\n")

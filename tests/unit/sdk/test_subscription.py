"""Reading events without a gap, whatever happens to the connection. No connection is made here."""

import json
import random
from collections.abc import Sequence

import pytest

from mailslot import BadAnswer, CursorExpired, Delta, Event, Refused, Settings, TransportLost
from mailslot.operation import Address
from mailslot.step import Answer, Fault, Opened, Response, Terms
from mailslot.subscription import followed
from tests.unit.sdk.driving import (
    STREAM,
    Played,
    envelope,
    frame,
    frames,
    level_frame,
    play,
    refused,
)

CUT = Fault("cut")
TERMS = Terms(Settings(reconnects_max=3), clock=lambda: 0.0, chance=lambda: 1.0)


def follow(*answers: Answer, after: int = 0, deltas: bool = False, terms: Terms = TERMS) -> Played:
    return play(followed(terms, Address("s"), after, deltas=deltas), answers)


def seqs(played: Played) -> list[int]:
    return [item.seq for item in played.given if isinstance(item, Event)]


def afters(played: Played) -> list[str]:
    return [request.query["after"] for request in played.requests]


def test_events_come_in_order_from_just_after_the_cursor() -> None:
    played = follow(STREAM, level_frame("s", 9) + frames([8]), frames([9, 10]), after=7)
    assert seqs(played) == [8, 9, 10]
    assert afters(played) == ["7"]


def test_a_cut_stream_goes_on_after_the_last_event_that_was_given() -> None:
    played = follow(STREAM, frames([1, 2]), CUT, STREAM, level_frame("s", 4), frames([3]), CUT, STREAM, frames([4]))
    assert seqs(played) == [1, 2, 3, 4]
    assert afters(played) == ["0", "2", "3"]


def test_a_frame_that_was_cut_in_the_middle_is_read_again() -> None:
    whole = frames([1])
    for place in range(len(whole)):
        played = follow(STREAM, whole[:place], CUT, STREAM, whole)
        assert seqs(played) == [1], place


def test_an_event_that_comes_twice_is_given_once() -> None:
    assert seqs(follow(STREAM, frames([1, 2, 2, 1, 3]), CUT, STREAM, frames([1, 2, 3, 4]))) == [1, 2, 3, 4]


def test_a_missing_seq_is_never_skipped_but_read_again() -> None:
    played = follow(STREAM, frames([1, 2, 4, 5]), STREAM, frames([3, 4, 5]))
    assert seqs(played) == [1, 2, 3, 4, 5]
    assert afters(played) == ["0", "2"]


def test_a_seq_that_stays_missing_is_an_error_and_not_a_gap() -> None:
    script: list[Answer] = [STREAM, frames([2])]
    played = follow(*script * 9)
    assert isinstance(played.error, TransportLost)
    assert "seq 2 came after seq 0" in str(played.error)
    assert seqs(played) == []


@pytest.mark.parametrize("seed", range(25))
def test_any_cuts_and_repetitions_give_every_event_once(seed: int) -> None:
    rng = random.Random(seed)
    newest = 40

    def answers() -> Sequence[Answer]:
        script: list[Answer] = []
        read = 0
        while read < newest:
            start = rng.randint(0, read)
            upto = rng.randint(read + 1, newest)
            data = level_frame("s", newest) + frames(range(start + 1, upto + 1))
            places = sorted(rng.sample(range(len(data)), min(3, len(data))))
            script.append(STREAM)
            script += [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]
            script.append(CUT)
            read = upto
        return script

    assert seqs(follow(*answers())) == list(range(1, newest + 1))


def test_a_stream_that_never_gets_anywhere_is_given_up() -> None:
    script: list[Answer] = [STREAM, level_frame("s", 0), CUT]
    played = follow(*script * 9)
    assert isinstance(played.error, TransportLost)
    assert played.error.reached
    assert len(played.requests) == 4
    assert played.pauses == [0.1, 0.2, 0.4]


def test_a_server_that_is_not_there_is_given_up_and_was_never_reached() -> None:
    played = follow(*[Fault("connection refused", sent=False)] * 9)
    assert isinstance(played.error, TransportLost)
    assert not played.error.reached
    assert "connection refused" in str(played.error)


def test_every_event_makes_patience_whole_again() -> None:
    script: list[Answer] = []
    for seq in range(1, 21):
        script += [STREAM, CUT, STREAM, CUT, STREAM, frames([seq]), CUT]
    assert seqs(follow(*script)) == list(range(1, 21))


def test_a_silent_agent_is_no_broken_stream() -> None:
    now = [0.0]
    terms = Terms(Settings(reconnects_max=2, settled_s=5), clock=lambda: now[0], chance=lambda: 1.0)

    def tick() -> None:
        now[0] += 10

    silent: list[Answer] = [STREAM, level_frame("s", 0), CUT]
    played = play(followed(terms, Address("s"), 0, deltas=False), [*silent * 30, STREAM, frames([1])], tick)
    assert seqs(played) == [1]


def test_a_gap_frame_is_an_expired_cursor_after_what_could_be_read() -> None:
    gap = json.dumps({"sessionId": "s", "oldest": 50, "newest": 90}).encode()
    played = follow(STREAM, frames([1]) + b"event: session.gap\ndata: " + gap + b"\n\n")
    assert seqs(played) == [1]
    assert isinstance(played.error, CursorExpired)
    assert (played.error.oldest, played.error.newest) == (50, 90)


def test_a_cursor_that_is_refused_is_an_expired_cursor() -> None:
    assert isinstance(follow(refused(410, "cursor-expired", oldest=5, newest=9)).error, CursorExpired)


def test_an_unknown_session_is_refused() -> None:
    played = follow(refused(404, "not-found"))
    assert isinstance(played.error, Refused)
    assert len(played.requests) == 1


def test_a_server_that_has_no_time_is_asked_again_when_it_says() -> None:
    played = follow(refused(503, "store-refused", retryAfterMs=700), STREAM, frames([1]))
    assert seqs(played) == [1]
    assert 0.7 in played.pauses


def test_a_server_that_stays_unwilling_is_given_up() -> None:
    played = follow(*[Response(502, {}, b"")] * 9)
    assert isinstance(played.error, TransportLost)
    assert "502" in str(played.error)


def test_what_is_no_event_stream_is_a_bad_answer() -> None:
    assert isinstance(follow(Opened("text/html")).error, BadAnswer)


def test_deltas_are_passed_on_when_they_are_asked_for_and_never_move_the_cursor() -> None:
    notice = {"v": 1, "sessionId": "s", "type": "assistant/delta", "data": {"turn": 1, "step": 1, "text": "he"}}
    delta = f"event: session.delta\ndata: {json.dumps(notice)}\n\n".encode()
    played = follow(STREAM, delta + frames([1]), CUT, STREAM, frames([2]), deltas=True)
    assert played.given[0] == Delta(turn=1, step=1, text="he")
    assert seqs(played) == [1, 2]
    assert [request.query.get("deltas") for request in played.requests] == ["1", "1"]
    assert [item for item in follow(STREAM, delta + frames([1])).given if isinstance(item, Delta)] == []


def test_unknown_frames_are_skipped() -> None:
    assert seqs(follow(STREAM, b"event: session.weather\nid: 4\ndata: {}\n\n" + frames([1]))) == [1]


def test_the_level_is_no_event() -> None:
    assert follow(STREAM, level_frame("s", 99)).given == []


def test_events_of_another_session_or_of_a_newer_protocol_are_refused() -> None:
    assert "session other" in str(follow(STREAM, frames([1], "other")).error)
    newer = envelope(1, "x", {}) | {"v": 2}
    assert "upgrade mailslot" in str(follow(STREAM, frame(newer)).error)


def test_a_frame_without_end_is_refused() -> None:
    terms = Terms(Settings(frame_bytes_max=1000))
    played = follow(STREAM, *[b"data: " + b"x" * 400] * 9, terms=terms)
    assert isinstance(played.error, BadAnswer)

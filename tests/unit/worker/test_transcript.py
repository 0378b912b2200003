"""The transcript: what a ledger tells a model, and nothing more."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslot_core.agent import AssistantEntry, Entry, ToolCall, ToolEntry, UserEntry
from mailslot_core.session import Event
from mailslot_core.turn import Draft
from mailslot_services.agent_worker.transcript import (
    Transcript,
    TranscriptCache,
    check_history,
    extend,
    newest_user_text,
    still_holds,
    weight_bytes,
)

VECTORS = sorted((Path(__file__).parents[3] / "contracts/vectors").glob("*.json"))

CALL = {"callId": "c1", "name": "weather", "arguments": {"city": "Berlin"}}


def event(seq: int, event_type: str, **data: Any) -> Event:
    return Event(seq, event_type, 1, 1, data)


def user(text: str) -> UserEntry:
    return UserEntry([{"type": "text", "text": text}])


def calling(*call_ids: str) -> AssistantEntry:
    return AssistantEntry("", tuple(ToolCall(call_id, "f", {}) for call_id in call_ids))


def result(call_id: str) -> ToolEntry:
    return ToolEntry(call_id, "f", "done")


# -- folding ------------------------------------------------------------------------------------------------

A_TURN_WITH_A_TOOL = [
    event(1, "inbox/queued", messageId="A", content=[{"type": "text", "text": "weather?"}]),
    event(2, "turn/start", turn=1),
    event(3, "step/start", turn=1, step=1),
    event(4, "user/message", messageId="A", turn=1, step=1, content=[{"type": "text", "text": "weather?"}]),
    event(5, "assistant/message", turn=1, step=1, content="", toolCalls=[CALL], model="m"),
    event(6, "tool/call", turn=1, step=1, **CALL),
    event(7, "tool/result", turn=1, step=1, callId="c1", content=[{"type": "text", "text": "rain"}]),
    event(8, "step/end", turn=1, step=1),
    event(9, "llm/retry", turn=1, step=2, attempt=1, delayMs=1, code="x", message="x"),
    event(10, "assistant/message", turn=1, step=2, content=[{"type": "text", "text": "It rains."}], model="m"),
    event(11, "turn/end", turn=1, reason={"kind": "completed"}),
]


def test_only_what_was_said_called_and_answered_is_in_the_transcript() -> None:
    assert extend([], A_TURN_WITH_A_TOOL) == [
        user("weather?"),
        AssistantEntry("", (ToolCall("c1", "weather", {"city": "Berlin"}),)),
        ToolEntry("c1", "weather", "rain"),
        AssistantEntry("It rains."),
    ]


def test_a_transcript_grows_the_same_in_any_number_of_helpings() -> None:
    whole = extend([], A_TURN_WITH_A_TOOL)
    for cut in range(len(A_TURN_WITH_A_TOOL) + 1):
        assert extend(extend([], A_TURN_WITH_A_TOOL[:cut]), A_TURN_WITH_A_TOOL[cut:]) == whole


def test_the_transcript_before_is_left_as_it_was() -> None:
    before: list[Entry] = [user("hello")]
    extend(before, [event(2, "assistant/message", content="hi")])
    assert before == [user("hello")]


def test_what_a_worker_is_about_to_commit_counts_like_what_it_committed() -> None:
    draft = Draft("assistant/message", {"turn": 1, "step": 1, "content": "hi", "model": "m"})
    assert extend([], [draft]) == extend([], [event(1, "assistant/message", turn=1, step=1, content="hi", model="m")])


def test_an_interrupted_answer_stays_as_the_text_that_was_visible() -> None:
    interrupted = event(1, "assistant/message", content="half an ans", model="m", interrupted=True)
    assert extend([], [interrupted]) == [AssistantEntry("half an ans")]


def test_a_failed_call_says_its_code_and_why() -> None:
    error = {"code": "TOOL_OUTCOME_UNKNOWN", "message": "the worker died"}
    asked = event(1, "assistant/message", content="", toolCalls=[CALL], model="m")
    failed = extend([], [asked, event(2, "tool/result", callId="c1", content="", error=error)])[-1]
    assert failed == ToolEntry("c1", "weather", "the worker died", "TOOL_OUTCOME_UNKNOWN")


def test_images_stay_in_a_user_message_and_say_nothing_in_text() -> None:
    content = [{"type": "image", "mediaType": "image/png", "url": "https://example.com/a.png"}]
    entries = extend([], [event(1, "user/message", content=content)])
    assert entries == [UserEntry(content)]
    assert newest_user_text(entries) == ""


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_every_golden_history_is_one_that_a_provider_takes(path: Path) -> None:
    history = json.loads(path.read_text())["history"]
    entries = extend([], [event(one["seq"], one["type"], **one["data"]) for one in history])
    assert check_history(entries) == []


def test_the_newest_user_text_is_all_that_was_said_since_the_last_answer() -> None:
    assert newest_user_text([]) == ""
    assert (
        newest_user_text([user("old"), AssistantEntry("yes"), user("context"), user("question")]) == "context\nquestion"
    )
    assert newest_user_text([user("question"), calling("c1"), result("c1")]) == "question"
    assert newest_user_text([user("question"), calling("c1"), result("c1"), user("a steer")]) == "a steer"


# -- the shape that providers take --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([user("a"), calling("c1"), user("b")], "entry 3: user message before the result of call c1"),
        ([user("a"), calling("c1"), AssistantEntry("b")], "entry 3: assistant message before the result of call c1"),
        ([user("a"), result("c1")], "entry 2: a result of call c1, which is not open"),
        ([user("a"), calling("c1"), result("c1"), result("c1")], "entry 4: a result of call c1, which is not open"),
        ([user("a"), calling("c1", "c2"), result("c2")], "the end: call c1 has no result"),
        ([user("a"), calling("c1", "c1"), result("c1")], "entry 2: call id c1 is used twice"),
        ([AssistantEntry("a")], "entry 1: an assistant message with nothing before it"),
        (
            [user("a"), calling("c1"), result("c1"), user("b"), calling("c1"), result("c1")],
            "entry 5: call id c1 is used twice",
        ),
    ],
)
def test_what_a_provider_would_refuse_is_named(entries: list[Entry], complaint: str) -> None:
    assert complaint in check_history(entries)


def test_results_may_come_in_any_order_and_a_running_call_is_fine_in_between() -> None:
    entries: list[Entry] = [user("a"), calling("c1", "c2"), result("c2"), result("c1"), AssistantEntry("done")]
    assert check_history(entries) == []
    for end in range(len(entries)):
        assert check_history(entries[:end], complete=False) == []


# -- kept between turns -------------------------------------------------------------------------------------


def test_a_kept_transcript_is_good_for_the_same_lease_and_the_very_next_one() -> None:
    for epoch, good in ((4, False), (5, True), (6, True), (7, False)):
        assert still_holds(5, epoch) is good, f"kept at epoch 5, asked for at {epoch}"


def test_a_transcript_goes_back_to_its_mark_and_takes_up_what_others_wrote() -> None:
    ledger = A_TURN_WITH_A_TOOL
    for mark in range(len(ledger) + 1):
        ours = Transcript(extend([], ledger[:mark]))
        ours.mark(mark)
        ours.grow([event(mark + 1, "assistant/message", content="of a turn that others went on with", model="m")])
        ours.rewind()
        assert ours.entries == extend([], ledger[:mark])
        ours.grow(ledger[ours.seq :])
        assert ours.entries == extend([], ledger)
        assert ours.size_bytes == weight_bytes(ours.entries)


def test_a_transcript_is_taken_out_when_it_is_used_so_that_a_lost_turn_leaves_nothing_stale() -> None:
    cache = TranscriptCache()
    kept = Transcript([user("hello")])
    cache.put("s", 5, kept)
    taken = cache.take("s")
    assert taken is not None
    assert (taken.epoch, taken.transcript) == (5, kept)
    assert cache.take("s") is None
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_the_session_that_was_driven_longest_ago_makes_room() -> None:
    cache = TranscriptCache(sessions_max=2)
    for session_id in ("a", "b", "c"):
        cache.put(session_id, 1, Transcript([user(session_id)]))
    assert [cache.take(session_id) is not None for session_id in ("a", "b", "c")] == [False, True, True]


def test_long_transcripts_make_room_by_their_weight_and_one_that_is_too_long_is_not_kept() -> None:
    weight = weight_bytes([user("x" * 1_000)])
    cache = TranscriptCache(bytes_max=2 * weight)
    for session_id in ("a", "b", "c"):
        cache.put(session_id, 1, Transcript([user("x" * 1_000)]))
    assert len(cache) == 2
    assert cache.size_bytes <= 2 * weight
    cache.put("d", 1, Transcript([user("x" * 10_000)]))
    assert cache.take("d") is None
    assert len(cache) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 500), st.booleans()), max_size=60))
def test_a_cache_is_never_over_its_limits_and_never_miscounts(acts: list[tuple[str, int, bool]]) -> None:
    cache = TranscriptCache(sessions_max=3, bytes_max=1_500)
    for session_id, characters, put in acts:
        if put:
            cache.put(session_id, 1, Transcript([user("x" * characters)]))
        else:
            cache.take(session_id)
        assert len(cache) <= 3
        assert cache.size_bytes <= 1_500
    for session_id in "abcdef":
        cache.take(session_id)
    assert cache.size_bytes == 0


def test_a_transcript_that_grew_weighs_what_its_entries_weigh() -> None:
    grown = Transcript(extend([], A_TURN_WITH_A_TOOL[:3]))
    grown.grow(A_TURN_WITH_A_TOOL[3:])
    assert grown.entries == extend([], A_TURN_WITH_A_TOOL)
    assert grown.size_bytes == weight_bytes(grown.entries)


def test_a_longer_text_weighs_more() -> None:
    weights = [weight_bytes([user("x" * length)]) for length in (0, 10, 100)]
    assert all(lighter < heavier for lighter, heavier in pairwise(weights))

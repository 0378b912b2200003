"""Every event has its shape, what is not known is kept, and nothing pairs a message with a result."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mailslot_contracts import codec, events
from mailslot_contracts.door import Fact
from mailslot_contracts.events import (
    EVENT_DATA,
    EVENT_TYPES,
    Aborted,
    OtherEnd,
    TurnEnd,
    UnknownEvent,
    is_success,
    parse_data,
    parse_event,
)
from mailslot_contracts.problems import BadInput, ContractError, VersionError

HELLO = [{"type": "text", "text": "hello"}]
USER = {"kind": "user"}
GOAL = {
    "goalId": "g",
    "revision": 3,
    "objective": "o",
    "phase": "blocked",
    "rounds": 2,
    "budgets": {"rounds": 2, "cost": 1.5},
    "spent": {"rounds": 2, "tokens": 10},
    "reason": {"code": "budget-rounds", "message": "all 2 rounds are spent"},
}
STEP = {"turn": 2, "step": 1}
CALL = {"callId": "c", "name": "look", "arguments": {"deep": [1, 2.5, None, {"a": True}]}}
USAGE = {"inputTokens": 3, "outputTokens": 4, "cost": 0.5}

# The fullest data of every event type, written down from protocol section 5: required fields first.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "session/created": ({"agent": "a", "onFailure": "continue", "depth": 0, "metadata": {"k": None}}, {"parent": "p"}),
    "inbox/queued": (
        {"messageId": "m", "lane": "next-turn", "wake": True, "content": HELLO, "source": USER},
        {"notBefore": 1, "expiresAt": 2, "redrive": True, "metadata": {"k": 1}},
    ),
    "inbox/claimed": ({"turn": 2, "messageIds": ["m", "n"]}, {"step": 1}),
    "inbox/replaced": ({"messageId": "m", "content": HELLO}, {}),
    "inbox/moved": ({"messageId": "m", "lane": "next-step"}, {}),
    "inbox/cancelled": ({"messageId": "m", "cause": "withdrawn"}, {}),
    "inbox/rejected": ({"messageId": "m", "turn": 2, "reason": "no"}, {}),
    "inbox/expired": ({"messageId": "m"}, {}),
    "inbox/dead": ({"messageId": "m", "reason": "interrupted", "attempts": 3}, {}),
    "inbox/due": ({"messageId": "m"}, {}),
    "inbox/held": ({"cause": "cancel"}, {}),
    "inbox/released": ({"cause": "release"}, {}),
    "agent/status": ({"status": "idle"}, {"held": 2}),
    "turn/start": ({"turn": 2}, {}),
    "turn/end": ({"turn": 2, "reason": {"kind": "aborted", "cause": "parent"}}, {"usage": USAGE}),
    "turn/recovered": ({"turn": 2, "attempt": 2, "reason": "crash"}, {}),
    "step/start": (STEP, {}),
    "step/end": (STEP, {}),
    "user/message": (
        {
            **STEP,
            "messageId": "m",
            "content": HELLO,
            "source": {"kind": "goal", "goalId": "g", "revision": 1, "round": 2},
        },
        {},
    ),
    "assistant/message": (
        {**STEP, "content": HELLO, "model": "echo"},
        {"toolCalls": [CALL], "usage": USAGE, "interrupted": True},
    ),
    "tool/call": ({**STEP, **CALL}, {}),
    "tool/result": (
        {**STEP, "callId": "c", "content": HELLO},
        {"error": {"code": events.TOOL_OUTCOME_UNKNOWN, "message": "?"}},
    ),
    "llm/retry": ({**STEP, "attempt": 1, "delayMs": 500, "code": "overloaded", "message": "later"}, {}),
    "cancel/requested": ({"cause": "user", "queue": "keep"}, {"turn": 2, "closing": True}),
    "goal/change": ({"operation": "block", "goal": GOAL}, {}),
    "subagent/started": ({"childId": "s", "detached": False}, {"callId": "c"}),
    "subagent/detached": ({"childId": "s"}, {}),
    "subagent/settled": ({"childId": "s", "stopReason": "completed"}, {"output": "done"}),
    "approval/requested": ({**STEP, "approvalId": "p", "callId": "c", "question": "may I?"}, {}),
    "approval/answered": ({"approvalId": "p", "answer": "allow", "by": "ann"}, {}),
    "usage/recorded": (
        {**STEP, "attempt": 1, "model": "echo", "inputTokens": 3, "outputTokens": 4},
        {"requestId": "r", "cost": 0.5},
    ),
    "compaction/done": ({"from": 1, "to": 9, "summary": "so far"}, {}),
    "session/closed": ({"cause": "requested"}, {}),
}
REQUIRED = {kind: required for kind, (required, _) in EXAMPLES.items()}
FULL = {kind: required | optional for kind, (required, optional) in EXAMPLES.items()}


def envelope(kind: Any, data: Any, **other: Any) -> dict[str, Any]:
    return {"v": 1, "seq": 12, "sessionId": "s", "type": kind, "time": 1764554400123, "epoch": 3, "data": data, **other}


def test_every_event_type_of_the_protocol_is_known_and_no_other() -> None:
    assert sorted(EVENT_TYPES) == sorted(EXAMPLES)
    assert not set(EVENT_TYPES) & set(events.TRANSIENT)


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("examples", [REQUIRED, FULL], ids=["required", "full"])
def test_an_event_comes_back_as_it_was_sent(kind: str, examples: dict[str, dict[str, Any]]) -> None:
    sent = envelope(kind, examples[kind])
    event = parse_event(codec.decode(codec.encode(sent)))
    assert type(event.data) is EVENT_DATA[kind]
    assert event.wire() == sent
    assert events.EVENT_UNION.validate_python(sent, by_alias=True, by_name=False) == event
    assert parse_data(kind, examples[kind]).wire() == examples[kind]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_documented_fields_are_all_there_are(kind: str) -> None:
    known = {field.alias for field in EVENT_DATA[kind].model_fields.values()}
    assert known == set(FULL[kind])


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in REQUIRED for field in REQUIRED[kind]])
def test_an_event_without_a_required_field_is_refused_by_name(kind: str, field: str) -> None:
    data = {name: value for name, value in FULL[kind].items() if name != field}
    with pytest.raises(BadInput, match=rf"{field}: is missing"):
        parse_event(envelope(kind, data))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_unknown_fields_are_kept(kind: str) -> None:
    extra = {"later": {"a": [None, 1]}, "none": None}
    sent = envelope(kind, {**FULL[kind], **extra}, trace="t")
    assert parse_event(sent).wire() == sent


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda kind: kind not in EVENT_DATA),
    st.dictionaries(st.text("abc"), st.none() | st.integers(-5, 5)),
)
def test_an_unknown_type_is_kept_and_passed_on(kind: str, data: dict[str, Any]) -> None:
    sent = envelope(kind, data)
    event = parse_event(sent)
    assert isinstance(event, UnknownEvent)
    assert event.wire() == sent
    assert parse_data(kind, data).wire() == data


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("inbox/queued", {"lane": "next-week"}),
        ("inbox/queued", {"wake": 1}),
        ("inbox/queued", {"content": 5}),
        ("inbox/queued", {"content": [{"text": "no type"}]}),
        ("inbox/queued", {"content": [{"type": "text"}]}),
        ("inbox/queued", {"source": {"kind": "goal"}}),
        ("inbox/queued", {"messageId": "a\x00"}),
        ("inbox/queued", {"notBefore": 1.5}),
        ("inbox/claimed", {"messageIds": "m"}),
        ("inbox/claimed", {"messageIds": [5]}),
        ("inbox/cancelled", {"cause": "bored"}),
        ("agent/status", {"status": "tired"}),
        ("agent/status", {"held": -1}),
        ("turn/start", {"turn": 0}),
        ("turn/start", {"turn": "1"}),
        ("turn/start", {"turn": True}),
        ("turn/start", {"turn": 1.0}),
        ("turn/end", {"reason": "completed"}),
        ("turn/end", {"reason": {}}),
        ("turn/end", {"reason": {"kind": "error", "code": "x"}}),
        ("turn/end", {"reason": {"kind": "aborted", "cause": "boredom"}}),
        ("turn/recovered", {"reason": "luck"}),
        ("assistant/message", {"toolCalls": [{"callId": "c"}]}),
        ("tool/call", {"arguments": "{}"}),
        ("cancel/requested", {"queue": "shuffle"}),
        ("goal/change", {"operation": "dream"}),
        ("goal/change", {"goal": {**GOAL, "phase": "asleep"}}),
        ("approval/answered", {"answer": "maybe"}),
    ],
)
def test_a_known_event_with_a_wrong_field_is_refused(kind: str, data: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        parse_event(envelope(kind, {**FULL[kind], **data}))
    with pytest.raises(BadInput, match=kind):
        parse_data(kind, {**FULL[kind], **data})


@pytest.mark.parametrize("version", [2, 3, 2**62])
def test_a_higher_envelope_version_is_refused_with_what_to_do(version: int) -> None:
    with pytest.raises(VersionError, match=f"version {version} is newer than 1.*upgrade"):
        parse_event(envelope("future/thing", {}, v=version))


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": 0},
        {"v": -1},
        {"v": "1"},
        {"v": 1.0},
        {"v": True},
        {"v": None},
        {"seq": 0},
        {"seq": "12"},
        {"seq": 2**63},
        {"sessionId": ""},
        {"sessionId": "a\u2028"},
        {"type": None},
        {"type": 5},
        {"type": ["turn/start"]},
        {"time": -1},
        {"time": 1.5},
        {"epoch": -1},
        {"data": None},
        {"data": []},
    ],
)
def test_a_damaged_envelope_is_refused(wrong: dict[str, Any]) -> None:
    for kind in ("turn/start", "future/thing"):
        with pytest.raises(ContractError):
            parse_event({**envelope(kind, {"turn": 1}), **wrong})


@pytest.mark.parametrize("whole", [None, [], "x", 5])
def test_what_is_no_object_is_no_event(whole: object) -> None:
    with pytest.raises(BadInput, match="must be an object"):
        parse_event(whole)


@pytest.mark.parametrize("field", ["v", "seq", "sessionId", "type", "time", "epoch", "data"])
def test_an_envelope_has_seven_fields(field: str) -> None:
    sent = envelope("turn/start", {"turn": 1})
    del sent[field]
    with pytest.raises(BadInput, match=f"{field}: is missing"):
        parse_event(sent)


def test_the_end_of_a_turn_has_the_class_of_its_kind() -> None:
    aborted = parse_data("turn/end", {"turn": 1, "reason": {"kind": "aborted", "cause": "user"}})
    assert isinstance(aborted, TurnEnd)
    assert isinstance(aborted.reason, Aborted)
    unknown = parse_data("turn/end", {"turn": 1, "reason": {"kind": "evaporated", "how": "slowly"}})
    assert isinstance(unknown, TurnEnd)
    assert isinstance(unknown.reason, OtherEnd)
    assert unknown.reason.wire() == {"kind": "evaporated", "how": "slowly"}


@given(st.text())
def test_only_completed_is_a_success(kind: str) -> None:
    assert is_success(kind) is (kind == "completed")
    assert not any(is_success(each) for each in events.END_KINDS if each != "completed")
    assert not is_success(None)


def test_a_block_of_an_unknown_kind_is_kept() -> None:
    data = {"messageId": "m", "content": [*HELLO, {"type": "audio", "seconds": 3}]}
    assert parse_data("inbox/replaced", data).wire() == data


def test_a_bare_string_in_an_event_is_one_text_block() -> None:
    assert parse_data("inbox/replaced", {"messageId": "m", "content": "hello"}).wire()["content"] == HELLO


def test_a_model_may_say_nothing() -> None:
    data = {**REQUIRED["assistant/message"], "content": []}
    assert parse_data("assistant/message", data).wire() == data


def test_python_names_are_not_wire_names() -> None:
    with pytest.raises(BadInput, match="messageId: is missing"):
        parse_data("inbox/due", {"message_id": "m"})


def test_events_can_be_written_with_python_names() -> None:
    assert events.InboxDue(message_id="m").wire() == {"messageId": "m"}  # type: ignore[arg-type]


def test_an_event_cannot_be_changed() -> None:
    event = parse_event(envelope("turn/start", {"turn": 1}))
    with pytest.raises(ValidationError, match="frozen"):
        event.seq = 5  # type: ignore[misc]


# -- absences -----------------------------------------------------------------------------------------------


def fields_of(model: type[Fact]) -> set[str]:
    return {str(field.alias) for field in model.model_fields.values()}


def test_there_is_no_session_finished() -> None:
    assert not [kind for kind in EVENT_TYPES if "finish" in kind or "result" in kind.replace("tool/result", "")]


@pytest.mark.parametrize("kind", ["turn/start", "turn/end", "step/start", "step/end", "assistant/message"])
def test_no_event_about_a_turn_or_an_answer_names_a_message(kind: str) -> None:
    assert not {"messageId", "messageIds"} & fields_of(EVENT_DATA[kind])


@pytest.mark.parametrize("kind", [kind for kind in EVENT_TYPES if "messageId" in fields_of(EVENT_DATA[kind])])
def test_no_event_about_a_message_tells_how_a_turn_ended(kind: str) -> None:
    assert kind.startswith("inbox/") or kind == "user/message"
    assert not {"finishReason", "stopReason", "result", "status", "output", "usage"} & fields_of(EVENT_DATA[kind])


def test_a_delta_is_no_event() -> None:
    assert "seq" not in events.DeltaNotice.model_fields
    assert "assistant/delta" not in EVENT_DATA

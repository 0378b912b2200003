"""What a ledger says of a message, by its id or its text."""

from __future__ import annotations

from typing import Any

from mailslot.event import Event
from mailslot.testing import ledger

TEXT: dict[str, Any] = {"source": {"kind": "user"}, "wake": True, "lane": "next-turn"}


def ledger_of(*facts: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(seq, kind, 1_000 * seq, 0, data) for seq, (kind, data) in enumerate(facts, start=1)]


def put(message_id: str, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    content = [{"type": "text", "text": text}]
    return "inbox/queued", {**TEXT, "messageId": message_id, "content": content, **more}


def test_a_message_is_found_by_its_id_or_by_its_whole_text() -> None:
    events = ledger_of(put("A", "hello"), put("B", "hello you"), put("hello", "C"))
    assert [event.seq for event in ledger.queued(events, "hello")] == [1, 3]
    assert [event.seq for event in ledger.queued(events, "B")] == [2]
    assert ledger.queued(events, "you") == []


def test_a_redrive_is_no_second_message() -> None:
    events = ledger_of(
        put("A", "hello"), ("inbox/dead", {"messageId": "A", "reason": "x"}), put("A", "hello", redrive=True)
    )
    (placed,) = ledger.queued(events, "A")
    assert ledger.told(events, placed).record.state == "queued"


def test_a_message_for_later_is_due_when_the_ledger_says_so() -> None:
    later = put("A", "hello", notBefore=9_000)
    for events, due in [
        (ledger_of(later), False),
        (ledger_of(later, ("inbox/due", {"messageId": "B"})), False),
        (ledger_of(later, ("inbox/due", {"messageId": "A"})), True),
        (ledger_of(put("A", "hello", notBefore=1_000)), True),
    ]:
        wrong = ledger.differences(events, events[0], lane=None, wake=None, due=True)
        assert wrong == ([] if due else ["due is False, not True"])


def test_what_people_named_keeps_its_name_and_the_rest_gets_its_text() -> None:
    long = "m" * (ledger.ID_CHARACTERS_MAX + 1)
    events = ledger_of(put("order-7", "hello"), put(long, "a" * 30))
    assert ledger.labels(events) == {long: f"'{'a' * ledger.LABEL_CHARACTERS_MAX}'…"}

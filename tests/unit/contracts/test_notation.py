"""Histories in the compact notation: everything is seen, under the names that are asked for."""

from typing import Any, NamedTuple

import pytest

from mailslot_contracts import EVENT_TYPES, render
from mailslot_contracts.notation import SILENT, TOKENS


class Event(NamedTuple):
    seq: int
    type: str
    time: int
    epoch: int
    data: dict[str, Any]


def test_an_event_is_rendered_whatever_carries_it() -> None:
    data = {"messageId": "m", "turn": 1, "step": 1}
    carriers: list[Any] = [("user/message", data), {"type": "user/message", "data": data}]
    assert render([*carriers, Event(1, "user/message", 0, 0, data)]) == ["u[m]"] * 3


def test_long_ids_get_short_names() -> None:
    history: list[tuple[str, dict[str, Any]]] = [
        ("inbox/queued", {"messageId": "0199-x", "lane": "next-turn"}),
        ("inbox/claimed", {"turn": 1, "messageIds": ["0199-x", "other"]}),
        ("inbox/cancelled", {"messageId": "0199-x", "cause": "stale"}),
    ]
    assert render(history, {"0199-x": "A"}) == ["q[A]", "c[A,other]", "x[A stale]"]


@pytest.mark.parametrize(
    ("kind", "data", "token"),
    [
        ("inbox/cancelled", {"messageId": "A", "cause": "withdrawn"}, "x[A]"),
        ("inbox/cancelled", {"messageId": "A", "cause": "closed"}, "x[A]"),
        ("agent/status", {"status": "idle", "held": 2}, "I(held 2)"),
        ("agent/status", {"status": "idle", "held": 0}, "I"),
        ("turn/end", {"turn": 3, "reason": {"kind": "aborted", "cause": "hook"}}, "t3(aborted hook)"),
        ("turn/end", {"turn": 3, "reason": {"kind": "max-tokens"}}, "t3(max-tokens)"),
        ("turn/recovered", {"turn": 1, "attempt": 2, "reason": "handback"}, "recovered(1, attempt 2, handback)"),
        ("tool/call", {"callId": "c1"}, "tc[c1]"),
        ("tool/result", {"callId": "c1"}, "tr[c1]"),
        ("goal/change", {"operation": "pause"}, "goal(pause)"),
        ("llm/retry", {}, "llm/retry"),
        ("brand/new", {}, "brand/new"),
    ],
)
def test_an_event_has_its_token(kind: str, data: dict[str, Any], token: str) -> None:
    assert render([(kind, data)]) == [token]


def test_only_the_making_of_the_session_and_its_accounting_are_silent() -> None:
    assert render([("session/created", {}), ("usage/recorded", {})]) == []
    assert set(EVENT_TYPES) == set(TOKENS) | SILENT | {"llm/retry", "compaction/done"}

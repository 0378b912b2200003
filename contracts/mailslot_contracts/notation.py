"""Histories in the compact notation of the golden traces, for tests and for people.

    q[A] R T1 c[A] S1 u[A] a s1 t1(completed) I

| token | event | token | event |
|---|---|---|---|
| q[A] | inbox/queued in next-turn | T1, t1(kind) | turn/start, turn/end |
| qs[A] | inbox/queued in next-step | S1, s1 | step/start, step/end |
| c[A,B] | inbox/claimed | u[A] | user/message |
| x[A] | inbox/cancelled | a | assistant/message |
| rej[A] | inbox/rejected | tc[c1], tr[c1] | tool/call, tool/result |
| R, I | agent/status | cancel, held, released | cancel/requested, inbox/held, inbox/released |

Rule 1: what is told apart here is what the traces tell apart; content and times are not shown.
Rule 2: `session/created` and `usage/recorded` have no token: a history reads the same with and without them.
Rule 3: a type without a token of its own is shown as the type itself, so nothing vanishes unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias


class _HasTypeAndData(Protocol):
    @property
    def type(self) -> str: ...

    @property
    def data(self) -> Mapping[str, Any]: ...


AnyEvent: TypeAlias = "Mapping[str, Any] | tuple[str, Mapping[str, Any]] | _HasTypeAndData"
"""An envelope as plain data, a pair of type and data, or anything that has both."""

Label: TypeAlias = Callable[[str], str]

SILENT = frozenset({"session/created", "usage/recorded"})


def render(events: Iterable[AnyEvent], labels: Mapping[str, str] | None = None) -> list[str]:
    """The tokens of a history, in order. `labels` gives short names to message ids."""
    names = labels or {}

    def label(message_id: str) -> str:
        return names.get(message_id, message_id)

    pairs = (_pair(event) for event in events)
    return [_token(kind, data, label) for kind, data in pairs if kind not in SILENT]


def _pair(event: AnyEvent) -> tuple[str, Mapping[str, Any]]:
    if isinstance(event, Mapping):
        return event["type"], event["data"]
    if isinstance(event, tuple) and not hasattr(event, "data"):
        return event
    named: Any = event
    return named.type, named.data


def _token(kind: str, data: Mapping[str, Any], label: Label) -> str:
    token = TOKENS.get(kind)
    return kind if token is None else token(data, label)


def _queued(data: Mapping[str, Any], label: Label) -> str:
    lane = "q" if data["lane"] == "next-turn" else "qs"
    later = ", notBefore" if "notBefore" in data else ""
    return f"{lane}[{label(data['messageId'])}{later}]"


def _claimed(data: Mapping[str, Any], label: Label) -> str:
    return f"c[{','.join(label(message_id) for message_id in data['messageIds'])}]"


def _cancelled(data: Mapping[str, Any], label: Label) -> str:
    made_way = data["cause"] in ("preempted", "stale")
    return f"x[{label(data['messageId'])}{' ' + data['cause'] if made_way else ''}]"


def _status(data: Mapping[str, Any], _label: Label) -> str:
    if data["status"] == "running":
        return "R"
    return f"I(held {data['held']})" if data.get("held") else "I"


def _turn_end(data: Mapping[str, Any], _label: Label) -> str:
    reason = data["reason"]
    cause = f" {reason['cause']}" if "cause" in reason else ""
    return f"t{data['turn']}({reason['kind']}{cause})"


def _recovered(data: Mapping[str, Any], _label: Label) -> str:
    return f"recovered({data['turn']}, attempt {data['attempt']}, {data['reason']})"


def _of_message(name: str) -> Callable[[Mapping[str, Any], Label], str]:
    return lambda data, label: f"{name}[{label(data['messageId'])}]"


def _of(name: str, field: str) -> Callable[[Mapping[str, Any], Label], str]:
    return lambda data, _label: f"{name}[{data[field]}]"


def _numbered(letter: str, field: str) -> Callable[[Mapping[str, Any], Label], str]:
    return lambda data, _label: f"{letter}{data[field]}"


def _always(token: str) -> Callable[[Mapping[str, Any], Label], str]:
    return lambda _data, _label: token


TOKENS: dict[str, Callable[[Mapping[str, Any], Label], str]] = {
    "inbox/queued": _queued,
    "inbox/claimed": _claimed,
    "inbox/replaced": _of_message("replaced"),
    "inbox/moved": _of_message("moved"),
    "inbox/cancelled": _cancelled,
    "inbox/rejected": _of_message("rej"),
    "inbox/expired": _of_message("expired"),
    "inbox/dead": _of_message("dead"),
    "inbox/due": _of_message("due"),
    "inbox/held": _always("held"),
    "inbox/released": _always("released"),
    "agent/status": _status,
    "turn/start": _numbered("T", "turn"),
    "turn/end": _turn_end,
    "turn/recovered": _recovered,
    "step/start": _numbered("S", "step"),
    "step/end": _numbered("s", "step"),
    "user/message": _of_message("u"),
    "assistant/message": lambda data, _label: "a(interrupted)" if data.get("interrupted") else "a",
    "tool/call": _of("tc", "callId"),
    "tool/result": _of("tr", "callId"),
    "cancel/requested": _always("cancel"),
    "goal/change": lambda data, _label: f"goal({data['operation']})",
    "subagent/started": _of("child", "childId"),
    "subagent/detached": _of("detached", "childId"),
    "subagent/settled": _of("settled", "childId"),
    "approval/requested": _of("approval", "approvalId"),
    "approval/answered": _of("answered", "approvalId"),
    "session/closed": _always("closed"),
}
"""How each event type is written; `llm/retry` and `compaction/done` are written as themselves."""

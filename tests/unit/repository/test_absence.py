"""No door ever says what became of a message's turn: nothing on a receipt or a record, no notice of an end (U1, M6).

Judged are all schemas, the OpenAPI, OpenRPC and AsyncAPI files, which are generated and held fresh elsewhere, and every
name of a method, a notification or an event in the product's source. Whatever is added later is judged as well.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import pytest
import yaml

from tests.unit.repository import typescript
from tests.unit.repository.tree import ROOT, name, texts

OUTCOMES: Final = frozenset(
    {
        *("result", "results", "status", "outcome", "reason", "kind", "success", "ok", "error", "failed", "completed"),
        *(
            "finished",
            "finishReason",
            "stopReason",
            "finalResponse",
            "response",
            "answer",
            "answered",
            "output",
            "text",
        ),
        *("turnEnd", "turnStatus", "turnReason", "turnResult", "endReason", "usage", "cost", "finishedAt", "endedAt"),
    }
)
"""What would tell how a turn ended, or claim that a message has an answer."""

ALLOWED: Final = {
    ("MessageRecord", "reason"): "why the message was rejected, or is dead: what happened to the message (M6)",
    ("QueuedMessage", "reason"): "the same record, of a message that waits",
    ("InboxRejected", "reason"): "the event that says so",
    ("InboxDead", "reason"): "the event that says so",
    ("Problem", "status"): "the HTTP status of a refusal (RFC 9457), which may name the message that was refused",
    ("RunResult", "finalResponse"): "an interval that its caller owns, and not the message, has a last text (U3)",
    ("RunResult", "finishReason"): "and a last end of a turn",
}
"""(schema, field) -> why it may stand beside a message id."""

ABOUT_MESSAGES: Final = ("/prompt", "/prompts", "/messages", "/redrive", "/dead")
TOLD_OF_MESSAGES: Final = frozenset({"Receipt", "Problem", "QueuePage", "MessageRecord", "DeadPage", "Redriven"})

FINISHED: Final = re.compile(
    r"\b(session|message|prompt)[./](finished|finish|ended|end|done|completed?|result|answered?|settled|failed)\b",
    re.IGNORECASE,
)
"""Names by which an end of a message, or of what it led to, could be announced."""


def documents() -> dict[str, Any]:
    found = {
        path.name: json.loads(path.read_text()) for path in sorted((ROOT / "contracts" / "schemas").glob("*.json"))
    }
    found["openapi.json"] = json.loads((ROOT / "contracts" / "openapi.json").read_text())
    found["openrpc.json"] = json.loads((ROOT / "contracts" / "openrpc.json").read_text())
    found["asyncapi.yaml"] = yaml.safe_load((ROOT / "contracts" / "asyncapi.yaml").read_text())
    return found


def objects(value: Any, title: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object schema below, with its title or the name it is kept under."""
    if isinstance(value, dict):
        properties = value.get("properties")
        if isinstance(properties, dict):
            yield str(value.get("title", title)), properties
        for key, inner in value.items():
            yield from objects(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from objects(inner, title)


def told_of_a_message(document: Any) -> Iterator[tuple[str, str]]:
    """(schema, field) of what stands beside a message id and would tell an outcome."""
    for title, properties in objects(document):
        if "messageId" in properties:
            yield from ((title, field) for field in properties if field in OUTCOMES)


def test_nothing_beside_a_message_id_tells_an_outcome() -> None:
    found = {(file, *told) for file, document in documents().items() for told in told_of_a_message(document)}
    wrong = sorted(each for each in found if each[1:] not in ALLOWED)
    assert not wrong, f"a message id proves admission, and nothing told beside it is an outcome (U1): {wrong}"
    assert not ALLOWED.keys() - {each[1:] for each in found}, "strike out what is not there any more"


@pytest.mark.parametrize("method", ["session/prompt", "session/steer", "session/inject"])
def test_a_message_is_answered_over_json_rpc_with_its_id_and_nothing_else(method: str) -> None:
    (found,) = [each for each in documents()["openrpc.json"]["methods"] if each["name"] == method]
    result = found["result"]["schema"]
    assert list(result["properties"]) == result["required"] == ["messageId"]
    assert result["additionalProperties"] is False


def test_an_outcome_beside_a_message_id_would_be_found() -> None:
    nested: dict[str, Any] = {"$defs": {"Slot": {"properties": {"messageId": {}, "status": {}}}}}
    assert list(told_of_a_message({"components": [nested]})) == [("Slot", "status")]


def referred(value: Any) -> Iterator[str]:
    """The names of all schemas that a response refers to itself, through lists and choices."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from referred(inner)


def test_every_call_about_messages_answers_with_receipts_and_records_alone() -> None:
    answers = {
        (path, verb): {name for status, told in call["responses"].items() if status < "300" for name in referred(told)}
        for path, verbs in documents()["openapi.json"]["paths"].items()
        for verb, call in verbs.items()
        if path.endswith(ABOUT_MESSAGES) or "/messages/" in path
        if isinstance(call, dict) and "responses" in call
    }
    assert {path.rpartition("/")[2] for path, _ in answers} >= {"prompt", "prompts", "messages", "{mid}"}
    assert set().union(*answers.values()) <= TOLD_OF_MESSAGES


def test_the_barest_receipt_is_a_message_id() -> None:
    """What the broker door and JSON-RPC answer to a message (protocol 2 and 3)."""
    schema = documents()["accepted.json"]
    assert list(schema["properties"]) == ["messageId"]
    assert schema["additionalProperties"] is False


# -- names -------------------------------------------------------------------------------------------------------------


def words(path: str, text: str) -> Iterator[str]:
    """The strings of a source file that do something: no comments, and no docstrings."""
    suffix = PurePath(path).suffix
    if suffix not in (".py", *typescript.SUFFIXES):
        yield from text.splitlines()
        return
    tree = ast.parse(text) if suffix == ".py" else typescript.module(text, suffix)[0]
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_no_method_notification_or_event_announces_an_end_of_a_message() -> None:
    sources = texts("contracts", "core", "sdk", "services", "examples")
    judged = [
        (name(path), text) for path, text in sources if path.suffix not in (".md", "") and "tests" not in path.parts
    ]
    assert len(judged) > 100
    found = [f"{path}: {word[:80]}" for path, text in judged for word in words(path, text) if FINISHED.search(word)]
    assert not found, f"a message has no end to announce; watch agent/status instead (U1): {found}"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "def f():\n    notify('session.finished')\n"),
        ("a.py", "METHODS = {'prompt/result': f}\n"),
        ("a.ts", "socket.on(`session.finished`, f);"),
        ("a.yaml", "name: message.answered\n"),
    ],
)
def test_a_name_that_announces_an_end_would_be_found(path: str, text: str) -> None:
    assert any(FINISHED.search(word) for word in words(path, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", '"""There is no session.finished."""\n'),
        ("a.ts", "/** There is no session.finished. */\nconst x = 'session.status';"),
        ("a.py", "KNOWN = ('turn/end', 'step/end', 'subagent/settled', 'session/closed')\n"),
    ],
)
def test_prose_and_other_names_are_no_announcements(path: str, text: str) -> None:
    assert not any(FINISHED.search(word) for word in words(path, text))

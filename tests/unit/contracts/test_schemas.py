"""The checked-in schemas are fresh, are schemas, and agree with the models."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from mailslot_contracts import generate
from mailslot_contracts.door import read
from mailslot_contracts.events import EVENT_TYPES, parse_event
from mailslot_contracts.messages import Prompt
from mailslot_contracts.problems import ContractError
from mailslot_contracts.schemas import BUNDLE, definition_name, schema_texts

ROOT = Path(__file__).parents[3] / "contracts"
TEXTS = schema_texts()
SCHEMAS: dict[str, dict[str, Any]] = {name.removesuffix(".json"): json.loads(text) for name, text in TEXTS.items()}


def test_the_checked_in_schemas_are_fresh() -> None:
    assert generate.stale(ROOT / "schemas", TEXTS) == [], "run: python -m mailslot_contracts.generate"


def test_a_stale_a_missing_and_a_left_over_schema_are_found(tmp_path: Path) -> None:
    generate.write(tmp_path, TEXTS)
    assert generate.stale(tmp_path, TEXTS) == []
    (tmp_path / "prompt.json").write_text("{}\n")
    (tmp_path / "receipt.json").unlink()
    (tmp_path / "session-finished.json").write_text("{}\n")
    assert generate.stale(tmp_path, TEXTS) == ["prompt.json", "receipt.json", "session-finished.json"]
    generate.write(tmp_path, TEXTS)
    assert generate.stale(tmp_path, TEXTS) == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_a_schema_of_2020_12(name: str) -> None:
    meta.validate(SCHEMAS[name])
    assert SCHEMAS[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert TEXTS[f"{name}.json"].endswith("}\n")


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != BUNDLE])
def test_the_bundle_has_each_schema_with_all_its_parts_as_its_own_file_has_it(name: str) -> None:
    bundled = SCHEMAS[BUNDLE]["$defs"]
    whole = {key: value for key, value in SCHEMAS[name].items() if key not in {"$schema", "$id", "$defs"}}
    defined = bundled[definition_name(name)]
    if (ref := defined.get("$ref")) is not None:  # the file is named after the notice, its model after the class
        defined = bundled[ref.removeprefix("#/$defs/")]
    assert defined == whole
    assert SCHEMAS[name].get("$defs", {}).items() <= bundled.items()


def test_the_bundle_holds_nothing_that_no_file_has() -> None:
    parts = {part for name, schema in SCHEMAS.items() if name != BUNDLE for part in schema.get("$defs", {})}
    titles = {schema.get("title") for schema in SCHEMAS.values()}
    assert SCHEMAS[BUNDLE]["$defs"].keys() <= parts | titles | {definition_name(name) for name in SCHEMAS}


def test_the_event_schema_has_every_type() -> None:
    assert set(SCHEMAS["event"]["discriminator"]["mapping"]) == set(EVENT_TYPES)


ANSWERS = [
    "receipt", "accepted", "prompt-batch-item", "level", "cancel-answer", "idle-answer", "close-answer",
    "erase-answer", "message-record", "queue-page", "dead-page", "redriven",
]  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_no_schema_of_an_answer_has_a_result(name: str) -> None:
    text = TEXTS[f"{name}.json"].lower()
    for absent in ("finishreason", "finalresponse", "stopreason", '"result"', "session.finished"):
        assert absent not in text


def test_the_receipts_schema_allows_its_four_fields_alone() -> None:
    schema = SCHEMAS["receipt"]
    assert sorted(schema["properties"]) == ["cursor", "duplicate", "durability", "messageId"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    "prompt",
    [
        {"content": "x"},
        {"content": [{"type": "text", "text": "x"}], "delivery": "steer", "messageId": "m"},
        {"content": [{"type": "image", "mediaType": "image/png", "url": "https://a.example/"}]},
        {"content": "x", "metadata": {"a": [None, 1.5]}, "source": {"kind": "system"}},
        {},
        {"content": 5},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "video"}]},
        {"content": "x", "delivery": "now"},
        {"content": "x", "messageId": ""},
        {"content": "x", "messageId": "a\x00"},
        {"content": "x", "messageId": "a" * 201},
        {"content": "x", "source": {"kind": "goal"}},
        {"content": "x", "unknown": 1},
        {"content": "x", "notBefore": 5, "expiresAt": 6},
        {"content": "x", "notBefore": 1.5},
        {"content": "x", "notBefore": "5"},
        {"content": "x", "expiresAt": -1},
        {"content": "x", "ifBusy": "reject"},
        {"content": "x", "ifBusy": "wait"},
        {"content": "x", "delivery": "steer", "expectTurn": 1, "ifIdle": "reject"},
        {"content": "x", "delivery": "steer", "expectTurn": 0},
    ],
)
def test_schema_and_model_agree_on_a_prompt(prompt: dict[str, Any]) -> None:
    try:
        read(Prompt, prompt)
        taken = True
    except ContractError:
        taken = False
    assert Draft202012Validator(SCHEMAS["prompt"]).is_valid(prompt) is taken


def test_every_vector_is_valid_by_the_published_schema_too() -> None:
    validator = Draft202012Validator(SCHEMAS["event"])
    for path in sorted((ROOT / "vectors").glob("*.json")):
        for event in json.loads(path.read_text("utf-8"))["history"]:
            validator.validate({"v": 1, "sessionId": "s", "time": 1, "epoch": 0, **event})


@pytest.mark.parametrize("reason", [{"kind": "completed"}, {"kind": "evaporated"}, {"kind": "error", "code": "x"}])
def test_schema_and_model_agree_on_the_end_of_a_turn(reason: dict[str, Any]) -> None:
    event: dict[str, Any] = {"v": 1, "seq": 1, "sessionId": "s", "type": "turn/end", "time": 1, "epoch": 0}
    event["data"] = {"turn": 1, "reason": reason}
    try:
        parse_event(event)
        taken = True
    except ContractError:
        taken = False
    assert Draft202012Validator(SCHEMAS["event"]).is_valid(event) is taken


def test_the_command_says_whether_the_files_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_the_command_names_what_is_stale(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(generate, "SCHEMAS", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "contracts/schemas/receipt.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0

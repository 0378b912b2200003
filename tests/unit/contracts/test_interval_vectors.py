"""The interval vectors are made of what the schemas allow, and are all there."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import validator_for

from mailslot_contracts import parse_data
from mailslot_contracts.results import RunResult

CONTRACTS = Path(__file__).parents[3] / "contracts"
PATHS = sorted((CONTRACTS / "vectors" / "intervals").glob("*.json"))
VECTORS: list[dict[str, Any]] = [json.loads(path.read_text("utf-8")) for path in PATHS]
each_vector = pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])

FIELDS = ["name", "why", "sessionId", "messageId", "ledger", "delivered", "result"]
RESULT_FIELDS = ["finalResponse", "finishReason", "from", "to", "events", "message"]


def schema(name: str) -> Any:
    return validator_for(json.loads((CONTRACTS / "schemas" / f"{name}.json").read_text("utf-8")))


def whole_result(vector: dict[str, Any]) -> dict[str, Any]:
    """As the SDK writes it: with the events themselves, and without a reason that is not there."""
    result = vector["result"]
    told = {name: value for name, value in result.items() if value is not None}
    events = [vector["ledger"][seq - 1] for seq in result["events"]]
    return told | {"events": events, "sessionId": vector["sessionId"], "messageId": vector["messageId"]}


def test_the_vectors_are_numbered_and_named_as_their_files() -> None:
    assert [path.stem for path in PATHS] == [f"{at:02d}-{each['name']}" for at, each in enumerate(VECTORS, 1)]
    assert len(VECTORS) >= 14


@each_vector
def test_a_vector_says_what_it_is_for_and_nothing_unknown(vector: dict[str, Any]) -> None:
    assert list(vector) == FIELDS
    assert list(vector["result"]) == RESULT_FIELDS
    assert vector["why"].endswith(".")


@each_vector
def test_every_envelope_of_a_vector_fits_its_schema(vector: dict[str, Any]) -> None:
    envelope = schema("envelope")
    for each in (*vector["ledger"], *filter(None, vector["delivered"])):
        envelope.validate(each)
        assert parse_data(each["type"], each["data"]).wire() == each["data"]


@each_vector
def test_the_result_of_a_vector_fits_its_schema(vector: dict[str, Any]) -> None:
    told = whole_result(vector)
    schema("run-result").validate(told)
    read = RunResult.model_validate_json(json.dumps(told), by_alias=True, by_name=False)
    assert read.message is not None
    assert read.message.wire() == vector["result"]["message"]


def hostilities(vector: dict[str, Any]) -> set[str]:
    """What a vector does to a reader that trusts the order."""
    delivered = [each for each in vector["delivered"] if each is not None]
    own = [each["seq"] for each in delivered if each["sessionId"] == vector["sessionId"]]
    late = [seq for at, seq in enumerate(own) if seq not in own[:at] and seq < max(own[:at], default=0)]
    found = {
        "cut": None in vector["delivered"],
        "foreign": len(own) < len(delivered),
        "repeated": len(set(own)) < len(own),
        "late": bool(late),
        "beyond the end": max(own) > vector["result"]["to"],
    }
    return {name for name, holds in found.items() if holds}


def test_the_vectors_are_hostile_in_every_way() -> None:
    assert set().union(*map(hostilities, VECTORS)) == {"cut", "foreign", "repeated", "late", "beyond the end"}

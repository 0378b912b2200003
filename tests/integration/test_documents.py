"""What others say about our documents: each is judged by programs that nobody here wrote.

    openrpc.json     the OpenRPC meta-schema (npm)
    openapi.json     openapi-spec-validator (PyPI), Redocly (npm) by its strictest rules
    schemas/*.json   jsonschema (PyPI): the metaschema of 2020-12, every vector, and no reference into nothing
    asyncapi.yaml    @asyncapi/parser (npm), AsyncAPI's own

Rule 1: what is judged are the checked-in files; `tests/unit` holds that they are fresh.
Rule 2: a judge is believed only because it finds fault with broken copies; each way to break one is a row of a table.
Rule 3: a judge that is missing fails the test, and says how to get it.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import openapi_spec_validator
import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from mailslot_contracts.schemas import BUNDLE
from mailslot_services.generate import CONTRACTS

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
NODE_MODULES: Final = ROOT / ".cache" / "node" / "node_modules"
JUDGE_S_MAX: Final = 60.0

OPENAPI: Final[dict[str, Any]] = json.loads((CONTRACTS / "openapi.json").read_text())
ASYNCAPI: Final[dict[str, Any]] = yaml.safe_load((CONTRACTS / "asyncapi.yaml").read_text())
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((CONTRACTS / "schemas").glob("*.json"))
}
DEFINITIONS: Final[dict[str, Any]] = SCHEMAS[BUNDLE]["$defs"]

Break = Callable[[dict[str, Any]], None]


def broken(document: Mapping[str, Any], do: Break) -> dict[str, Any]:
    """A copy in which one thing is wrong."""
    copy = deepcopy(dict(document))
    do(copy)
    return copy


def node(*words: str) -> subprocess.CompletedProcess[str]:
    """A program from npm, as `make setup-test` installs it."""
    program = shutil.which("node")
    if program is None or not (NODE_MODULES / "@redocly").exists():
        pytest.fail(
            "the judges from npm are missing: run `make setup-test` (it needs Node 20.19 and npm)", pytrace=False
        )
    quiet = {"NODE_PATH": str(NODE_MODULES), "REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    return subprocess.run(
        [program, *words], env=os.environ | quiet, capture_output=True, text=True, timeout=JUDGE_S_MAX, check=False
    )


# -- OpenAPI ------------------------------------------------------------------------------------------------

PROMPT: Final = "/v1/sessions/{sid}/prompt"


def _undeclared_parameter(document: dict[str, Any]) -> None:
    del document["paths"][PROMPT]["parameters"]


def _reference_into_nothing(document: dict[str, Any]) -> None:
    del document["components"]["schemas"]["Receipt"]


def _silent_response(document: dict[str, Any]) -> None:
    del document["paths"][PROMPT]["post"]["responses"]["202"]["description"]


def _type_that_is_none(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Receipt"]["properties"]["cursor"]["type"] = "number of letters"


def _two_of_a_name(document: dict[str, Any]) -> None:
    document["paths"]["/v1/sessions"]["get"]["operationId"] = "submitPrompt"


OPENAPI_BREAKS: Final[tuple[Break, ...]] = (
    _undeclared_parameter,
    _reference_into_nothing,
    _silent_response,
    _type_that_is_none,
    _two_of_a_name,
)


def test_openapi_is_valid_to_openapi_spec_validator() -> None:
    openapi_spec_validator.validate(OPENAPI, cls=openapi_spec_validator.OpenAPIV31SpecValidator)


@pytest.mark.parametrize("do", OPENAPI_BREAKS)
def test_openapi_spec_validator_finds_fault_with_a_broken_copy(do: Break) -> None:
    with pytest.raises((SchemaError, Unresolvable, ValidationError)):
        openapi_spec_validator.validate(broken(OPENAPI, do), cls=openapi_spec_validator.OpenAPIV31SpecValidator)


def redocly(*files: Path) -> dict[str, set[str]]:
    """The rules that each file breaks."""
    words = ("lint", "--config", str(HERE / "redocly.yaml"), "--format=json", *map(str, files))
    done = node(str(NODE_MODULES / "@redocly" / "cli" / "bin" / "cli.js"), *words)
    assert done.stdout, done.stderr
    found: dict[str, set[str]] = {file.name: set() for file in files}
    for report in reports(done.stdout):
        for problem in report["problems"]:
            found[Path(problem["location"][0]["source"]["ref"]).name].add(problem["ruleId"])
    return found


def reports(text: str) -> Iterator[Any]:
    """Redocly writes one JSON object for each file, one behind the other."""
    while text := text.lstrip():
        report, end = json.JSONDecoder().raw_decode(text)
        yield report
        text = text[end:]


def test_redocly_has_nothing_to_say_about_openapi_but_about_broken_copies(tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    good.write_text(json.dumps(OPENAPI))
    copies = [tmp_path / f"{do.__name__}.json" for do in OPENAPI_BREAKS]
    for copy, do in zip(copies, OPENAPI_BREAKS, strict=True):
        copy.write_text(json.dumps(broken(OPENAPI, do)))

    said = redocly(good, *copies)

    assert said.pop(good.name) == set()
    assert all(said.values()), said


def test_every_link_of_openapi_leads_to_an_operation_and_fills_its_path() -> None:
    operations = {
        operation["operationId"]: (path, item, operation)
        for path, item in OPENAPI["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    }
    linked = 0
    for _path, _item, operation in list(operations.values()):
        for reply in operation["responses"].values():
            for link in reply.get("links", {}).values():
                path, item, target = operations[link["operationId"]]
                known = {each["name"] for each in (*item.get("parameters", ()), *target.get("parameters", ()))}
                assert link["parameters"].keys() <= known, link
                assert set(re.findall(r"{(\w+)}", path)) <= link["parameters"].keys(), link
                linked += 1
    assert linked


# -- OpenRPC ------------------------------------------------------------------------------------------------

OPENRPC: Final[dict[str, Any]] = json.loads((CONTRACTS / "openrpc.json").read_text())


@cache
def openrpc_rules() -> Draft7Validator:
    """The schema of OpenRPC documents, as its authors publish it."""
    done = node("-e", "console.log(JSON.stringify(require('@open-rpc/meta-schema').default))")
    assert done.returncode == 0, done.stderr
    rules = json.loads(done.stdout)
    schemas = rules.pop("$schema").rstrip("/")  # not at hand here; other tests hold schemas to their draft
    anything = DRAFT7.create_resource(True)
    return Draft7Validator(rules, registry=Registry().with_resources([(schemas, anything), (f"{schemas}/", anything)]))


def _nameless_method(document: dict[str, Any]) -> None:
    del document["methods"][0]["name"]


def _param_without_schema(document: dict[str, Any]) -> None:
    del next(each for each in document["methods"] if each["params"])["params"][0]["schema"]


def _unknown_structure(document: dict[str, Any]) -> None:
    document["methods"][0]["paramStructure"] = "by-chance"


def test_openrpc_is_valid_to_its_own_authors_schema_and_broken_copies_are_not() -> None:
    openrpc_rules().validate(OPENRPC)
    for do in (_nameless_method, _param_without_schema, _unknown_structure):
        assert not openrpc_rules().is_valid(broken(OPENRPC, do)), do.__name__


def test_everything_that_openrpc_refers_to_is_there() -> None:
    text = json.dumps(OPENRPC)
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert referred
    assert referred <= OPENRPC["components"]["schemas"].keys()


# -- JSON Schema --------------------------------------------------------------------------------------------


@cache
def pointed_at(name: str) -> Draft202012Validator:
    """Holds values to one definition of the bundle."""
    return Draft202012Validator({**SCHEMAS[BUNDLE], "$ref": f"#/$defs/{name}"})


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_to_jsonschema(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize("name", OPENAPI["components"]["schemas"])
def test_a_schema_inside_openapi_is_valid_to_jsonschema(name: str) -> None:
    Draft202012Validator.check_schema(OPENAPI["components"]["schemas"][name])


def test_jsonschema_finds_fault_with_a_broken_schema() -> None:
    with pytest.raises(SchemaError):
        Draft202012Validator.check_schema(broken(OPENAPI, _type_that_is_none)["components"]["schemas"]["Receipt"])


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_definition_of_the_bundle_can_be_pointed_at_and_takes_not_everything(name: str) -> None:
    judge = pointed_at(name)
    # Walks every reference that can be reached from here: one into nothing raises instead of answering.
    samples: list[object] = [{}, [], "…", -1, None, {"type": "…", "data": 1}]
    takes = [judge.is_valid(sample) for sample in samples]
    assert name == "JsonValue" or not all(takes)


def histories() -> dict[str, list[dict[str, Any]]]:
    """Every golden trace, as envelopes."""
    around = {"v": 1, "sessionId": "s", "time": 1, "epoch": 0}
    return {
        path.stem: [{**around, **event} for event in json.loads(path.read_text())["history"]]
        for path in sorted((CONTRACTS / "vectors").glob("*.json"))
    }


@pytest.mark.parametrize("history", histories().values(), ids=histories())
def test_every_event_of_a_golden_trace_is_valid_by_the_bundle(history: list[dict[str, Any]]) -> None:
    for event in history:
        pointed_at("Event").validate(event)
        pointed_at("Envelope").validate(event)


def test_an_event_with_a_wrong_fact_is_not_valid_by_the_bundle() -> None:
    event = next(event for event in histories()["01-one-follow-up"] if event["type"] == "turn/end")
    event["data"]["turn"] = "the first"
    with pytest.raises(ValidationError):
        pointed_at("Event").validate(event)


# -- AsyncAPI -----------------------------------------------------------------------------------------------


def _channel_on_no_server(document: dict[str, Any]) -> None:
    document["channels"]["SessionEvents"]["servers"] = [{"$ref": "#/servers/elsewhere"}]


def _operation_on_no_channel(document: dict[str, Any]) -> None:
    document["operations"]["Intake"]["channel"]["$ref"] = "#/channels/Outtake"


def _action_that_is_none(document: dict[str, Any]) -> None:
    document["operations"]["Intake"]["action"] = "swallow"


def _payload_that_is_no_schema(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Accepted"]["type"] = "letter"


ASYNCAPI_BREAKS: Final[tuple[Break, ...]] = (
    _channel_on_no_server,
    _operation_on_no_channel,
    _action_that_is_none,
    _payload_that_is_no_schema,
)


def test_the_parser_of_asyncapi_has_nothing_to_say_about_ours_but_about_broken_copies(tmp_path: Path) -> None:
    copies = [tmp_path / f"{do.__name__}.yaml" for do in ASYNCAPI_BREAKS]
    for copy, do in zip(copies, ASYNCAPI_BREAKS, strict=True):
        copy.write_text(yaml.safe_dump(broken(ASYNCAPI, do)))
    ours = CONTRACTS / "asyncapi.yaml"

    done = node(str(HERE / "judge_asyncapi.cjs"), *map(str, (ours, *copies)))

    assert done.returncode == 0, done.stderr
    said: dict[str, list[str]] = json.loads(done.stdout)
    assert said.pop(str(ours)) == []
    assert len(said) == len(copies)
    assert all(said.values()), said

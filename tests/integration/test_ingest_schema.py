"""Requests made from the OpenAPI document are answered as it says; none is answered with a defect.

A made-up id leads nowhere, so every other request is turned to something that is there: a session of its own with a
message that is queued, a goal, a hold where one is ended, a dead letter where one is redriven. That every operation was
carried out at least once is a test as well: without it, a document could be kept by refusals alone.
"""

import asyncio
import itertools
from typing import Any, Final

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from mailslot_core.memory import MemoryStore
from mailslot_services.ingest import create_app
from tests.conftest import SEED
from tests.unit.ingest.served import in_process, settings
from tests.unit.ingest.stages import give_up

pytestmark = pytest.mark.integration

EXAMPLES: Final = 40
"""Requests for each operation."""

# What a schema cannot say (a text that says something, an id without control characters) is refused too, so the check
# that every request of the schema is taken does not hold.
CHECKS: Final = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]

STORE: Final = MemoryStore(pending_max=50)
APP: Final = create_app(STORE, settings())
SCHEMA: Final = schemathesis.openapi.from_asgi("/openapi.json", APP)

FRESH: Final = itertools.count(1)
"""Numbers of the sessions that requests are turned to."""
TURNED: Final = itertools.cycle((True, False))
PLAIN: Final[dict[str, Any]] = {
    "PATCH /v1/sessions/{sid}/goal": {"operation": "pause"},
    "PATCH /v1/sessions/{sid}/messages/{mid}": {"content": "other"},
}
"""Bodies for operations that seldom take a made-up one, on every fourth request."""
PLAINLY: Final = itertools.cycle((True, False))
ASKED: Final[set[str]] = set()
CARRIED_OUT: Final[set[str]] = set()
"""Operations that were asked for, and those that did what they were asked. Methods that are none are asked for too."""


async def some_letters() -> list[str]:
    """Dead letters, made while nothing else is there that could crash."""
    async with in_process(STORE) as house:
        for number in range(EXAMPLES):
            await house.prompt(f"dead-{number}", messageId="m")
        await give_up(STORE, EXAMPLES)
        return [letter["letterId"] for letter in (await house.client.get("/v1/dead?limit=1000")).json()["letters"]]


LETTERS: Final = itertools.cycle(asyncio.run(some_letters()))


async def something_there(path: str, method: str) -> dict[str, str]:
    """What the parts of a path are to be, so that they name what is there."""
    session = f"there-{next(FRESH)}"
    async with in_process(STORE) as house:
        await house.prompt(session, messageId="m")
        if path.endswith("/goal") and method != "PUT":
            await house.client.put(f"/v1/sessions/{session}/goal", json={"objective": "rest"})
        if path.endswith("/release"):
            await house.client.post(f"/v1/sessions/{session}/cancel", json={"queue": "hold"})
    return {"sid": session, "mid": "m", "id": next(LETTERS)}


@SCHEMA.parametrize()
@hypothesis.seed(SEED)
@hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None)
def test_a_request_made_from_the_document_is_answered_as_it_says(case: schemathesis.Case[Any]) -> None:
    """The report header prints the seed; MAILSLOT_TEST_SEED repeats it."""
    if case.query:
        case.query.update({name: "0.01" for name in ("timeout", "wait") if name in case.query})
    if next(TURNED) and case.path_parameters:
        there = asyncio.run(something_there(case.path, case.method))
        case.path_parameters.update({name: value for name, value in there.items() if name in case.path_parameters})
        plain = PLAIN.get(f"{case.method} {case.path}")
        if plain and next(PLAINLY):
            case.body = plain
            case.headers.clear()
    response = case.call_and_validate(checks=CHECKS, headers={"Accept": "application/json"})  # a stream has no end
    operation = f"{case.method} {case.path}"
    ASKED.add(operation)
    if response.status_code < 300:
        CARRIED_OUT.add(operation)


def test_every_operation_was_carried_out_and_not_only_refused() -> None:
    """Judges what the requests of this module have come to."""
    paths = SCHEMA.raw_schema["paths"].items()
    described = {f"{method.upper()} {path}" for path, item in paths for method in item if method != "parameters"}
    assert described & ASKED == CARRIED_OUT

"""Requests made from the OpenAPI document are answered as it says; none is answered with a defect."""

import asyncio
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
from tests.unit.ingest.served import settings

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

APP: Final = create_app(MemoryStore(pending_max=50), settings())
asyncio.run(APP.state.door.store.create("s", {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}}))
SCHEMA: Final = schemathesis.openapi.from_asgi("/openapi.json", APP)


@SCHEMA.parametrize()
@hypothesis.seed(SEED)
@hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None)
def test_a_request_made_from_the_document_is_answered_as_it_says(case: schemathesis.Case[Any]) -> None:
    """The report header prints the seed; MAILSLOT_TEST_SEED repeats it."""
    if case.query:
        case.query.update({name: "0.01" for name in ("timeout", "wait") if name in case.query})
    case.call_and_validate(checks=CHECKS, headers={"Accept": "application/json"})  # a stream has no end

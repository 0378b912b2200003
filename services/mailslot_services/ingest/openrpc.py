"""The OpenRPC document of the JSON-RPC door, made from the table of methods and the OpenAPI document.

    mailslot.rpc.method.METHODS ──> the REST call of each ──> its params and its answer, from openapi

Rule 1: a method takes what its REST call takes: path, query and body side by side, without what the method says itself.
Rule 2: schemas are the OpenAPI document's own components, so the two cannot say different things.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mailslot.rpc.method import METHODS, NOTIFICATIONS, PROTOCOL_VERSION, Method
from mailslot_contracts import ID_BYTES_MAX
from mailslot_contracts.protocol import SSE_DELTA, SSE_EVENT, SSE_GAP, SSE_STATUS
from mailslot_services.ingest import openapi
from mailslot_services.ingest.route import JSON, Resource

Map = dict[str, Any]

PATH_NAMES: Final = {"sessionId": "sid", "messageId": "mid", "letterId": "id"}
"""A param of a method -> what the REST path calls it."""

NAME: Final[Map] = {"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX}
OPERATION: Final = "operation"

SEQ: Final[Map] = {"type": "integer", "minimum": 0}
MESSAGE_ID: Final[Map] = {
    "type": "object",
    "properties": {"messageId": NAME},
    "required": ["messageId"],
    "additionalProperties": False,
}
"""What a message is answered with, and nothing else (protocol section 2)."""

SUBSCRIBED: Final[Map] = {
    "type": "object",
    "properties": {"sessionId": NAME, "cursor": {**SEQ, "description": "the seq of its newest event"}},
    "required": ["sessionId", "cursor"],
}

OWN: Final[Map] = {
    "initialize": (
        "Introduce yourself; comes first",
        [("protocolVersion", {"type": "integer", "default": PROTOCOL_VERSION}, False)],
        {"type": "object", "properties": {"protocolVersion": {"type": "integer"}}, "required": ["protocolVersion"]},
    ),
    "session/subscribe": (
        "Be told of every event after a cursor, in order; the level first",
        [("sessionId", NAME, True), ("after", {**SEQ, "default": 0}, False), ("deltas", {"type": "boolean"}, False)],
        SUBSCRIBED,
    ),
    "session/unsubscribe": (
        "Be told no more of a session",
        [("sessionId", NAME, True)],
        {"type": "object", "properties": {"sessionId": NAME}, "required": ["sessionId"]},
    ),
    "shutdown": ("End the connection once everything before it is answered", [], {"type": "null"}),
}
"""What the connection answers itself: summary, params as (name, schema, required), result."""

NOTICES: Final = {SSE_EVENT: "Envelope", SSE_STATUS: "Envelope or Level", SSE_DELTA: "Delta", SSE_GAP: "Gap"}


def document(resources: Sequence[Resource]) -> Map:
    """The whole document as plain data."""
    api = openapi.document(resources)
    own = [_method(name, summary, params, result) for name, (summary, params, result) in OWN.items()]
    others = [_of_rest(name, method, api) for name, method in METHODS.items()]
    return {
        "openrpc": "1.3.2",
        "info": {
            **api["info"],
            "title": "mailslot JSON-RPC",
            "version": str(PROTOCOL_VERSION),
            "license": {"name": openapi.LICENSE["name"]},  # OpenRPC knows no identifier of a licence
        },
        "methods": sorted([*own, *others], key=lambda each: str(each["name"])),
        "components": {"schemas": api["components"]["schemas"]},
        "x-notifications": [{"name": name, "params": NOTICES[name]} for name in NOTIFICATIONS],
    }


def text(resources: Sequence[Resource]) -> str:
    """The whole document as the text of its file."""
    return json.dumps(document(resources), indent=2, ensure_ascii=False) + "\n"


def _of_rest(name: str, method: Method, api: Map) -> Map:
    path = re.sub(r"\{(\w+)\}", lambda found: f"{{{PATH_NAMES[found[1]]}}}", method.path)
    operation = api["paths"][path][method.verb.lower()]
    params = [(each, NAME, True) for each in method.names]
    params += [
        (each["name"], each["schema"], False) for each in operation.get("parameters", ()) if each["in"] == "query"
    ]
    params += [each for each in _body(operation, method, api) if each[0] not in method.fixed]
    if method.revision:
        params.append(("revision", SEQ, False))
    return _method(name, operation["summary"], params, MESSAGE_ID if method.message else _answer(operation))


def _body(operation: Map, method: Method, api: Map) -> list[tuple[str, Map, bool]]:
    """The fields of a body; of one that may be several things, all of those that the method may mean, and as required
    what always is."""
    if "requestBody" not in operation:
        return []
    kinds = _kinds(_resolved(operation["requestBody"]["content"][JSON]["schema"], api))
    meant = [kind for kind in (_resolved(kind, api) for kind in kinds) if _may_mean(method, kind)]
    fields = {name: schema for kind in meant for name, schema in kind["properties"].items()}
    required = set.intersection(*(set(kind.get("required", ())) for kind in meant))
    return [(name, schema, name in required) for name, schema in fields.items()]


def _may_mean(method: Method, kind: Map) -> bool:
    """An operation on a goal is another body than an edit of it."""
    return (OPERATION in kind["properties"]) == (OPERATION in method.fixed)


def _kinds(schema: Map) -> list[Map]:
    found: list[Map] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return found


def _resolved(schema: Map, api: Map) -> Map:
    if "$ref" not in schema:
        return schema
    found: Map = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _answer(operation: Map) -> Map:
    status = next(each for each in sorted(operation["responses"]) if each.startswith("2"))
    found: Map = operation["responses"][status]["content"][JSON]["schema"]
    return found


def _method(name: str, summary: str, params: Sequence[tuple[str, Mapping[str, Any], bool]], result: Map) -> Map:
    return {
        "name": name,
        "summary": summary,
        "paramStructure": "by-name",
        "params": [
            {"name": param, "required": required, "schema": dict(schema)}
            for param, schema, required in sorted(params, key=lambda each: not each[2])
        ],
        "result": {"name": "result", "schema": result},
    }

"""The OpenAPI 3.1 document, made from the route table and the contracts.

Rule 1: schemas are the contracts' own: what others send as the door takes it, what we send as we write it.
Rule 2: nothing of this process is in it, so it can be checked in and compared (`generate --check`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from mailslot_contracts import CODES, ID_BYTES_MAX, PROBLEM_MEDIA_TYPE, Code, Problem
from mailslot_contracts.protocol import SSE_DELTA, SSE_EVENT, SSE_GAP, SSE_STATUS
from mailslot_services.ingest.caller import GUARDED
from mailslot_services.ingest.route import JSON, Operation, Parameter, Reply, Resource

Mode = Literal["validation", "serialization"]
Key = tuple[str, Mode]

TITLE = "mailslot"
API_VERSION = "1"
DESCRIPTION = (
    "A durable inbox for agents. A receipt proves that a message is inside, and nothing more: "
    "what comes of it is in the session's events.\n\n"
    "Every refusal is a problem (RFC 9457) with a stable `code`. Unless the code is `outcome-unknown`, "
    "nothing was kept; with it, repeat the same `messageId`."
)
LICENSE = {"name": "Apache 2.0", "identifier": "Apache-2.0"}
SERVER = {"url": "/", "description": "where this document is served from"}
"""The document knows no address (rule 2); a client that was made from the file says its own."""

BEARER = "bearer"
SECURITY_SCHEMES = {
    BEARER: {
        "type": "http",
        "scheme": "bearer",
        "description": "the server's `token` (MAILSLOT_TOKEN); one that has none lets everybody in",
    }
}
SECURITY: Sequence[Mapping[str, Sequence[str]]] = ({BEARER: ()}, {})
"""Whether a token is needed is the server's setting, which the document does not know (rule 2)."""

REF = "#/components/schemas/{model}"
MEDIA: dict[str, Any] = {
    "text/event-stream": {
        "type": "object",
        "description": "one frame; `data` is one line of JSON, `id` the seq of a ledger event",
        "required": ["event", "data"],
        "properties": {
            "id": {"type": "string", "pattern": "^[0-9]+$"},
            "event": {"enum": [SSE_STATUS, SSE_EVENT, SSE_DELTA, SSE_GAP]},
            "data": {"type": "string"},
        },
    },
    "text/html": {"type": "string"},
    "text/plain": {"type": "string"},
    "application/yaml": {"type": "object"},
}
"""Schemas of what is not JSON."""

PATH_PARAMETERS = {"sid": "the session's id", "mid": "the message's id", "id": "the letter's id"}
"""What stands between braces in a path."""

_OF_SESSION = {"sid": "$request.path.sid"}
_OF_NEW_SESSION = {"sid": "$response.body#/sessionId"}
_OF_NEW_MESSAGE = {**_OF_SESSION, "mid": "$response.body#/messageId"}

LINKS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "createSession": dict.fromkeys(
        ("readSession", "submitPrompt", "submitPrompts", "readEvents", "putGoal", "closeSession"), _OF_NEW_SESSION
    ),
    "submitPrompt": {
        **dict.fromkeys(("readMessage", "changeMessage", "withdrawMessage"), _OF_NEW_MESSAGE),
        **dict.fromkeys(("readQueue", "readEvents", "cancelTurn", "releaseQueue", "submitPrompt"), _OF_SESSION),
        "waitIdle": {**_OF_SESSION, "after": "$response.body#/cursor"},
    },
    "putGoal": dict.fromkeys(("readGoal", "patchGoal", "clearGoal"), _OF_SESSION),
    "closeSession": dict.fromkeys(("readSession", "readEvents", "submitPrompt", "eraseSession"), _OF_SESSION),
    "listDead": {"redriveLetter": {"id": "$response.body#/letters/0/letterId"}},
}
"""What can be called next with what a successful answer says: operation, next operation, its parameters.

None leads from a message to how a turn ended: there is no such address."""

ID_RULE = f"1 to {ID_BYTES_MAX} bytes of UTF-8 without control characters"


def document(resources: Sequence[Resource]) -> dict[str, Any]:
    """The whole document as plain data."""
    found, definitions = _schemas(resources)
    paths = {resource.path: _path(resource, found) for resource in sorted(resources, key=lambda each: each.path)}
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": API_VERSION, "description": DESCRIPTION, "license": LICENSE},
        "servers": [SERVER],
        "security": [{name: list(scopes) for name, scopes in each.items()} for each in SECURITY],
        "paths": paths,
        "components": {"schemas": dict(sorted(definitions.items())), "securitySchemes": SECURITY_SCHEMES},
    }


def text(resources: Sequence[Resource]) -> str:
    """The whole document as the text of its file."""
    return json.dumps(document(resources), indent=2, ensure_ascii=False) + "\n"


# -- schemas ------------------------------------------------------------------------------------------------


def _schemas(resources: Iterable[Resource]) -> tuple[dict[Key, Any], dict[str, Any]]:
    """The schema of every body by its key, and the definitions they refer to."""
    wanted: dict[Key, Any] = {("problem", "serialization"): Problem}
    for resource in resources:
        for operation in resource.methods.values():
            if operation.body is not None:
                wanted[_key(operation.body, "validation")] = operation.body
            for reply in operation.replies.values():
                if reply.body is not None:
                    wanted[_key(reply.body, "serialization")] = reply.body
    adapters = [(name, mode, TypeAdapter(body)) for (name, mode), body in wanted.items()]
    found, shared = TypeAdapter.json_schemas(adapters, ref_template=REF)
    return dict(found), shared.get("$defs", {})


def _key(body: Any, mode: Mode) -> Key:
    return str(body), mode


# -- paths --------------------------------------------------------------------------------------------------


def _path(resource: Resource, found: dict[Key, Any]) -> dict[str, Any]:
    named = [_path_parameter(name) for name in PATH_PARAMETERS if f"{{{name}}}" in resource.path]
    path: dict[str, Any] = {"parameters": named} if named else {}
    for method, operation in resource.methods.items():
        path[method.lower()] = _operation(resource, operation, found)
    return path


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": f"{PATH_PARAMETERS[name]}: {ID_RULE}",
        "schema": {"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX},
    }


def _operation(resource: Resource, operation: Operation, found: dict[Key, Any]) -> dict[str, Any]:
    guarded = resource.path.startswith(GUARDED)
    wire: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _sentences(operation.handler.__doc__ or operation.summary),
        "tags": [_tag(resource.path)],
        "responses": {
            **{str(status): _reply(operation.name, reply, found) for status, reply in operation.replies.items()},
            **_problems((*operation.codes, Code.UNAUTHORIZED) if guarded else operation.codes, found),
        },
    }
    if not guarded:
        wire["security"] = []
    if operation.parameters:
        wire["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.body is not None:
        schema = found[_key(operation.body, "validation")]
        wire["requestBody"] = {"required": operation.body_required, "content": {JSON: {"schema": schema}}}
    return wire


def _tag(path: str) -> str:
    if not path.startswith("/v1/"):
        return "service"
    for tag in ("dead", "messages"):
        if f"/{tag}" in path:
            return tag
    return path.rsplit("/", 1)[1] if path.endswith(("goal", "events", "idle")) else "sessions"


def _sentences(docstring: str) -> str:
    return re.sub(r"\s+", " ", docstring).strip()


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.text,
        "schema": dict(parameter.schema),
    }


def _reply(operation: str, reply: Reply, found: dict[Key, Any]) -> dict[str, Any]:
    schema: Any = {} if reply.body is None else found[_key(reply.body, "serialization")]
    content = {media: {"schema": MEDIA.get(media, schema)} for media in reply.media}
    wire = {"description": reply.text, "content": content}
    if operation in LINKS:
        following = LINKS[operation].items()
        wire["links"] = {name: {"operationId": name, "parameters": dict(values)} for name, values in following}
    return wire


def _problems(codes: Iterable[Code], found: dict[Key, Any]) -> dict[str, Any]:
    """The problems of an operation by status. Every operation may fail by a defect of ours."""
    by_status: dict[int, list[Code]] = {}
    for code in (*codes, Code.INTERNAL) if codes else ():
        by_status.setdefault(CODES[code].status, []).append(code)
    schema = found["problem", "serialization"]
    return {
        str(status): {
            "description": "; ".join(f"`{code}`: {CODES[code].title}" for code in named),
            "content": {PROBLEM_MEDIA_TYPE: {"schema": schema}},
        }
        for status, named in sorted(by_status.items())
    }

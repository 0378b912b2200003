"""The methods of the JSON-RPC door, as data: which REST call each one stands for.

| method                                            | stands for                                           |
|---------------------------------------------------|------------------------------------------------------|
| session/new                                       | POST /v1/sessions                                    |
| session/prompt, session/steer, session/inject     | POST /v1/sessions/{sessionId}/prompt                 |
| session/status                                    | GET  /v1/sessions/{sessionId}                        |
| session/queue                                     | GET  /v1/sessions/{sessionId}/messages               |
| session/message                                   | GET  /v1/sessions/{sessionId}/messages/{messageId}   |
| session/replace                                   | PATCH                       …                        |
| session/withdraw                                  | DELETE                      …                        |
| session/cancel, session/release, session/close    | POST /v1/sessions/{sessionId}/…                      |
| goal/set get edit pause resume complete block clear | PUT GET PATCH DELETE /v1/sessions/{sessionId}/goal |
| dead/list, dead/redrive                           | GET /v1/dead, POST /v1/dead/{letterId}/redrive       |

Rule 1: a param goes where the REST call has it: into the path, the query, a header, else into the body, whose model
        refuses what it does not know.
Rule 2: a message gets its id here when it has none, so that sending it again is safe on every way to the server.
Rule 3: the result is the REST answer, but for messages: exactly `{messageId}` (protocol section 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mailslot.errors import Refused
from mailslot.ids import new_id
from mailslot.operation import segment
from mailslot.reading import encode
from mailslot.rpc.failure import of_error
from mailslot.rpc.frame import RpcError
from mailslot.step import Request

PROTOCOL_VERSION: Final = 1
"""Raised when a client of an older one would misunderstand something."""

SESSION: Final = "/v1/sessions/{sessionId}"
GOAL: Final = SESSION + "/goal"
MESSAGE: Final = SESSION + "/messages/{messageId}"
PAGE: Final = ("after", "limit")


@dataclass(frozen=True, slots=True)
class Method:
    """One row: verb and path of the REST call, and where the params go."""

    verb: str
    path: str
    query: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What the method itself says in the body."""
    message: bool = False
    """It puts a message into the inbox (rules 2 and 3)."""
    revision: bool = False
    """`revision` goes into If-Match."""

    @property
    def names(self) -> tuple[str, ...]:
        """The params that stand in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def reads(self) -> bool:
        """It changes nothing."""
        return self.verb == "GET"


def _prompt(**fixed: Any) -> Method:
    return Method("POST", SESSION + "/prompt", fixed=fixed, message=True)


def _goal(operation: str) -> Method:
    return Method("PATCH", GOAL, fixed={"operation": operation}, revision=True)


METHODS: Final[Mapping[str, Method]] = {
    "session/new": Method("POST", "/v1/sessions"),
    "session/prompt": _prompt(),
    "session/steer": _prompt(delivery="steer"),
    "session/inject": _prompt(delivery="inject"),
    "session/cancel": Method("POST", SESSION + "/cancel", query=("wait",)),
    "session/status": Method("GET", SESSION),
    "session/queue": Method("GET", SESSION + "/messages", query=(*PAGE, "state")),
    "session/replace": Method("PATCH", MESSAGE),
    "session/withdraw": Method("DELETE", MESSAGE),
    "session/message": Method("GET", MESSAGE),
    "session/release": Method("POST", SESSION + "/release"),
    "session/close": Method("POST", SESSION + "/close"),
    "dead/list": Method("GET", "/v1/dead", query=PAGE),
    "dead/redrive": Method("POST", "/v1/dead/{letterId}/redrive"),
    "goal/set": Method("PUT", GOAL),
    "goal/get": Method("GET", GOAL),
    "goal/edit": Method("PATCH", GOAL, revision=True),
    "goal/pause": _goal("pause"),
    "goal/resume": _goal("resume"),
    "goal/complete": _goal("complete"),
    "goal/block": _goal("block"),
    "goal/clear": Method("DELETE", GOAL, revision=True),
}

OWN: Final = ("initialize", "shutdown", "session/subscribe", "session/unsubscribe")
"""What the connection answers itself."""

NOTIFICATIONS: Final = ("session.event", "session.status", "session.delta", "session.gap")
"""Everything that is sent without being asked for."""


@dataclass(frozen=True, slots=True)
class RestCall:
    """The REST call that a call stands for."""

    method: Method
    request: Request
    message_id: str | None = None
    """Of a message that is put into the inbox."""

    def result(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of the call (rule 3)."""
        return {"messageId": answer["messageId"]} if self.method.message else answer


def rest_call(method: Method, params: Mapping[str, Any]) -> RestCall:
    """The REST call for a row and its params; RpcError when they cannot be one."""
    rest = dict(params)
    path = method.path
    for name in method.names:
        path = path.replace(f"{{{name}}}", _segment(name, rest.pop(name, None)))
    query = {name: _word(name, rest.pop(name)) for name in method.query if name in rest}
    headers = {"if-match": f'"{_revision(rest.pop("revision"))}"'} if method.revision and "revision" in rest else {}
    message_id = None
    if method.message:
        message_id = rest["messageId"] = new_id() if rest.get("messageId") is None else rest["messageId"]
    for name, value in method.fixed.items():
        if rest.setdefault(name, value) != value:
            raise refused(f"{name}: the method says {value!r}")
    if method.verb in ("GET", "DELETE") and rest:
        raise refused(f"{min(rest)[:80]}: is not a param this method knows")
    try:
        body = encode(rest) if rest else None
    except Refused as error:
        raise refused(str(error)) from None
    return RestCall(method, Request(method.verb, path, query, body, headers), message_id)


def session_of(params: Mapping[str, Any]) -> str:
    """The session that a call is about; its calls are carried out in order. Empty when it is about none."""
    named = params.get("sessionId")
    return named if isinstance(named, str) else ""


def refused(sentence: str) -> RpcError:
    """Params that cannot be what the method takes."""
    return RpcError(of_error(Refused("bad-input", sentence, status=400)))


def _segment(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise refused(f"{name}: must be text" if value is not None else f"{name}: is missing")
    try:
        return segment(value)
    except Refused as error:
        raise refused(f"{name}: {error}") from None


def _word(name: str, value: object) -> str:
    """A param that stands in the query or a header, where everything is text."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if not isinstance(value, str | int | float):
        raise refused(f"{name}: must be text or a number")
    word = f"{value:.15g}" if isinstance(value, float) else str(value)
    try:
        word.encode()
    except UnicodeEncodeError:
        raise refused(f"{name}: holds a lone surrogate, which is not UTF-8") from None
    return word


def _revision(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise refused("revision: must be a whole number")
    return value

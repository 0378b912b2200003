"""The table of contents of the HTTP door: every address, every method, and what the documentation says about it.

    /v1/sessions                      POST create    GET list
    /v1/sessions/{sid}                GET level      DELETE erase
    /v1/sessions/{sid}/close          POST
    /v1/sessions/{sid}/prompt         POST
    /v1/sessions/{sid}/prompts        POST a batch
    /v1/sessions/{sid}/messages       GET the queue
    /v1/sessions/{sid}/messages/{mid} GET PATCH DELETE
    /v1/sessions/{sid}/events         GET stream or page
    /v1/sessions/{sid}/idle           GET long poll
    /v1/sessions/{sid}/cancel         POST
    /v1/sessions/{sid}/release        POST
    /v1/sessions/{sid}/goal           PUT GET PATCH DELETE
    /v1/dead                          GET list
    /v1/dead/{id}/redrive             POST
    /healthz /readyz /metrics /openapi.json /docs /asyncapi /

Rule 1: an address is one `Resource`; a method it does not have is 405 with the methods that it has.
Rule 2: the OpenAPI document is made from this table and the contracts (`openapi.py`), so it cannot say otherwise.
Rule 3: an error of ours becomes a problem here, once, for every handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from mailslot_contracts import (
    BATCH_COUNT_MAX,
    Cancel,
    CancelAnswer,
    CloseAnswer,
    Code,
    ContractError,
    DeadPage,
    EraseAnswer,
    EventPage,
    Goal,
    GoalPatch,
    GoalPut,
    IdleAnswer,
    LevelPage,
    MessagePatch,
    MessageRecord,
    Problem,
    Prompt,
    PromptBatchItem,
    QueuePage,
    Receipt,
    Redriven,
    SessionAnswer,
    SessionCreate,
)
from mailslot_contracts.protocol import (
    IDLE_TIMEOUT_S_DEFAULT,
    IDLE_TIMEOUT_S_MAX,
    PAGE_COUNT_DEFAULT,
    PAGE_COUNT_MAX,
)
from mailslot_contracts.status import Level
from mailslot_core.errors import CoreError
from mailslot_services.ingest import closing, dead, events, goals, health, messages, page, prompts, sessions
from mailslot_services.ingest.door import Door, Handler
from mailslot_services.ingest.problem import problem_of, problem_response
from mailslot_services.ingest.request import check_query, discard

JSON: Final = "application/json"

API: Final = "/v1/"
"""Where parameters are held to the table. Pages may be asked for with whatever a browser adds."""

COUNTED: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that are a label of their own; a caller can make up any number of others."""

STATUS_LEFT: Final = 499
"""What is counted when a caller left before it was answered."""


@dataclass(frozen=True)
class Parameter:
    """A query parameter or header: name, place, JSON Schema, and what it is for."""

    name: str
    text: str
    schema: Mapping[str, object]
    place: str = "query"


@dataclass(frozen=True)
class Reply:
    """What a successful answer holds: a type of the contracts, or text of a media type."""

    text: str
    body: Any = None
    media: tuple[str, ...] = (JSON,)


@dataclass(frozen=True)
class Operation:
    """One method of one address."""

    name: str
    handler: Handler
    summary: str
    replies: Mapping[int, Reply]
    body: Any = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    codes: tuple[Code, ...] = ()

    def query_names(self) -> frozenset[str]:
        """Names of its query parameters."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")


@dataclass(frozen=True)
class Resource:
    """One address and its methods."""

    path: str
    methods: Mapping[str, Operation] = field(default_factory=dict)


# -- words of the documentation -----------------------------------------------------------------------------

_SEQ = {"type": "integer", "minimum": 0}
_READ = (Code.BAD_INPUT, Code.NOT_FOUND, Code.STORE_REFUSED, Code.OUTCOME_UNKNOWN)
_WRITE = (*_READ, Code.TOO_LARGE)
_SUBMIT = (
    *_WRITE,
    *(Code.EXPIRED, Code.BUSY, Code.IDLE, Code.TURN_MISMATCH),
    *(Code.CLOSED, Code.CONFLICT, Code.QUEUE_FULL),
)
_CHANGE = (Code.ALREADY_CLAIMED, Code.ALREADY_SETTLED)
_GOAL = (*_WRITE, Code.CLOSED, Code.NOT_ALLOWED, Code.REVISION)

_LIMIT = {"type": "integer", "minimum": 1, "maximum": PAGE_COUNT_MAX, "default": PAGE_COUNT_DEFAULT}
_AFTER_SEQ = Parameter("after", "the cursor: events with a greater seq", {**_SEQ, "default": 0})
_IF_MATCH = Parameter("If-Match", "the revision that the caller saw", {"type": "string"}, "header")
_IDEMPOTENCY = Parameter(
    "Idempotency-Key", "the messageId, when the body has none", {"type": "string", "maxLength": 200}, "header"
)
_RESUME = Parameter("Last-Event-ID", "the cursor of an interrupted stream; wins over `after`", _SEQ, "header")


def _timeout(name: str, text: str, default: float) -> Parameter:
    schema = {"type": "number", "minimum": 0, "maximum": IDLE_TIMEOUT_S_MAX, "default": default}
    return Parameter(name, text, schema)


_GOAL_REPLY = Reply("the goal as it stands; `ETag` is its revision", Goal)
_HTML = Reply("a page", media=("text/html",))

# -- the table ----------------------------------------------------------------------------------------------

PROMPT = Resource(
    "/v1/sessions/{sid}/prompt",
    {
        "POST": Operation(
            "submitPrompt",
            prompts.submit_prompt,
            "Put one message into the session's inbox; the session is made if it is not there",
            {202: Reply("the message is durably queued, which says nothing about any turn", Receipt)},
            body=Prompt,
            parameters=(_IDEMPOTENCY,),
            codes=_SUBMIT,
        )
    },
)

SESSIONS = Resource(
    "/v1/sessions",
    {
        "POST": Operation(
            "createSession",
            sessions.create_session,
            "Make a session",
            {
                201: Reply("the session is new", SessionAnswer),
                200: Reply("it was there with the same body", SessionAnswer),
            },
            body=SessionCreate,
            body_required=False,
            codes=(Code.BAD_INPUT, Code.SESSION_EXISTS, Code.TOO_LARGE, Code.STORE_REFUSED, Code.OUTCOME_UNKNOWN),
        ),
        "GET": Operation(
            "listSessions",
            sessions.list_sessions,
            "Levels of sessions, in order of session id",
            {200: Reply("a page; `next` is the `after` of the next one, null on the last", LevelPage)},
            parameters=(
                Parameter("after", "sessions with a greater id", {"type": "string", "maxLength": 200}),
                Parameter("limit", "sessions in the page", _LIMIT),
                Parameter("status", "only sessions that stand so", {"enum": ["running", "idle"]}),
            ),
            codes=(Code.BAD_INPUT, Code.STORE_REFUSED, Code.OUTCOME_UNKNOWN),
        ),
    },
)

SESSION = Resource(
    "/v1/sessions/{sid}",
    {
        "GET": Operation(
            "readSession",
            sessions.read_session,
            "How the whole agent stands",
            {200: Reply("the level, with the seq it was read at", Level)},
            codes=_READ,
        ),
        "DELETE": Operation(
            "eraseSession",
            closing.erase_session,
            "Close the session and erase everything of it",
            {
                200: Reply("nothing of it is kept; a receipt of each store", EraseAnswer),
                202: Reply("its last turn still ends; it is erased after that", EraseAnswer),
            },
            parameters=(_timeout("wait", "seconds to wait for the last turn to end", 0),),
            codes=_READ,
        ),
    },
)

CLOSE = Resource(
    "/v1/sessions/{sid}/close",
    {
        "POST": Operation(
            "closeSession",
            closing.close_session,
            "Close the session for good; its history stays readable",
            {202: Reply("it takes no more messages; whether it is closed already", CloseAnswer)},
            codes=_READ,
        )
    },
)

QUEUE = Resource(
    "/v1/sessions/{sid}/messages",
    {
        "GET": Operation(
            "readQueue",
            messages.read_queue,
            "What waits in the session's inbox, both lanes, in order",
            {200: Reply("a page; `next` is the `after` of the next one, null on the last", QueuePage)},
            parameters=(
                Parameter("state", "which messages: those that are queued or claimed", {"enum": list(messages.STATES)}),
                Parameter("after", "the `next` of the page before", {"type": "string", "maxLength": 200}),
                Parameter("limit", "messages in the page", _LIMIT),
            ),
            codes=_READ,
        )
    },
)

MESSAGE = Resource(
    "/v1/sessions/{sid}/messages/{mid}",
    {
        "GET": Operation(
            "readMessage",
            messages.read_message,
            "What happened to the message",
            {200: Reply("the message's own record", MessageRecord)},
            codes=_READ,
        ),
        "PATCH": Operation(
            "changeMessage",
            messages.change_message,
            "Replace the content of a queued message, or steer with it",
            {200: Reply("the record, changed", MessageRecord)},
            body=MessagePatch,
            codes=(*_WRITE, *_CHANGE, Code.QUEUE_FULL),
        ),
        "DELETE": Operation(
            "withdrawMessage",
            messages.withdraw_message,
            "Take a queued message back",
            {200: Reply("the record, cancelled", MessageRecord)},
            codes=(*_READ, *_CHANGE),
        ),
    },
)

PROMPTS = Resource(
    "/v1/sessions/{sid}/prompts",
    {
        "POST": Operation(
            "submitPrompts",
            prompts.submit_prompts,
            f"Put up to {BATCH_COUNT_MAX} messages into the session's inbox, in order",
            {202: Reply("one receipt or one problem per prompt, in order", list[PromptBatchItem])},
            body=list[Prompt],
            codes=(Code.BAD_INPUT, Code.TOO_LARGE),
        )
    },
)

EVENTS = Resource(
    "/v1/sessions/{sid}/events",
    {
        "GET": Operation(
            "readEvents",
            events.read_events,
            "The session's events: the level and then every event after the cursor, live; or a page of them",
            {
                200: Reply(
                    "`text/event-stream`: first `session.status` with the level and no id, then `session.event` and "
                    "`session.status` with their seq as id, `session.delta` without one, and `session.gap` before the "
                    "end when the cursor is no longer kept. `application/json`: a page",
                    EventPage,
                    (JSON, "text/event-stream"),
                )
            },
            parameters=(
                _AFTER_SEQ,
                _RESUME,
                Parameter("limit", "events in a page", _LIMIT),
                Parameter("types", "only these types, between commas", {"type": "string"}),
                Parameter("deltas", "1 passes on what the model is just saying", {"enum": ["0", "1"], "default": "0"}),
            ),
            codes=(*_READ, Code.CURSOR_EXPIRED),
        )
    },
)

IDLE = Resource(
    "/v1/sessions/{sid}/idle",
    {
        "GET": Operation(
            "waitIdle",
            events.wait_idle,
            "Wait for the whole agent to be idle",
            {
                200: Reply(
                    "the first idle after the cursor; at the timeout `running` with the reasons, which are none when "
                    "the agent has rested since before the cursor",
                    IdleAnswer,
                )
            },
            parameters=(
                Parameter("after", "the seq after which an idle counts; without it, being idle now does", _SEQ),
                _timeout("timeout", "seconds to wait at most", IDLE_TIMEOUT_S_DEFAULT),
            ),
            codes=(*_READ, Code.CURSOR_EXPIRED),
        )
    },
)

CANCEL = Resource(
    "/v1/sessions/{sid}/cancel",
    {
        "POST": Operation(
            "cancelTurn",
            sessions.cancel_turn,
            "Stop the open turn; what is queued is kept, held or cancelled",
            {202: Reply("what the cancel came to, and what is still queued", CancelAnswer)},
            body=Cancel,
            body_required=False,
            parameters=(_timeout("wait", "seconds to wait for the turn to end", 0),),
            codes=(*_WRITE, Code.NOT_OPEN),
        )
    },
)

RELEASE = Resource(
    "/v1/sessions/{sid}/release",
    {
        "POST": Operation(
            "releaseQueue",
            sessions.release_queue,
            "End a hold",
            {200: Reply("what is queued wakes the agent again; the newest seq", SessionAnswer)},
            codes=(*_READ, Code.NOT_HELD, Code.CLOSED),
        )
    },
)

DEAD = Resource(
    "/v1/dead",
    {
        "GET": Operation(
            "listDead",
            dead.list_dead,
            "Turns that were given up, with the messages that died with them",
            {200: Reply("a page; `next` is the `after` of the next one, null on the last", DeadPage)},
            parameters=(
                Parameter("after", "letters later than the one of this id", {"type": "string", "maxLength": 200}),
                Parameter("limit", "letters in the page", _LIMIT),
            ),
            codes=(Code.BAD_INPUT, Code.STORE_REFUSED, Code.OUTCOME_UNKNOWN),
        )
    },
)

REDRIVE = Resource(
    "/v1/dead/{id}/redrive",
    {
        "POST": Operation(
            "redriveLetter",
            dead.redrive_letter,
            "Queue the letter's dead messages again",
            {202: Reply("they are durably queued", Redriven)},
            codes=(*_READ, Code.NOT_DEAD, Code.NOT_ALLOWED, Code.CLOSED, Code.QUEUE_FULL),
        )
    },
)

GOAL = Resource(
    "/v1/sessions/{sid}/goal",
    {
        "PUT": Operation(
            "putGoal",
            goals.put_goal,
            "Create a goal, or set the one of a revision anew",
            {201: Reply("the goal is new", Goal), 200: _GOAL_REPLY},
            body=GoalPut,
            parameters=(_IF_MATCH,),
            codes=(*_GOAL, Code.GOAL_EXISTS),
        ),
        "GET": Operation("readGoal", goals.read_goal, "The goal as it stands", {200: _GOAL_REPLY}, codes=_READ),
        "PATCH": Operation(
            "patchGoal",
            goals.patch_goal,
            "Edit the goal, or pause, resume, complete or block it",
            {200: _GOAL_REPLY},
            body=GoalPatch,
            parameters=(_IF_MATCH,),
            codes=_GOAL,
        ),
        "DELETE": Operation(
            "clearGoal",
            goals.clear_goal,
            "Clear the goal",
            {200: Reply("the goal's last record", Goal)},
            parameters=(_IF_MATCH,),
            codes=_GOAL,
        ),
    },
)


def _get(path: str, name: str, handler: Handler, summary: str, *replies: tuple[int, Reply]) -> Resource:
    return Resource(path, {"GET": Operation(name, handler, summary, dict(replies))})


def resources() -> tuple[Resource, ...]:
    """Every address, the hottest first: routes are tried in this order."""
    text = Reply("metrics of Prometheus", media=("text/plain",))
    return (
        PROMPT,
        EVENTS,
        SESSION,
        IDLE,
        CANCEL,
        PROMPTS,
        MESSAGE,
        QUEUE,
        RELEASE,
        SESSIONS,
        GOAL,
        CLOSE,
        DEAD,
        REDRIVE,
        _get("/healthz", "healthz", health.healthz, "Whether the process lives", (200, Reply("it does"))),
        _get(
            "/readyz",
            "readyz",
            health.readyz,
            "Whether it can serve",
            (200, Reply("it can")),
            (503, Reply("it cannot; the body says why")),
        ),
        _get("/metrics", "metrics", health.Scrape(), "What it counts", (200, text)),
        _get("/openapi.json", "openapi", page.openapi, "This document", (200, Reply("OpenAPI 3.1"))),
        _get("/docs", "docs", page.docs, "This document for people", (200, _HTML)),
        _get(
            "/asyncapi",
            "asyncapi",
            page.asyncapi,
            "The broker door and the topics",
            (200, Reply("AsyncAPI 3: for browsers as a page, else as YAML", media=("text/html", "application/yaml"))),
        ),
        _get("/", "landing", page.landing, "Where to go from here", (200, _HTML)),
    )


# -- answering ----------------------------------------------------------------------------------------------


class Endpoint:
    """One address as an ASGI application: finds the method, answers errors as problems, counts."""

    def __init__(self, door: Door, resource: Resource) -> None:
        self._door = door
        self._resource = resource
        self._known = {method: operation.query_names() for method, operation in resource.methods.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. What is not an error of ours goes up to the application's own handler."""
        clock, method = self._door.clock, scope["method"]
        started = clock.monotonic()
        status = 500
        request = Request(scope, receive, send)
        try:
            response = await self._answer(method, request)
            status = response.status_code
        except ClientDisconnect:
            status = STATUS_LEFT
            return
        finally:
            counted = method if method in COUNTED else "other"
            self._door.metrics.request(self._resource.path, counted, status, clock.monotonic() - started)
        if status == 413 and getattr(request.state, "unread", False):
            await _answer_and_discard(response, scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, method: str, request: Request) -> Response:
        served_as = "GET" if method == "HEAD" else method
        operation = self._resource.methods.get(served_as)
        if operation is None:
            allowed = ", ".join(sorted(self._resource.methods))
            problem = Problem.of(Code.METHOD_NOT_ALLOWED, f"{self._resource.path} takes {allowed}, not {method[:20]}")
            return problem_response(problem, {"Allow": allowed})
        try:
            if request.scope["query_string"] and self._resource.path.startswith(API):
                check_query(request, self._known[served_as])
            response = await operation.handler(self._door, request)
        except (CoreError, ContractError) as error:
            return problem_response(problem_of(error))
        if method == "HEAD" and isinstance(response, StreamingResponse):
            return Response(headers=dict(response.headers))
        return response


async def _answer_and_discard(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, and end only when the caller has had time to read it."""

    async def hold_open(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await response(scope, receive, hold_open)
    await discard(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})

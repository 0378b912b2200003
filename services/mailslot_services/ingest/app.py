"""The application: its parts put together, once.

    store, settings --> Door --> one Endpoint an address --> Starlette <-- callers: who may come in
                         ^              ^-- Rpc, a WebSocket
                         ^
    broker --> Intake ---+      lifespan: broker, group, subscriber, recovery up; streams and intake down

Rule 1: paths are routed as they came, percent signs and all: a decoded `%2F` would be a slash, and bytes that are not
        UTF-8 would already be gone.
Rule 2: what nobody expected is logged with its cause and answered without it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

from faststream.redis import RedisBroker
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from mailslot_contracts import Code, Problem
from mailslot_core.clock import Clock, SystemClock
from mailslot_core.settings import IngestSettings
from mailslot_core.store import Store
from mailslot_services.ingest import asyncapi, openapi, page
from mailslot_services.ingest.admission import Admission
from mailslot_services.ingest.caller import callers
from mailslot_services.ingest.door import Door
from mailslot_services.ingest.fanout import Fanout
from mailslot_services.ingest.health import store_answers
from mailslot_services.ingest.intake import Intake
from mailslot_services.ingest.limit import IntakeLimits
from mailslot_services.ingest.metric import Metrics
from mailslot_services.ingest.problem import INTERNAL_DETAIL, problem_response
from mailslot_services.ingest.route import Endpoint, resources
from mailslot_services.ingest.rpc import PATH, Rpc

log = logging.getLogger("mailslot.ingest")


class RawPath:
    """Routes by the path as it was sent (rule 1)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] in ("http", "websocket") and scope.get("raw_path"):
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await self._app(scope, receive, send)


def create_app(
    store: Store,
    settings: IngestSettings,
    *,
    clock: Clock | None = None,
    broker: RedisBroker | None = None,
    limits: IntakeLimits | None = None,
) -> Starlette:
    """The HTTP door on a store; with a broker, the broker door too. `app.state.door` has its parts."""
    clock, metrics = clock or SystemClock(), Metrics()
    door = Door(
        store=store,
        settings=settings,
        clock=clock,
        metrics=metrics,
        admission=Admission(store, clock, metrics, "http"),
        fanout=Fanout(store, settings, clock, metrics),
        pages=pages(),
    )
    door.checks.append(store_answers(door))
    addresses = [Route(each.path, Endpoint(door, each)) for each in resources()]
    rpc = Rpc(door, Router(addresses, redirect_slashes=False))
    app = Starlette(
        routes=[*addresses, WebSocketRoute(PATH, rpc.__call__)],
        middleware=[*callers(settings), Middleware(RawPath)],
        exception_handlers={HTTPException: _http_problem, Exception: _internal_problem},
        lifespan=lambda _app: _life(door, broker, limits or IntakeLimits()),
    )
    app.router.redirect_slashes = False
    app.state.door = door
    return app


@asynccontextmanager
async def _life(door: Door, broker: RedisBroker | None, limits: IntakeLimits) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(door.fanout.close)
        if broker is not None:
            admission = Admission(door.store, door.clock, door.metrics, "broker")
            intake = Intake(broker, admission, door.settings, door.clock, door.metrics, limits)
            await stack.enter_async_context(intake.running())
            door.checks.append(intake.check)
            door.gauges.append(intake.observe)
        yield


@cache
def pages() -> Mapping[str, bytes]:
    """Every document, rendered once a process: they are the same for every application."""
    api: dict[str, Any] = openapi.document(resources())
    topics = asyncapi.document()
    texts = {
        page.OPENAPI: openapi.text(resources()),
        page.DOCS: page.docs_page(api),
        page.ASYNCAPI: asyncapi.text(),
        page.ASYNCAPI_PAGE: page.asyncapi_page(topics),
        page.LANDING: page.landing_page("http://127.0.0.1:8080/"),
    }
    return {name: text.encode() for name, text in texts.items()}


# -- answers that no handler gave ---------------------------------------------------------------------------

_CODES = {404: Code.NOT_FOUND, 405: Code.METHOD_NOT_ALLOWED}


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, Code.BAD_INPUT)
    return problem_response(Problem.of(code, f"there is nothing at {request.scope['path'][:200]}"))


async def _internal_problem(request: Request, error: Exception) -> Response:
    cause = f"{type(error).__name__}: {error}"  # the server logs the traceback: the error goes on up to it
    log.error("a request failed", extra={"method": request.method, "path": request.scope["path"], "cause": cause})
    return problem_response(Problem.of(Code.INTERNAL, INTERNAL_DETAIL))

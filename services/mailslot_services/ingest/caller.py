"""Who may come in: a bearer token for everything under /v1, and web pages only from origins that are listed.

    request, handshake ──> [origin] ──> [token] ──> the application

Rule 1: without a token in the settings the doors are open, as on one's own machine; pages about the service (health,
        metrics, documents) are always open.
Rule 2: a browser says which page speaks. A WebSocket is refused unless its origin is listed (protocol section 2), and
        so is a request that may change something, also one that a browser sends without asking first. That a page comes
        from here is no excuse: a name can be made to point here. What pages may read is told by CORS. Programs send
        no origin.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mailslot_contracts import Code, Problem
from mailslot_core.settings import IngestSettings
from mailslot_services.ingest.problem import problem_response

GUARDED: Final = "/v1/"
"""What the token is asked for."""

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; what they answer is for listed pages only, which browsers hold to."""

ANY: Final = "*"

CORS_S: Final = 600
"""Seconds for which a browser may remember what it was allowed."""

EXPOSED: Final = ("ETag", "Retry-After")
"""Headers of ours that a page may read."""


class Callers:
    """Lets in who may come in."""

    def __init__(self, app: ASGIApp, token: str, origins: frozenset[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        acts = scope["type"] == "websocket" or scope["method"] not in READING
        if acts and scope["path"].startswith(GUARDED) and not self._may_speak(headers.get("origin")):
            return problem_response(Problem.of(Code.FORBIDDEN, "pages of this origin may not use the doors"))
        if self._token and scope["path"].startswith(GUARDED) and not self._is_known(headers.get("authorization", "")):
            shown = "authorization" in headers
            sentence = (
                "the token that was shown is not the server's" if shown else "a bearer token is needed; none was shown"
            )
            problem = Problem.of(Code.UNAUTHORIZED, sentence)
            return problem_response(problem, {"WWW-Authenticate": "Bearer"})
        return None

    def _may_speak(self, origin: str | None) -> bool:
        return origin is None or origin in self._origins or ANY in self._origins

    def _is_known(self, shown: str) -> bool:
        scheme, _, token = shown.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode("latin-1", "replace"), self._token
        )


def callers(settings: IngestSettings) -> list[Middleware]:
    """What stands before the application."""
    origins = frozenset(word for word in (part.strip() for part in settings.origins.split(",")) if word)
    guards = [Middleware(Callers, token=settings.token, origins=origins)]
    if origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=sorted(origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match", "Last-Event-ID"],
            expose_headers=list(EXPOSED),
            max_age=CORS_S,
        )
        guards.insert(0, cors)  # a preflight carries no token
    return guards

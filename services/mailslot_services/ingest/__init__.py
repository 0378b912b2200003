"""ingest: the doors. What comes through is kept, or refused with a reason; nothing is answered before it is known.

    app        the application put together     intake     the broker door
    route      every address and method         letter     one entry of it: opened, answered
    request    what a request says              fanout     one reader of a session, many followers
    admission  from a prompt to the store       problem    errors as problems
    caller     who may come in                  rpc        the JSON-RPC door
    sessions, closing, prompts, messages, dead, events, goals, health, page: the handlers

`mailslot ingest --help` lists its options.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from starlette.applications import Starlette

from mailslot_core.errors import CoreError
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import IngestSettings
from mailslot_services import boot
from mailslot_services.broker import make_broker
from mailslot_services.ingest.app import create_app
from mailslot_services.ingest.limit import IntakeLimits

DESCRIPTION = "Take messages over HTTP and from the intake stream; serve events. Start as many as you like."

BACKLOG = 2_048
"""Connections that may wait to be accepted."""

DRAIN_S = 10
"""How long open requests may take once the process was asked to end."""

KEEP_ALIVE_S = 75
"""How long a quiet connection is kept: longer than proxies keep theirs, so that it is never us who close first."""

log = logging.getLogger("mailslot.ingest")


def command(argv: Sequence[str]) -> int:
    """`mailslot ingest`"""
    settings = boot.parse(IngestSettings, argv, prog="mailslot ingest", description=DESCRIPTION)
    boot.log_to_stderr(settings.log_level)
    return boot.run_until_signal(lambda stop: serve(settings, stop))


async def serve(
    settings: IngestSettings,
    stop: asyncio.Event,
    *,
    started: Callable[[str], None] | None = None,
    limits: IntakeLimits | None = None,
) -> None:
    """Serve until `stop`. `started` is told the URL once requests are answered."""
    listener = bound(settings.host, settings.port)
    with listener:
        async with RedisStore.connect(settings) as store:
            broker = make_broker(settings) if settings.intake else None
            app = create_app(store, settings, broker=broker, limits=limits)
            await serve_app(app, listener, stop, started or _say)


async def serve_app(
    app: Starlette, listener: socket.socket, stop: asyncio.Event, started: Callable[[str], None]
) -> None:
    """Serve an application on a bound socket until `stop`, then let open requests end."""
    server = _Server(
        uvicorn.Config(
            app,
            ws="websockets-sansio",
            ws_max_size=app.state.door.settings.body_bytes_max,
            ws_per_message_deflate=False,  # it costs more than it saves, on the machine that is the bottleneck
            lifespan="off",  # ours, below: a failing start must raise here and not be a line in a log
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
        )
    )
    async with app.router.lifespan_context(app):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        answering = asyncio.create_task(server.answering.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, answering}, return_when=asyncio.FIRST_COMPLETED)
        if server.started:
            started(url_of(listener))
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        stopping.cancel()
        await app.state.door.fanout.close()  # streams have no end of their own
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """A server that says when it answers, and leaves signals to the process (`boot`)."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.startup`."""
        await super().startup(sockets)
        self.answering.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers as they are."""
        yield


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to the address, or the sentence that says what to change."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CoreError(f"cannot listen on {host}: {error.strerror}: set --host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise CoreError(f"cannot listen on {host} port {port}: {error.strerror}: set --port") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a bound socket answers."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _say(url: str) -> None:
    log.info("serving", extra={"url": url})


__all__ = ["command", "create_app", "serve", "serve_app"]

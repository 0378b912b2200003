"""The assertions and waits of a server, for who holds a session or a client of it.

    assert_queued(session, "hello")          in this session
    assert_queued(client, "hello")           in any session of the server that the client speaks to
    assert_queued(server, "hello")           in any session of the server

Rule 1: the server is found by the address that the client speaks to. It must run in this process.
"""

from __future__ import annotations

from typing import TypeAlias

from mailslot.client import AsyncClient, AsyncSession, Client, Session
from mailslot.event import Event
from mailslot.record import MessageRecord
from mailslot.testing.ledger import Lane
from mailslot.testing.port import PATIENCE_S
from mailslot.testing.server import Server, running

OneSession: TypeAlias = Session | AsyncSession
Where: TypeAlias = OneSession | Client | AsyncClient | Server


def assert_queued(
    where: Where,
    what: str,
    *,
    lane: Lane | None = None,
    wake: bool | None = None,
    due: bool | None = None,
    times: int = 1,
) -> Event:
    """The message of this id or text was queued there; see `Server.assert_queued`."""
    server, session = _found(where)
    return server.assert_queued(session, what, lane=lane, wake=wake, due=due, times=times)


def assert_not_queued(where: Where, what: str) -> None:
    """No message of this id or text is in an inbox there, or ever was."""
    server, session = _found(where)
    server.assert_not_queued(session, what)


def assert_state(where: Where, what: str, state: str) -> MessageRecord:
    """The message is in this state; see `Server.assert_state`."""
    server, session = _found(where)
    return server.assert_state(session, what, state)


def assert_admitted(where: Where, what: str) -> MessageRecord:
    """The message entered the transcript; see `Server.assert_admitted`."""
    server, session = _found(where)
    return server.assert_admitted(session, what)


def wait_idle(session: OneSession, timeout: float = PATIENCE_S) -> int:
    """Wait until the session's agent is idle; see `Server.wait_idle`. In an async test, await `async_wait_idle`."""
    return served(session).wait_idle(session, timeout=timeout)


def wait_turn_open(session: OneSession, timeout: float = PATIENCE_S) -> int:
    """Wait until a turn of the session is open; see `Server.wait_turn_open`."""
    return served(session).wait_turn_open(session, timeout=timeout)


def events(session: OneSession) -> list[Event]:
    """The session's ledger, read past every door."""
    return served(session).events(session)


def history(session: OneSession) -> str:
    """The session's ledger as one line; see `Server.history`."""
    return served(session).history(session)


def served(where: OneSession | Client | AsyncClient) -> Server:
    """The server of this process that it speaks to."""
    url = where._transport.line.url  # noqa: SLF001 - of this package
    try:
        return running[url]
    except KeyError:
        raise LookupError(f"{url} is no mailslot.testing.Server that runs in this process") from None


def _found(where: Where) -> tuple[Server, str | None]:
    if isinstance(where, Server):
        return where, None
    session = where.id if isinstance(where, Session | AsyncSession) else None
    return served(where), session

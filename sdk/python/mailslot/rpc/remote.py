"""The way to the dispatcher over HTTP, for a door that is not in the server's own process.

Rule 1: calls and events go the way of the SDK's own operations: what is safe to repeat is repeated when its answer was
        lost, and events are read over as many connections as it takes, without a gap.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from mailslot.event import Event, Item
from mailslot.operation import Address
from mailslot.retry import Repeat, asked
from mailslot.rpc.connection import Notice
from mailslot.rpc.frame import encode
from mailslot.rpc.method import RestCall
from mailslot.step import Response
from mailslot.subscription import followed
from mailslot.transport import AsyncTransport

STATUS: Final = "agent/status"
WAIT_S_MAX: Final = 60.0
"""Seconds that the server waits at most."""


class Remote:
    """A carrier over HTTP (see `connection.Carrier`)."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def ask(self, call: RestCall) -> Response:
        """The answer to a REST call; a refusal is raised with its problem."""
        safe = call.method.reads or call.method.message
        terms = self._transport.terms
        wait_s = _seconds(call.request.query.get("wait"))
        operation = asked(
            terms,
            call.request,
            repeat=Repeat.SAFE if safe else Repeat.UNSAFE,
            effect=None if call.method.reads else f"{call.request.method} {call.request.path}",
            message_id=call.message_id,
            timeout_s=terms.settings.request_timeout_s + wait_s,
        )
        return await self._transport.perform(operation)

    async def follow(self, session_id: str, after: int, *, deltas: bool) -> AsyncGenerator[Notice, None]:
        """What comes after the cursor, for ever."""
        operation = followed(self._transport.terms, Address(session_id), after, deltas=deltas)
        async with contextlib.aclosing(self._transport.follow(operation)) as items:
            async for item in items:
                yield notice(session_id, item)


def _seconds(wait: str | None) -> float:
    """How long the server was asked to wait with its answer; what is no such time is refused by the server."""
    try:
        return min(float(wait or 0), WAIT_S_MAX)
    except ValueError:
        return 0.0


def notice(session_id: str, item: Item) -> Notice:
    """An event or a delta as a notification."""
    if not isinstance(item, Event):
        return Notice("session.delta", encode(item.notice(session_id)))
    method = "session.status" if item.type == STATUS else "session.event"
    return Notice(method, encode(item.envelope(session_id)))

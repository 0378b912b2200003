"""The two clients behind one face, so that every promise is held by both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, closing
from typing import Any, Literal

from mailslot import AsyncClient, Client, Event, Settings

Kind = Literal["sync", "async"]
KINDS: tuple[Kind, ...] = ("sync", "async")

QUICK = Settings(backoff_first_ms=5, backoff_max_ms=50, request_timeout_s=5, connect_timeout_s=5)
"""Patient enough for a busy machine, and quick to try again."""


class Twin:
    """One of the clients; the synchronous one is driven in a thread."""

    def __init__(self, kind: Kind, client: Client | AsyncClient) -> None:
        self.kind = kind
        self._client = client

    async def call(self, session_id: str, method: str, *arguments: Any, agent: str | None = None, **named: Any) -> Any:
        """Call a method of a session."""
        session: Any = self._client.session(session_id, agent)
        if self.kind == "sync":
            return await asyncio.to_thread(getattr(session, method), *arguments, **named)
        return await getattr(session, method)(*arguments, **named)

    async def goal(self, session_id: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of a session's goal."""
        goal: Any = self._client.session(session_id).goal
        if self.kind == "sync":
            return await asyncio.to_thread(getattr(goal, method), *arguments, **named)
        return await getattr(goal, method)(*arguments, **named)

    async def first_events(self, session_id: str, count: int, after: int = 0, **named: Any) -> list[Event]:
        """The first events after a cursor, as many as asked for."""
        events: Any = self._client.session(session_id).events(after, **named)
        if self.kind == "sync":
            return await asyncio.to_thread(_first, events, count)
        async with aclosing(events):
            found: list[Event] = []
            while len(found) < count:
                found.append(await anext(events))
            return found

    async def letters(self) -> list[Any]:
        """Every dead letter."""
        letters: Any = self._client.dead()
        if self.kind == "sync":
            return await asyncio.to_thread(list, letters)
        return [letter async for letter in letters]

    async def redrive(self, letter_id: str) -> Any:
        """Queue a letter's messages again."""
        client: Any = self._client
        if self.kind == "sync":
            return await asyncio.to_thread(client.redrive, letter_id)
        return await client.redrive(letter_id)

    async def levels(self, **named: Any) -> list[Any]:
        """Every session."""
        levels: Any = self._client.sessions(**named)
        if self.kind == "sync":
            return await asyncio.to_thread(list, levels)
        return [level async for level in levels]


def _first(events: Any, count: int) -> list[Event]:
    with closing(events):
        return [next(events) for _ in range(count)]


@asynccontextmanager
async def twin(kind: Kind, url: str, token: str | None = None, settings: Settings = QUICK) -> AsyncGenerator[Twin]:
    """A client of that kind."""
    if kind == "sync":
        with Client(url, token, settings=settings) as client:
            yield Twin(kind, client)
    else:
        async with AsyncClient(url, token, settings=settings) as asynchronous:
            yield Twin(kind, asynchronous)

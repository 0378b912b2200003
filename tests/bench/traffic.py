"""Who sends: messages as the doors make them, from callers that each wait for their receipt.

Caller j of IN_FLIGHT sends messages j, j + IN_FLIGHT, ... one after the other. Message i goes to session i modulo
SESSIONS, so a session has one caller, and its messages keep their order.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mailslot_contracts import body_fingerprint
from mailslot_core.inbox import Submission
from mailslot_core.session import Lane
from mailslot_core.store import Store
from tests.bench.scale import IN_FLIGHT, SESSIONS, TEXT

BORN: Final = {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}}


def session_of(number: int, group: str = "s") -> str:
    """Where message `number` of a group of sessions goes."""
    return f"{group}{number % SESSIONS}"


def message_of(number: int) -> str:
    """What message `number` is called."""
    return f"m{number}"


def submission(message_id: str, text: str = TEXT) -> Submission:
    """A follow-up of a person, made the way a door makes it."""
    content = [{"type": "text", "text": text}]
    source = {"kind": "user"}
    body: dict[str, object] = {"content": content, "delivery": "queue", "source": source, "metadata": {}}
    data: dict[str, Any] = {
        "messageId": message_id,
        "lane": "next-turn",
        "wake": True,
        "content": content,
        "source": source,
    }
    return Submission(message_id, Lane.NEXT_TURN, True, data, body_fingerprint(body).hex())


async def in_flight(count: int, send: Callable[[int], Awaitable[None]], callers: int = IN_FLIGHT) -> None:
    """Send messages 0 .. count-1 with so many callers waiting at once."""

    async def caller(first: int) -> None:
        for number in range(first, count, callers):
            await send(number)

    await asyncio.gather(*(caller(first) for first in range(callers)))


async def submit_all(store: Store, count: int, group: str = "s") -> None:
    """All messages are queued in the sessions of the group."""

    async def send(number: int) -> None:
        await store.submit(session_of(number, group), submission(message_of(number)), BORN)

    await in_flight(count, send)


async def paced(count: int, per_s: float, send: Callable[[int], Awaitable[None]]) -> None:
    """Begin a send every 1/per_s seconds, whether or not those before have been answered."""
    loop = asyncio.get_running_loop()
    begin, sent = loop.time(), []
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + number / per_s - loop.time()))
        sent.append(asyncio.ensure_future(send(number)))
    await asyncio.gather(*sent)

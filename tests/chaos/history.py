"""What clients did and what they were told, kept so that it can be held against the ledgers.

    one attempt ──> receipt    2xx: it is kept                          must be in the ledger, at that cursor
                ──> refused    a problem that says so: it is not kept   must not be there
                ──> unknown    503 outcome-unknown, or the answer was lost   may be there; sent again until it is known

Rule 1: an attempt is one request on the wire. No client of ours is in between that would repeat or explain anything.
Rule 2: no connection could be made: that is no attempt at all, and is made again.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import httpx2

from mailslot_services.verify.recorder import Receipt, Recorder, Refusal, Unknown

PAUSE_S: Final = 0.05
"""Between two attempts with one message id."""


class Told(StrEnum):
    """What an attempt came to."""

    RECEIPT = "receipt"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Attempt:
    """One request with one message. Times are of this machine's monotonic clock."""

    session: str
    message_id: str
    told: Told
    code: str
    sent_ms: float
    answered_ms: float
    cursor: int = 0
    duplicate: bool = False


@dataclass
class History:
    """Every attempt, in the order in which the answers came; `told` is the same for the checker."""

    attempts: list[Attempt] = field(default_factory=list)
    told: Recorder = field(default_factory=Recorder)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def by(self, told: Told) -> list[Attempt]:
        """The attempts that came to this."""
        return [attempt for attempt in self.attempts if attempt.told is told]

    @property
    def unsettled(self) -> set[tuple[str, str]]:
        """Messages of which it is not known to the end whether they were kept."""
        kept = {(attempt.session, attempt.message_id) for attempt in self.by(Told.RECEIPT)}
        return {(attempt.session, attempt.message_id) for attempt in self.by(Told.UNKNOWN)} - kept

    def note(self, attempt: Attempt) -> None:
        """One more attempt."""
        self.attempts.append(attempt)
        message = (attempt.session, attempt.message_id)
        times = (attempt.sent_ms, attempt.answered_ms)
        match attempt.told:
            case Told.RECEIPT:
                self.told.receipts.append(Receipt(*message, attempt.cursor, *times, attempt.duplicate))
            case Told.REFUSED:
                self.told.refusals.append(Refusal(*message, attempt.code, *times))
            case Told.UNKNOWN:
                self.told.unknowns.append(Unknown(*message, *times))

    def kept(self, session: str, message_id: str, cursor: int, sent_ms: float) -> None:
        """A receipt that came just now to somebody who is no client of the HTTP door, or sends in its own way."""
        self.note(Attempt(session, message_id, Told.RECEIPT, "accepted", sent_ms, now_ms(), cursor))

    async def attempt(
        self, client: httpx2.AsyncClient, session: str, content: Any, *, message_id: str = "", **body: Any
    ) -> Attempt:
        """Send once. Raises ConnectError when nobody could be reached."""
        message_id = message_id or f"m{next(self.numbers)}"
        began = now_ms()
        told, code, answer = Told.UNKNOWN, "lost", {}
        try:
            response = await client.post(
                f"/v1/sessions/{session}/prompt", json={"messageId": message_id, "content": content, **body}
            )
            answer = response.json()
            told, code = read(response.status_code, answer)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise
        except (httpx2.TransportError, ValueError) as error:
            code = type(error).__name__
        cursor, duplicate = answer.get("cursor", 0), bool(answer.get("duplicate"))
        attempt = Attempt(session, message_id, told, code, began, now_ms(), cursor, duplicate)
        self.note(attempt)
        return attempt

    async def surely(
        self,
        client: httpx2.AsyncClient,
        session: str,
        content: Any,
        *,
        message_id: str = "",
        patience_s: float = 30.0,
        **body: Any,
    ) -> Attempt:
        """Send with one id until there is a receipt. What is refused for good is an error."""
        message_id = message_id or f"m{next(self.numbers)}"
        deadline = time.monotonic() + patience_s
        while True:
            try:
                attempt = await self.attempt(client, session, content, message_id=message_id, **body)
            except httpx2.TransportError as error:
                told: object = error
            else:
                if attempt.told is Told.RECEIPT:
                    return attempt
                told = attempt
            if time.monotonic() > deadline:
                raise AssertionError(f"no receipt for {message_id} in {patience_s:g} s: {told!r}")
            await asyncio.sleep(PAUSE_S)


def now_ms() -> float:
    """The one clock of all clients here."""
    return time.monotonic() * 1000


def read(status: int, answer: Any) -> tuple[Told, str]:
    """What an answer tells. A 5xx without a problem of ours tells nothing."""
    if status == 202:
        assert answer.keys() == {"messageId", "cursor", "duplicate", "durability"}, answer
        return Told.RECEIPT, "accepted"
    code = str(answer.get("code", status))
    return (Told.UNKNOWN if code == "outcome-unknown" or "code" not in answer else Told.REFUSED), code


def http(url: str, *, timeout_s: float = 15.0, connections: int = 100) -> httpx2.AsyncClient:
    """A plain client of the HTTP door, without any repetition."""
    limits = httpx2.Limits(max_connections=connections)
    return httpx2.AsyncClient(base_url=url, trust_env=False, timeout=timeout_s, limits=limits)

"""Clients: they send, ask again when they do not know, change their minds, and write down what they are told.

    each message  ── submit ──> receipt             written down
                       ↑   └──> outcome unknown     written down; asked again with the same id, until there is an answer
                       ↑   └──> refused             written down; the next attempt is another message
                       └ some are sent again although there is a receipt: a duplicate

Rule 1: it goes through the product's own admission, as the doors do.
Rule 2: every choice comes from the seed. When things happen does not.
Rule 3: when it ends, every session gets one last follow-up: it takes along what was injected, and ends a hold. So in
        the end every message must have come to its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from mailslot_contracts import Prompt
from mailslot_core.clock import SystemClock
from mailslot_core.errors import CoreError, OutcomeUnknown, Refused
from mailslot_core.store import Store
from mailslot_services.ingest.admission import Admission
from mailslot_services.ingest.metric import Metrics
from mailslot_services.verify.recorder import Content, Recorder

AGENTS: Final = ("quick", "slow", "looks", "acts")
IN_FLIGHT_MAX: Final = 256
"""Requests that wait for an answer at a time; more would only wait in line."""
RECENT_MAX: Final = 16
"""Messages of a session that clients still think of."""
LETTERS: Final = 100
"""Dead letters that are read at a time."""
AGAIN_S: Final = 0.05
"""How long a client waits before it asks again."""
DELAY_MS: Final = (200, 3_000)
"""Shortest and longest delay of a message with `notBefore`, or life of one with `expiresAt`."""

Sent = tuple[str, Prompt, Content]
"""A message that is inside: its id, and what its client said."""
Act = Callable[["Load", str], Awaitable[None]]


def words(text: str) -> list[dict[str, str]]:
    """What a client says: one block of text, made here and not by the product, which is to keep it as it is."""
    return [{"type": "text", "text": text}]


class Load:
    """All clients together."""

    def __init__(self, store: Store, sessions: list[str], rng: Random, skew_ms: int) -> None:
        self._store, self._rng, self._skew_ms = store, rng, skew_ms
        self.sessions = sessions
        self.seen = Recorder()
        self.sent = 0
        self.refused_acts: Counter[str] = Counter()  # code -> changes, cancels, releases that came too late
        self._clock = SystemClock()
        self._admission = Admission(store, self._clock, Metrics(), "verify")
        self._agents = {session_id: AGENTS[number % len(AGENTS)] for number, session_id in enumerate(sessions)}
        self._recent: defaultdict[str, deque[Sent]] = defaultdict(lambda: deque(maxlen=RECENT_MAX))
        self._numbers = iter(range(1, 2**62))
        self._at_work: set[asyncio.Task[None]] = set()

    async def run(self, rate: float) -> None:
        """Send `rate` messages a second, with what goes along with them; never returns."""
        begun, count = self._clock.monotonic(), 0
        while True:
            count += 1
            await asyncio.sleep(max(0.0, begun + count / rate - self._clock.monotonic()))
            while len(self._at_work) >= IN_FLIGHT_MAX:
                await asyncio.wait(self._at_work, return_when=asyncio.FIRST_COMPLETED)
            act = self._rng.choices(ACTS, WEIGHTS)[0]
            self._start(act(self, self._rng.choice(self.sessions)))

    async def finish(self) -> None:
        """Everything was answered, and every session had its last follow-up (rule 3)."""
        while self._at_work:
            await asyncio.wait(self._at_work)
        await self._redrive()
        for session_id in self.sessions:
            self._start(self.send(session_id, "queue"))
        while self._at_work:
            await asyncio.wait(self._at_work)

    async def _redrive(self) -> None:
        """What died with a turn that was given up gets another life."""
        after = ""
        while letters := await self._store.dead(after=after, limit=LETTERS):
            after = letters[-1].letter_id
            for letter in letters:
                sent_ms = self.now_ms()
                try:
                    receipts = await self._store.redrive(letter.letter_id)
                except CoreError as error:
                    self.refused_acts[error.code] += 1
                    continue
                for receipt in receipts:
                    self.seen.receipt(
                        letter.session_id,
                        receipt.message_id,
                        receipt.cursor,
                        sent_ms=sent_ms,
                        answered_ms=self.now_ms(),
                    )

    async def end(self) -> None:
        """Nobody asks any more."""
        for task in self._at_work:
            task.cancel()
        if self._at_work:
            await asyncio.wait(self._at_work)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    def now_ms(self) -> float:
        """The clients' clock."""
        return self._clock.monotonic() * 1000

    def store_ms(self) -> int:
        """About what time the store has."""
        return self._clock.now_ms() + self._skew_ms

    # -- messages ---------------------------------------------------------------------------------------------

    async def send(self, session_id: str, delivery: str, **more: Any) -> None:
        """One message, until it is known to be inside; a refused one is given up, and another takes its place."""
        while True:
            number = next(self._numbers)
            message_id = f"m-{number}"
            content = words(f"message {number}")
            prompt = Prompt.model_validate({"content": content, "delivery": delivery, **more})
            self.sent += 1
            code = await self.submit(session_id, message_id, prompt, content)
            if code is None:
                self._recent[session_id].append((message_id, prompt, content))
            if code != "store-refused":
                return
            await asyncio.sleep(AGAIN_S)

    async def submit(self, session_id: str, message_id: str, prompt: Prompt, content: Content) -> str | None:
        """Offer a message with one id until there is an answer: None for a receipt, or the refusal's code. While the
        outcome of an earlier attempt is unknown, a store that takes nothing is asked again."""
        unknown = False
        while True:
            sent_ms = self.now_ms()
            times: dict[str, float] = {}
            try:
                receipt = await self._admission.submit(session_id, message_id, prompt, self._agents[session_id])
            except OutcomeUnknown:
                unknown = True
                self.seen.unknown(session_id, message_id, sent_ms=sent_ms, answered_ms=self.now_ms())
            except CoreError as error:
                times = {"sent_ms": sent_ms, "answered_ms": self.now_ms()}
                self.seen.refused(session_id, message_id, error.code, **times)
                if not unknown or isinstance(error, Refused):
                    return error.code
            else:
                times = {"sent_ms": sent_ms, "answered_ms": self.now_ms()}
                self.seen.receipt(
                    session_id, message_id, receipt.cursor, duplicate=receipt.duplicate, content=content, **times
                )
                return None
            await asyncio.sleep(AGAIN_S)

    async def repeat(self, session_id: str) -> None:
        """Send something again that was kept already."""
        if self._recent[session_id]:
            await self.submit(session_id, *self._rng.choice(self._recent[session_id]))

    async def delayed(self, session_id: str) -> None:
        """A message for later."""
        await self.send(session_id, "queue", notBefore=self.store_ms() + self._rng.randint(*DELAY_MS))

    async def expiring(self, session_id: str) -> None:
        """A message that is not worth anything soon."""
        await self.send(session_id, "queue", expiresAt=self.store_ms() + self._rng.randint(*DELAY_MS))

    # -- second thoughts --------------------------------------------------------------------------------------

    async def change(self, session_id: str, what: str) -> None:
        """Withdraw, replace or move a message that may be queued still."""
        if not self._recent[session_id]:
            return
        message_id, *_ = self._rng.choice(self._recent[session_id])
        content = words(f"instead of {message_id}") if what == "replaced" else None
        sent_ms = self.now_ms()
        try:
            if what == "withdrawn":
                await self._store.withdraw(session_id, message_id)
            elif content is not None:
                await self._store.replace(session_id, message_id, content)
            else:
                await self._store.move(session_id, message_id)
        except CoreError as error:
            self.refused_acts[error.code] += 1
        else:
            times = {"sent_ms": sent_ms, "answered_ms": self.now_ms()}
            self.seen.changed(session_id, message_id, what, content=content, **times)

    async def cancel(self, session_id: str, queue: str) -> None:
        """Cancel whatever goes on."""
        sent_ms = self.now_ms()
        try:
            found = await self._store.cancel(session_id, cause="user", queue=queue)
        except CoreError as error:
            self.refused_acts[error.code] += 1
        else:
            if found.outcome == "requested":
                self.seen.cancelled(session_id, found.turn, sent_ms=sent_ms, answered_ms=self.now_ms())

    async def release(self, session_id: str) -> None:
        """End a hold, if there is one."""
        try:
            await self._store.release(session_id)
        except CoreError as error:
            self.refused_acts[error.code] += 1


MIX: Final[tuple[tuple[int, Act], ...]] = (
    (55, lambda load, session_id: load.send(session_id, "queue")),
    (12, lambda load, session_id: load.send(session_id, "steer")),
    (8, lambda load, session_id: load.send(session_id, "inject")),
    (5, Load.repeat),
    (4, Load.delayed),
    (3, Load.expiring),
    (2, lambda load, session_id: load.change(session_id, "withdrawn")),
    (2, lambda load, session_id: load.change(session_id, "replaced")),
    (2, lambda load, session_id: load.change(session_id, "moved")),
    (3, lambda load, session_id: load.cancel(session_id, "keep")),
    (1, lambda load, session_id: load.cancel(session_id, "hold")),
    (1, lambda load, session_id: load.cancel(session_id, "clear")),
    (2, Load.release),
)
"""What clients do, out of a hundred times."""
ACTS: Final = [act for _, act in MIX]
WEIGHTS: Final = [weight for weight, _ in MIX]

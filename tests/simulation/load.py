"""The people and backends of a simulation: what they ask for, through which door, and what they were answered.

    plan: at 3.2 s, or when `assistant/message` of session s-1 is seen --> operation --> door --> store
                                                                              |
                                                          history: [Attempt(operation, names, answer, when)]

Rule 1: nobody here knows more than a client: an operation is asked of a door, which may die over it.
Rule 2: whose answer is not known asks again with the same id, or gives up; both happen.
Rule 3: half of what is planned waits for an event instead of a time, so that it comes right at an edge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from mailslot_contracts import Prompt
from mailslot_core.errors import CoreError, OutcomeUnknown, StoreUnavailable
from mailslot_core.goal import Change
from mailslot_core.inbox import Receipt
from mailslot_core.session import Data, Event
from mailslot_core.store import Store
from mailslot_services.ingest.admission import Admission
from tests.simulation.scheduler import Process, Scheduler

PATIENCE_S: Final = 7.0
"""How long a client waits for a door."""

AGAIN_MAX: Final = 3
"""How often a client asks again after it was told nothing."""

EDGES: Final = ("inbox/claimed", "assistant/message", "tool/call", "step/end", "turn/end", "agent/status", "llm/retry")
"""Events that an operation may wait for."""


@dataclass(eq=False)
class Door:
    """A simulated ingest process."""

    process: Process
    store: Store
    admission: Admission


@dataclass(slots=True)
class Attempt:
    """One operation as its client saw it. `answer` is what came back: a value, or the code of a refusal."""

    operation: str
    session_id: str
    message_id: str
    begun: float
    said: Any = None  # what was asked for, beside the names
    ended: float | None = None
    answer: Any = None
    refused: str | None = None  # the code; `outcome-unknown` when nothing is known


class Town(Protocol):
    """Where clients live."""

    rng: Random
    loop: Scheduler

    async def door(self) -> Door:
        """A door that is open."""
        ...


@dataclass
class Load:
    """Everybody who asks for something."""

    town: Town
    births: dict[str, Data]
    history: list[Attempt] = field(default_factory=list)
    waiting: dict[tuple[str, str], list[asyncio.Event]] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    serial: int = 0

    # -- when -------------------------------------------------------------------------------------------------

    def plan(self, operations: int, seconds: float) -> list[asyncio.Task[None]]:
        """Everything that will be asked for."""
        return [asyncio.ensure_future(self._one(seconds)) for _ in range(operations)]

    def saw(self, session_id: str, event: Event) -> None:
        """An event was appended: who waited for one of its kind acts now."""
        if event.type == "turn/start":
            self.turns[session_id] = event.data["turn"]
        for waiter in self.waiting.pop((session_id, event.type), ()):
            waiter.set()

    async def _one(self, seconds: float) -> None:
        rng = self.town.rng
        session_id = rng.choice(list(self.births))
        name, (_, act) = rng.choices(list(OPERATIONS.items()), [weight for weight, _ in OPERATIONS.values()])[0]
        await asyncio.sleep(rng.uniform(0, seconds))
        if rng.random() < 0.5:
            await self._edge(session_id, rng.choice(EDGES), seconds / 3)
        await act(self, name, session_id)

    async def _edge(self, session_id: str, event_type: str, seconds: float) -> None:
        waiter = asyncio.Event()
        self.waiting.setdefault((session_id, event_type), []).append(waiter)
        await asyncio.wait({asyncio.ensure_future(waiter.wait())}, timeout=seconds)

    # -- through a door ---------------------------------------------------------------------------------------

    async def ask(
        self,
        attempt: Attempt,
        act: Callable[[Door], Awaitable[Any]],
    ) -> Attempt:
        """Ask once. What is not answered in time is not known."""
        loop, door = self.town.loop, await self.town.door()
        self.history.append(attempt)
        attempt.begun = loop.time()
        working = loop.start(door.process, _work(act, door))
        await asyncio.wait({working}, timeout=PATIENCE_S)
        attempt.ended = loop.time()
        if not working.done():
            attempt.refused = OutcomeUnknown.code
            return attempt
        try:
            attempt.answer = working.result()
        except CoreError as error:
            attempt.refused = error.code
        return attempt

    async def persist(self, make: Callable[[], Attempt], act: Callable[[Door], Awaitable[Any]]) -> Attempt:
        """Ask until something is known, or until it is enough."""
        rng = self.town.rng
        attempt = await self.ask(make(), act)
        for _ in range(rng.randrange(AGAIN_MAX + 1)):
            if attempt.refused not in (OutcomeUnknown.code, StoreUnavailable.code):
                break
            await asyncio.sleep(rng.uniform(0, 2))
            attempt = await self.ask(make(), act)
        return attempt

    # -- what -------------------------------------------------------------------------------------------------

    async def send(self, delivery: str, session_id: str) -> None:
        """A message, perhaps sent twice."""
        self.serial += 1
        message_id = f"m{self.serial}"
        await self._submit(delivery, session_id, message_id, f"say {message_id}")
        rng = self.town.rng
        if rng.random() < 0.15:
            await asyncio.sleep(rng.uniform(0, 8))
            await self._submit(delivery, session_id, message_id, f"say {message_id}")
        if rng.random() < 0.05:
            await self._submit(delivery, session_id, message_id, f"say {message_id} otherwise")

    async def _submit(self, delivery: str, session_id: str, message_id: str, text: str) -> Attempt:
        prompt = Prompt.model_validate({"content": text, "delivery": delivery})
        agent = self.births[session_id]["agent"]

        async def act(door: Door) -> Receipt:
            return await door.admission.submit(session_id, message_id, prompt, agent)

        loop = self.town.loop
        return await self.persist(lambda: Attempt(delivery, session_id, message_id, loop.time(), text), act)

    async def cancel(self, operation: str, session_id: str) -> None:
        """A cancel of whatever is open, or of a turn that the client has seen."""
        turn = self._turn(session_id) if operation == "cancel-turn" else None
        cause = self.town.rng.choice(("user", "user", "parent"))
        loop = self.town.loop
        await self.persist(
            lambda: Attempt("cancel", session_id, "", loop.time(), turn),
            lambda door: door.store.cancel(session_id, cause=cause, turn=turn),
        )

    def _turn(self, session_id: str) -> int:
        """A turn that somebody may think is open: the last one seen, or the one before or after it."""
        return max(1, self.turns.get(session_id, 0) + self.town.rng.choice((0, 0, 0, 0, -1, 1)))

    async def goal(self, operation: str, session_id: str) -> None:
        """A goal is made, or changed as the client last saw it."""
        rng, loop = self.town.rng, self.town.loop
        self.serial += 1
        goal_id = f"goal-{self.serial}"
        level = (
            await self.ask(Attempt("level", session_id, "", loop.time()), lambda d: d.store.level(session_id))
        ).answer
        known = level.goal if level else None
        if known is None or (operation == "create" and rng.random() < 0.7):
            change = Change("create", goal_id=goal_id, objective="rest", budgets={"rounds": rng.randint(1, 3)})
        else:
            if operation == "create":
                operation = "resume"
            change = Change(operation, expected=(known["goalId"], known["revision"]))
        await self.ask(
            Attempt(f"goal-{operation}", session_id, "", loop.time(), change),
            lambda door: door.store.goal_change(session_id, change, self.births[session_id]),
        )


async def _work(act: Callable[[Door], Awaitable[Any]], door: Door) -> Any:
    return await act(door)


Operation = Callable[[Load, str, str], Awaitable[None]]
OPERATIONS: Final[dict[str, tuple[int, Operation]]] = {
    "queue": (30, Load.send),
    "steer": (14, Load.send),
    "inject": (6, Load.send),
    "cancel": (6, Load.cancel),
    "cancel-turn": (5, Load.cancel),
    "create": (4, Load.goal),
    "pause": (1, Load.goal),
    "resume": (2, Load.goal),
    "clear": (1, Load.goal),
}
"""What clients ask for, and how often of a hundred or so."""

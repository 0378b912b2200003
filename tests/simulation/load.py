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
from tests.simulation.scheduler import EPOCH_MS, Process, Scheduler

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
    names: dict[str, list[str]] = field(default_factory=dict)  # what was sent to a session, in order
    turn_seen: int = 0
    serial: int = 0

    # -- when -------------------------------------------------------------------------------------------------

    def plan(self, operations: int, seconds: float) -> list[asyncio.Task[None]]:
        """Everything that will be asked for."""
        return [asyncio.ensure_future(self._one(seconds)) for _ in range(operations)]

    def saw(self, session_id: str, event: Event) -> None:
        """An event was appended: who waited for one of its kind acts now."""
        if event.type == "turn/start":
            self.turn_seen = event.data["turn"]
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
        """A message, perhaps with times or conditions, perhaps sent twice."""
        self.serial += 1
        message_id, rng = f"m{self.serial}", self.town.rng
        prompt = {"content": f"say {message_id}", "delivery": delivery, **self._times(), **self._conditions(delivery)}
        if rng.random() < 0.1:
            prompt["source"] = {"kind": rng.choice(("system", "schedule"))}
        await self._submit(session_id, message_id, prompt)
        if rng.random() < 0.15:
            await asyncio.sleep(rng.uniform(0, 8))
            await self._submit(session_id, message_id, prompt)
        if rng.random() < 0.05:
            await self._submit(session_id, message_id, {**prompt, "content": f"say {message_id} otherwise"})

    def _times(self) -> dict[str, int]:
        """Perhaps when the message is due, and when it is over, by the client's own clock."""
        rng, now = self.town.rng, EPOCH_MS + round(self.town.loop.time() * 1000)
        times: dict[str, int] = {}
        if rng.random() < 0.15:
            times["notBefore"] = now + rng.randint(-2_000, 8_000)
        if rng.random() < 0.15:
            times["expiresAt"] = max(now, times.get("notBefore", 0)) + rng.randint(1, rng.choice((1_000, 6_000)))
        return times

    def _conditions(self, delivery: str) -> dict[str, object]:
        rng = self.town.rng
        found: dict[str, object] = {"ifBusy": "reject"} if rng.random() < 0.08 else {}
        if delivery == "steer" and rng.random() < 0.2:
            found["ifIdle"] = "reject"
        if delivery == "steer" and rng.random() < 0.2:
            found["expectTurn"] = self._turn()
        return found

    async def _submit(self, session_id: str, message_id: str, prompt: dict[str, object]) -> Attempt:
        said = Prompt.model_validate(prompt)
        agent = self.births[session_id]["agent"]

        async def act(door: Door) -> Receipt:
            return await door.admission.submit(session_id, message_id, said, agent)

        self.names.setdefault(session_id, []).append(message_id)
        loop = self.town.loop
        return await self.persist(lambda: Attempt("submit", session_id, message_id, loop.time(), prompt), act)

    async def cancel(self, operation: str, session_id: str) -> None:
        """A cancel of whatever is open, or of a turn that the client has seen; and what becomes of the queue."""
        rng = self.town.rng
        turn = self._turn() if operation == "cancel-turn" else None
        cause, queue = rng.choice(("user", "user", "parent")), rng.choice(("keep", "keep", "hold", "clear"))
        await self._persist(
            "cancel", session_id, lambda store: store.cancel(session_id, cause=cause, queue=queue, turn=turn), said=turn
        )

    def _turn(self) -> int:
        """A turn that somebody may think is open: the last one seen, or the one before or after it."""
        return max(1, self.turn_seen + self.town.rng.choice((0, 0, 0, 0, -1, 1)))

    async def change(self, operation: str, session_id: str) -> None:
        """A message that was sent lately is read, withdrawn, replaced or moved."""
        names = self.names.get(session_id, ["m0"])[-4:]
        name, rng = self.town.rng.choice(names), self.town.rng
        acts: dict[str, Callable[[Store], Awaitable[Any]]] = {
            "message": lambda store: store.message(session_id, name),
            "withdraw": lambda store: store.withdraw(session_id, name),
            "move": lambda store: store.move(session_id, name),
            "replace": lambda store: store.replace(
                session_id, name, [{"type": "text", "text": f"say {name} at {rng.random():.6f}"}]
            ),
        }
        await self._persist(operation, session_id, acts[operation], message_id=name)

    async def look(self, operation: str, session_id: str) -> None:
        """Somebody reads what waits, or whether the agent runs."""
        limit = self.town.rng.choice((1, 2, 100))
        acts: dict[str, Callable[[Store], Awaitable[Any]]] = {
            "level": lambda store: store.level(session_id),
            "queue-list": lambda store: store.queue(session_id, after="", limit=limit),
        }
        await self._persist(operation, session_id, acts[operation])

    async def release(self, operation: str, session_id: str) -> None:
        """A hold is ended, whether or not there is one."""
        await self._persist("release", session_id, lambda store: store.release(session_id))

    async def close(self, operation: str, session_id: str) -> None:
        """The session is closed, perhaps for ever."""
        erase = operation == "erase"
        await self._persist("close", session_id, lambda store: store.close_session(session_id, erase=erase))

    async def redrive(self, operation: str, session_id: str) -> None:
        """Whatever is dead is given another life."""
        listed = await self._persist("dead", session_id, lambda store: store.dead(after="", limit=10))
        for letter in listed.answer or ():
            if letter.session_id == session_id:
                name = letter.letter_id
                await self._persist("redrive", session_id, lambda store, name=name: store.redrive(name))  # type: ignore[misc]

    async def _persist(
        self,
        operation: str,
        session_id: str,
        act: Callable[[Store], Awaitable[Any]],
        *,
        message_id: str = "",
        said: object = None,
    ) -> Attempt:
        loop = self.town.loop
        return await self.persist(
            lambda: Attempt(operation, session_id, message_id, loop.time(), said), lambda door: act(door.store)
        )

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
    "queue": (34, Load.send),
    "steer": (14, Load.send),
    "inject": (6, Load.send),
    "cancel": (14, Load.cancel),
    "cancel-turn": (7, Load.cancel),
    "withdraw": (5, Load.change),
    "replace": (3, Load.change),
    "move": (4, Load.change),
    "message": (2, Load.change),
    "level": (1, Load.look),
    "queue-list": (3, Load.look),
    "release": (4, Load.release),
    "close": (1, Load.close),
    "erase": (1, Load.close),
    "redrive": (3, Load.redrive),
    "create": (7, Load.goal),
    "pause": (1, Load.goal),
    "resume": (2, Load.goal),
    "clear": (1, Load.goal),
}
"""What clients ask for, and how often of a hundred or so."""

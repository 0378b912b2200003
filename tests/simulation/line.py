"""The store as one simulated process reaches it: over a wire that is slow, loses answers and is cut.

    process --call--> | delay | --> the act, on the one store --> | delay | --answer--> process
                        |                |                          |
                        +- refused       +- carried out, and the    +- lost: `OutcomeUnknown`
                        +- lost             process dies or freezes
                        +- comes late: the caller has long given up

Rule 1: what is on the wire arrives whatever became of its sender: a call is an event of the network.
Rule 2: calls of one process arrive in the order they were sent, but for those that are declared late.
Rule 3: `StoreUnavailable` means that nothing was done, `OutcomeUnknown` that something may have been (port, rule 4).
Rule 4: an act of the store is one step of the loop; after it whoever watches (`World.acted`) sees what it appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, Protocol, cast

from mailslot_core.errors import CoreError, OutcomeUnknown, StoreUnavailable
from mailslot_core.store import Store
from tests.simulation.scheduler import Process, Scheduler

CALL_TIMEOUT_S: Final = 5.0
"""How long a process waits for an answer: the default of `call_timeout_ms`."""

LATE_S: Final = (5.5, 9.0)
"""When a call arrives that is late: after its caller gave it up."""

NEXT_S: Final = 1e-6
"""By how much a call arrives after the one before it."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How likely it is, of one call, that it meets this. All 0 is fine weather."""

    slow: float = 0.0
    refused: float = 0.0
    lost_call: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    killed_before: float = 0.0
    killed_after: float = 0.0
    frozen_after: float = 0.0
    lost_ring: float = 0.0
    lost_hint: float = 0.0  # a notice for the goal service, or word of a cancel


class Call(NamedTuple):
    """What a process asks of the store."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class World(Protocol):
    """What a line needs to know of the world around it."""

    rng: Random
    loop: Scheduler
    weather: Weather

    @property
    def kept(self) -> Store:
        """The one store."""
        ...

    def is_cut(self, process: Process) -> bool:
        """The process reaches nothing at the moment."""
        ...

    def acted(self, process: Process, call: Call, value: Any, failed: Exception | None) -> None:
        """An act of the store has been."""
        ...

    def kill(self, process: Process) -> None:
        """The process dies here and now."""
        ...

    def freeze(self, process: Process) -> None:
        """The process stops here and now, for a while."""
        ...


def at_once(act: Coroutine[Any, Any, Any]) -> Any:
    """The answer of an act that waits for nothing: the memory store's rule 1."""
    try:
        act.send(None)
    except StopIteration as answer:
        return answer.value
    act.close()
    raise AssertionError(f"{act} waited: it is not atomic")


class Line:
    """One process' way to the store; every method of the port is there."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process
        self.partitions, self.durability = world.kept.partitions, world.kept.durability
        self._arrives = 0.0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(self._call, name)

    async def wait_ready(self, timeout_ms: int) -> int | None:
        """The doorbell. A ring that is lost costs the whole timeout."""
        world = self._world
        if world.is_cut(self._process):
            raise StoreUnavailable("the line is cut")
        if world.rng.random() < world.weather.lost_ring:
            await asyncio.sleep(timeout_ms / 1000)
            return None
        return await world.kept.wait_ready(timeout_ms)

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        world, loop, rng, weather = self._world, self._world.loop, self._world.rng, self._world.weather
        if loop.closing:
            raise asyncio.CancelledError
        answer, call = loop.create_future(), Call(name, arguments, options)
        luck = rng.random()
        if world.is_cut(self._process) or luck < weather.refused:
            loop.later(self._delay(), _fail, answer, StoreUnavailable("the store refused"))
        elif luck < weather.refused + weather.lost_call:
            loop.later(self._lost_after(), _fail, answer, OutcomeUnknown("the call was lost"))
        elif luck < weather.refused + weather.lost_call + weather.late:
            loop.later(CALL_TIMEOUT_S, _fail, answer, OutcomeUnknown("the call is late"))
            loop.later(rng.uniform(*LATE_S), self._arrive, answer, call)
        else:
            self._arrives = max(loop.time() + self._delay(), self._arrives + NEXT_S)
            loop.later(self._arrives - loop.time(), self._arrive, answer, call)
        return await answer

    def _delay(self) -> float:
        rng = self._world.rng
        return rng.uniform(0.05, 1.0) if rng.random() < self._world.weather.slow else rng.uniform(0.0001, 0.002)

    def _lost_after(self) -> float:
        """When the caller learns that its answer is lost: at once if the connection broke, else at the timeout."""
        return self._delay() if self._world.rng.random() < 0.7 else CALL_TIMEOUT_S

    def _arrive(self, answer: asyncio.Future[Any], call: Call) -> None:
        """The call is at the store."""
        world, rng, weather = self._world, self._world.rng, self._world.weather
        if rng.random() < weather.killed_before:
            world.kill(self._process)
            if rng.random() < 0.5:
                return  # it had not left the process yet
        value, failed = None, None
        try:
            value = at_once(getattr(world.kept, call.name)(*call.arguments, **call.options))
        except Exception as error:  # noqa: BLE001 - what is no CoreError is a defect, which `acted` reports
            failed = error
        world.acted(self._process, call, value, failed)
        if rng.random() < weather.killed_after:
            world.kill(self._process)
        elif rng.random() < weather.frozen_after:
            world.freeze(self._process)
        if rng.random() < weather.lost_answer and isinstance(failed, CoreError | None):
            world.loop.later(self._lost_after(), _fail, answer, OutcomeUnknown("the answer was lost"))
        elif failed is not None:
            world.loop.later(self._delay(), _fail, answer, failed)
        else:
            world.loop.later(self._delay(), _tell, answer, value)


def line(world: World, process: Process) -> Store:
    """A process' line, as the port it is."""
    return cast("Store", Line(world, process))


def _tell(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)

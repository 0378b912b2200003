"""What the simulation has found stays found: each defect as the shortest story that shows it, on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from mailslot_contracts import render
from mailslot_core.agent import Answer, OnDelta, Request, UserEntry
from mailslot_core.clock import SystemClock
from mailslot_core.memory import MemoryStore
from mailslot_core.session import Status
from mailslot_core.store import Store
from mailslot_services.agent_worker.agents import Agent
from mailslot_services.agent_worker.worker import Worker
from tests.crew import prompt
from tests.simulation.line import Call, Weather, line
from tests.simulation.scheduler import Process, Scheduler, VirtualClock
from tests.simulation.world import worker_settings

LEASE_MS = 1_000
LONG_S = 7.0
"""A turn, or a freeze, of many leases."""

HALF_AN_HOUR_S = 1_800.0

PATIENCE_S = 60.0
"""Virtual time in which a session must rest."""


@dataclass
class Slow:
    """A model that takes its time, or answers at once, or breaks; it remembers what it was told."""

    seconds: float = 0.0
    instant: bool = False
    broken: bool = False
    name: str = "slow"

    def __post_init__(self) -> None:
        self.told: list[list[str]] = []

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        users = (entry for entry in request.transcript if isinstance(entry, UserEntry))
        self.told.append([entry.content[0]["text"] for entry in users])
        if self.broken:
            raise ZeroDivisionError
        if not self.instant:
            await SystemClock().sleep(self.seconds)  # of the virtual loop
        return Answer("yes")


class House:
    """A store on virtual time, and workers that may be hired."""

    def __init__(self, loop: Scheduler, model: Slow) -> None:
        self.loop, self.clock = loop, VirtualClock(loop)
        self.store = MemoryStore(partitions=1, clock=self.clock)
        self._model, self._hired = model, 0

    @asynccontextmanager
    async def worker(self, process: Process | None = None, store: Store | None = None) -> AsyncIterator[Worker]:
        self._hired += 1
        agent, settings = Agent("default", self._model), worker_settings(LEASE_MS, 1, 16, 0)
        worker = Worker(store or self.store, {"default": agent}.get, settings, name=f"w{self._hired}", clock=self.clock)
        stop = asyncio.Event()
        running = self.loop.start(process or Process("worker"), worker.run(stop))
        try:
            yield worker
        finally:
            stop.set()
            await running

    async def rests(self, session_id: str, patience_s: float = PATIENCE_S) -> str:
        """The session's history once its agent is idle."""
        until = self.clock.monotonic() + patience_s
        while (level := await self.store.level(session_id)) is None or level.status is Status.RUNNING:
            assert self.clock.monotonic() < until, f"{session_id} does not come to rest: {level}"
            await self.clock.sleep(0.1)
        return " ".join(render(await self.store.events(session_id, after=0, limit=1_000)))


def live(story: Callable[[House], Coroutine[Any, Any, None]], model: Slow, seed: int = 1) -> None:
    loop = Scheduler(random.Random(seed))
    try:
        loop.run_until_complete(story(House(loop, model)))
    finally:
        loop.clear(())


ONE_TURN = "R T1 c[{0}] S1 u[{0}] a s1 t1(completed) I"


def test_a_session_that_is_handed_out_after_a_long_turn_is_kept() -> None:
    """Its lease was counted from the beginning of the turn before, so it was lost at once and its turn crashed."""

    async def story(house: House) -> None:
        async with house.worker():
            await prompt(house.store, "s", "A")
            await prompt(house.store, "t", "B")
            assert await house.rests("s") == "q[A] " + ONE_TURN.format("A")
            assert await house.rests("t") == "q[B] " + ONE_TURN.format("B")

    live(story, Slow(LONG_S))


def test_a_turn_of_half_an_hour_is_nobody_elses() -> None:
    """T7: 1,800 leases long, with a second worker that waits for work. It is executed once (Abilityai/trinity#2846)."""
    model = Slow(HALF_AN_HOUR_S)

    async def story(house: House) -> None:
        async with house.worker(), house.worker():
            await prompt(house.store, "s", "A")
            assert await house.rests("s", HALF_AN_HOUR_S + PATIENCE_S) == "q[A] " + ONE_TURN.format("A")

    live(story, model)
    assert model.told == [["A"]]


def test_a_session_is_told_nothing_of_an_erased_one_that_had_its_name() -> None:
    """A worker kept the transcript of the erased session, and took the new one for it."""
    model = Slow()

    async def story(house: House) -> None:
        async with house.worker():
            await prompt(house.store, "s", "secret")
            await house.rests("s")
            await house.store.close_session("s", erase=True)
            async with house.worker():
                for words in ("A", "B", "C", "D", "E", "F"):
                    await prompt(house.store, "s", words)
                    await house.rests("s")

    live(story, model)
    assert model.told == [["secret"], ["A"], ["A", "B"], ["A", "B", "C"], [*"ABCD"], [*"ABCDE"], [*"ABCDEF"]]


def test_a_turn_ends_when_a_model_that_answers_at_once_breaks() -> None:
    """Its session was dropped and crashed until its turn was given up."""

    async def story(house: House) -> None:
        async with house.worker():
            await prompt(house.store, "s", "A")
            assert await house.rests("s") == "q[A] R T1 c[A] S1 u[A] s1 t1(error) I"

    live(story, Slow(instant=True, broken=True))


@pytest.mark.parametrize("seed", range(8))
def test_a_session_that_is_lost_before_its_work_began_gives_its_slot_back(seed: int) -> None:
    """A worker was frozen while it was given a session. Its task was cancelled before it had run at all, so the slot
    was nobody's for ever; with all slots gone, the worker served nobody."""

    async def story(house: House) -> None:
        process = Process("worker")
        wire = Frozen(house, process)
        async with house.worker(process, line(wire, process)):
            await prompt(house.store, "s", "A")
            assert (await house.rests("s")).endswith("a s1 t1(completed) I")

    live(story, Slow(), seed)


@dataclass
class Frozen:
    """A world in which a process is frozen for long once it was given a session."""

    house: House
    process: Process
    given: bool = False

    def __post_init__(self) -> None:
        self.weather = Weather()
        self.rng, self.loop, self.kept = random.Random(1), self.house.loop, self.house.store

    def is_cut(self, process: Process) -> bool:
        return False

    def acted(self, process: Process, call: Call, value: Any, failed: Exception | None) -> None:
        if call.name == "acquire" and value is not None and not self.given:
            self.given = True
            self.freeze(process)

    def kill(self, process: Process) -> None:
        self.loop.kill(process)

    def freeze(self, process: Process) -> None:
        self.loop.freeze(process)
        self.loop.later(LONG_S, self.loop.thaw, process)

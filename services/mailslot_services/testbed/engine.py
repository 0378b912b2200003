"""The engine of `mailslot.testing.Server`: doors, worker and goals on one loop, in one thread.

    test's thread --start--> [thread: loop] --> listener, application, worker, goals --> ready
                  --do(...)-> on the loop, and its answer
                  --close---> everything has ended, the thread is gone

Rule 1: what runs is what the services run: `create_app` and `serve_app`, `Worker`, `Continuation`. Only notices that
        Redis would carry between them are carried here.
Rule 2: what changes something is done on the loop, in one piece; the test waits for it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from mailslot.testing import Agent as Wanted
from mailslot.testing import Faults, Model, Rule
from mailslot.testing.port import Clock, Envelope, Setup
from mailslot_contracts.notation import render
from mailslot_core.agent import Model as CoreModel
from mailslot_core.errors import Misconfigured
from mailslot_core.task import end
from mailslot_services.agent_worker.agents import Agent, Agents, limits_of
from mailslot_services.agent_worker.hooks import AdmissionHook
from mailslot_services.agent_worker.models import EchoModel
from mailslot_services.agent_worker.models.script import answers_in
from mailslot_services.agent_worker.tools import tool
from mailslot_services.agent_worker.transcript import extend
from mailslot_services.agent_worker.worker import Worker
from mailslot_services.goal_continuation.continuation import Continuation
from mailslot_services.goal_continuation.metrics import GoalMetrics, Path
from mailslot_services.testbed.clock import SteeredClock
from mailslot_services.testbed.doors import Doors
from mailslot_services.testbed.fault import EngineFaults
from mailslot_services.testbed.settings import CrewSettings
from mailslot_services.testbed.stage import Cues, Stage, StagedModel
from mailslot_services.testbed.store import DoorLine, WatchedStore, WorkerLine, as_store
from mailslot_services.testbed.switch import Switches

DO_S: Final = 30.0
"""How long a test waits for what takes a moment, before it is told that the engine hangs."""

CONCURRENCY: Final = 64
"""Sessions that are worked on at once."""

SWEEP_MS: Final = 100
"""How often the worker looks for what became due while time passes by itself."""

RECONCILE_S: Final = 0.2
"""How often goals are looked through whose notice was lost."""

T = TypeVar("T")
numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Crew:
    """A worker at work."""

    worker: Worker
    line: WorkerLine
    stop: asyncio.Event
    task: asyncio.Task[None]


class Engine:
    """See `mailslot.testing.port.Engine`; made by the entry point `server` of the group `mailslot.testing`."""

    def __init__(self, setup: Setup) -> None:
        self._clock = SteeredClock()
        self._switches = Switches()
        self._store = WatchedStore(
            self._clock, self._told, pending_max=setup.pending_max, crashes_max=setup.crashes_max
        )
        line = DoorLine(self._store, self._clock, self._switches)
        self._doors = Doors(line, self._clock, self._switches, setup.token)
        self._crew_settings = CrewSettings(
            durability="memory", lease_ms=setup.lease_ms, sweep_ms=SWEEP_MS, drain_ms=0, concurrency=CONCURRENCY
        )
        self._stage = Stage(self._soon)
        self._cues: dict[str, Cues] = {}
        try:
            self._agents = Agents(self._staged(agent) for agent in wanted_agents(setup.agents, self._cues))
        except Misconfigured as error:
            raise ValueError(str(error)) from error
        self._continuation = Continuation(self._store, GoalMetrics())
        self._faults = EngineFaults(
            self._switches,
            cut=lambda: self._do(self._cut_streams()),
            kill=lambda: self._do(self._kill()),
            hire=lambda: self._do(self._hire()),
        )
        self._moved: dict[str, asyncio.Event] = {}
        self._errands: set[asyncio.Task[object]] = set()
        self._crew: Crew | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._failure: BaseException | None = None
        self._url = ""

    # -- for the test -------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """See `Engine.model` of the port."""
        return self._stage

    @property
    def faults(self) -> Faults:
        """See `Engine.faults` of the port."""
        return self._faults

    @property
    def clock(self) -> Clock:
        """See `Engine.clock` of the port."""
        return EngineClock(self._clock.now_ms, lambda ms: self._do(self._advance(ms)))

    def start(self) -> str:
        """See `Engine.start` of the port."""
        if self._thread is not None:
            raise RuntimeError("a server is started once; make another one")
        self._thread = threading.Thread(target=self._run, name="mailslot-testing", daemon=True)
        self._thread.start()
        if not self._ready.wait(DO_S):
            raise RuntimeError(f"the server did not start within {DO_S:g} s")
        self._raise_failure()
        return self._url

    def close(self) -> None:
        """See `Engine.close` of the port."""
        if self._thread is None:
            return
        if self._thread.is_alive():
            self._soon(self._over.set)
            self._thread.join(DO_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the server did not end within {DO_S:g} s")
        self._raise_failure()

    def restart(self) -> None:
        """See `Engine.restart` of the port."""
        self._do(self._restart())

    def answers(self, agent: str, rule: Rule, *, first: bool) -> None:
        """See `Engine.answers` of the port."""
        cues = self._cues.get(agent)
        if cues is None:
            raise ValueError(f"there is no agent {agent}; there are {', '.join(self._agents.names)}")
        try:
            self._do(self._add(cues, rule, first=first))
        except Misconfigured as error:
            raise ValueError(str(error)) from error

    def sessions(self) -> Sequence[str]:
        """See `Engine.sessions` of the port."""
        return self._do(self._store.sessions(after="", limit=1_000_000))

    def envelopes(self, session_id: str) -> Sequence[Envelope]:
        """See `Engine.envelopes` of the port."""
        return self._do(self._envelopes(session_id))

    def changed(self, session_id: str, count: int) -> Future[None]:
        """See `Engine.changed` of the port."""
        return self._ask(self._changed(session_id, count))

    def notation(self, envelopes: Sequence[Envelope], labels: Mapping[str, str]) -> str:
        """See `Engine.notation` of the port."""
        return " ".join(render(envelopes, labels))

    # -- from the test's thread to the loop ---------------------------------------------------------------------

    def _ask(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("an async tool or hook runs on the server's own loop, which would wait for itself here")
        if self._loop is None or not self._ready.is_set() or self._loop.is_closed():
            work.close()
            raise RuntimeError("the server does not run: use it in a `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._ask(work).result(DO_S)

    def _soon(self, act: Callable[[], object]) -> None:
        """On the loop, before anything that comes over a connection from now on."""
        if self._loop is None:
            act()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._live())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the start or the end is told
            self._failure = error
        finally:
            self._ready.set()

    async def _live(self) -> None:
        try:
            await self._agents.prepare()
            self._url = await self._doors.open()
            await self._hire()
            self._run_errand(self._reconcile())
            self._ready.set()
            await self._over.wait()
        finally:
            await self._doors.shut()
            await self._kill()
            await end(*self._errands)
            await self._agents.close()

    async def _reconcile(self) -> None:
        while True:
            await self._continuation.reconcile()
            await self._clock.sleep(RECONCILE_S)

    # -- worker and doors ------------------------------------------------------------------------------------

    async def _restart(self) -> None:
        await self._doors.shut()
        if self._crew is not None:
            self._crew.stop.set()
            await self._crew.task
            self._crew = None
        await self._doors.open()
        await self._hire()

    async def _cut_streams(self) -> int:
        return self._doors.cut_streams()

    async def _hire(self) -> None:
        """A worker is there, and has looked for what a dead one left; not while there is to be none."""
        if self._crew is not None or self._switches.vacant.on:
            return
        line, stop, name = WorkerLine(self._store), asyncio.Event(), f"testing-{next(numbers)}"
        worker = Worker(as_store(line), self._agents.get, self._crew_settings, name=name, clock=self._clock)
        self._crew = Crew(worker, line, stop, asyncio.create_task(worker.run(stop)))
        await self._sweep()

    async def _kill(self) -> None:
        """The worker is dead, and its leases are over."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.line.dead = True
            await end(crew.task)
            self._store.lapse(crew.worker.name)

    def _crash(self) -> None:
        """A model kills its worker. Not from within: the model is part of it."""
        self._run_errand(self._replace(self._crew))

    async def _replace(self, crew: Crew | None) -> None:
        if self._crew is crew:
            await self._kill()
            await self._hire()

    async def _sweep(self) -> None:
        for partition in range(self._store.partitions):
            await self._store.sweep(partition, forget_after_ms=self._crew_settings.forget_after_ms)

    async def _advance(self, ms: int) -> None:
        self._store.carry(ms)
        self._clock.advance(ms)
        if self._crew is not None:
            await self._sweep()

    # -- ledgers ------------------------------------------------------------------------------------------------

    async def _envelopes(self, session_id: str) -> list[Envelope]:
        return [{"v": 1, "sessionId": session_id, **event._asdict()} for event in self._store.ledger(session_id)]

    async def _changed(self, session_id: str, count: int) -> None:
        while self._store.count(session_id) == count:
            await self._moved.setdefault(session_id, asyncio.Event()).wait()

    async def _add(self, cues: Cues, rule: Rule, *, first: bool) -> None:
        sessions = await self._store.sessions(after="", limit=1_000_000)
        before = {name: answers_in(extend((), self._store.ledger(name))) for name in sessions}
        cues.add(rule, before, first=first)

    # -- what Redis would carry ---------------------------------------------------------------------------------

    def _told(self, session_id: str, event: Mapping[str, Any]) -> None:
        """An event was appended, in the act that is still under way: what follows of it comes after."""
        moved = self._moved.pop(session_id, None)
        if moved is not None:
            moved.set()
        word = {"cancel/requested": self._cancel, "agent/status": self._rest, "goal/change": self._rest}.get(
            event["type"]
        )
        if word is not None and self._loop is not None and not self._switches.deaf.strikes():
            self._loop.call_soon(word, session_id, event)

    def _cancel(self, session_id: str, event: Mapping[str, Any]) -> None:
        """A cancel was recorded, for the worker."""
        data = event["data"]
        if self._crew is not None and "turn" in data:
            self._crew.worker.cancel(session_id, event["epoch"], data["turn"], data["cause"])

    def _rest(self, session_id: str, _event: Mapping[str, Any]) -> None:
        """An agent with a goal may rest, for goal-continuation."""
        notice = self._store.resting_goal(session_id)
        if notice is not None:
            self._run_errand(self._continuation.answer(notice, Path.NOTICE))

    def _run_errand(self, work: Coroutine[Any, Any, object]) -> None:
        errand = asyncio.create_task(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    # -- agents -------------------------------------------------------------------------------------------------

    def _staged(self, agent: Agent) -> Agent:
        cues = self._cues.setdefault(agent.name, Cues((), agent.name))

        def staged(model: CoreModel) -> CoreModel:
            return StagedModel(agent.name, model, cues, self._stage, self._crash)

        return replace(agent, model=staged(agent.model), fallback=agent.fallback and staged(agent.fallback))


class EngineClock:
    """See `mailslot.testing.Clock`."""

    def __init__(self, now_ms: Callable[[], int], advance: Callable[[int], None]) -> None:
        self.now_ms, self._advance = now_ms, advance

    def advance(self, seconds: float) -> None:
        """See `Clock.advance`."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._advance(round(seconds * 1000))


def wanted_agents(wanted: Mapping[str, Wanted] | str, cues: dict[str, Cues]) -> list[Agent]:
    """The agents of a test, or of a file; scripts go into `cues`. Misconfigured says what is wrong."""
    if isinstance(wanted, str):
        loaded = Agents.load(wanted)
        return [agent for agent in map(loaded.get, loaded.names) if agent is not None]
    for name, agent in wanted.items():
        cues[name] = Cues(agent.script, f"the script of agent {name}")
    return [made(name, agent) for name, agent in wanted.items()]


def made(name: str, agent: Wanted) -> Agent:
    """An agent that a test wrote."""
    tools = [tool(function) for function in agent.tools]
    by_name = {each.spec.name: each for each in tools}
    if len(by_name) < len(tools):
        raise Misconfigured(f"two tools of agent {name} have one name: {[each.spec.name for each in tools]}")
    hooks = tuple(AdmissionHook(getattr(hook, "__name__", "hook"), hook) for hook in agent.hooks)
    return Agent(name, EchoModel(), None, agent.instructions, dict(by_name), limits_of(agent.limits), hooks)

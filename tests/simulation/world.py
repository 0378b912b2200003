"""One seed, one world: real workers, a real goal service, real doors, over one memory store; and whoever breaks them.

    clients --> doors --line--+
                              +--> MemoryStore (its clock may jump) --events--> witness
    workers, goals --line-----+            |
        ^   ^                              +--> post: idle notices to goals, word of a cancel to workers
        |   +-- kill, freeze, cut, drain: the nemesis
        +------ models and tools: `mind`

Rule 1: the seed decides everything: who is there, what they want, what breaks and when.
Rule 2: after the load the world is healed: fine weather, everybody back, the clock as far as it ever was. Then
        everything must come to rest within REST_S, whatever happened before.
Rule 3: a run is judged by what is left of it: ledgers, what clients were told, what models and tools saw (`judge`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from mailslot_contracts.codec import encode
from mailslot_core.errors import CoreError
from mailslot_core.goal import ACTIVE
from mailslot_core.memory import MemoryStore
from mailslot_core.session import Data, Event, Session, Status, apply
from mailslot_core.settings import WorkerSettings
from mailslot_core.store import IdleNotice
from mailslot_services.agent_worker.worker import Worker
from mailslot_services.goal_continuation.continuation import Continuation
from mailslot_services.goal_continuation.metrics import GoalMetrics, Path
from mailslot_services.ingest.admission import Admission
from mailslot_services.ingest.metric import Metrics
from tests.simulation.acts import Seen
from tests.simulation.line import Call, Weather, at_once, line
from tests.simulation.load import Door, Load
from tests.simulation.mind import Mood, agents
from tests.simulation.scheduler import Process, Scheduler, VirtualClock
from tests.simulation.witness import Witness

REST_S: Final = 120.0
"""Virtual seconds after the healing in which everything must have come to rest."""

LOOK_S: Final = 0.5
"""How often it is looked whether everything rests."""

LEAVE_S: Final = 25.0
"""How long a worker that drains may take beside its grace period (R6): calls that are lost are waited for."""

RECONCILE_S: Final = 2.0
"""How often a goal service looks through its goals."""

JUMP_MS: Final = 3_600_000
"""How far a store's clock jumps at most."""

CALM: Final = 0.12
"""Share of worlds in which nothing breaks but hints, so that every recovery and every lost session is one too many."""

READS: Final = frozenset({"publish_delta", "renew", "level", "events", "queue", "message", "dead", "resting_goals"})
"""Acts that append nothing; if one did, the next act would be blamed for it."""

ERASES: Final = frozenset({"close_session", "sweep"})
"""Acts after which a session may be gone."""

WEATHERS: Final[dict[str, Weather]] = {
    "fine": Weather(),
    "slow": Weather(slow=0.2, lost_hint=0.1),
    "lossy": Weather(
        slow=0.05, refused=0.04, lost_call=0.04, lost_answer=0.06, late=0.01, lost_ring=0.3, lost_hint=0.4
    ),
    "deaf": Weather(lost_ring=1.0, lost_hint=1.0),
    "deadly": Weather(killed_before=0.01, killed_after=0.02, frozen_after=0.01, lost_hint=0.2),
    "storm": Weather(
        slow=0.1,
        refused=0.05,
        lost_call=0.05,
        lost_answer=0.08,
        late=0.02,
        killed_before=0.005,
        killed_after=0.01,
        frozen_after=0.01,
        lost_ring=0.5,
        lost_hint=0.5,
    ),
}
"""What a run's wires are like; the seed draws one, and the nemesis changes it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed has drawn before anything starts. Times in seconds."""

    sessions: dict[str, Data]
    operations: int
    load_s: float
    workers: int
    goal_services: int
    doors: int
    partitions: int
    pending_max: int
    weather: str
    blows: int  # how often the nemesis strikes
    jumps: int  # how often the store's clock jumps
    crashes_max: int
    settings: WorkerSettings
    mood: Mood

    @property
    def is_calm(self) -> bool:
        """Nothing breaks but hints."""
        return self.weather in ("fine", "deaf") and not self.blows and not self.jumps


def plan(rng: random.Random) -> Plan:
    """Draw a world."""
    count, calm = rng.choice((1, 1, 2, 3)), rng.random() < CALM
    sessions: dict[str, Data] = {
        f"s{number}": {
            "agent": rng.choices(("default", "hooked", "quick", "brief", "nobody"), (12, 4, 4, 2, 1))[0],
            "onFailure": rng.choices(("continue", "hold"), (4, 1))[0],
            "depth": 0,
            "metadata": {},
        }
        for number in range(1, count + 1)
    }
    return Plan(
        sessions=sessions,
        operations=rng.randint(4, 14) * count,
        load_s=rng.choice((1.0, 3.0, 8.0)),
        workers=rng.choice((1, 2, 2, 3)),
        goal_services=rng.choice((1, 1, 2)),
        doors=rng.choice((1, 2)),
        partitions=rng.choice((1, 2)),
        pending_max=rng.choice((3, 1000, 1000)),
        weather=rng.choice(("fine", "deaf") if calm else list(WEATHERS)),
        blows=0 if calm else rng.choice((0, 1, 2, 5)),
        jumps=0 if calm else rng.choice((0, 0, 0, 1, 2)),
        crashes_max=rng.choice((2, 3, 3, 6)),
        settings=worker_settings(
            rng.choice((1_000, 2_000, 4_000)),
            rng.choice((1, 2, 8)),
            rng.choice((1, 2, 16)),
            rng.choice((0, 1_000, 10_000)),
        ),
        mood=Mood(
            calls=rng.choice((0.0, 0.4, 0.8)),
            fails=rng.choice((0.0, 0.1, 0.4)),
            thinks_s=rng.choice((0.01, 0.3, 1.0)),
        ),
    )


@cache
def worker_settings(lease_ms: int, concurrency: int, turns_per_slot: int, drain_ms: int) -> WorkerSettings:
    """Settings as a worker has them; reading the environment for each run would take as long as the run."""
    return WorkerSettings(
        durability="memory",
        lease_ms=lease_ms,
        sweep_ms=500,
        stall_ms=3_000,
        concurrency=concurrency,
        turns_per_slot=turns_per_slot,
        drain_ms=drain_ms,
    )


@dataclass(eq=False)
class Crew:
    """A process that may be replaced: what it is, and how it is asked to stop."""

    process: Process
    kind: str
    stop: asyncio.Event
    leaves_by: float = 0.0
    task: asyncio.Task[Any] | None = None
    worker: Worker | None = None
    continuation: Continuation | None = None
    door: Door | None = None


@dataclass
class World:
    """Everything that is there in one run."""

    seed: int
    rng: random.Random = field(init=False)
    loop: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.plan = plan(self.rng)
        self.loop = Scheduler(self.rng)
        self.clock = VirtualClock(self.loop)
        self.kept = MemoryStore(
            partitions=self.plan.partitions,
            clock=self.clock,
            pending_max=self.plan.pending_max,
            crashes_max=self.plan.crashes_max,
        )
        self.witness = Witness(
            self.rng,
            self.loop,
            {name: [] for name in self.plan.sessions},
            self.clock.now_ms,
            self.kept.partition,
            crashes_max=self.plan.crashes_max,
        )
        for session_id, birth in self.plan.sessions.items():
            self.witness.books[session_id].rewrites = birth["agent"] == "hooked"
        self.load = Load(self, self.plan.sessions)
        self.agents = agents(self.witness, self.plan.mood)
        self.weather = WEATHERS[self.plan.weather]
        self.crews: list[Crew] = []
        self.processes: list[Process] = []
        self.workers: list[Worker] = []
        self.sessions = {name: Session(name) for name in self.plan.sessions}
        self.log: list[tuple[float, str, str, tuple[Any, ...], object]] = []
        self.cut_until: dict[Process, float] = {}
        self.offset_max_ms = 0
        self.healed = False
        self.rested_s: float | None = None

    # -- what lines need --------------------------------------------------------------------------------------

    def is_cut(self, process: Process) -> bool:
        return self.cut_until.get(process, 0.0) > self.loop.time()

    def acted(self, process: Process, call: Call, value: Any, failed: Exception | None) -> None:
        """The store has acted: learn what it appended, and pass its hints on."""
        if failed is not None and not isinstance(failed, CoreError):
            self.witness.complain(f"{call.name} of {process.name} broke the store: {failed!r}")
        appended: list[tuple[str, Event]] = []
        if call.name not in READS:
            appended = [(session_id, event) for session_id in self.sessions for event in self._fresh(session_id, call)]
        refused = getattr(failed, "code", "broken") if failed else None
        own = [event for session_id, event in appended if call.arguments and session_id == call.arguments[0]]
        self.witness.acted(Seen(*call, value, refused, own), appended)
        said = refused or [event.type for _, event in appended]
        self.log.append((self.loop.time(), process.name, call.name, call.arguments, said))
        for session_id, event in appended:
            self._post(session_id, event)

    def _fresh(self, session_id: str, call: Call) -> list[Event]:
        """What was appended since the last look; all of it, if the session was erased meanwhile."""
        known = len(self.witness.ledgers[session_id])
        if known and call.name in ERASES and at_once(self.kept.level(session_id)) is None:
            self.witness.forgotten(session_id)
            self.sessions[session_id], known = Session(session_id), 0
        fresh: list[Event] = at_once(self.kept.events(session_id, after=known, limit=100_000))
        return fresh

    def _post(self, session_id: str, event: Event) -> None:
        """Hints that Redis would publish: word of a cancel, and that a goal rests."""
        session = self.sessions[session_id]
        apply(session, event)
        self.load.saw(session_id, event)
        if event.type == "cancel/requested" and "turn" in event.data:
            for crew in self.crews:
                if crew.worker is not None and not self._lost():
                    word = (session.session_id, event.epoch, event.data["turn"], event.data["cause"])
                    self.loop.later(self._late(), self._word, crew, word)
        goal, seq = session.goal, session.idle_seq
        rests = event.type in ("agent/status", "goal/change") and session.status is Status.IDLE
        if rests and goal and goal["phase"] == ACTIVE and not self._lost():
            notice = IdleNotice(session.session_id, goal["goalId"], goal["revision"], seq)
            self.loop.later(self._late(), self._notify, notice)

    def _late(self) -> float:
        """How long a hint is on its way; some come when what they tell of is long over."""
        return self.rng.uniform(0, 0.4) if self.rng.random() < 0.5 else self.rng.uniform(0, 0.01)

    def _lost(self) -> bool:
        return self.rng.random() < self.weather.lost_hint

    def _word(self, crew: Crew, word: tuple[str, int, int, str]) -> None:
        # A word names session, epoch and turn, and those of an erased session's namesake may be the same: no topic
        # is so late that one is erased, made anew and driven meanwhile.
        outlived = word[0] in {name for name, _, book in self.witness.erased if book.turn >= word[2]}
        if crew.worker is not None and crew.process.runs and not outlived:
            self.loop.start(crew.process, _said(crew.worker.cancel, word))

    def _notify(self, notice: IdleNotice) -> None:
        listening = [crew for crew in self.crews if crew.continuation is not None and crew.process.runs]
        if listening:
            crew = self.rng.choice(listening)
            assert crew.continuation is not None
            self.loop.start(crew.process, crew.continuation.answer_all([notice], Path.NOTICE))

    # -- who is there -----------------------------------------------------------------------------------------

    def hire(self, kind: str) -> Crew:
        """A new process of a kind."""
        process = Process(f"{kind}-{len(self.processes)}")
        self.processes.append(process)
        crew = Crew(process, kind, asyncio.Event())
        store = line(self, process)
        if kind == "worker":
            crew.worker = Worker(store, self.agents.get, self.plan.settings, name=process.name, clock=self.clock)
            crew.task = self.loop.start(process, crew.worker.run(crew.stop))
        elif kind == "goals":
            crew.continuation = Continuation(store, GoalMetrics())
            crew.task = self.loop.start(process, _reconcile(crew.continuation, crew.stop))
        else:
            crew.door = Door(process, store, Admission(store, self.clock, door_metrics(), "http"))
        self.crews.append(crew)
        if crew.worker is not None:
            self.workers.append(crew.worker)
        return crew

    def working(self, kind: str) -> list[Crew]:
        """Processes of a kind that live."""
        return [crew for crew in self.crews if crew.kind == kind]

    async def door(self) -> Door:
        """A door that is open; a client finds one sooner or later."""
        while True:
            doors = [crew.door for crew in self.crews if crew.door is not None and crew.process.runs]
            if doors:
                return self.rng.choice(doors)
            await asyncio.sleep(0.5)

    def kill(self, process: Process) -> None:
        """kill -9, and somebody starts another one soon."""
        if self.healed or not any(crew.process is process for crew in self.crews):
            return
        self.loop.kill(process)
        (dead,) = [crew for crew in self.crews if crew.process is process]
        self.crews.remove(dead)
        self._tell(f"{process.name} is killed")
        self.loop.later(self.rng.uniform(0.1, 3.0), self._replace, dead.kind)

    def _replace(self, kind: str) -> None:
        wanted = {"worker": self.plan.workers, "goals": self.plan.goal_services, "door": self.plan.doors}
        if len(self.working(kind)) < wanted[kind]:
            self.hire(kind)

    def freeze(self, process: Process) -> None:
        """SIGSTOP for a while, perhaps for longer than a lease."""
        if self.healed or not process.runs:
            return
        self.loop.freeze(process)
        self._tell(f"{process.name} is frozen")
        self.loop.later(self.rng.uniform(0.1, 3.0) * self.plan.settings.lease_ms / 1000, self.loop.thaw, process)

    def cut(self, process: Process) -> None:
        """The process reaches nothing for a while."""
        self.cut_until[process] = self.loop.time() + self.rng.uniform(0.1, 2.0) * self.plan.settings.lease_ms / 1000
        self._tell(f"{process.name} is cut off")

    def drain(self, process: Process) -> None:
        """SIGTERM, and somebody starts another one."""
        found = [crew for crew in self.crews if crew.process is process and crew.kind != "door"]
        for crew in found:
            crew.stop.set()
            crew.leaves_by = self.loop.time() + self.plan.settings.drain_ms / 1000 + LEAVE_S
            self.loop.later(self.rng.uniform(0.0, 1.0), self._leave, crew)

    def _leave(self, crew: Crew) -> None:
        """Once a process that drains is gone, there is room for another one."""
        if crew not in self.crews:
            return
        if crew.task is not None and not crew.task.done():
            if self.loop.time() > crew.leaves_by and not (crew.process.freezes or self.is_cut(crew.process)):
                self.witness.complain(f"{crew.process.name} was asked to leave and does not")
                return
            self.loop.later(0.5, self._leave, crew)
            return
        self.crews.remove(crew)
        self._replace(crew.kind)

    def jump(self) -> None:
        """The store's clock jumps."""
        if self.healed:
            return
        self.clock.offset_ms = self.rng.choice((0, JUMP_MS, -JUMP_MS, 5_000, -5_000))
        self.offset_max_ms = max(self.offset_max_ms, self.clock.offset_ms)
        self.witness.clock_jumps()
        self._tell(f"the clock jumps to {self.clock.offset_ms:+} ms")

    def _tell(self, sentence: str) -> None:
        self.log.append((self.loop.time(), sentence, "", (), ""))

    # -- the course of a run ----------------------------------------------------------------------------------

    async def live(self) -> None:
        """Load and blows, healing, rest."""
        drawn = self.plan
        for kind, number in (("worker", drawn.workers), ("goals", drawn.goal_services), ("door", drawn.doors)):
            for _ in range(number):
                self.hire(kind)
        for session_id, birth in drawn.sessions.items():
            if birth["onFailure"] == "hold" or self.rng.random() < 0.3:
                created = at_once(self.kept.create(session_id, birth))
                self.acted(Process("birth"), Call("create", (session_id, birth), {}), created, None)
        asked = self.load.plan(drawn.operations, drawn.load_s)
        for strike in [self._blow] * drawn.blows + [self.jump] * drawn.jumps:
            self.loop.later(self.rng.uniform(0, drawn.load_s), strike)
        await asyncio.wait(asked)
        for task in asked:
            task.result()
        self.heal()
        await self._rest()

    def _blow(self) -> None:
        """The nemesis strikes somebody."""
        if self.healed:
            return
        crew = self.rng.choices(self.crews, [3 if crew.kind == "worker" else 1 for crew in self.crews])[0]
        blows = (self.kill, self.kill, self.freeze, self.freeze, self.cut, self.drain, self.drain)
        self.rng.choice(blows)(crew.process)

    def heal(self) -> None:
        """Fine weather, everybody back (rule 2)."""
        self._tell("healed")
        self.healed, self.weather = True, WEATHERS["fine"]
        self.cut_until.clear()
        self.clock.offset_ms = self.offset_max_ms
        for process in self.processes:
            self.loop.thaw(process)
        for kind in ("worker", "goals"):
            if not any(not crew.stop.is_set() for crew in self.working(kind)):
                self.hire(kind)

    async def _rest(self) -> None:
        healed_at = self.loop.time()
        while self.loop.time() < healed_at + REST_S:
            if not any(self._busy(session) for session in self.sessions.values()):
                self.rested_s = self.loop.time() - healed_at
                return
            await asyncio.sleep(LOOK_S)

    def _busy(self, session: Session) -> bool:
        """Something is still to be done, or will be when its time comes."""
        now = self.clock.now_ms()
        later = any(not life.due or (life.expires_at or now + 1) <= now for life in session.waiting.values())
        goes_on = session.goal is not None and session.goal["phase"] == ACTIVE and session.hold is None
        return session.status is Status.RUNNING or session.open or later or goes_on

    def defects(self) -> list[tuple[str, float]]:
        """Workers that dropped sessions because something in them failed that may not, and how many."""
        found = [(worker.name, worker.metrics.lost.labels(reason="defect")) for worker in self.workers]
        return [(name, number) for name, counter in found if (number := counter._value.get())]

    def fingerprint(self) -> str:
        """One hash of all ledgers."""
        digest = hashlib.blake2b(digest_size=16)
        for session_id, ledger in sorted(self.witness.ledgers.items()):
            digest.update(session_id.encode())
            for event in ledger:
                digest.update(encode([event.seq, event.type, event.time, event.epoch, event.data]))
        return digest.hexdigest()


@cache
def door_metrics() -> Metrics:
    """What doors count; nobody reads it here."""
    return Metrics()


async def _said(hear: Callable[..., None], word: tuple[Any, ...]) -> None:
    hear(*word)


async def _reconcile(continuation: Continuation, stop: asyncio.Event) -> None:
    """The loop of the goal service, without its ears."""
    while not stop.is_set():
        await continuation.reconcile()
        await asyncio.wait({asyncio.ensure_future(stop.wait())}, timeout=RECONCILE_S)


@contextmanager
def quiet() -> Iterator[None]:
    """No logs: what is broken on purpose would fill them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def run(seed: int) -> World:
    """Live through the world of a seed. `random` is seeded too: the worker's jitter comes from there."""
    random.seed(seed)
    world = World(seed)
    with quiet():
        try:
            world.loop.run_until_complete(world.live())
        except Exception as error:  # noqa: BLE001 - whatever ends a run is what is wrong with it
            world.witness.complain(f"the run ended with {error!r}")
        finally:
            world.loop.clear(world.processes)
    return world

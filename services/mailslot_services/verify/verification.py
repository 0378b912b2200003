"""One verification from its first to its last act.

    database, empty ──> workers, clients ──> faults … ──> quiet ──> everything rests ──> ledgers read ──> checked
                                                                                                └─> database, empty

Rule 1: the user's own database is not looked into. Only the server is shared.
Rule 2: whatever ends it (a signal, a failure), the workers have ended and the database was emptied when it returns.
Rule 3: rest is waited for as long as anything moves; when nothing has moved for a lease and REST_S, it will not come.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final

from redis.asyncio import Redis

from mailslot_core.errors import CoreError, StoreFault
from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Status
from mailslot_core.settings import StoreSettings, WorkerSettings
from mailslot_services.boot import env_name
from mailslot_services.child import ChildFailed, Tell
from mailslot_services.verify.checker import check
from mailslot_services.verify.database import Database, borrowed, reached, with_database
from mailslot_services.verify.fault import Faults
from mailslot_services.verify.ledger import Entry, Unreadable, read
from mailslot_services.verify.load import Load
from mailslot_services.verify.report import Finding, Kind, Report
from mailslot_services.verify.settings import HARM_DUE_S, VerifySettings
from mailslot_services.verify.workforce import Workforce

AGENTS_FILE: Final = Path(__file__).with_name("agents.toml")
SWEEP_MS: Final = 200
"""How often our workers look for lapsed leases: part of every recovery time."""
CONCURRENCY: Final = 32
"""Sessions that one of our workers drives at once."""
REST_S: Final = 20.0
"""How long nothing may move, beyond a lease, before we stop waiting: a worker needs a few seconds to start."""
LOOK_S: Final = 0.25
"""How often we look whether everything rests."""
PAGE_ENTRIES: Final = 1_000
"""Entries of a ledger that are read at a time."""
SEED_MAX: Final = 2**32


@dataclass
class Outcome:
    """What a verification came to."""

    seed: int
    database: Database
    workers: int
    rate: float
    lease_ms: int
    durability: str
    kept: bool
    chaos_s: float = 0.0  # that harm was to be done
    load_s: float = 0.0
    rest_s: float | None = None  # until everything rested, None: it never did
    sent: int = 0
    fenced: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ended_by_themselves: int = 0
    hindered: str | None = None  # why connections could not be cut
    failure: str | None = None  # why workers could not be kept running
    report: Report = field(default_factory=Report)

    @property
    def sound(self) -> bool:
        """Nothing is broken, everything came to rest, something was there to lose, and harm that was due was done."""
        return (
            self.report.sound
            and self.rest_s is not None
            and self.report.receipts > 0
            and not (self.failure or self.store_faults or self.unharmed)
        )

    @property
    def unharmed(self) -> bool:
        """Chaos went on for long enough, and no kill, or no stop, has hit a living worker."""
        return self.chaos_s >= HARM_DUE_S and not (self.faults["kill"] and self.faults["stop"])

    @property
    def store_faults(self) -> int:
        """How often the store failed inside an act."""
        return self.report.refusals[StoreFault.code]


Progress = Callable[[str], None]


async def verify(settings: VerifySettings, progress: Progress, tell: Tell) -> Outcome:
    """Load, hurt, wait, check (see the module). Raises `NoDatabase`, `StoreUnavailable`."""
    seed = SystemRandom().randrange(SEED_MAX) if settings.seed is None else settings.seed
    name = f"mailslot-verify-{seed}"
    async with borrowed(settings, settings.database, name, keep=settings.keep) as database:
        outcome = Outcome(
            seed, database, settings.workers, settings.rate, settings.lease_ms, settings.durability, settings.keep
        )
        outcome.chaos_s = settings.chaos_s
        plan = Plan(settings, database, name, outcome, progress)
        async with plan.store("senders") as store, reached(plan.settings_of("control")) as control:
            await run(plan, store, control, tell)
    return outcome


@dataclass
class Plan:
    """What all parts of a verification share."""

    settings: VerifySettings
    database: Database
    name: str
    outcome: Outcome
    progress: Progress

    def settings_of(self, who: str) -> StoreSettings:
        """The store's settings for connections of this name."""
        url = with_database(self.database.url, self.database.number, self.name_of(who))
        fields = {name: getattr(self.settings, name) for name in StoreSettings.model_fields}
        return StoreSettings(**{**fields, "redis_url": url, "log_level": "error"})

    def name_of(self, who: str) -> str:
        """What the server shows connections as."""
        return f"{self.name}-{who}"

    @asynccontextmanager
    async def store(self, who: str) -> AsyncIterator[RedisStore]:
        """The store on our database."""
        async with RedisStore.connect(self.settings_of(who)) as store:
            yield store

    def environment(self, number: int) -> dict[str, str]:
        """The options of a worker. Those of the user's environment count where none is set here."""
        store = self.settings_of(f"worker-{number}")
        options = {env_name(StoreSettings, name): str(getattr(store, name)) for name in StoreSettings.model_fields}
        ours = {
            "lease_ms": self.settings.lease_ms,
            "sweep_ms": SWEEP_MS,
            "concurrency": CONCURRENCY,
            "agents": AGENTS_FILE,
            "metrics_port": 0,
            "log_level": self.settings.log_level,
        }
        return options | {env_name(WorkerSettings, name): str(value) for name, value in ours.items()}


async def run(plan: Plan, store: RedisStore, control: Redis, tell: Tell) -> None:
    """Everything between an empty database and a checked one."""
    settings, outcome = plan.settings, plan.outcome
    names = [f"verify-{outcome.seed}-{number}" for number in range(settings.sessions)]
    load = Load(store, names, Random(f"load {outcome.seed}"), await skew_ms(control))  # noqa: S311 - no secrets
    workforce = Workforce({number: plan.environment(number) for number in range(1, settings.workers + 1)}, tell)
    connections = (plan.name_of("worker-"), plan.name_of("senders"))
    chance = Random(f"faults {outcome.seed}")  # noqa: S311 - as above
    faults = Faults(workforce, control, chance, settings.lease_ms, connections)
    workforce.start()
    try:
        await unless_broken(workforce, loaded(plan, load, faults))
        await unless_broken(workforce, rested(plan, load, faults, store))
    except ChildFailed as error:
        outcome.failure = str(error)  # what was kept is checked all the same
    finally:
        await faults.end()
        await load.end()
        await workforce.end()
    outcome.sent, outcome.ended_by_themselves = load.sent, workforce.ended_by_themselves
    outcome.faults, outcome.hindered = faults.counts, faults.hindered
    outcome.fenced = sum([(await store.load(partition)).fenced for partition in range(store.partitions)])
    plan.progress(f"checking {len(names)} ledgers")
    outcome.report = await checked(control, store.partitions, load)


async def skew_ms(client: Redis) -> int:
    """How far the store's clock is ahead of ours."""
    seconds, micros = await client.time()
    return int(seconds) * 1000 + int(micros) // 1000 - time.time_ns() // 1_000_000


async def unless_broken(workforce: Workforce, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; raise `ChildFailed` as soon as a worker cannot be kept running."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(workforce.failure())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


# -- load and faults ------------------------------------------------------------------------------------------


async def loaded(plan: Plan, load: Load, faults: Faults) -> None:
    """Messages are sent, and harm is done, for as long as was asked."""
    began = time.monotonic()
    sending = asyncio.ensure_future(load.run(plan.settings.rate))
    raging = [asyncio.ensure_future(faults.rage())] if plan.settings.chaos_s else []
    try:
        while (gone := time.monotonic() - began) < plan.settings.load_s:
            plan.progress(progress_line(plan, load, faults, gone))
            left = plan.settings.load_s - gone
            done, _ = await asyncio.wait([sending, *raging], timeout=min(1.0, left))
            for task in done:
                task.result()  # neither ends by itself: this raises what ended it
    finally:
        for task in (sending, *raging):
            task.cancel()
        await asyncio.wait([sending, *raging])
    plan.outcome.load_s = time.monotonic() - began


def progress_line(plan: Plan, load: Load, faults: Faults, gone_s: float) -> str:
    """What is going on, in one line."""
    seen = load.seen
    words = [
        f"{gone_s:3.0f} of {plan.settings.load_s:.0f} s",
        f"{load.sent} messages",
        f"{len(seen.receipts)} receipts",
        f"{len(seen.unknowns)} unknown",
    ]
    words += [f"{count} {kind}s" for kind, count in sorted(faults.counts.items())]
    return " · ".join(words)


# -- rest -----------------------------------------------------------------------------------------------------


async def rested(plan: Plan, load: Load, faults: Faults, store: RedisStore) -> None:
    """No harm is done any more; everything was answered, and either all sessions rest or they never will (rule 3)."""
    await faults.end()
    began = time.monotonic()
    finishing = asyncio.ensure_future(load.finish())
    try:
        moved, seen = time.monotonic(), (-1, -1)
        while time.monotonic() - moved < plan.settings.lease_ms / 1000 + REST_S:
            left, now = await unrest(store, load.sessions)
            if finishing.done() and not left:
                plan.outcome.rest_s = time.monotonic() - began
                break
            if now != seen:
                moved, seen = time.monotonic(), now
            plan.progress(f"waiting for {left or 'no'} sessions to come to rest ({time.monotonic() - began:.0f} s)")
            await asyncio.sleep(LOOK_S)
    finally:
        finishing.cancel()
        await asyncio.wait({finishing})
    if not finishing.cancelled():
        finishing.result()


async def unrest(store: RedisStore, sessions: list[str]) -> tuple[int, tuple[int, int]]:
    """How many sessions do not rest, and a number that changes whenever anything moves."""
    try:
        levels = await asyncio.gather(*(store.level(session_id) for session_id in sessions))
    except CoreError:
        return len(sessions), (-1, -1)
    restless = sum(level is not None and (level.status is not Status.IDLE or level.pending > 0) for level in levels)
    return restless, (sum(level.cursor for level in levels if level), len(levels))


# -- the check ------------------------------------------------------------------------------------------------


async def checked(client: Redis, partitions: int, load: Load) -> Report:
    """The ledgers as they are in the server, against what clients were told."""
    histories: dict[str, list[Entry]] = {}
    damage: list[Finding] = []
    for session_id in load.sessions:
        try:
            histories[session_id] = await history(client, keys.session_key(session_id, partitions, "ledger"))
        except Unreadable as error:
            damage.append(Finding(Kind.UNREADABLE, session_id, 0, str(error)))
    report = check(histories, load.seen)
    report.findings += damage
    return report


async def history(client: Redis, key: str) -> list[Entry]:
    """A whole ledger, as raw entries of its stream."""
    entries: list[Entry] = []
    start: bytes = b"-"
    while True:
        page: Any = await client.xrange(key, start, "+", count=PAGE_ENTRIES)
        if not page:
            return entries
        entries += read(page)
        start = b"(" + page[-1][0]

"""`mailslot doctor`: is everything that is kept what the ledgers say, and can the server keep what is promised.

    configuration -----> findings
    partitions --------> findings     wrong   something is not as promised; exit 1
    each session:                     advice  it works, and would work better otherwise
      indexes at seq n
      ledger 1 .. n --check, fold--> the same indexes?  --> findings

Rule 1: it only reads, and works on a live system. The indexes come in one transaction with the seq they stand at, and
        a ledger only grows: its first n events must fold to exactly these indexes, whatever was appended meanwhile.
Rule 2: message records that the sweep has forgotten may be missing, but only settled ones (semantics M3, L2).
Rule 3: a finding names the thing, its state, and what it should be. One finding, one line.
Rule 4: damage of any kind is a finding, never a traceback: what cannot be read is said to be unreadable.

Exit codes: 0 nothing wrong, 1 something is wrong, 2 wrong usage, 3 the store cannot be reached.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import Field, field_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import SettingsConfigDict
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from mailslot_contracts.channels import INTAKE
from mailslot_contracts.codec import unpack
from mailslot_contracts.ids import check_id
from mailslot_contracts.problems import CodecError, ContractError
from mailslot_core import goal as goals
from mailslot_core import invariants
from mailslot_core.errors import CursorExpired, Misconfigured, OutcomeUnknown, StoreUnavailable
from mailslot_core.redis import keys, server
from mailslot_core.redis.functions import SOURCE
from mailslot_core.redis.store import RedisStore, connect
from mailslot_core.session import TERMINAL, Data, Event, Session, Status, fold, indexes
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Level, Store
from mailslot_services.boot import EXIT_FAILED, EXIT_OK, EXIT_SIGNALLED, parse, run_until_signal

DESCRIPTION: Final = """\
Compare every ledger with what is kept of it, and the server with what is promised. It only reads, and works on a
live system.

exit codes: 0 nothing wrong, 1 something is wrong, 2 wrong usage, 3 the store cannot be reached"""

EXIT_UNREACHABLE: Final = 3
PAGE_EVENTS: Final = 1_000
"""Events that are read at a time."""
PAGE_SESSIONS: Final = 500
"""Session names that are read at a time."""
AT_ONCE: Final = 4
"""Sessions examined at the same time: bounds memory to as many ledgers."""
TRIES_MAX: Final = 20
"""How often the level and the indexes of a busy session are read until both stand at the same seq."""
READY_MS_MAX: Final = 60_000
"""A session that waits longer than this for a worker is worth a word."""
MEMORY_SHARE_MAX: Final = 0.8
"""Of `maxmemory`; above it the server is close to refusing messages."""
STREAM_NODE_BYTES_ADVISED: Final = 1_024
"""A ledger costs at least one stream node: 4.3 KB with the server's default of 4096, 1.7 KB with this."""
PARTITIONS_MAX: Final = 1_024
"""As many as `StoreSettings.partitions` allows."""
SCAN_COUNT: Final = 1_000
"""Keys that the server looks at in one go when the configuration is lost."""
DAMAGE: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading, folding and comparing damaged data may raise: once somebody wrote into it, a field can be anything, of
any size and depth. An error of the server or of the connection is none of these, and ends the examination."""
TYPES: Final = {
    **dict.fromkeys(("config", "state", "messages", "counts"), "hash"),
    **dict.fromkeys(("turn", "step", "ready", "active", "leases", "forget", "sessions"), "zset"),
    **dict.fromkeys(("ledger", "idle"), "stream"),
    "bell": "list",
    "goals": "set",
}
"""What the server calls the type of each key; `keys` says what they are for."""


class DoctorSettings(StoreSettings):
    """What to examine, and how to tell."""

    model_config = SettingsConfigDict(validate_by_name=True, validate_by_alias=True)

    session: str = Field("", description="examine this session alone")
    json_: bool = Field(False, validation_alias="MAILSLOT_JSON", description="print one JSON document instead of lines")

    @field_validator("session")
    @classmethod
    def _is_an_id(cls, name: str) -> str:
        return check_id(name, "session") if name else name


class Severity(StrEnum):
    """How much a finding matters."""

    WRONG = "wrong"
    ADVICE = "advice"


class Finding(NamedTuple):
    """One thing that was found. `subject` is `server`, `partition 7` or `session s-1`."""

    severity: Severity
    subject: str
    sentence: str


def wrong(subject: str, sentence: str) -> Finding:
    """Something is not as promised."""
    return Finding(Severity.WRONG, subject, sentence)


def advice(subject: str, sentence: str) -> Finding:
    """Something could be better."""
    return Finding(Severity.ADVICE, subject, sentence)


class PartitionFacts(NamedTuple):
    """The queue of one partition."""

    partition: int
    sessions: int
    ready: int
    oldest_ready_ms: int
    leased: int
    lapsed: int
    active: int
    unserved: int
    fenced_writes: int


@dataclass
class Report:
    """What an examination came to."""

    server: dict[str, Any] = field(default_factory=dict)
    partitions: list[PartitionFacts] = field(default_factory=list)
    sessions: int = 0
    events: int = 0
    conservation: int = 0
    differing: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Nothing is wrong; advice does not count."""
        return not any(finding.severity is Severity.WRONG for finding in self.findings)


# -- damage (rule 4) ----------------------------------------------------------------------------------------


class Unreadable(Exception):
    """`{what} cannot be read ({why})`: a finding."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """What is damaged comes out as `Unreadable`, under its name."""
    try:
        yield
    except DAMAGE as error:
        raise Unreadable(f"{what} cannot be read ({reason(error)})") from error


def reason(error: Exception) -> str:
    """An error in words. Ours are sentences; the others need their type to be understood."""
    said = str(error)
    return said if isinstance(error, ContractError) else ": ".join(filter(None, (type(error).__name__, said)))


async def mistyped(client: Redis, named: Mapping[str, str]) -> dict[str, str]:
    """A sentence for each of these keys that is not of its type; a key that is not there is of every type."""
    async with client.pipeline(transaction=False) as pipe:
        for key in named.values():
            pipe.type(key)
        kinds = [kind.decode() for kind in await pipe.execute()]
    return {
        name: f"{key} is a {kind}, not a {TYPES[name]}"
        for (name, key), kind in zip(named.items(), kinds, strict=True)
        if kind not in ("none", TYPES[name])
    }


# -- a session ----------------------------------------------------------------------------------------------


@dataclass
class Examined:
    """One session's ledger against its indexes."""

    events: int = 0
    conservation: int = 0
    violations: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


async def examine(store: Store, session_id: str) -> Examined:
    """Read a session and compare; works while others write to it (rule 1). `Unreadable` when its indexes are."""
    found = Examined()
    level, kept = await read_indexes(store, session_id)
    if level is None or kept is None:
        found.differences.append("is listed and has no state")
        return found
    events, unreadable = await read_ledger(store, session_id, newest=kept["seq"])
    found.events = len(events)
    found.conservation = level.conservation
    if level.conservation:
        found.differences.append(f"conservation is {level.conservation}: queued messages were lost or counted twice")
    if unreadable:
        found.differences.append(unreadable)
        return found
    found.violations, folded = check(session_id, events)
    if folded is not None:
        found.conservation = level.conservation or folded.conservation
        with reading("indexes"):
            found.differences += differences(folded, kept)
        if level.cursor == folded.seq:
            found.differences += pending_differences(folded, level)
    return found


async def read_indexes(store: Store, session_id: str) -> tuple[Level | None, Data | None]:
    """The level and the indexes at the same seq, if the session keeps still for as long as that takes."""
    level, kept = await _read_once(store, session_id)
    for _ in range(TRIES_MAX):
        if level is None or kept is None or level.cursor == kept["seq"]:
            break
        level, kept = await _read_once(store, session_id)
    return level, kept


async def _read_once(store: Store, session_id: str) -> tuple[Level | None, Data | None]:
    with reading("state"):
        level = await store.level(session_id)
    with reading("lanes or messages"):  # the state belongs to it, and was just read
        return level, await store.indexes(session_id)


async def read_ledger(store: Store, session_id: str, *, newest: int) -> tuple[list[Event], str | None]:
    """The events up to seq `newest`, and why reading ended before that, if it did."""
    events: list[Event] = []
    while len(events) < newest:
        after = events[-1].seq if events else 0
        try:
            page = await store.events(session_id, after=after, limit=min(PAGE_EVENTS, newest - len(events)))
        except CursorExpired as gap:
            if gap.oldest > gap.newest:
                return events, f"ledger is empty, the indexes stand at seq {newest}"
            return events, missing(after + 1, gap.oldest, newest)
        except DAMAGE as error:
            return events, f"ledger has an event after seq {after} that cannot be read: {reason(error)}"
        if not page:
            return events, missing(after + 1, after, newest)
        for event in page:
            if event.seq != len(events) + 1:
                return events, missing(len(events) + 1, event.seq, newest)
            events.append(event)
    return events, None


def missing(seq: int, following: int, newest: int) -> str:
    """The sentence for an event that is not there; `following` is the next one that is, if that is known."""
    if following > seq:
        return f"ledger has no event {seq}: it goes on at seq {following}"
    return f"ledger has no event {seq}, the indexes stand at seq {newest}"


def check(session_id: str, events: Sequence[Event]) -> tuple[list[str], Session | None]:
    """What the ledger breaks, and its fold; None when there is none (rule 4)."""
    try:
        broken = invariants.violations(events)
        return broken, fold(session_id, events)
    except DAMAGE as error:
        unfolded = f"ledger cannot be folded ({reason(error)})"
    return list(invariants.order(events)) or [unfolded], None


def differences(folded: Session, kept: Data) -> list[str]:
    """Each index that is not what the ledger gives, messages one by one (rule 2)."""
    given = indexes(folded)
    records = given.pop("messages")
    found = [f"index {said}" for said in unlike(kept, given)]
    messages: Mapping[str, Any] = kept["messages"]
    for message_id, record in records.items():
        if message_id in messages:
            found += [f"message {message_id}: {said}" for said in unlike(messages[message_id], record)]
        elif record["state"] not in TERMINAL:
            found.append(f"message {message_id} has no record, the ledger says it is {record['state']}")
    strangers = sorted(messages.keys() - records.keys())
    return found + [f"message {message_id} has a record, the ledger does not know it" for message_id in strangers]


def unlike(kept: Data, given: Data) -> list[str]:
    """What differs: `state is 'queued', the ledger gives 'admitted'`."""
    names = [name for name in sorted(given) if kept.get(name) != given[name]]
    return [f"{name} is {kept.get(name)!r}, the ledger gives {given[name]!r}" for name in names]


def pending_differences(folded: Session, level: Level) -> list[str]:
    """The counter of waiting messages, which only the level shows."""
    if level.pending == folded.pending:
        return []
    return [f"{level.pending} messages are counted as pending, the ledger gives {folded.pending}"]


# -- where a session stands in its partition's queues -------------------------------------------------------


class Placement(NamedTuple):
    """A session's state and its places, read in one transaction."""

    running: bool
    owned: bool
    pursues: bool  # has an active goal
    active: bool
    leased: bool
    ready: bool
    listed: bool  # in the set that goal reconciling starts from


def unserved(place: Placement) -> bool:
    """Running, and no worker has it or will be handed it."""
    return place.running and not place.leased and not place.ready


PLACES: Final[tuple[tuple[str, Callable[[Placement], bool]], ...]] = (
    ("is running and not in the active set, so no sweep looks at it (R1)", lambda p: p.running and not p.active),
    ("is idle and in the active set", lambda p: p.active and not p.running),
    ("has an owner and no lease, so it would never be taken from it (R1)", lambda p: p.owned and not p.leased),
    ("has a lease and no owner", lambda p: p.leased and not p.owned),
    ("is running, and neither leased nor ready: nobody serves it (R1)", unserved),
    ("has an active goal, and reconciling does not look at it (G8)", lambda p: p.pursues and not p.listed),
    ("is in the goal set and has no active goal", lambda p: p.listed and not p.pursues),
)


async def read_placement(client: Redis, session_id: str, partitions: int) -> Placement:
    """State and places of a session at one moment."""
    partition = keys.partition_of(session_id, partitions)
    async with client.pipeline(transaction=True) as pipe:
        pipe.hmget(keys.session_key(session_id, partitions, "state"), ["status", "owner", "goal"])
        for name in ("active", "leases", "ready"):
            pipe.zscore(keys.partition_key(partition, name), session_id)
        pipe.sismember(keys.partition_key(partition, "goals"), session_id)
        (status, owner, packed), active, lease, ready, listed = await pipe.execute()
    return Placement(
        running=status == Status.RUNNING.encode(),
        owned=bool(owner),
        pursues=is_active(packed),
        active=active is not None,
        leased=lease is not None,
        ready=ready is not None,
        listed=bool(listed),
    )


def is_active(packed: bytes | None) -> bool:
    """Whether this is an active goal. That it is no goal at all is said where the indexes are compared."""
    try:
        goal = unpack(packed) if packed else None
    except CodecError:
        return False
    return isinstance(goal, dict) and goal.get("phase") == goals.ACTIVE


# -- the server ---------------------------------------------------------------------------------------------


async def examine_server(client: Redis, settings: StoreSettings, report: Report) -> int | None:
    """Whether the server can keep what is promised; the number of partitions to examine, None when it is not known."""
    info = await client.info("all")
    partitions, damage = await read_partitions(client)
    asked = settings.partitions if "partitions" in settings.model_fields_set else None
    report.server = {
        "version": version(info),
        "partitions": partitions,
        "memoryBytes": info.get("used_memory"),
        "memoryBytesMax": info.get("maxmemory") or None,
        "appendOnly": bool(info.get("aof_enabled")),
    }
    report.findings += [finding for look in SERVER_LOOKS for finding in look(info)]
    if damage:
        report.findings.append(wrong("server", damage))
    elif partitions is not None and asked not in (None, partitions):
        sentence = f"has {partitions} partitions, not {asked}: set --partitions {partitions}"
        report.findings.append(wrong("server", sentence))
    report.findings += await durability(client, settings)
    report.findings += await library(client)
    report.findings += await stream_nodes(client)
    return asked if damage else partitions


async def read_partitions(client: Redis) -> tuple[int | None, str | None]:
    """The number of partitions that the database has, and what is wrong with it. A new database has none."""
    damage = await mistyped(client, {"config": keys.CONFIG})
    if damage:
        return None, damage["config"]
    kept = await client.hget(keys.CONFIG, "partitions")
    if kept is None:
        return None, await lost_partitions(client)
    if len(kept) <= len(str(PARTITIONS_MAX)) and kept.isdigit() and 1 <= int(kept) <= PARTITIONS_MAX:
        return int(kept), None
    return None, f"{keys.CONFIG} gives {kept[:20]!r} partitions, not a number from 1 to {PARTITIONS_MAX}"


async def lost_partitions(client: Redis) -> str | None:
    """What to say when something of ours is there and the number of partitions is not. Letters may be sent to the
    broker door before the first service starts; who reads them is a service."""
    async for name in client.scan_iter(match="mailslot:*", count=SCAN_COUNT):
        if name != INTAKE.encode() or await _has_readers(client, INTAKE):
            return (
                f"keeps {name.decode(errors='backslashreplace')} and no number of partitions in {keys.CONFIG}: "
                "start a service with the --partitions that it had"
            )
    return None


async def _has_readers(client: Redis, stream: str) -> bool:
    return await client.type(stream) == b"stream" and bool(await client.xinfo_groups(stream))


def version(info: Mapping[str, Any]) -> str:
    """Name and version as the server calls itself; forks keep a `redis_version` for old clients."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'of unknown version')}"


def eviction(info: Mapping[str, Any]) -> list[Finding]:
    """A server that evicts keys loses ledgers."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    return [wrong("server", f"may evict keys (maxmemory-policy {policy}): set maxmemory-policy noeviction")]


def memory(info: Mapping[str, Any]) -> list[Finding]:
    """A server without a limit is ended by the machine's, a full one refuses messages."""
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        return [advice("server", "has no memory limit: set maxmemory below what the machine has")]
    if used > limit * MEMORY_SHARE_MAX:
        return [advice("server", f"uses {used * 100 // limit} % of maxmemory; a full server refuses new messages")]
    return []


def role(info: Mapping[str, Any]) -> list[Finding]:
    """A replica cannot be written to."""
    if info.get("role", "master") == "master":
        return []
    return [wrong("server", f"is a replica of {info.get('master_host')}: name its primary with --redis-url")]


def files(info: Mapping[str, Any]) -> list[Finding]:
    """Whether what is kept reaches the disk."""
    broken = [name for name in FILE_STATES if info.get(name, "ok") != "ok"]
    found = [
        wrong("server", f"cannot write its files ({name} {info[name]}): see its log and its disk") for name in broken
    ]
    if not info.get("aof_enabled"):
        found.append(advice("server", "keeps no append-only file, so a restart loses messages: set appendonly yes"))
    return found


FILE_STATES: Final = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
SERVER_LOOKS: Final[tuple[Callable[[Mapping[str, Any]], list[Finding]], ...]] = (role, eviction, memory, files)


async def durability(client: Redis, settings: StoreSettings) -> list[Finding]:
    """Whether the configured level can be given. A level nobody asked for is a word of advice (semantics M2)."""
    try:
        await server.barrier(client, settings)
    except Misconfigured as error:
        asked = "durability" in settings.model_fields_set
        return [Finding(Severity.WRONG if asked else Severity.ADVICE, "server", str(error))]
    return []


async def library(client: Redis) -> list[Finding]:
    """The functions on the server are the ones of this version."""
    try:
        found = await client.function_list(library="mailslot_v1", withcode=True)
    except ResponseError as error:
        return [wrong("server", f"has no functions ({error}): mailslot needs Redis 7.0 or Valkey 7.2 or newer")]
    if found and SOURCE.encode() not in _flat(found):
        return [advice("server", "has functions of another version: services of two versions are running, or were")]
    return []


def _flat(reply: Any) -> list[Any]:
    """Every leaf of a reply, whichever protocol nested it."""
    if isinstance(reply, Mapping):
        return _flat(list(reply.values()))
    if isinstance(reply, list | tuple):
        return [leaf for part in reply for leaf in _flat(part)]
    return [reply]


async def stream_nodes(client: Redis) -> list[Finding]:
    """How much an almost empty ledger costs. Not every server lets us ask."""
    try:
        found = await client.config_get("stream-node-max-bytes")
    except ResponseError:
        return []
    size_bytes = int(found.get("stream-node-max-bytes") or STREAM_NODE_BYTES_ADVISED)
    if 0 < size_bytes <= STREAM_NODE_BYTES_ADVISED:
        return []
    sentence = f"spends {size_bytes} bytes on the least ledger: set stream-node-max-bytes {STREAM_NODE_BYTES_ADVISED}"
    return [advice("server", sentence)]


# -- everything ---------------------------------------------------------------------------------------------


class Doctor:
    """Examines one database."""

    def __init__(self, client: Redis, store: RedisStore, settings: DoctorSettings, report: Report) -> None:
        self._client = client
        self._store = store
        self._settings = settings
        self._report = report
        self._unserved = dict.fromkeys(range(store.partitions), 0)
        self._damaged: dict[int, dict[str, str]] = {}  # partition -> its keys that are not of their type
        self._tell_progress = sys.stderr.isatty()

    async def examine_everything(self) -> None:
        """Every session, then the queues of the partitions."""
        for partition in range(self._store.partitions):
            await self._examine_keys(partition)
        async for names in self._sessions():
            for start in range(0, len(names), AT_ONCE):
                await asyncio.gather(*(self._examine(name) for name in names[start : start + AT_ONCE]))
        if self._tell_progress and self._report.sessions:
            sys.stderr.write("\r\033[K")
        for partition in sorted(self._unserved.keys() - self._damaged.keys()):
            try:
                await self._examine_partition(partition)
            except Unreadable as damage:
                self._report.findings.append(wrong(f"partition {partition}", str(damage)))

    async def _examine_keys(self, partition: int) -> None:
        named = dict(zip(keys.PARTITION_KEYS, keys.partition_keys(partition), strict=True))
        damage = await mistyped(self._client, named)
        if damage:
            self._damaged[partition] = damage
            self._report.findings += [wrong(f"partition {partition}", sentence) for sentence in damage.values()]

    async def _sessions(self) -> AsyncIterator[list[str]]:
        if self._settings.session:
            if await self._client.exists(self._key(self._settings.session, "state")):
                yield [self._settings.session]
            else:
                self._report.findings.append(wrong(f"session {self._settings.session}", "does not exist"))
            return
        for partition in range(self._store.partitions):
            if "sessions" not in self._damaged.get(partition, ()):
                async for names in self._listed(partition):
                    yield names

    async def _listed(self, partition: int) -> AsyncIterator[list[str]]:
        """The names that a partition lists, a page at a time; what is no name is a finding."""
        start: bytes = b"-"
        while members := await self._list_page(partition, start):
            names = []
            for member in members:
                try:
                    names.append(check_id(member.decode(), "it"))
                except ValueError as error:
                    sentence = f"lists {member!r}, which is no session's name ({reason(error)})"
                    self._report.findings.append(wrong(f"partition {partition}", sentence))
            yield names
            start = b"(" + members[-1]

    async def _list_page(self, partition: int, start: bytes) -> list[bytes]:
        key = keys.partition_key(partition, "sessions")
        found: Any = await self._client.zrangebylex(key, start, b"+", start=0, num=PAGE_SESSIONS)
        return list(found)

    def _key(self, session_id: str, name: str) -> str:
        return keys.session_key(session_id, self._store.partitions, name)

    async def _examine(self, session_id: str) -> None:
        found, place = await self._read(session_id)
        report, subject = self._report, f"session {session_id}"
        report.sessions += 1
        report.events += found.events
        report.conservation += abs(found.conservation)
        report.differing += bool(found.differences)
        sentences = [*found.violations, *found.differences]
        if place is not None:
            self._unserved[keys.partition_of(session_id, self._store.partitions)] += unserved(place)
            sentences += [said for said, holds in PLACES if holds(place)]
        report.findings += [wrong(subject, sentence) for sentence in sentences]
        if self._tell_progress:
            sys.stderr.write(f"\r\033[K{report.sessions} sessions, {report.events} events examined")

    async def _read(self, session_id: str) -> tuple[Examined, Placement | None]:
        """The session against its ledger, and its places. Damage ends it here, and nobody else's examination."""
        damage = await mistyped(self._client, {name: self._key(session_id, name) for name in keys.SESSION_KEYS})
        if damage:
            return Examined(differences=list(damage.values())), None
        try:
            found = await examine(self._store, session_id)
        except Unreadable as error:
            return Examined(differences=[str(error)]), None
        if keys.partition_of(session_id, self._store.partitions) in self._damaged:
            return found, None
        return found, await read_placement(self._client, session_id, self._store.partitions)

    async def _examine_partition(self, partition: int) -> None:
        with reading("queue"):
            load = await self._store.load(partition)
        seconds, micros = await self._client.time()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        lapsed = int(await self._client.zcount(keys.partition_key(partition, "leases"), "-inf", now_ms))
        self._report.partitions.append(
            PartitionFacts(
                partition=partition,
                sessions=load.sessions,
                ready=load.ready,
                oldest_ready_ms=load.oldest_ready_ms,
                leased=load.leased,
                lapsed=lapsed,
                active=load.active,
                unserved=self._unserved[partition],
                fenced_writes=load.fenced,
            )
        )
        if load.oldest_ready_ms > READY_MS_MAX:
            sentence = f"has a session that waits for a worker since {load.oldest_ready_ms // 1000} s: is one running?"
            self._report.findings.append(advice(f"partition {partition}", sentence))


async def diagnose(settings: DoctorSettings) -> Report:
    """Examine the server and what it keeps. Raises `StoreUnavailable` when it cannot be reached."""
    report = Report()
    async with _client(settings) as client:
        partitions = await examine_server(client, settings, report)
        if partitions is None:
            return report
        store = RedisStore(client, settings.model_copy(update={"partitions": partitions}), None)
        try:
            await Doctor(client, store, settings, report).examine_everything()
        finally:
            await store.close()
    return report


@asynccontextmanager
async def _client(settings: StoreSettings) -> AsyncIterator[Redis]:
    client = connect(settings)
    try:
        await client.ping()
        yield client
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"the store cannot be examined: {error}") from error
    finally:
        await client.aclose()


# -- telling ------------------------------------------------------------------------------------------------


def lines(report: Report) -> list[str]:
    """The report for people: one line a finding, then what was looked at, then the summary."""
    told = [f"{finding.severity:<7} {finding.subject}: {finding.sentence}" for finding in report.findings]
    told.append(server_line(report))
    told += [partition_line(facts) for facts in report.partitions if facts.active or facts.ready or facts.leased]
    return [*told, summary(report)]


def server_line(report: Report) -> str:
    """Which server it is."""
    partitions = report.server["partitions"]
    kept = f"{partitions} partitions" if partitions else "no number of partitions"
    return f"server  {report.server['version']} · {kept} · {_mebibytes(report.server['memoryBytes'])}"


def _mebibytes(size_bytes: int | None) -> str:
    return "memory unknown" if size_bytes is None else f"{size_bytes / 1024 / 1024:.1f} MiB in use"


def partition_line(facts: PartitionFacts) -> str:
    """The queue of a partition in which something goes on."""
    return (
        f"queue   partition {facts.partition}: {facts.ready} ready (oldest {facts.oldest_ready_ms} ms) · "
        f"{facts.leased} leased · {facts.lapsed} lapsed · {facts.active} active, {facts.unserved} of them unserved"
    )


def summary(report: Report) -> str:
    """The last line, which is all that a healthy store needs. It never praises what was not looked at."""
    folds = f"fold differs in {report.differing}" if report.differing else "fold matches"
    words = [f"conservation {report.conservation}", f"{report.sessions} sessions", f"{report.events} events", folds]
    if not report.sessions:
        words = ["no session was examined"]
    count = sum(1 for finding in report.findings if finding.severity is Severity.WRONG)
    return " · ".join([*words, f"{count} wrong"] if count else words)


def document(report: Report) -> dict[str, Any]:
    """The report for programs."""
    return {
        "healthy": report.healthy,
        "conservation": report.conservation,
        "sessions": report.sessions,
        "events": report.events,
        "foldDiffers": report.differing,
        "findings": [finding._asdict() for finding in report.findings],
        "partitions": [_camel(facts._asdict()) for facts in report.partitions],
        "server": report.server,
    }


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields under the names that everything on the wire has."""
    return {to_camel(name): value for name, value in fields.items()}


def command(argv: Sequence[str]) -> int:
    """`mailslot doctor`: examine, print, and say by the exit code whether something is wrong."""
    settings = parse(DoctorSettings, argv, prog="mailslot doctor", description=DESCRIPTION)

    async def serve(stop: asyncio.Event) -> int:
        work = asyncio.ensure_future(_examine_and_print(settings))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            return EXIT_SIGNALLED + signal.SIGINT
        return work.result()

    return run_until_signal(serve)


async def _examine_and_print(settings: DoctorSettings) -> int:
    try:
        report = await diagnose(settings)
    except (StoreUnavailable, OutcomeUnknown) as error:
        sys.stderr.write(f"mailslot doctor: {error}\n")
        return EXIT_UNREACHABLE
    if settings.json_:
        print(json.dumps(document(report), ensure_ascii=False))
    else:
        print("\n".join(lines(report)))
    return EXIT_OK if report.healthy else EXIT_FAILED

"""Everything in order: the server, each session, the partitions, and what is left of sessions that are gone."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio import Redis

from mailslot_contracts.ids import check_id
from mailslot_core.clock import Clock, SystemClock
from mailslot_core.errors import StoreUnavailable
from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore, connect
from mailslot_core.redis.wire import UNREACHABLE
from mailslot_core.settings import StoreSettings
from mailslot_services.doctor.finding import Report, Unreadable, mistyped, reason, wrong
from mailslot_services.doctor.orphan import stray_entries, stray_keys
from mailslot_services.doctor.partition import dead_findings, examine_queues, partition_of, read_dead, read_facts
from mailslot_services.doctor.place import PLACES, Placement, read_alarms, read_placement, unserved
from mailslot_services.doctor.server import examine_server
from mailslot_services.doctor.session import Examined, examine
from mailslot_services.doctor.settings import DoctorSettings

PAGE_SESSIONS: Final = 500
"""Session names that are read at a time."""
LOOKS: Final = 3
"""How often a session must look wrong before it is: it may be erased, and made again, while we look."""
AT_ONCE: Final = 4
"""Sessions examined at the same time: bounds memory to as many ledgers."""


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
        dead = await self._examine_dead()
        for partition in sorted(self._unserved.keys() - self._damaged.keys()):
            try:
                await self._examine_partition(partition, dead[partition])
            except Unreadable as damage:
                self._report.findings.append(wrong(f"partition {partition}", str(damage)))
        if not self._settings.session and not self._damaged:
            self._report.findings += await stray_keys(self._client, self._store.partitions)

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
        seen = await self._look(session_id)
        if seen is None:
            return
        found, place = seen
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

    async def _look(self, session_id: str) -> tuple[Examined, Placement | None] | None:
        """The session as it is, None when it was erased meanwhile (rule 5)."""
        seen: tuple[Examined, Placement | None] | None = None
        for _ in range(LOOKS):
            seen = await self._read(session_id)
            if not seen[0].violations and not seen[0].differences:
                return seen
            if not await self._is_there(session_id):
                return None
        return seen

    async def _is_there(self, session_id: str) -> bool:
        """It is still listed, or has a state: it was not erased since its name was read (rule 5)."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.exists(self._key(session_id, "state"))
            pipe.zscore(
                keys.partition_key(keys.partition_of(session_id, self._store.partitions), "sessions"), session_id
            )
            exists, listed = await pipe.execute()
        return bool(exists) or listed is not None

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
        if found.kept is not None:
            try:
                found.differences += await read_alarms(self._client, self._store, session_id, found.kept)
            except Unreadable as error:
                found.differences.append(str(error))
        return found, await read_placement(self._client, session_id, self._store.partitions)

    async def _examine_partition(self, partition: int, dead: int) -> None:
        facts = await read_facts(self._client, self._store, partition, self._unserved[partition], dead)
        self._report.partitions.append(facts)
        self._report.findings += await examine_queues(self._client, facts)
        if not self._settings.session:
            self._report.findings += await stray_entries(self._client, partition)

    async def _examine_dead(self) -> Counter[int]:
        """Dead letters; how many each partition has."""
        if any("dead" in damage for damage in self._damaged.values()):
            return Counter()
        try:
            letters = await read_dead(self._store)
        except Unreadable as damage:
            self._report.findings.append(wrong("server", str(damage)))
            return Counter()
        wanted = [letter for letter in letters if self._settings.session in ("", letter.session_id)]
        self._report.dead_letters = len(letters)
        self._report.findings += dead_findings(wanted)
        return Counter(map(partition_of, letters))


async def diagnose(settings: DoctorSettings, clock: Clock | None = None) -> Report:
    """Examine the server and what it keeps. Raises `StoreUnavailable` when it cannot be reached."""
    report = Report()
    async with _client(settings) as client:
        partitions = await examine_server(client, settings, report, clock or SystemClock())
        if partitions is None:
            return report
        store = RedisStore(client, settings.model_copy(update={"partitions": partitions}), None)
        try:
            await Doctor(client, store, settings, report).examine_everything()
            if not settings.session:
                report.server["bytesPerSession"] = bytes_per_session(report)
        finally:
            await store.close()
    return report


def bytes_per_session(report: Report) -> int | None:
    """About what one more session costs: all memory of the server, so other databases count as well."""
    used, at_start = report.server["memoryBytes"], report.server["memoryBytesAtStart"]
    if not report.sessions or used is None or at_start is None:
        return None
    return int(max(0, used - at_start)) // report.sessions


@asynccontextmanager
async def _client(settings: StoreSettings) -> AsyncIterator[Redis]:
    client = connect(settings)
    try:
        await client.ping()
        yield client
    except UNREACHABLE as error:
        raise StoreUnavailable(f"the store cannot be examined: {error}") from error
    finally:
        await client.aclose()

"""What is left of sessions that are gone: entries of a partition's indexes, and keys without a state.

    ready, active, leases, goals, forget, due, erase ──name──> session  has a state?
    mailslot:{pNN}:s:<sid>:*                         ──────────> session  has a state, and is it listed?

Rule 1: sessions come and go while we look. What seems gone is looked at once more, all of it in one transaction.
Rule 2: nothing is kept in memory but what is wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from mailslot_core.redis import keys
from mailslot_services.doctor.finding import Finding, wrong

SCAN_COUNT: Final = 1_000
"""Members or keys that the server looks at in one go."""
NAMES_TOLD_MAX: Final = 3
"""Names that a sentence about many has room for."""


class Index(NamedTuple):
    """An index of a partition: what it is called, and which session a member names."""

    called: str
    session_of: Callable[[bytes], bytes]


def _itself(member: bytes) -> bytes:
    return member


INDEXES: Final = {
    "ready": Index("ready queue", _itself),
    "active": Index("active set", _itself),
    "leases": Index("leases", _itself),
    "goals": Index("goal set", _itself),
    "erase": Index("erase set", _itself),
    "forget": Index("forget set", lambda member: member.partition(b"\0")[0]),
    "due": Index("due set", lambda member: member.partition(b"\0")[2].partition(b"\0")[0]),
}
"""`sessions` is none of these: whatever it lists is examined."""


# -- entries --------------------------------------------------------------------------------------------------


async def stray_entries(client: Redis, partition: int) -> list[Finding]:
    """A finding for each index that names sessions without a state."""
    found = []
    for name, index in INDEXES.items():
        strays: list[bytes] = []
        async for members in _members(client, keys.partition_key(partition, name)):
            strays += await _without_state(client, partition, name, members)
        if strays:
            sentence = (
                f"has {len(strays)} entries in its {index.called} that name sessions which are gone ({_named(strays)})"
            )
            found.append(wrong(f"partition {partition}", f"{sentence}: {HELP[name]}"))
    return found


HELP: Final = {
    **dict.fromkeys(
        ("ready", "forget", "due"), "they go when their turn comes, and show that a session was removed by hand"
    ),
    **dict.fromkeys(("active", "leases", "goals", "erase"), "remove them by hand, nothing else will"),
}


async def _members(client: Redis, key: str) -> AsyncIterator[list[bytes]]:
    """Members of a set, sorted or not, a page at a time."""
    is_set = await client.type(key) == b"set"
    cursor = 0
    while True:
        scan: Any = client.sscan if is_set else client.zscan
        cursor, page = await scan(key, cursor, count=SCAN_COUNT)
        yield [entry if is_set else entry[0] for entry in page]
        if not int(cursor):
            return


async def _without_state(client: Redis, partition: int, name: str, members: Sequence[bytes]) -> list[bytes]:
    index, key = INDEXES[name], keys.partition_key(partition, name)
    states = [_state_key(partition, index.session_of(member)) for member in members]
    there = await _exist(client, states)
    gone = []
    for member, state, exists in zip(members, states, there, strict=True):
        if exists:
            continue
        async with client.pipeline(transaction=True) as pipe:  # rule 1
            pipe.exists(state)
            if name == "goals":
                pipe.sismember(key, member)  # type: ignore[arg-type]
            else:
                pipe.zscore(key, member)
            exists_now, listed = await pipe.execute()
        is_member = bool(listed) if name == "goals" else listed is not None  # a score may be 0
        if is_member and not exists_now:
            gone.append(index.session_of(member))
    return gone


async def _exist(client: Redis, names: Sequence[bytes]) -> list[int]:
    async with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.exists(name)
        return list(await pipe.execute())


def _state_key(partition: int, session_id: bytes) -> bytes:
    return keys.session_prefix(partition).encode() + session_id + b":state"


def _named(names: Sequence[bytes]) -> str:
    """A few of them, in a way that no name can break."""
    told = [name.decode(errors="backslashreplace") for name in dict.fromkeys(names)]
    told = [name if name.isprintable() else repr(name)[1:-1] for name in told]
    more = ", …" if len(told) > NAMES_TOLD_MAX else ""
    return ", ".join(told[:NAMES_TOLD_MAX]) + more


# -- keys -----------------------------------------------------------------------------------------------------


async def stray_keys(client: Redis, partitions: int) -> list[Finding]:
    """A finding for each session whose keys are there without a state, or without being listed."""
    found: dict[tuple[int, bytes], Finding] = {}
    async for page in _session_keys(client):
        named = sorted({name for name in page if name not in found and 0 <= name[0] < partitions})
        for (partition, session_id), sentence in (await _unlisted(client, named)).items():
            found[partition, session_id] = wrong(f"session {_named([session_id])}", sentence)
    return list(found.values())


async def _session_keys(client: Redis) -> AsyncIterator[list[tuple[int, bytes]]]:
    """(partition, session) of every key of a session, a page at a time; the same one may come several times."""
    cursor: Any = 0
    while True:
        cursor, page = await client.scan(cursor, match="mailslot:{p*}:s:*:*", count=SCAN_COUNT)
        found: list[Any] = page
        yield [place for place in map(_place, found) if place is not None]
        if not int(cursor):
            return


def _place(key: bytes) -> tuple[int, bytes] | None:
    """The partition and the session of a key `mailslot:{pNN}:s:<sid>:<name>`; a session's name may hold colons."""
    partition, _, rest = key.removeprefix(b"mailslot:{p").partition(b"}:s:")
    session_id, _, name = rest.rpartition(b":")
    known = name.decode(errors="replace") in keys.SESSION_KEYS
    return (int(partition), session_id) if partition.isdigit() and session_id and known else None


async def _unlisted(client: Redis, named: Sequence[tuple[int, bytes]]) -> dict[tuple[int, bytes], str]:
    """What is wrong with each of these sessions: all are looked at in one go, the suspects once more (rule 1)."""
    async with client.pipeline(transaction=False) as pipe:
        for partition, session_id in named:
            pipe.exists(_state_key(partition, session_id))
            pipe.zscore(keys.partition_key(partition, "sessions"), session_id)
        replies = await pipe.execute() if named else []
    found = {}
    for place, exists, listed in zip(named, replies[::2], replies[1::2], strict=True):
        said = await _what_is_wrong(client, place) if not exists or listed is None else None
        if said is not None:
            found[place] = said
    return found


async def _what_is_wrong(client: Redis, place: tuple[int, bytes]) -> str | None:
    partition, session_id = place
    stem = keys.session_prefix(partition).encode() + session_id + b":"
    async with client.pipeline(transaction=True) as pipe:
        for name in keys.SESSION_KEYS:
            pipe.exists(stem + name.encode())
        pipe.zscore(keys.partition_key(partition, "sessions"), session_id)
        *there, listed = await pipe.execute()
    left = [name for name, exists in zip(keys.SESSION_KEYS, there, strict=True) if exists]
    if not left:
        return None
    if "state" not in left and listed is None:
        return f"has {', '.join(left)} and no state, and is not listed: remove its keys by hand"
    if listed is None:
        return "has a state and is not listed in its partition, so nobody finds it: ZADD it to the partition's sessions"
    return None  # listed without a state is said where what is listed is examined

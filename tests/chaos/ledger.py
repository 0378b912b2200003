"""Ledgers as they lie in Redis: XRANGE, and the reader of `mailslot verify`, which shares no code with the store.

What the store says of itself is no evidence in a trial of the store.
"""

import zlib
from collections.abc import Iterator
from typing import Any, Final

import redis

from mailslot_services.verify.ledger import Entry, read

LEDGERS: Final = "mailslot:{p*}:s:*:ledger"
PARTITIONS: Final = 16
COUNTS: Final = "mailslot:{p*}:counts"


Ledger = list[Entry]


def ledgers(client: redis.Redis) -> dict[str, Ledger]:
    """Every ledger, by session."""
    keys = sorted(client.scan_iter(match=LEDGERS, count=1_000))
    return {session_of(key): ledger_at(client, key) for key in keys}


def ledger(client: redis.Redis, session: str) -> Ledger:
    """The ledger of one session; empty when there is none."""
    return ledger_at(client, key_of(session, "ledger"))


def key_of(session: str, what: str) -> str:
    """The name of a session's key: its partition is a checksum of its name, in every language."""
    return f"mailslot:{{p{zlib.crc32(session.encode()) % PARTITIONS:02d}}}:s:{session}:{what}"


def ledger_at(client: redis.Redis, key: bytes | str) -> Ledger:
    entries: Any = client.xrange(key)  # redis-py's types leave open whether text is decoded; here it is not
    return read(entries)


def session_of(key: bytes) -> str:
    """The session in a key `mailslot:{pNN}:s:<sid>:<what>`."""
    return key.decode().partition(":s:")[2].rpartition(":")[0]


def members(client: redis.Redis, name: str) -> list[str]:
    """What is in the sorted sets of this name, of all partitions."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(PARTITIONS):
            pipe.zrange(f"mailslot:{{p{number:02d}}}:{name}", 0, -1)
        found: list[list[bytes]] = pipe.execute()
    return [member.decode() for some in found for member in some]


def owners(client: redis.Redis) -> dict[str, str]:
    """Who drives which session now: `<host>-<pid>-<token>/<slot>` by session, for those that somebody drives."""
    leased = members(client, "leases")
    with client.pipeline(transaction=False) as pipe:
        for session in leased:
            pipe.hget(key_of(session, "state"), "owner")
        found: list[bytes | None] = pipe.execute()
    return {session: owner.decode() for session, owner in zip(leased, found, strict=True) if owner}


def running_sessions(client: redis.Redis) -> list[str]:
    """The sessions that are said to be running."""
    return members(client, "active")


def held_by(client: redis.Redis, pid: int) -> list[str]:
    """The sessions that the worker with this process id drives."""
    return sorted(session for session, owner in owners(client).items() if f"-{pid}-" in owner)


def fenced_writes(client: redis.Redis) -> int:
    """Writes of former owners that the store refused, ever."""
    return sum(int(client.hget(key, "fenced") or 0) for key in client.scan_iter(match=COUNTS, count=1_000))


def now_ms(client: redis.Redis) -> int:
    """The store's clock."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def of_type(facts: Ledger, *types: str) -> Iterator[Entry]:
    """The facts of these types."""
    return (each for each in facts if each.type in types)


def admitted(facts: Ledger) -> list[str]:
    """The messages that entered the transcript, in order."""
    return [each.data["messageId"] for each in of_type(facts, "user/message")]


def ends(facts: Ledger) -> list[str]:
    """How the turns ended, in order."""
    return [each.data["reason"]["kind"] for each in of_type(facts, "turn/end")]

"""The names of all keys in Redis, and nothing else.

    mailslot:config                          partitions, fixed when the database was first used
    mailslot:{pNN}:s:<sid>:state             hash     indexes, owner, lease
    mailslot:{pNN}:s:<sid>:ledger            stream   the truth; ids <seq>-0
    mailslot:{pNN}:s:<sid>:turn, ...:step    zset     the lanes: messageId by place
    mailslot:{pNN}:s:<sid>:later             zset     queued messages that are not due yet, by place
    mailslot:{pNN}:s:<sid>:messages          hash     messageId -> record
    mailslot:{pNN}:ready active bell leases forget sessions idle goals counts due dead erase slot:<owner>

Rule 1: all keys of a partition share a hash tag, so an act on a session and its queues is one Cluster slot.
Rule 2: the partition of a session is crc32(id) modulo the number of partitions, in every language.
Rule 3: the order of keys is the one that `functions.lua` documents.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

CONFIG = "mailslot:config"
IDLE_GROUP = "mailslot:goals"
SESSION_KEYS = ("state", "ledger", "turn", "step", "messages", "later")
PARTITION_KEYS = (
    *("ready", "active", "bell", "leases", "forget", "sessions", "idle", "goals", "counts"),
    *("due", "dead", "erase"),
)
NAMES_CACHED = 16_384  # sessions whose key names are kept ready; making them anew costs microseconds


def partition_of(session_id: str, partitions: int) -> int:
    """The partition of a session."""
    return zlib.crc32(session_id.encode()) % partitions


def partition_key(partition: int, name: str) -> str:
    """One key of a partition."""
    return f"mailslot:{{p{partition:02d}}}:{name}"


def session_prefix(partition: int) -> str:
    """What all session keys of a partition begin with."""
    return partition_key(partition, "s:")


def session_key(session_id: str, partitions: int, name: str) -> str:
    """One key of a session."""
    return f"{session_prefix(partition_of(session_id, partitions))}{session_id}:{name}"


@lru_cache(maxsize=1024)
def partition_keys(partition: int) -> tuple[str, ...]:
    """The keys of a partition, in the functions' order, without the slot."""
    return tuple(partition_key(partition, name) for name in PARTITION_KEYS)


@lru_cache(maxsize=NAMES_CACHED)
def act_keys(session_id: str, partitions: int) -> tuple[str, ...]:
    """The keys of an act on a session, in the functions' order, without the slot."""
    partition = partition_of(session_id, partitions)
    stem = f"{session_prefix(partition)}{session_id}:"
    return (*(stem + name for name in SESSION_KEYS), *partition_keys(partition))


def slot_key(partition: int, owner: str) -> str:
    """Where a worker's slot has its last answer in a partition."""
    return partition_key(partition, f"slot:{owner}")

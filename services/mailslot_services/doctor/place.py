"""Where a session stands in its partition: queues, leases, goals, and the alarms of its messages.

running ──> leased | ready            idle ──> in neither, nor in the active set
a message with a time ──> one alarm in the due set, at that time
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from mailslot_contracts.codec import unpack
from mailslot_contracts.problems import CodecError
from mailslot_core import goal as goals
from mailslot_core.redis import keys
from mailslot_core.session import Data, MessageState, Status
from mailslot_core.store import Store
from mailslot_services.doctor.finding import reading

TRIES_MAX: Final = 20
"""How often the alarms of a busy session are read until nothing was appended meanwhile."""


def time_ms(reply: Sequence[Any]) -> int:
    """The server's TIME in ms."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


class Placement(NamedTuple):
    """A session's state and its places, read in one transaction."""

    running: bool
    owned: bool
    pursues: bool  # has an active goal
    active: bool
    leased: bool
    ready: bool
    listed: bool  # in the set that goal reconciling starts from
    lease_left_ms: int  # until its lease ends
    lease_ms: int  # how long it was taken for


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
    (
        "has a lease that ends later than it may (a clock went back): a sweep cuts it, is a worker running?",
        lambda p: p.leased and p.lease_left_ms > p.lease_ms,
    ),
)


async def read_placement(client: Redis, session_id: str, partitions: int) -> Placement:
    """State and places of a session at one moment."""
    partition = keys.partition_of(session_id, partitions)
    async with client.pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.hmget(keys.session_key(session_id, partitions, "state"), ["status", "owner", "goal", "leaseMs"])
        for name in ("active", "leases", "ready"):
            pipe.zscore(keys.partition_key(partition, name), session_id)
        pipe.sismember(keys.partition_key(partition, "goals"), session_id)
        now, (status, owner, packed, lease_ms), active, lease, ready, listed = await pipe.execute()
    return Placement(
        running=status == Status.RUNNING.encode(),
        owned=bool(owner),
        pursues=is_active(packed),
        active=active is not None,
        leased=lease is not None,
        ready=ready is not None,
        listed=bool(listed),
        lease_left_ms=int(lease or 0) - time_ms(now),
        lease_ms=int(lease_ms or 0),
    )


def is_active(packed: bytes | None) -> bool:
    """Whether this is an active goal. That it is no goal at all is said where the indexes are compared."""
    try:
        goal = unpack(packed) if packed else None
    except CodecError:
        return False
    return isinstance(goal, dict) and goal.get("phase") == goals.ACTIVE


# -- alarms ---------------------------------------------------------------------------------------------------


def alarms(session_id: str, messages: Mapping[str, Any]) -> dict[bytes, tuple[str, int]]:
    """What must stand in the due set for the session's messages: the name of the alarm, the message, the time."""
    found = {}
    for message_id, record in messages.items():
        times = [record["expiresAt"]] if record["due"] else [record["notBefore"], record["expiresAt"]]
        times = [time for time in times if time is not None]
        if record["state"] == MessageState.QUEUED and times:
            name = f"{record['queuedSeq']:016d}\0{session_id}\0{message_id}"
            found[name.encode()] = (message_id, min(times))
    return found


async def read_alarms(client: Redis, store: Store, session_id: str, kept: Data) -> list[str]:
    """What is wrong with the alarms of a session whose indexes are `kept`. They are compared when nothing was appended
    while both were read: every change of a message is an event."""
    state = keys.session_key(session_id, store.partitions, "state")
    due = keys.partition_key(keys.partition_of(session_id, store.partitions), "due")
    found: Data | None = kept
    for _ in range(TRIES_MAX):
        with reading("messages"):
            wanted = alarms(session_id, found["messages"]) if found else {}
        if not wanted or found is None:
            return []
        async with client.pipeline(transaction=True) as pipe:
            pipe.hget(state, "seq")
            for name in wanted:
                pipe.zscore(due, name)
            seq, *times = await pipe.execute()
        if seq is not None and int(seq) == found["seq"]:
            return [
                f"message {message_id} has its alarm at {_when(rings)}, it must be at {time}"
                for (message_id, time), rings in zip(wanted.values(), times, strict=True)
                if rings != time
            ]
        with reading("messages"):
            found = await store.indexes(session_id)
    return []


def _when(rings: float | None) -> str:
    return "no time" if rings is None else f"{rings:.0f}"

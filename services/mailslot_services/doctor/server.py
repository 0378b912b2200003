"""What the server is, and whether it can give what is promised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from mailslot_contracts.channels import INTAKE, INTAKE_DEAD
from mailslot_core.clock import Clock
from mailslot_core.errors import Misconfigured
from mailslot_core.redis import keys, server
from mailslot_core.redis.functions import SOURCE
from mailslot_core.settings import StoreSettings
from mailslot_services.doctor.finding import Finding, Report, Severity, advice, mistyped, wrong
from mailslot_services.doctor.place import time_ms
from mailslot_services.doctor.settings import DoctorSettings

MEMORY_SHARE_MAX: Final = 0.8
"""Of `maxmemory`, or of the machine's; above it the server is close to refusing messages, or to its end."""
FRAGMENTATION_MAX: Final = 1.5
FRAGMENTED_BYTES_MAX: Final = 256 * 2**20
"""Memory held for memory used, and bytes held and not used; beyond both it is worth a word."""
DELAYED_SYNCS_MAX: Final = 10
"""Syncs that waited for the one before; a few happen on any disk."""
REWRITE_S_MAX: Final = 600
"""A rewrite of the append-only file that takes longer than this is in trouble."""
CLOCK_SKEW_MS_MAX: Final = 1_000
"""Difference of clocks that nobody notices."""
STREAM_NODE_BYTES_ADVISED: Final = 1_024
"""A ledger costs at least one stream node: 4.3 KB with the server's default of 4096, 1.7 KB with this."""
PARTITIONS_MAX: Final = 1_024
"""As many as `StoreSettings.partitions` allows."""
SCAN_COUNT: Final = 1_000
"""Keys that the server looks at in one go when the configuration is lost."""


async def examine_server(client: Redis, settings: DoctorSettings, report: Report, clock: Clock) -> int | None:
    """Whether the server can keep what is promised; the number of partitions to examine, None when it is not known."""
    info = await client.info("all")
    partitions, damage = await read_partitions(client)
    asked = settings.partitions if "partitions" in settings.model_fields_set else None
    skew_ms = await clock_skew_ms(client, clock)
    report.server = {
        "version": version(info),
        "partitions": partitions,
        "memoryBytes": info.get("used_memory"),
        "memoryBytesMax": info.get("maxmemory") or None,
        "memoryBytesAtStart": info.get("used_memory_startup"),
        "appendOnly": bool(info.get("aof_enabled")),
        "clockSkewMs": skew_ms,
    }
    report.findings += [finding for look in SERVER_LOOKS for finding in look(info)]
    if damage:
        report.findings.append(wrong("server", damage))
    elif partitions is not None and asked not in (None, partitions):
        sentence = f"has {partitions} partitions, not {asked}: set --partitions {partitions}"
        report.findings.append(wrong("server", sentence))
    report.findings += [*skew(skew_ms), *times(settings)]
    report.findings += await durability(client, settings)
    report.findings += await file_settings(client, settings)
    report.findings += await library(client)
    report.findings += await stream_nodes(client)
    report.findings += await dead_intake(client)
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


# -- what INFO says -------------------------------------------------------------------------------------------


def eviction(info: Mapping[str, Any]) -> list[Finding]:
    """A server that evicts keys loses ledgers."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    return [wrong("server", f"may evict keys (maxmemory-policy {policy}): set maxmemory-policy noeviction")]


def memory(info: Mapping[str, Any]) -> list[Finding]:
    """A server without a limit is ended by the machine's, a full one refuses messages."""
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    machine = int(info.get("total_system_memory", 0))
    found = []
    if not limit:
        found.append(advice("server", "has no memory limit: set maxmemory below what the machine has"))
        if machine and used > machine * MEMORY_SHARE_MAX:
            sentence = (
                f"uses {used * 100 // machine} % of the machine's memory and has no limit: it may be ended any time"
            )
            found.append(wrong("server", sentence))
    elif used > limit * MEMORY_SHARE_MAX:
        found.append(advice("server", f"uses {used * 100 // limit} % of maxmemory; a full server refuses new messages"))
    return found


def fragmentation(info: Mapping[str, Any]) -> list[Finding]:
    """Memory that is held and not used. A small server always looks fragmented."""
    ratio, wasted = float(info.get("mem_fragmentation_ratio", 1.0)), int(info.get("mem_fragmentation_bytes", 0))
    if ratio <= FRAGMENTATION_MAX or wasted <= FRAGMENTED_BYTES_MAX:
        return []
    sentence = f"holds {ratio:.1f} times the memory that it uses ({wasted // 2**20} MiB more): set activedefrag yes"
    return [advice("server", sentence)]


def role(info: Mapping[str, Any]) -> list[Finding]:
    """A replica cannot be written to."""
    if info.get("role", "master") == "master":
        return []
    return [wrong("server", f"is a replica of {info.get('master_host')}: name its primary with --redis-url")]


FILE_STATES: Final = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")


def files(info: Mapping[str, Any]) -> list[Finding]:
    """Whether what is kept reaches the disk."""
    broken = [name for name in FILE_STATES if info.get(name, "ok") != "ok"]
    found = [
        wrong("server", f"cannot write its files ({name} {info[name]}): see its log and its disk") for name in broken
    ]
    if not info.get("aof_enabled"):
        found.append(advice("server", "keeps no append-only file, so a restart loses messages: set appendonly yes"))
        return found
    delayed = int(info.get("aof_delayed_fsync", 0))
    if delayed > DELAYED_SYNCS_MAX:
        sentence = f"waited {delayed} times for its disk (aof_delayed_fsync): give the append-only file a faster one"
        found.append(advice("server", sentence))
    rewriting_s = int(info.get("aof_current_rewrite_time_sec", -1))
    if rewriting_s > REWRITE_S_MAX:
        sentence = f"rewrites its append-only file since {rewriting_s} s: see its log, and whether the disk is full"
        found.append(advice("server", sentence))
    return found


SERVER_LOOKS: Final[tuple[Callable[[Mapping[str, Any]], list[Finding]], ...]] = (
    role,
    eviction,
    memory,
    fragmentation,
    files,
)


# -- clocks and times -----------------------------------------------------------------------------------------


async def clock_skew_ms(client: Redis, clock: Clock) -> int:
    """How far the server's clock is ahead of ours, but for half of the time that asking took."""
    asked, began = clock.now_ms(), clock.monotonic()
    server_ms = time_ms(await client.time())
    took_ms = (clock.monotonic() - began) * 1000
    skew_ms = server_ms - asked - took_ms / 2
    return round(skew_ms) if abs(skew_ms) > took_ms / 2 else 0


def skew(skew_ms: int) -> list[Finding]:
    """Events, leases and `notBefore` go by the server's clock, those who write them by their own."""
    if abs(skew_ms) <= CLOCK_SKEW_MS_MAX:
        return []
    where = "ahead of" if skew_ms > 0 else "behind"
    sentence = (
        f"has a clock that is {abs(skew_ms) / 1000:.1f} s {where} this machine's: notBefore and expiresAt mean the "
        "server's; set both by NTP"
    )
    return [advice("server", sentence)]


def times(settings: DoctorSettings) -> list[Finding]:
    """Whether the workers' times fit each other."""
    found = []
    if 0 < settings.grace_ms <= settings.drain_ms:
        sentence = (
            f"may drain for {settings.drain_ms} ms and are killed after {settings.grace_ms} ms, a crash: "
            "set --drain-ms lower, or a longer grace period"
        )
        found.append(advice("workers", sentence))
    if settings.lease_ms <= settings.call_timeout_ms:
        sentence = (
            f"lose a lease after {settings.lease_ms} ms while one store call may take {settings.call_timeout_ms} ms: "
            "set --lease-ms higher, or --call-timeout-ms lower"
        )
        found.append(advice("workers", sentence))
    return found


# -- durability and functions ---------------------------------------------------------------------------------


async def file_settings(client: Redis, settings: StoreSettings) -> list[Finding]:
    """Settings of the append-only file that undo what is promised. Not every server lets us ask."""
    try:
        found = await client.config_get("appendonly", "appendfsync", "no-appendfsync-on-rewrite")
    except ResponseError:
        return []
    if found.get("appendonly") != "yes":
        return []
    promised = settings.durability != "memory" and "durability" in settings.model_fields_set
    broken = []
    if found.get("appendfsync") == "no":
        broken.append(
            "syncs its append-only file whenever the machine likes (appendfsync no): set appendfsync everysec"
        )
    if found.get("no-appendfsync-on-rewrite") == "yes":
        broken.append(
            "does not sync while it rewrites its append-only file (no-appendfsync-on-rewrite yes): set it to no"
        )
    return [Finding(Severity.WRONG if promised else Severity.ADVICE, "server", sentence) for sentence in broken]


async def dead_intake(client: Redis) -> list[Finding]:
    """Letters of the broker door that could not become messages."""
    if await client.type(INTAKE_DEAD) != b"stream":
        return []
    count = int(await client.xlen(INTAKE_DEAD))
    if not count:
        return []
    sentence = f"keeps {count} letters that could not become messages in {INTAKE_DEAD}, each with its reason: read them"
    return [advice("server", sentence)]


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

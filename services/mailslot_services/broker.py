"""The broker: how services speak FastStream, with every option set on purpose.

    make_broker(settings)                one broker object a process; its host connects, starts and stops it
    ensure_group(client, stream, group)  the group is there and begins at the first entry
    Arrival, arrivals, undecoded         a batch of raw stream entries, as subscribers of ours take them

Rule 1: no default of redis-py or FastStream is relied on: FastStream builds its own pool, so retries, timeouts and
        the size of the pool are 0, 5 s and 100 unless they are given here.
Rule 2: a socket may be silent for longer than any command blocks, or each empty poll would be an error.
Rule 3: a group is created at `0` before its subscriber starts, which then reads `>`: created by the subscriber it
        would begin at `$`, and what came before the first start would be skipped in silence.
Rule 4: a consumer's name is its process's own: two with one name would take each other's entries.
Rule 5: a server that refuses writes for now (read-only, out of memory) is treated as one that is not there: FastStream
        asks again at once after any other refusal, hundreds of times a second.
Rule 6: a batch is handed over as it was read. FastStream's own parser turns bodies into JSON first, and one that is
        none would rest in the pending list for ever.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from faststream.redis import RedisBroker
from faststream.redis.message import FAKE_CONSUMER, RedisBatchStreamMessage
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from mailslot_core.errors import Misconfigured
from mailslot_core.redis import connection
from mailslot_core.settings import StoreSettings

BLOCK_MS: Final = 500
"""How long one read of a stream waits for entries. Also how soon a stopping subscriber notices."""

SILENCE_MS: Final = 5_000
"""How much longer than a blocking command a socket may be silent before it counts as broken."""

CONNECTIONS_MAX: Final = 64
"""Connections of one broker: one for each subscriber, the rest for publishing."""

RETRIES: Final = 8
RETRY_BASE_S: Final = 0.05
RETRY_CAP_S: Final = 1.0
"""A command is tried again this often, with delays from base to cap: some four seconds in all."""

HEALTH_CHECK_S: Final = 15
"""A connection that rested longer than this is checked before it is used."""

GRACE_S: Final = 10.0
"""How long a stopping broker waits for a batch in hand."""

FOR_NOW: Final = frozenset(
    {"READONLY", "OOM", "MISCONF", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED"}
)
"""First words of refusals that pass: the server is there but takes no writes."""


# -- connections --------------------------------------------------------------------------------------------


class _ForNow:
    """Turns refusals that pass into a lost connection, which everybody waits out (rule 5)."""

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError as error:
            if (error.status_code or str(error).partition(" ")[0]) in FOR_NOW:
                raise RedisConnectionError(f"the server takes no writes for now: {error}") from error
            raise


class _Tcp(_ForNow, connection.Tcp):
    pass


class _Tls(_ForNow, connection.Tls):
    pass


class _Unix(_ForNow, connection.Unix):
    pass


CONNECTIONS: Final[dict[str, type[Any]]] = {"redis": _Tcp, "rediss": _Tls, "unix": _Unix}
"""Kind of connection by the scheme of the URL."""


def make_broker(settings: StoreSettings, *, connections_max: int = CONNECTIONS_MAX) -> RedisBroker:
    """A broker on the store's server; its host connects, starts and stops it. A subscriber takes one connection."""
    scheme = urlsplit(settings.redis_url).scheme
    if scheme not in CONNECTIONS:
        raise Misconfigured(f"a broker speaks {', '.join(CONNECTIONS)}, not {scheme!r}: set --redis-url")
    return RedisBroker(
        settings.redis_url,
        connection_class=CONNECTIONS[scheme],
        max_connections=connections_max,
        socket_timeout=(BLOCK_MS + SILENCE_MS) / 1000,
        socket_connect_timeout=settings.call_timeout_ms / 1000,
        socket_keepalive=True,
        health_check_interval=HEALTH_CHECK_S,
        retry=Retry(ExponentialWithJitterBackoff(cap=RETRY_CAP_S, base=RETRY_BASE_S), RETRIES),
        graceful_timeout=GRACE_S,
        apply_types=True,
        logger=_logger(),
        specification_url="redis://localhost:6379",
    )


def _logger() -> logging.Logger:
    """Tells what went wrong and nothing else: a line for every message would cost more than the message."""
    logger = logging.getLogger("mailslot.broker")
    logger.setLevel(logging.WARNING)
    return logger


# -- streams ------------------------------------------------------------------------------------------------


def consumer_name() -> str:
    """A name that no other process has or had."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


async def ensure_group(client: Redis, stream: str, group: str) -> None:
    """The group is there, from the stream's first entry on; one that was there stays as it is."""
    try:
        await client.xgroup_create(stream, group, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


@dataclass(frozen=True, slots=True)
class Arrival:
    """One stream entry as it was read: its id, and its fields as bytes."""

    entry_id: str
    fields: dict[bytes, bytes]


async def arrivals(message: dict[str, Any]) -> RedisBatchStreamMessage:
    """FastStream's parser of a batch, ours (rule 6): the body is the list of entries, undecoded."""
    pairs = zip(message["message_ids"], message["data"], strict=True)
    batch = [Arrival(entry_id.decode(), fields) for entry_id, fields in pairs]
    return RedisBatchStreamMessage(message, batch, consumer=FAKE_CONSUMER, group=None)


async def undecoded(message: RedisBatchStreamMessage) -> Any:
    """FastStream's decoder to go with `arrivals`."""
    return message.body

"""What a session at rest weighs in the store: used memory before and after, divided by their number.

Each session has answered one prompt of a few words, so its ledger holds the ten events of golden trace 1 after its
`session/created`. Whoever made them has gone before memory is read, so buffers of connections are not counted.
"""

import gc
from pathlib import Path

import redis

from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from tests.bench.end_to_end import at_rest
from tests.bench.process import fresh_server, store_settings, workers
from tests.bench.scale import Scale
from tests.bench.traffic import BORN, in_flight, message_of, submission
from tests.servers import Server

PROMPT = "What is the capital of Peru?"
PARTITIONS = StoreSettings.model_fields["partitions"].default


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """Bytes a session, and where they are in one that is like the others."""
    count = scale.idle_sessions
    with fresh_server() as server:
        async with RedisStore.connect(store_settings(server)):
            pass  # the functions are loaded
        before = used(server)
        async with workers(server, folder, 1), RedisStore.connect(store_settings(server)) as store:
            await in_flight(count, lambda number: _prompt(store, number))
            await at_rest(server)
        after = used(server)
        with server.client() as client:
            parts = {name: weight(client, name, count - 1) for name in ("ledger", "state", "messages")}
            events = client.xlen(key("ledger", count - 1))
    return {
        "session_bytes": (after - before) / count,
        "session_events": events,
        **{f"{name}_bytes": found for name, found in parts.items()},
    }


async def _prompt(store: RedisStore, number: int) -> None:
    await store.submit(session_id(number), submission(message_of(number), PROMPT), BORN)


def session_id(number: int) -> str:
    """As long as ids are that are made for people."""
    return f"session-{number:028}"


def key(name: str, number: int) -> str:
    """One key of a session."""
    return keys.session_key(session_id(number), PARTITIONS, name)


def weight(client: redis.Redis, name: str, number: int) -> float:
    """Bytes of one key of one session, every element counted."""
    return float(client.memory_usage(key(name, number), samples=0) or 0)


def used(server: Server) -> int:
    """Bytes that the server uses for data, with nobody but us connected."""
    gc.collect()
    with server.client() as client:
        return int(client.info("memory")["used_memory_dataset"])

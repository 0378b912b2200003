"""How long a sender waits for the turn to start, and for the agent to rest, when the machine is not busy.

    sent --> submit or POST --> [inbox/queued] --> worker leases --> [turn/start] --> answer --> [idle]
    ^ time.monotonic()                                                ^ its notice has come here    ^ likewise

Both ends are read on one clock in one process: before the submit (or the POST's first byte) is written, and when the
notice of the event has arrived over pub/sub. So the way of the notice is in the figure, as it is for any client; the
ledger's own `time` has only milliseconds and is not used. Notices are told apart by the messageIds of `inbox/claimed`,
which follows its `turn/start` at once. At PACED_PER_S each of SESSIONS sessions has come to rest long before its next
message, so every message opens a turn.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mailslot_core.redis.store import RedisStore
from tests.bench.end_to_end import at_rest, warm_up
from tests.bench.figure import percentile
from tests.bench.listener import listening
from tests.bench.poster import ACCEPTED, Connection, connect, request
from tests.bench.process import fresh_server, ingest, store_settings, workers
from tests.bench.scale import IN_FLIGHT, PACED_PER_S, PATIENCE_S, TEXT, Scale
from tests.bench.traffic import BORN, message_of, paced, session_of, submission
from tests.servers import Server
from tests.waiting import wait_until

Send = Callable[[int], Awaitable[None]]


class Stopwatch:
    """When each message was sent, when its turn started, and when its agent rested after it."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.rested: dict[str, float] = {}
        self._turn_start: dict[str, float] = {}
        self._claimed: dict[str, list[str]] = {}

    def heard(self, when: float, notice: dict[str, Any]) -> None:
        """A notice came."""
        session_id, data = notice["sessionId"], notice["data"]
        if notice["type"] == "turn/start":
            self._turn_start[session_id] = when
        elif notice["type"] == "inbox/claimed":
            self._claimed[session_id] = data["messageIds"]
            self.started.update(dict.fromkeys(data["messageIds"], self._turn_start[session_id]))
        elif notice["type"] == "agent/status" and data["status"] == "idle":
            self.rested.update(dict.fromkeys(self._claimed.pop(session_id, ()), when))

    def figures(self, prefix: str) -> dict[str, float]:
        """Percentiles in ms."""
        found = {}
        for what, times in (("start", self.started), ("idle", self.rested)):
            took = [(times[message_id] - sent) * 1000 for message_id, sent in self.sent.items()]
            found[f"{prefix}{what}_p50"] = percentile(took, 0.5)
            found[f"{prefix}{what}_p99"] = percentile(took, 0.99)
        return found


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """By submit to the store, and by POST to a real ingest process."""
    count = int(scale.paced_s * PACED_PER_S)
    with fresh_server() as server:
        async with workers(server, folder, 1), RedisStore.connect(store_settings(server)) as store:
            await warm_up(store, server, 1)
            found = await _timed(server, count, "", lambda watch: _by_store(store, watch))
            async with ingest(server, folder) as (_, port):
                lines = [await connect("127.0.0.1", port) for _ in range(IN_FLIGHT)]
                found |= await _timed(server, count, "http_", lambda watch: _by_post(lines, watch))
                for line in lines:
                    line.close()
    return found


async def _timed(server: Server, count: int, prefix: str, sender: Callable[[Stopwatch], Send]) -> dict[str, float]:
    watch = Stopwatch()
    async with listening(server, watch.heard):
        await paced(count, PACED_PER_S, sender(watch))
        await wait_until(lambda: len(watch.rested) >= count, PATIENCE_S, "the notices of every message")
        await at_rest(server)
    return watch.figures(prefix)


def _by_store(store: RedisStore, watch: Stopwatch) -> Send:
    async def send(number: int) -> None:
        message_id = message_of(number)
        watch.sent[message_id] = time.monotonic()
        await store.submit(session_of(number), submission(message_id), BORN)

    return send


def _by_post(lines: list[Connection], watch: Stopwatch) -> Send:
    """Each POST takes a connection that is free and puts it back. Should none be free, waiting for it counts."""
    free: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
    for line in lines:
        free.put_nowait(line)

    async def send(number: int) -> None:
        message_id = f"posted-{number}"
        sent = request("127.0.0.1", session_of(number), {"messageId": message_id, "content": TEXT})
        watch.sent[message_id] = time.monotonic()
        line = await free.get()
        status = await line.post(sent)
        assert status == ACCEPTED, status
        free.put_nowait(line)

    return send

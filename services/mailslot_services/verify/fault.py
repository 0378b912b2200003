"""What is done to our own workers and connections, and nobody else's.

    kill    kill -9; the worker is started again at once
    stop    SIGSTOP, and SIGCONT after a while: shorter than its lease, or longer, when it wakes as a zombie
    cut     the server is told to close connections (CLIENT KILL): some of a worker's; or, in a burst, those of the
            senders, so that some of them lose an answer

Rule 1: every choice comes from the seed; when exactly a fault hits does not, for that is up to the machine.
Rule 2: kinds take turns in a shuffled order, so that a short run has all of them too.
Rule 3: what finds nobody to hit is not counted, and is tried again next. A kill hits a stopped worker where none runs.
Rule 4: connections are found by the name that ours have. A server that does not let us kill them is only not cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from mailslot_core.redis.wire import UNREACHABLE
from mailslot_services.verify.workforce import Workforce

GAP_S: Final = (0.4, 2.4)
"""Shortest and longest time between two faults."""
STOP_LEASES: Final = (0.3, 2.0)
"""Shortest and longest stop, in leases: some are noticed, some are not."""
KINDS: Final = ("kill", "stop", "cut", "cut senders")
PART: Final = 0.5
"""Share of cuts that hit one connection of a worker; the others hit all of them at once."""
BURST: Final = 25
BURST_GAP_S: Final = 0.01
"""Cuts of the senders' connections in a row, and the time between two: an answer takes about a millisecond."""


class Faults:
    """Does harm until it is ended."""

    def __init__(
        self, workforce: Workforce, control: Redis, rng: Random, lease_ms: int, names: tuple[str, str]
    ) -> None:
        self._workforce, self._control, self._rng = workforce, control, rng
        self._lease_s = lease_ms / 1000
        self._worker_name, self._sender_name = names  # of connections; a worker's has its number behind it
        self._bag: list[str] = []
        self._waking: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()  # kill, stop, cut
        self.hindered: str | None = None  # why there are no cuts

    async def rage(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(self._rng.uniform(*GAP_S))
            await self._next()

    async def end(self) -> None:
        """Nobody stands still any more."""
        for task in self._waking:
            task.cancel()
        if self._waking:
            await asyncio.wait(self._waking)

    async def _next(self) -> None:
        if not self._bag:
            self._bag = list(KINDS)
            self._rng.shuffle(self._bag)
        if await self._harm(self._bag[-1]):
            self._bag.pop()

    async def _harm(self, kind: str) -> bool:
        """One fault. False: it found nobody (rule 3)."""
        if kind == "cut senders":
            for _ in range(BURST):
                await self._cut(self._sender_name, 0.0)
                await asyncio.sleep(BURST_GAP_S)
            return True
        found = self._workforce.running or (self._workforce.living if kind == "kill" else [])
        if not found:
            return False
        victim = self._rng.choice(found)
        if kind == "kill":
            hit = self._workforce.kill(victim)
            self.counts["kill"] += hit
            return hit
        if kind == "stop":
            return self._stop(victim)
        self._workforce.forgive(victim)
        await self._cut(f"{self._worker_name}{victim}", PART)
        return True

    def _stop(self, victim: int) -> bool:
        async def wake() -> None:
            try:
                await asyncio.sleep(self._rng.uniform(*STOP_LEASES) * self._lease_s)
            finally:
                self._workforce.go_on(victim)

        if not self._workforce.stop(victim):
            return False
        self.counts["stop"] += 1
        task = asyncio.create_task(wake())
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)
        return True

    async def _cut(self, name: str, part: float) -> None:
        """Close connections of this name (rule 4)."""
        try:
            clients = await self._control.client_list()
            found = [client["id"] for client in clients if client["name"] == name]
            if found and self._rng.random() < part:
                found = [self._rng.choice(found)]
            for number in found:
                self.counts["cut"] += await self._control.client_kill_filter(_id=number)
        except ResponseError as error:
            self.hindered = str(error)
        except UNREACHABLE:
            return  # the next one will do

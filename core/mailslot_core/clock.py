"""Time, as a port: what is not passed in as an argument is asked here, so tests and the simulation can steer it.

Rule 1: facts carry the store's clock, never a worker's (semantics L1); this port is for waiting and for
        measuring how much of a lease is left (semantics R2).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, and how to wait."""

    def now_ms(self) -> int:
        """Wall clock, ms since 1970. Only a store in memory turns it into facts."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; the origin means nothing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds of this clock."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Wall clock of this machine in ms."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """`time.monotonic`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """`asyncio.sleep`."""
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until a test moves it. Starts at a date that is easy to recognise."""

    def __init__(self, now_ms: int = 1_764_554_400_000) -> None:
        self._now_ms = now_ms
        self._start_ms = now_ms
        self._moved = asyncio.Condition()

    def now_ms(self) -> int:
        """The time it was set to."""
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return (self._now_ms - self._start_ms) / 1000

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was moved far enough."""
        until = self._now_ms + round(seconds * 1000)
        async with self._moved:
            await self._moved.wait_for(lambda: self._now_ms >= until)

    async def advance(self, ms: int) -> None:
        """Move the clock and wake whoever sleeps on it. Negative values jump back."""
        async with self._moved:
            self._now_ms += ms
            self._moved.notify_all()
        await asyncio.sleep(0)

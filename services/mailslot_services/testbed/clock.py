"""A clock that runs like the machine's and can be moved ahead.

wall    ---------|---------------------->      now_ms = the machine's + what it was moved by
                 advance(60)
sleeps  that end within the 60 s end now       monotonic = the machine's: leases and timeouts are not moved
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress


class SteeredClock:
    """The `Clock` of everything in the engine. `advance` is called on its loop."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._moved = asyncio.Event()

    def now_ms(self) -> int:
        """The machine's wall clock, and what it was moved by."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic(self) -> float:
        """`time.monotonic`: nobody loses a lease because a test lets time pass."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds of this clock, real ones or others."""
        until = self._now_s() + seconds
        while (left_s := until - self._now_s()) > 0:
            moved = self._moved
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await moved.wait()

    def advance(self, ms: int) -> None:
        """Move ahead, and wake whoever sleeps."""
        self._ahead_ms += ms
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _now_s(self) -> float:
        return time.monotonic() + self._ahead_ms / 1000

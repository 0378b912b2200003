"""Ending asyncio tasks so that they have really ended.

Rule 1: one cancel is not enough: on Python 3.11 `asyncio.wait_for`, which redis-py sends every command with, loses a
        cancel that comes in the same moment as the answer, and a loop would go on for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

CANCEL_AGAIN_S = 0.2  # how long a cancelled task may take before it is cancelled again


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and return once each of them has ended, whatever it ended with."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)

"""Whether this process lives, whether it can serve, and what it counts.

Rule 1: `/healthz` says that the loop turns, nothing else: a store that is down is no reason to restart ingest.
Rule 2: `/readyz` holds when the store answers and every check that the application added does.
Rule 3: a scrape succeeds when the store does not: `mailslot_ingest_store_up` says so.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from mailslot_core.errors import CoreError
from mailslot_services.ingest.audit import Audit
from mailslot_services.ingest.door import Check, Door, answer
from mailslot_services.ingest.metric import CONTENT_TYPE

PROBE_S: Final = 2.0
"""How long the store may take to answer a probe or a scrape."""


async def healthz(_door: Door, _request: Request) -> Response:
    """The loop turns."""
    return answer({"status": "ok"})


async def readyz(door: Door, _request: Request) -> Response:
    """Everything that serving needs is there; else 503 with what is not."""
    found = await asyncio.gather(*(_in_time(check) for check in door.checks))
    wrong = [sentence for sentence in found if sentence is not None]
    if wrong:
        return answer({"status": "not ready", "reasons": wrong}, 503)
    return answer({"status": "ready"})


async def _in_time(check: Check) -> str | None:
    try:
        async with asyncio.timeout(PROBE_S):
            return await check()
    except TimeoutError:
        return f"a check did not end within {PROBE_S:g} s"


def store_answers(door: Door) -> Check:
    """The check that the store answers."""

    async def check() -> str | None:
        try:
            await door.store.load(0)
        except CoreError as error:
            return f"the store does not answer: {error}"
        return None

    return check


class Scrape:
    """`/metrics`: refreshes what is read from the store, then tells everything."""

    def __init__(self) -> None:
        self._audit: Audit | None = None

    async def __call__(self, door: Door, _request: Request) -> Response:
        self._audit = self._audit or Audit(door.store, door.metrics)
        try:
            async with asyncio.timeout(PROBE_S):
                partitions = range(door.store.partitions)
                door.metrics.loads(await asyncio.gather(*(door.store.load(number) for number in partitions)))
                await self._audit.advance()
            door.metrics.store_up.set(1)
        except (CoreError, TimeoutError):
            door.metrics.store_up.set(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                await asyncio.gather(*(gauge() for gauge in door.gauges))
        return Response(door.metrics.text(), media_type=CONTENT_TYPE)

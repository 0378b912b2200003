"""goal-continuation: sends the next round of each active goal whose agent rests.

    round          which round is due: pure           listening   idle notices through FastStream
    continuation   read, propose, advance, count      metrics     what is counted

As many of these services as you like may run; one of them is enough. `mailslot goals --help` lists its options.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import GoalSettings
from mailslot_services import boot

DESCRIPTION = "Continue goals: queue the next round whenever an agent with an active goal rests. SIGTERM drains."

log = logging.getLogger("mailslot.goals")


def command(argv: Sequence[str]) -> int:
    """`mailslot goals`"""
    settings = boot.parse(GoalSettings, argv, prog="mailslot goals", description=DESCRIPTION)
    boot.log_to_stderr(settings.log_level)
    return boot.run_until_signal(lambda stop: serve(settings, stop))


async def serve(settings: GoalSettings, stop: asyncio.Event) -> None:
    """Continue goals until `stop`; what is in hand then is finished."""
    from mailslot_services.goal_continuation.continuation import Continuation  # noqa: PLC0415 - --help must be quick
    from mailslot_services.goal_continuation.listening import listening  # noqa: PLC0415 - FastStream loads slowly
    from mailslot_services.goal_continuation.metrics import GoalMetrics  # noqa: PLC0415

    metrics = GoalMetrics()
    async with RedisStore.connect(settings) as store:
        continuation = Continuation(store, metrics)
        async with listening(settings, continuation, metrics) as ears:
            with boot.serve_metrics(metrics.registry, settings.metrics_port):
                log.info("ready", extra={"partitions": store.partitions, "reconcile_ms": settings.reconcile_ms})
                while not stop.is_set():
                    await ears.mend()
                    await continuation.reconcile()
                    await ears.tidy()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), settings.reconcile_ms / 1000)

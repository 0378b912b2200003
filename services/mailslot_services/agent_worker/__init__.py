"""The agent-worker: drives sessions, one at a time each, under a fenced lease.

    worker      the process: slots, doorbell, sweeper, draining      plan        what comes next, as tables
    tenure      a session in our hands: lease, renewal, progress     transcript  what a model sees of a ledger
    turn        one open turn: read, decide, commit, settle          agents      agents.toml; models, tools

`mailslot worker --help` lists its options.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
from collections.abc import Sequence

from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import WorkerSettings
from mailslot_services import boot

DESCRIPTION = "Drive sessions: run agents, publish their events. Start as many as you like; SIGTERM drains."


def command(argv: Sequence[str]) -> int:
    """`mailslot worker`"""
    settings = boot.parse(WorkerSettings, argv, prog="mailslot worker", description=DESCRIPTION)
    boot.log_to_stderr(settings.log_level)
    return boot.run_until_signal(lambda stop: serve(settings, stop))


def unique_name() -> str:
    """A name that no other worker has or ever had: who answers to a lease must be beyond doubt."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


async def serve(settings: WorkerSettings, stop: asyncio.Event) -> None:
    """Drive sessions until `stop`."""
    from mailslot_services.agent_worker.agents import Agents  # noqa: PLC0415 - models load slowly; --help must not
    from mailslot_services.agent_worker.control import listening  # noqa: PLC0415 - so does FastStream
    from mailslot_services.agent_worker.worker import Worker  # noqa: PLC0415

    agents = Agents.load(settings.agents)
    try:
        await agents.prepare()
        async with RedisStore.connect(settings) as store:
            worker = Worker(store, agents.get, settings, name=unique_name())
            with boot.serve_metrics(worker.metrics.registry, settings.metrics_port):
                async with listening(settings, worker):
                    # What was loaded stays for good. Whenever Python looked through it again, every session stood
                    # still for 80 ms.
                    gc.collect()
                    gc.freeze()
                    await worker.run(stop)
    finally:
        await agents.close()

"""One worker process for the peers' harness: the product's worker, around a model that runs the harness' handler.

    python mailslot_worker.py REDIS_URL

A turn writes its whole ledger, as for any other model; the model is told which job it is by the prompt's first word.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from slots import SLEEP, ahandle  # type: ignore[import-not-found] # it is the harness'

from mailslot_core.agent import Answer, OnDelta, Request
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import WorkerSettings
from mailslot_services import boot
from mailslot_services.agent_worker import unique_name
from mailslot_services.agent_worker.agents import Agent
from mailslot_services.agent_worker.transcript import newest_user_text
from mailslot_services.agent_worker.worker import Worker


class Handler:
    """A model that does what every contestant does with a job."""

    name = "handler"
    instant = not SLEEP

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """Run the job that the prompt names."""
        number = int(newest_user_text(request.transcript).partition(":")[0])
        await ahandle(number)
        return Answer(text="done", model=self.name)


async def serve(url: str, stop: asyncio.Event) -> None:
    """Drive sessions until `stop`."""
    settings = WorkerSettings(redis_url=url, durability="memory")
    agents = {"default": Agent("default", Handler())}
    async with RedisStore.connect(settings) as store:
        await Worker(store, agents.get, settings, name=unique_name()).run(stop)


if __name__ == "__main__":
    sys.exit(boot.run_until_signal(lambda stop: serve(sys.argv[1], stop)))

"""What tests of the agent-worker are written with: a real worker in this process, and plain words to talk to a session.

async with crew(store, model=ScriptedModel.sequence([...])):
    await prompt(store, "s", "A")
    await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] a s1 t1(completed) I"
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mailslot.hooks import Hook
from mailslot_contracts.notation import render
from mailslot_core import invariants
from mailslot_core.agent import Model, Tool
from mailslot_core.inbox import Receipt, Submission
from mailslot_core.session import Event, Lane, Status, fold, indexes
from mailslot_core.settings import WorkerSettings
from mailslot_core.store import Store
from mailslot_services.agent_worker.agents import Agent, Limits
from mailslot_services.agent_worker.hooks import AdmissionHook
from mailslot_services.agent_worker.worker import Worker
from tests.waiting import wait_until

PATIENCE_S = 10.0
BORN = {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}}
LANES = {
    "queue": (Lane.NEXT_TURN, True),
    "steer": (Lane.NEXT_STEP, True),
    "inject": (Lane.NEXT_STEP, False),
}
numbers = itertools.count(1)


def settings(**changes: Any) -> WorkerSettings:
    """Worker settings for tests: nothing from the environment's defaults that waits for seconds."""
    return WorkerSettings(**{"durability": "memory", "sweep_ms": 50, "concurrency": 8, **changes})


def agent(
    model: Model,
    *,
    fallback: Model | None = None,
    tools: Mapping[str, Tool] | None = None,
    hooks: Sequence[Hook] = (),
    **limits: Any,
) -> Agent:
    """The agent `default` around a model. A hook is known by its function's name."""
    named = tuple(AdmissionHook(getattr(hook, "__name__", "hook"), hook) for hook in hooks)
    return Agent("default", model, fallback, "", dict(tools or {}), Limits(**limits), named)


@asynccontextmanager
async def crew(
    store: Store, only: Agent, *, stop: asyncio.Event | None = None, **changes: Any
) -> AsyncIterator[Worker]:
    """A worker that runs while the block is open or until `stop`, and drains then."""
    worker = Worker(store, {only.name: only}.get, settings(**changes), name=f"test-{next(numbers)}")
    stop = stop or asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    try:
        yield worker
    finally:
        stop.set()
        await asyncio.wait_for(running, PATIENCE_S)


async def prompt(store: Store, session_id: str, message_id: str, delivery: str = "queue", text: str = "") -> Receipt:
    """Send a message whose id is its text, unless another text is given."""
    lane, wake = LANES[delivery]
    data = {
        "messageId": message_id,
        "lane": str(lane),
        "wake": wake,
        "content": [{"type": "text", "text": text or message_id}],
        "source": {"kind": "user"},
    }
    return await store.submit(session_id, Submission(message_id, lane, wake, data, f"print of {text}"), BORN)


async def ledger(store: Store, session_id: str) -> list[Event]:
    """The whole ledger."""
    return await store.events(session_id, after=0, limit=100_000)


async def history(store: Store, session_id: str) -> str:
    """The ledger in the notation of the golden traces."""
    return " ".join(render(await ledger(store, session_id)))


async def rested(store: Store, session_id: str) -> list[Event]:
    """Wait until the agent has run and is idle, hold its ledger to every invariant, and give it back."""

    async def idle() -> bool:
        level = await store.level(session_id)
        return level is not None and level.status is Status.IDLE and level.idle_cursor > 0

    await wait_until(idle, PATIENCE_S, f"{session_id} to be idle")
    events = await ledger(store, session_id)
    assert invariants.violations(events) == []
    assert await store.indexes(session_id) == indexes(fold(session_id, events))
    return events


async def seen(store: Store, session_id: str, token: str) -> None:
    """Wait until a token of the notation is in the ledger."""

    async def there() -> bool:
        return token in (await history(store, session_id)).split(" ")

    await wait_until(there, PATIENCE_S, f"{token} in the ledger of {session_id}")


async def passed(store: Store, ms: int) -> None:
    """Wait until so much time has passed by the store's own clock, read off a session of its own."""
    started = 0

    async def later() -> bool:
        nonlocal started
        await prompt(store, "clock", f"tick {next(numbers)}", "inject")
        now = (await ledger(store, "clock"))[-1].time
        started = started or now
        return now - started > ms

    await wait_until(later, PATIENCE_S, f"{ms} ms to pass")

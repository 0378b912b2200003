"""Long calls of tools: what keeps its session, what loses it, what is ended (semantics R2, C4; acceptance T7)."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Event
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Store
from mailslot_services.agent_worker import turn
from mailslot_services.agent_worker.models.scripted import ScriptedModel
from mailslot_services.agent_worker.tools import load_tools, tool
from tests.crew import agent, crew, history, ledger, passed, prompt, rested
from tests.integration.test_worker_recovery import results
from tests.integration.test_worker_turns import Recorded, ends
from tests.unit.worker.test_process import STUCK, gone, pids

LEASE_MS = 300


def calls(name: str, **arguments: Any) -> ScriptedModel:
    return ScriptedModel.sequence([{"calls": [{"name": name, "arguments": arguments}]}, {"say": "done"}])


async def test_a_function_that_blocks_its_thread_keeps_its_session(store: Store) -> None:
    """Semantics R2: its lease is renewed many times over, and it is run once."""
    began, may_end, runs = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def slow() -> str:
        runs.append(1)
        loop.call_soon_threadsafe(began.set)
        may_end.wait(30)
        return "at last"

    async with crew(store, agent(calls("slow"), tools={"slow": tool(slow)}), lease_ms=LEASE_MS, stall_ms=1_000):
        await prompt(store, "s", "A")
        await began.wait()
        await passed(store, 4 * LEASE_MS)
        may_end.set()
        events = await rested(store, "s")
    assert results(events) == ["at last"]
    assert runs == [1]
    assert "recovered" not in await history(store, "s")


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A tool that holds Python's lock for ever, in a process of its own."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_stuck_tools", raising=False)
    (tmp_path / "own_stuck_tools.py").write_text(STUCK)
    return load_tools(["own_stuck_tools:stuck_for_long"], tmp_path)


async def test_a_function_that_holds_pythons_lock_keeps_its_session_and_ends_with_a_cancel(
    store: Store, stuck: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Semantics R2, C4: renewals go on; the cancel waits for the tool for a while, then its process is killed."""
    monkeypatch.setattr(turn, "TOOL_DRAIN_S", 0.05)
    noted = tmp_path / "pids"
    only = agent(calls("stuck_for_long", where=str(noted)), tools=stuck)
    async with crew(store, only, lease_ms=LEASE_MS, stall_ms=1_000):
        await prompt(store, "s", "A")
        started = await pids(noted)
        await passed(store, 4 * LEASE_MS)
        await store.cancel("s", cause="user")
        events = await rested(store, "s")
    assert results(events) == ["TOOL_OUTCOME_UNKNOWN"]
    assert ends(events) == [{"kind": "aborted", "cause": "user"}]
    assert "recovered" not in await history(store, "s")
    await gone(*started)


async def test_a_session_that_is_handed_back_takes_its_process_with_it(
    store: Store, stuck: dict[str, Any], tmp_path: Path
) -> None:
    """Semantics R6: the grace period ends in the middle of the call."""
    noted = tmp_path / "pids"
    only = agent(calls("stuck_for_long", where=str(noted)), tools=stuck)
    async with crew(store, only, drain_ms=1):
        await prompt(store, "s", "A")
        started = await pids(noted)
    await gone(*started)
    async with crew(store, only):
        events = await rested(store, "s")
    assert results(events) == ["TOOL_OUTCOME_UNKNOWN"]
    assert "recovered(1, attempt 1, handback)" in await history(store, "s")


@pytest.fixture
def settings(clean_server_url: str) -> StoreSettings:
    return StoreSettings(redis_url=clean_server_url, durability="memory")


@pytest.fixture
async def redis(settings: StoreSettings) -> AsyncIterator[RedisStore]:
    async with RedisStore.connect(settings) as connected:
        yield connected


async def test_a_tool_that_blocks_the_loop_loses_its_session_and_writes_nothing_more(
    redis: RedisStore, settings: StoreSettings
) -> None:
    """Semantics R2, L3: a frozen loop renews nothing; another worker goes on, and whatever comes after is refused."""
    seen: list[list[Event]] = []

    async def go_on() -> None:
        only = agent(ScriptedModel.sequence(["never", "sorry"]), tools={"t": Recorded("t")})
        async with RedisStore.connect(settings) as elsewhere, crew(elsewhere, only):
            seen.append(await rested(elsewhere, "s"))

    class Freezing(Recorded):
        async def run(self, arguments: Any, effect_key: str) -> str:
            successor = threading.Thread(target=lambda: asyncio.run(go_on()))
            successor.start()
            successor.join(30)  # and no event of this loop is served meanwhile
            return "late"

    async with crew(redis, agent(calls("t"), tools={"t": Freezing("t")}), lease_ms=LEASE_MS) as frozen:
        await prompt(redis, "s", "A")
        await rested(redis, "s")
        let_go = frozen.metrics.lost.labels(reason="lease-over")._value.get()
        refused = frozen.metrics.fenced._value.get()
    assert results(seen[0]) == ["TOOL_OUTCOME_UNKNOWN"]
    assert await ledger(redis, "s") == seen[0]
    assert let_go + refused == 1

"""What was found by attacking the worker at its seams; each of these once failed."""

import asyncio
from typing import Any

import pytest

from mailslot_contracts.codec import DEPTH_MAX
from mailslot_core.agent import Answer, Finish, ToolCall
from mailslot_core.errors import StoreFault, StoreUnavailable
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Event
from mailslot_core.store import Store
from mailslot_core.turn import Draft
from mailslot_services.agent_worker import worker as worker_module
from mailslot_services.agent_worker.models.echo import EchoModel
from mailslot_services.agent_worker.models.gate import Gates
from mailslot_services.agent_worker.models.scripted import ScriptedModel
from mailslot_services.agent_worker.plan import ANSWER_BYTES_MAX
from tests.crew import agent, crew, history, passed, prompt, rested, seen
from tests.integration.test_worker_recovery import acquired, step_start
from tests.integration.test_worker_turns import Recorded, ends
from tests.waiting import wait_until

HOUR_MS = 3_600_000


class Says:
    """A model that gives one answer."""

    name, instant = "says", False

    def __init__(self, answer: Answer) -> None:
        self.answer_: Answer = answer
        self.asked = 0

    async def answer(self, request: Any, on_delta: Any) -> Answer:
        self.asked += 1
        return self.answer_


class Wrapped:
    """A store of which some methods do something else first or instead."""

    def __init__(self, store: Store, **instead: Any) -> None:
        self._store, self._instead = store, instead

    def __getattr__(self, name: str) -> Any:
        return self._instead.get(name) or getattr(self._store, name)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


UNKEEPABLE = {
    "too long": Answer("x" * (ANSWER_BYTES_MAX + 1)),
    "no text": Answer("\ud800"),
    "too deep": Answer("", (ToolCall("c1", "t", nested(DEPTH_MAX - 1)),), Finish.CALLS),
    "no number": Answer("", (ToolCall("c1", "t", {"n": float("nan")}),), Finish.CALLS),
}


@pytest.mark.parametrize("answer", UNKEEPABLE.values(), ids=UNKEEPABLE)
async def test_an_answer_that_cannot_be_kept_ends_its_turn(store: Store, answer: Answer) -> None:
    """It must not kill the session's every owner in turn (semantics L5, T8)."""
    model = Says(answer)
    async with crew(store, agent(model, tools={"t": Recorded("t")})):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [(end["kind"], end["code"]) for end in ends(events)] == [("error", "bad-response")]
    assert model.asked == 1


async def test_a_tool_that_raises_what_it_may_not_is_a_failed_call(store: Store) -> None:
    class Broken(Recorded):
        async def run(self, arguments: Any, effect_key: str) -> str:
            raise KeyError("x")

    model = ScriptedModel.sequence([{"calls": [{"name": "t", "arguments": {}}]}, {"say": "sorry"}])
    async with crew(store, agent(model, tools={"t": Broken("t")})):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [e.data["error"]["code"] for e in events if e.type == "tool/result"] == ["tool-failed"]


async def test_what_a_failed_attempt_had_said_is_not_kept_when_a_cancel_follows(store: Store) -> None:
    """Semantics T9: a failed attempt commits nothing, also not as a prefix."""
    fails = {"code": "overloaded", "message": "full", "retryable": True, "retry_after_ms": 600_000}
    model = ScriptedModel.of([{"deltas": ["Hel", "lo"], "fail": fails}])
    async with crew(store, agent(model), lease_ms=900):
        await prompt(store, "s", "A")
        await seen(store, "s", "llm/retry")
        await store.cancel("s", cause="user")
        await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] llm/retry cancel s1 t1(aborted user) I"


async def test_a_step_whose_model_was_never_called_says_nothing(store: Store) -> None:
    """Semantics T9: a cancel just before step 2's checkpoint does not repeat step 1's text."""
    asked: list[bool] = []

    async def commit(lease: Any, call: int, drafts: Any, **options: Any) -> Any:
        if not asked and any(draft.type == "step/start" and draft.data["step"] == 2 for draft in drafts):
            asked.append(True)
            await store.cancel("s", cause="user")
        return await store.commit(lease, call, drafts, **options)

    look = {"say": "let me look", "pieces": 2, "calls": [{"name": "t", "arguments": {}}]}
    only = agent(ScriptedModel.sequence([look, {"say": "done"}]), tools={"t": Recorded("t")})
    wrapped: Any = Wrapped(store, commit=commit)
    async with crew(wrapped, only):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [e.data["step"] for e in events if e.type == "assistant/message"] == [1]
    assert ends(events) == [{"kind": "aborted", "cause": "user"}]


async def test_a_retry_that_does_not_fit_into_the_wall_time_is_not_waited_for(store: Store) -> None:
    """Semantics T10: a provider that asks for an hour does not hold the turn for an hour."""
    fails = {"code": "rate-limited", "message": "later", "retryable": True, "retry_after_ms": HOUR_MS}
    async with crew(store, agent(ScriptedModel.of([{"fail": fails}]), wall_seconds_per_turn=60)):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [end["code"] for end in ends(events)] == ["rate-limited"]
    assert not [e for e in events if e.type == "llm/retry"]


async def test_a_tool_ends_with_the_turns_wall_time(store: Store) -> None:
    """Semantics T10: the shortest wall time is a second, so this test takes one."""
    slow = Recorded("t")
    slow.may_end.clear()
    model = ScriptedModel.sequence([{"calls": [{"name": "t", "arguments": {}}]}, {"say": "done"}])
    async with crew(store, agent(model, tools={"t": slow}, wall_seconds_per_turn=1)):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [e.data["error"]["code"] for e in events if e.type == "tool/result"] == ["TOOL_OUTCOME_UNKNOWN"]
    assert [end["code"] for end in ends(events)] == ["budget-wall-time"]


async def test_a_budget_counts_on_over_a_recovery(store: Store) -> None:
    """Semantics T10: what a dead owner used is used."""
    await prompt(store, "s", "A")
    grant = await acquired(store, "dead/0", 1)
    used = {"turn": 1, "step": 1, "attempt": 1, "model": "m", "inputTokens": 4, "outputTokens": 4}
    asks = {
        "turn": 1,
        "step": 1,
        "content": [],
        "model": "m",
        "toolCalls": [{"callId": "c", "name": "t", "arguments": {}}],
    }
    first = [*step_start("A"), Draft("usage/recorded", used), Draft("assistant/message", asks)]
    await store.commit(grant.lease, 2, first)
    model = ScriptedModel.sequence([{"say": "never"}, {"say": "done", "usage": {"input": 4, "output": 3}}])
    async with crew(store, agent(model, tools={"t": Recorded("t")}, tokens_per_turn=10)):
        events = await rested(store, "s")
    end = next(e for e in events if e.type == "turn/end")
    assert end.data["reason"]["code"] == "budget-tokens"
    assert end.data["usage"] == {"inputTokens": 8, "outputTokens": 7}


async def test_a_session_that_was_acquired_while_the_worker_drains_is_given_back(store: Store) -> None:
    """Semantics R6: the answer of an acquire under way is not thrown away."""
    came, may_tell = asyncio.Event(), asyncio.Event()

    async def acquire(*args: Any) -> Any:
        grant = await store.acquire(*args)
        if grant is not None:
            came.set()
            await may_tell.wait()
        return grant

    stop = asyncio.Event()
    wrapped: Any = Wrapped(store, acquire=acquire)
    async with crew(wrapped, agent(EchoModel()), stop=stop) as worker:
        await prompt(store, "s", "A")
        await came.wait()
        stop.set()
        await wait_until(lambda: worker.draining, 5, "the worker to drain")
        may_tell.set()
    assert sum([(await store.load(p)).leased for p in range(store.partitions)]) == 0
    async with crew(store, agent(EchoModel())):
        await rested(store, "s")
    assert "recovered(1, attempt 1, handback)" in await history(store, "s")


async def test_a_renewal_that_hangs_does_not_keep_work_going_past_its_lease(store: Store) -> None:
    """Semantics R2: the worker lets go by its own clock, whatever the store does."""
    stopped = asyncio.Event()

    class Long:
        name, instant = "long", False

        async def answer(self, request: Any, on_delta: Any) -> Answer:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            raise AssertionError("it waits for ever")

    async def renew(*args: Any) -> Any:
        await asyncio.Event().wait()

    wrapped: Any = Wrapped(store, renew=renew)
    async with crew(wrapped, agent(Long()), lease_ms=1_000, sweep_ms=60_000, drain_ms=0) as worker:
        await prompt(store, "s", "A")
        await wait_until(lambda: worker._keeper.held, 5, "the session to be acquired")
        [tenure] = worker._keeper.held
        await asyncio.wait_for(stopped.wait(), 5)
        late_s = asyncio.get_running_loop().time() - tenure.until
    assert late_s < 0.1  # what is left of the lease after SAFETY


async def test_a_partition_that_cannot_be_read_does_not_end_the_worker(store: Store) -> None:
    """One damaged session is the doctor's business; the others go on."""
    broken = 0

    async def acquire(partition: int, *args: Any) -> Any:
        nonlocal broken
        if not broken:
            broken += 1
            raise StoreFault("damaged")
        return await store.acquire(partition, *args)

    wrapped: Any = Wrapped(store, acquire=acquire)
    async with crew(wrapped, agent(EchoModel()), concurrency=1):
        await prompt(store, "s", "A")
        events: list[Event] = await rested(store, "s")
    assert broken == 1
    assert ends(events) == [{"kind": "completed"}]


async def test_a_session_that_cannot_be_written_is_given_up_and_the_others_go_on(store: Store) -> None:
    """Each try costs a lease and counts as a crash (semantics R5): no worker turns around such a session for ever."""
    tries = 0

    async def commit(lease: Any, *args: Any, **options: Any) -> Any:
        nonlocal tries
        if lease.session_id == "s":
            tries += 1
            raise StoreFault("damaged")
        return await store.commit(lease, *args, **options)

    wrapped: Any = Wrapped(store, commit=commit)
    async with crew(wrapped, agent(EchoModel(delay_ms=1)), lease_ms=200) as worker:
        await prompt(store, "s", "A")
        await prompt(store, "other", "A")
        await rested(store, "other")
        events = await rested(store, "s")
        assert worker.metrics.lost.labels(reason="defect")._value.get() == 3
    assert tries == 3
    assert [end["kind"] for end in ends(events)] == ["interrupted"]


async def test_a_lease_that_cannot_be_renewed_costs_no_other(store: Store) -> None:
    """One damaged session among those that a worker holds."""
    gates = Gates()

    async def renew(leases: Any, lease_ms: int) -> Any:
        if any(lease.session_id == "damaged" for lease in leases):
            raise StoreFault("damaged")
        return await store.renew(leases, lease_ms)

    slow = agent(ScriptedModel.of([{"say": "at last", "wait": "half"}], gates=gates))
    wrapped: Any = Wrapped(store, renew=renew)
    async with crew(wrapped, slow, lease_ms=300) as worker:
        await prompt(store, "sound", "A")
        await prompt(store, "damaged", "A")
        await wait_until(lambda: len(worker._keeper.held) == 2, 5, "both sessions to be acquired")
        await wait_until(worker.metrics.lost.labels(reason="lease-over")._value.get, 5, "one to be let go")
        await passed(store, 600)
        gates.open("half")
        await rested(store, "sound")
    assert "recovered" not in await history(store, "sound")


async def test_a_partition_that_cannot_be_read_does_not_keep_the_others_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it asked over and over: once, and then not before BELL_RETRY_S is over."""
    monkeypatch.setattr(worker_module, "BELL_RETRY_S", HOUR_MS / 1000)
    names = [f"s{number}" for number in range(20)]
    broken = partition_of("s0", store.partitions)
    asked: list[int] = []

    async def acquire(partition: int, *args: Any) -> Any:
        if partition == broken:
            asked.append(partition)
            raise StoreFault("damaged")
        return await store.acquire(partition, *args)

    wrapped: Any = Wrapped(store, acquire=acquire)
    async with crew(wrapped, agent(EchoModel())):
        for session_id in names:
            await prompt(store, session_id, "A")
        for session_id in names:
            if partition_of(session_id, store.partitions) != broken:
                await rested(store, session_id)
        await passed(store, 300)  # several looks at all partitions
    assert asked == [broken]


async def test_a_store_that_is_away_while_the_past_is_read_costs_no_crash(store: Store) -> None:
    """A restart of the store is waited out like at every other call, as long as the lease holds."""
    only = agent(EchoModel())
    async with crew(store, only):
        await prompt(store, "s", "A")
        await rested(store, "s")
    away = 0

    async def events(*args: Any, **options: Any) -> Any:
        nonlocal away
        if away < 2:
            away += 1
            raise StoreUnavailable("away")
        return await store.events(*args, **options)

    wrapped: Any = Wrapped(store, events=events)
    async with crew(wrapped, only, lease_ms=60_000):
        await prompt(store, "s", "B")
        await seen(store, "s", "t2(completed)")
        await rested(store, "s")
    assert away == 2
    assert "recovered" not in await history(store, "s")

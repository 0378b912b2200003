"""What a worker makes of a session: the golden traces that need a running agent, and the turn's other promises."""

import asyncio
from typing import Any

import pytest

from mailslot_core.agent import Effect, ToolError, ToolSpec
from mailslot_core.session import Event
from mailslot_core.store import Store
from mailslot_services.agent_worker.models.echo import EchoModel
from mailslot_services.agent_worker.models.gate import Gates
from mailslot_services.agent_worker.models.scripted import ScriptedModel
from mailslot_services.agent_worker.transcript import check_history, extend
from tests.crew import agent, crew, history, ledger, prompt, rested, seen
from tests.waiting import wait_until

ONE_TURN = "q[A] R T1 c[A] S1 u[A] a s1 t1(completed) I"


class Recorded:
    """A tool that remembers its calls."""

    timeout_ms = 5_000

    def __init__(self, name: str, effect: Effect = Effect.UNSAFE, *, result: str = "done") -> None:
        self.spec = ToolSpec(name, f"the tool {name}", {"type": "object", "properties": {}})
        self.effect = effect
        self.keys: list[str] = []
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._result = result

    async def run(self, arguments: Any, effect_key: str) -> str:
        self.keys.append(effect_key)
        self.started.set()
        await self.may_end.wait()
        if self._result == "fail":
            raise ToolError("broken", "the tool is broken")
        return self._result


def answers(events: list[Event]) -> list[str]:
    return [block["text"] for e in events if e.type == "assistant/message" for block in e.data["content"]]


def ends(events: list[Event]) -> list[dict[str, Any]]:
    return [dict(e.data["reason"]) for e in events if e.type == "turn/end"]


@pytest.mark.parametrize(
    "model", [EchoModel(), EchoModel(delay_ms=1), EchoModel(deltas=3)], ids=["instant", "slow", "streamed"]
)
async def test_one_followup_is_one_turn(store: Store, model: EchoModel) -> None:
    """Trace 1, and the same ledger whether the model's step goes with the settle or is committed before."""
    async with crew(store, agent(model)):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert await history(store, "s") == ONE_TURN
    assert answers(events) == ["A"]


async def test_a_followup_sent_meanwhile_gets_a_turn_of_its_own(store: Store) -> None:
    """Trace 2."""
    gates = Gates()
    model = ScriptedModel.sequence([{"say": "one", "wait": "half"}, {"say": "two"}], gates=gates)
    async with crew(store, agent(model)):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "B")
        gates.open("half")
        events = await rested(store, "s")
    assert await history(store, "s") == (
        "q[A] R T1 c[A] S1 u[A] q[B] a s1 t1(completed) T2 c[B] S1 u[B] a s1 t2(completed) I"
    )
    assert answers(events) == ["one", "two"]


async def test_a_steer_while_the_model_streams_gets_another_step_of_the_turn(store: Store) -> None:
    """Trace 3 (semantics T6)."""
    gates = Gates()
    model = ScriptedModel.sequence([{"say": "one", "wait": "half"}, {"say": "two"}], gates=gates)
    async with crew(store, agent(model)):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "S", "steer")
        gates.open("half")
        await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] qs[S] a s1 c[S] S2 u[S] a s2 t1(completed) I"


async def test_injected_context_waits_for_a_followup_and_enters_before_it(store: Store) -> None:
    """Trace 4."""
    async with crew(store, agent(EchoModel())):
        await prompt(store, "s", "C", "inject")
        assert await history(store, "s") == "qs[C]"
        await prompt(store, "s", "A")
        await rested(store, "s")
    assert await history(store, "s") == "qs[C] q[A] R T1 c[C,A] S1 u[C] u[A] a s1 t1(completed) I"


async def test_injected_context_does_not_prolong_a_turn(store: Store) -> None:
    """Semantics T6: it waits for the next boundary."""
    gates = Gates()
    model = ScriptedModel.sequence([{"say": "one", "wait": "half"}, {"say": "two"}], gates=gates)
    async with crew(store, agent(model)):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "C", "inject")
        gates.open("half")
        await rested(store, "s")
        assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] qs[C] a s1 t1(completed) I"


async def test_a_turn_that_fails_for_good_does_not_stop_the_next(store: Store) -> None:
    """Trace 6 (semantics T7)."""
    gates = Gates()
    broken = {"fail": {"code": "bad-request", "message": "no", "retryable": False}, "wait": "half"}
    async with crew(store, agent(ScriptedModel.of([{"when": {"turn": 1}, **broken}, "two"], gates=gates))):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "B")
        gates.open("half")
        events = await rested(store, "s")
    assert await history(store, "s") == (
        "q[A] R T1 c[A] S1 u[A] q[B] s1 t1(error) T2 c[B] S1 u[B] a s1 t2(completed) I"
    )
    assert ends(events)[0] == {"kind": "error", "code": "bad-request", "message": "no", "retryable": False}


async def test_a_cancel_keeps_what_was_visible_and_the_queue_goes_on(store: Store) -> None:
    """Trace 7 (semantics C2, T9): the cancel finds its turn without any control topic, by the next renewal."""
    gates = Gates()
    model = ScriptedModel.sequence([{"deltas": ["vis", {"text": "ible", "wait": "half"}]}, {"say": "two"}], gates=gates)
    async with crew(store, agent(model), lease_ms=900):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "B")
        answer = await store.cancel("s", cause="user")
        assert (answer.outcome, answer.turn, answer.still_queued) == ("requested", 1, ("B",))
        events = await rested(store, "s")
    assert await history(store, "s") == (
        "q[A] R T1 c[A] S1 u[A] q[B] cancel a(interrupted) s1 t1(aborted user) T2 c[B] S1 u[B] a s1 t2(completed) I"
    )
    assert answers(events) == ["vis", "two"]


async def test_word_of_a_cancel_ends_a_model_call_at_once(store: Store) -> None:
    """Semantics C4; the lease is long, so it is the word and not the renewal."""
    gates = Gates()
    async with crew(store, agent(ScriptedModel.sequence([{"say": "never", "wait": "half"}], gates=gates))) as worker:
        await prompt(store, "s", "A")
        await gates.reached("half")
        await store.cancel("s", cause="user")
        worker.cancel("s", 1, 1, "user")
        await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] cancel s1 t1(aborted user) I"


async def test_word_of_a_cancel_of_an_earlier_turn_changes_nothing(store: Store) -> None:
    """Semantics C3: a late word cannot hit the next turn."""
    gates = Gates()
    model = ScriptedModel.sequence([{"say": "one"}, {"say": "two", "wait": "half"}], gates=gates)
    async with crew(store, agent(model)) as worker:
        await prompt(store, "s", "A")
        await prompt(store, "s", "B")
        await gates.reached("half")
        worker.cancel("s", 1, 1, "user")
        gates.open("half")
        events = await rested(store, "s")
    assert [end["kind"] for end in ends(events)] == ["completed", "completed"]


async def test_a_retry_stays_in_its_step(store: Store) -> None:
    """Trace 14 (semantics T8): the wait is what the provider asked for."""
    fail = {
        "fail": {"code": "rate-limited", "message": "slow", "retryable": True, "retry_after_ms": 7, "times": 1},
        "say": "ok",
    }
    async with crew(store, agent(ScriptedModel.sequence([fail]))):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] llm/retry a s1 t1(completed) I"
    retry = next(e for e in events if e.type == "llm/retry")
    assert retry.data == {"turn": 1, "step": 1, "attempt": 1, "delayMs": 7, "code": "rate-limited", "message": "slow"}


async def test_when_retries_are_spent_the_fallback_answers(store: Store) -> None:
    """Semantics T8."""
    fail = {"fail": {"code": "overloaded", "message": "full", "retryable": True, "retry_after_ms": 1}}
    only = agent(ScriptedModel.of([fail]), fallback=EchoModel(), attempts=2)
    async with crew(store, only):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] llm/retry a s1 t1(completed) I"
    assert next(e for e in events if e.type == "assistant/message").data["model"] == "echo"


async def test_a_cancel_ends_the_wait_for_a_retry(store: Store) -> None:
    """Semantics T8: the wait is cancellable."""
    fail = {"fail": {"code": "rate-limited", "message": "slow", "retryable": True, "retry_after_ms": 600_000}}
    async with crew(store, agent(ScriptedModel.sequence([fail])), lease_ms=900):
        await prompt(store, "s", "A")
        await seen(store, "s", "llm/retry")
        await store.cancel("s", cause="user")
        await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A] llm/retry cancel s1 t1(aborted user) I"


async def test_tools_run_between_checkpoints_and_the_history_stays_valid(store: Store) -> None:
    """Semantics T3: the calls are in the ledger before they run, and the transcript is valid after every event."""
    first, second = Recorded("first"), Recorded("second", result="fail")
    calls = {"calls": [{"name": "first", "arguments": {}}, {"name": "second", "arguments": {}}]}
    model = ScriptedModel.sequence([calls, {"say": "done"}])
    async with crew(store, agent(model, tools={"first": first, "second": second})):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    ids = [call["callId"] for e in events if e.type == "assistant/message" for call in e.data.get("toolCalls", ())]
    assert await history(store, "s") == (
        f"q[A] R T1 c[A] S1 u[A] a tc[{ids[0]}] tc[{ids[1]}] tr[{ids[0]}] tr[{ids[1]}] s1 S2 a s2 t1(completed) I"
    )
    results = {e.data["callId"]: e.data for e in events if e.type == "tool/result"}
    assert results[ids[0]]["content"] == "done"
    assert results[ids[1]]["error"] == {"code": "broken", "message": "the tool is broken"}
    for length in range(len(events) + 1):
        assert check_history(extend((), events[:length]), complete=False) == []
    assert first.keys == [f"s/{events[0].time}/1/1/{ids[0]}"]


async def test_a_steer_during_tools_joins_the_next_step(store: Store) -> None:
    tool = Recorded("slow")
    tool.may_end.clear()
    model = ScriptedModel.sequence([{"calls": [{"name": "slow", "arguments": {}}]}, {"say": "done"}])
    async with crew(store, agent(model, tools={"slow": tool})):
        await prompt(store, "s", "A")
        await tool.started.wait()
        await prompt(store, "s", "S", "steer")
        tool.may_end.set()
        events = await rested(store, "s")
    assert "s1 c[S] S2 u[S] a s2" in await history(store, "s")
    assert check_history(extend((), events)) == []


async def test_a_cancel_lets_started_tools_finish(store: Store) -> None:
    """Semantics C4."""
    tool = Recorded("slow")
    tool.may_end.clear()
    model = ScriptedModel.sequence([{"calls": [{"name": "slow", "arguments": {}}]}])
    async with crew(store, agent(model, tools={"slow": tool})) as worker:
        await prompt(store, "s", "A")
        await tool.started.wait()
        await store.cancel("s", cause="user")
        worker.cancel("s", 1, 1, "user")
        tool.may_end.set()
        events = await rested(store, "s")
    assert [e.data["content"] for e in events if e.type == "tool/result"] == ["done"]
    assert ends(events) == [{"kind": "aborted", "cause": "user"}]


async def test_calls_that_were_not_dispatched_say_so(store: Store) -> None:
    """Semantics C4: the cancel was recorded before the calls were started."""
    tool = Recorded("never")
    gates = Gates()
    model = ScriptedModel.sequence([{"calls": [{"name": "never", "arguments": {}}], "wait": "half"}], gates=gates)
    async with crew(store, agent(model, tools={"never": tool})):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await store.cancel("s", cause="user")
        gates.open("half")
        events = await rested(store, "s")
    assert [e.data["error"]["code"] for e in events if e.type == "tool/result"] == ["ABORTED_BEFORE_DISPATCH"]
    assert tool.keys == []


async def test_an_unknown_tool_is_an_error_the_model_sees(store: Store) -> None:
    model = ScriptedModel.sequence([{"calls": [{"name": "nothing", "arguments": {}}]}, {"say": "sorry"}])
    async with crew(store, agent(model)):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [e.data["error"]["code"] for e in events if e.type == "tool/result"] == ["unknown-tool"]
    assert answers(events) == ["sorry"]


async def test_truncated_calls_are_not_dispatched_and_max_tokens_sticks(store: Store) -> None:
    """Semantics T5: sticky within the turn, gone with the next."""
    gates = Gates()
    model = ScriptedModel.sequence(
        [
            {"say": "cut", "calls": [{"name": "t", "arguments": {}}], "finish": "length", "wait": "half"},
            {"say": "more"},
            {"say": "next"},
        ],
        gates=gates,
    )
    async with crew(store, agent(model)):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "S", "steer")
        gates.open("half")
        await rested(store, "s")
        await prompt(store, "s", "B")
        await seen(store, "s", "t2(completed)")
        events = await rested(store, "s")
    assert [end["kind"] for end in ends(events)] == ["max-tokens", "completed"]
    assert not [e for e in events if e.type == "tool/call"]


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"steps_per_turn": 2}, "budget-steps"),
        ({"tool_calls_per_turn": 2}, "budget-tool-calls"),
        ({"tokens_per_turn": 10}, "budget-tokens"),
    ],
)
async def test_a_budget_that_is_spent_ends_the_turn_with_its_name(
    store: Store, limits: dict[str, Any], code: str
) -> None:
    """Semantics T10: never a hang."""
    again = {"calls": [{"name": "t", "arguments": {}}], "usage": {"input": 3, "output": 4}}
    model = ScriptedModel.sequence([again], loop=True)
    async with crew(store, agent(model, tools={"t": Recorded("t")}, **limits)):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [(end["kind"], end["code"]) for end in ends(events)] == [("error", code)]
    assert check_history(extend((), events)) == []


async def test_a_model_that_never_answers_ends_with_the_turns_wall_time(store: Store) -> None:
    """Semantics T10: the shortest wall time is a second, so this test takes one."""
    async with crew(store, agent(ScriptedModel.sequence([{"hang": True}]), wall_seconds_per_turn=1)):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [(end["kind"], end["code"]) for end in ends(events)] == [("error", "budget-wall-time")]


async def test_an_agent_that_no_worker_has_rejects_the_message_and_rests(store: Store) -> None:
    await store.create("s", {"agent": "nobody", "onFailure": "continue", "depth": 0, "metadata": {}})
    async with crew(store, agent(EchoModel())):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] rej[A] t1(error) I"
    assert ends(events)[0]["code"] == "unknown-agent"


async def test_usage_is_counted_for_the_call_the_turn_and_the_session(store: Store) -> None:
    model = ScriptedModel.sequence([{"say": "one", "usage": {"input": 3, "output": 4}}], loop=True)
    async with crew(store, agent(model)):
        await prompt(store, "s", "A")
        await prompt(store, "s", "B")
        await seen(store, "s", "t2(completed)")
        events = await rested(store, "s")
    assert [e.data["usage"] for e in events if e.type == "turn/end"] == [{"inputTokens": 3, "outputTokens": 4}] * 2
    level = await store.level("s")
    assert level is not None
    assert level.usage == {"inputTokens": 6, "outputTokens": 8}


async def test_a_model_that_breaks_unexpectedly_ends_only_its_turn(store: Store) -> None:
    class Broken:
        name, instant = "broken", False

        async def answer(self, request: Any, on_delta: Any) -> Any:
            raise ZeroDivisionError

    async with crew(store, agent(Broken())):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [(end["kind"], end["code"]) for end in ends(events)] == [("error", "internal")]


async def test_the_model_sees_the_whole_conversation(store: Store) -> None:
    """Semantics L6, over turns, and over a worker that comes fresh to the session."""
    heard: list[int] = []

    class Counting:
        name, instant = "counting", False

        async def answer(self, request: Any, on_delta: Any) -> Any:
            heard.append(len(request.transcript))
            return await EchoModel().answer(request, on_delta)

    only = agent(Counting())
    async with crew(store, only):
        await prompt(store, "s", "A")
        await rested(store, "s")
        await prompt(store, "s", "B")
        await seen(store, "s", "t2(completed)")
        await rested(store, "s")
    async with crew(store, only):
        await prompt(store, "s", "C")
        await seen(store, "s", "t3(completed)")
        await rested(store, "s")
    assert heard == [1, 3, 5]


async def test_sessions_run_side_by_side_and_each_in_order(store: Store) -> None:
    """Semantics T1: 40 sessions, 5 messages each, two workers."""
    only = agent(EchoModel(delay_ms=1))
    async with crew(store, only), crew(store, only):
        for number in range(5):
            await asyncio.gather(*(prompt(store, f"s{s}", f"m{number}") for s in range(40)))

        async def all_rest() -> bool:
            levels = await asyncio.gather(*(store.level(f"s{s}") for s in range(40)))
            return all(level is not None and not level.pending and level.status == "idle" for level in levels)

        await wait_until(all_rest, 20, "40 sessions to rest")
    for s in range(40):
        admitted = [e.data["messageId"] for e in await ledger(store, f"s{s}") if e.type == "user/message"]
        assert admitted == [f"m{number}" for number in range(5)]

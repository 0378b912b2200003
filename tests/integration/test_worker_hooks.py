"""Admission hooks before a real worker's turns (semantics T3, T4, M10)."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mailslot.hooks import Batch, Decision, Rejection
from mailslot_core.agent import Finish, Model
from mailslot_core.errors import StoreFault
from mailslot_core.session import Event
from mailslot_core.store import Store
from mailslot_core.turn import Draft
from mailslot_services.agent_worker.models.echo import EchoModel
from mailslot_services.agent_worker.models.gate import Gates
from mailslot_services.agent_worker.models.scripted import ScriptedModel
from tests.crew import agent, crew, history, passed, prompt, rested, seen
from tests.integration.test_worker_recovery import acquired, step_start
from tests.integration.test_worker_seams import Wrapped
from tests.integration.test_worker_turns import ONE_TURN, Recorded, answers, ends
from tests.waiting import wait_until

VECTOR = Path(__file__).parents[2] / "contracts/vectors/05-hook-rejects.json"


class Asked:
    """A hook that remembers what it was shown and answers by what the messages say."""

    def __init__(self, **answers: Callable[[Batch], Decision]) -> None:
        self.shown: list[Batch] = []
        self._answers = answers

    def __call__(self, batch: Batch) -> Decision:
        self.shown.append(batch)
        answer = next((a for word, a in self._answers.items() if word in batch.text.split()), lambda _: None)
        return answer(batch)

    @property
    def saw(self) -> list[tuple[int, int, list[str]]]:
        return [(batch.turn, batch.step, [m.message_id for m in batch.messages]) for batch in self.shown]


def no(batch: Batch) -> Rejection:
    return Rejection("not here")


def admitted(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(e.data["messageId"], e.data["content"][0]["text"]) for e in events if e.type == "user/message"]


def rejected(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(e.data["messageId"], e.data["reason"]) for e in events if e.type == "inbox/rejected"]


async def test_a_rejected_message_blocks_its_turn_and_the_next_one_runs(store: Store) -> None:
    """Trace 5, as the vector says it."""
    came, go_on = asyncio.Event(), asyncio.Event()

    async def guard(batch: Batch) -> Decision:
        if batch.text != "A":
            return None
        came.set()
        await go_on.wait()
        return Rejection("the admission hook said no")

    async with crew(store, agent(EchoModel(), hooks=[guard])):
        await prompt(store, "s", "A")
        await came.wait()
        await prompt(store, "s", "B")
        go_on.set()
        events = await rested(store, "s")
    assert (await history(store, "s")).split() == json.loads(VECTOR.read_text())["pattern"]
    assert rejected(events) == [("A", "the admission hook said no")]


async def test_what_a_hook_rewrote_is_what_the_model_sees_and_what_the_ledger_says(store: Store) -> None:
    hook = Asked(secret=lambda batch: batch.rewrite("A", "nothing to see"))
    async with crew(store, agent(EchoModel(), hooks=[hook])):
        await prompt(store, "s", "A", text="a secret")
        events = await rested(store, "s")
    assert await history(store, "s") == ONE_TURN
    assert answers(events) == ["nothing to see"]
    assert admitted(events) == [("A", "nothing to see")]
    assert hook.shown[0].messages[0].source == {"kind": "user"}


async def test_what_a_hook_adds_enters_with_its_own_source_and_was_never_in_the_inbox(store: Store) -> None:
    def context(batch: Batch) -> Batch:
        return batch.add("it is Monday", first=True)

    async with crew(store, agent(EchoModel(), hooks=[context])):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    (added, said), (_, told) = admitted(events)
    assert (said, told, answers(events)) == ("it is Monday", "A", ["it is Monday\nA"])
    assert next(e.data["source"] for e in events if e.type == "user/message") == {"kind": "plugin", "name": "context"}
    indexes = await store.indexes("s")
    assert indexes is not None
    assert list(indexes["messages"]) == ["A"]
    assert await history(store, "s") == ONE_TURN.replace("u[A]", f"u[{added}] u[A]")


async def test_a_hook_may_leave_out_a_part_of_the_batch(store: Store) -> None:
    hook = Asked(C=lambda batch: batch.without("C", "old news"))
    async with crew(store, agent(EchoModel(), hooks=[hook])):
        await prompt(store, "s", "C", "inject")
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert await history(store, "s") == "qs[C] q[A] R T1 c[C,A] rej[C] S1 u[A] a s1 t1(completed) I"
    assert rejected(events) == [("C", "old news")]


def two_steps(gates: Gates) -> Model:
    """Asks for a tool, then answers; the gate `half` is in the first step, `end` in the second."""
    call = {"calls": [{"name": "t", "arguments": {}}], "wait": "half"}
    return ScriptedModel.sequence([call, {"say": "done", "wait": "end"}, {"say": "more"}], gates=gates)


async def test_a_hook_sees_what_is_claimed_at_each_boundary_and_nothing_else(store: Store) -> None:
    gates, hook = Gates(), Asked()
    async with crew(store, agent(two_steps(gates), tools={"t": Recorded("t")}, hooks=[hook])):
        await prompt(store, "s", "A")
        await gates.reached("half")
        gates.open("half")
        await gates.reached("end")
        await prompt(store, "s", "S", "steer")
        gates.open("end")
        await rested(store, "s")
    assert hook.saw == [(1, 1, ["A"]), (1, 3, ["S"])]


async def test_after_tools_a_turn_goes_on_without_the_steer_that_was_rejected(store: Store) -> None:
    gates, hook = Gates(), Asked(S=no)
    async with crew(store, agent(two_steps(gates), tools={"t": Recorded("t")}, hooks=[hook])):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "S", "steer")
        gates.open("half")
        gates.open("end")
        events = await rested(store, "s")
    assert "s1 c[S] rej[S] S2 a s2 t1(completed) I" in await history(store, "s")
    assert rejected(events) == [("S", "not here")]


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
async def test_after_an_answer_a_turn_ends_as_it_would_have_without_the_steer_that_was_rejected(
    store: Store, finish: Finish
) -> None:
    gates = Gates()
    model = ScriptedModel.sequence([{"say": "one", "wait": "half", "finish": str(finish)}, {"say": "two"}], gates=gates)
    async with crew(store, agent(model, hooks=[Asked(S=no)])):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "S", "steer")
        gates.open("half")
        events = await rested(store, "s")
    kind = "completed" if finish is Finish.STOP else "max-tokens"
    assert await history(store, "s") == f"q[A] R T1 c[A] S1 u[A] qs[S] a s1 c[S] rej[S] t1({kind}) I"
    assert answers(events) == ["one"]


async def test_a_new_owner_ends_a_turn_whose_last_steer_its_hook_rejects(store: Store) -> None:
    """The turn had its answer when its worker died with a steer claimed; nobody remembers but the ledger."""
    await prompt(store, "s", "A")
    grant = await acquired(store, "dead/0", 600_000)
    says = {"turn": 1, "step": 1, "content": [{"type": "text", "text": "one"}], "model": "m", "truncated": True}
    await prompt(store, "s", "S", "steer")
    drafts = [*step_start("A"), Draft("assistant/message", says), Draft("step/end", {"turn": 1, "step": 1})]
    taken = await store.commit(grant.lease, 2, drafts, take=True)
    await store.renew([taken.lease], 1)
    async with crew(store, agent(EchoModel(), hooks=[Asked(S=no)])):
        await rested(store, "s")
    assert (await history(store, "s")).endswith("s1 c[S] recovered(1, attempt 2, crash) rej[S] t1(max-tokens) I")


# -- hooks that fail ----------------------------------------------------------------------------------------


def raises(batch: Batch) -> None:
    raise KeyError("A")


async def raises_later(batch: Batch) -> None:
    raise ValueError("\ud800" * 5_000)


def leaves_its_process(batch: Batch) -> None:
    raise SystemExit(3)


async def takes_for_ever(batch: Batch) -> None:
    await asyncio.Event().wait()


def blocks_for_ever(batch: Batch) -> None:
    threading.Event().wait()


def answers_nonsense(batch: Batch) -> Any:
    return "yes"


def adds_what_cannot_be_kept(batch: Batch) -> Batch:
    return batch.add("\ud800")


FAILING = {
    raises: "hook raises: KeyError: 'A'",
    raises_later: "hook raises_later: ValueError: \N{REPLACEMENT CHARACTER}",
    leaves_its_process: "hook leaves_its_process: SystemExit: 3",
    takes_for_ever: "hook takes_for_ever did not answer within 0.02 s",
    blocks_for_ever: "hook blocks_for_ever did not answer within 0.02 s",
    answers_nonsense: "hook answers_nonsense answered with str, not with None, a Batch or a Rejection",
    adds_what_cannot_be_kept: "hook adds_what_cannot_be_kept: ",
}


@pytest.mark.parametrize("failing", FAILING, ids=lambda hook: hook.__name__)
async def test_a_hook_that_fails_ends_its_turn_and_no_other(store: Store, failing: Any) -> None:
    """Semantics M10: what was claimed is rejected."""

    def only_a(batch: Batch) -> Any:
        return failing(batch) if batch.messages[0].message_id == "A" else None

    async def only_a_later(batch: Batch) -> Any:
        return await failing(batch) if batch.messages[0].message_id == "A" else None

    chosen = only_a_later if asyncio.iscoroutinefunction(failing) else only_a
    chosen.__name__ = failing.__name__
    async with crew(store, agent(EchoModel(), hooks=[chosen], hook_ms=20)) as worker:
        await prompt(store, "s", "A")
        await prompt(store, "s", "B")
        await seen(store, "s", "t2(completed)")
        events = await rested(store, "s")
    assert (await history(store, "s")).endswith("rej[A] t1(error) T2 c[B] S1 u[B] a s1 t2(completed) I")
    assert rejected(events) == [("A", "hook-failed")]
    end = ends(events)[0]
    assert (end["code"], end["retryable"]) == ("hook-failed", False)
    assert end["message"].startswith(FAILING[failing])
    assert len(end["message"]) < 2_100
    counted = worker.metrics.hook_calls.labels(hook=failing.__name__, outcome="failed")
    assert counted._value.get() == 1


async def test_a_hook_that_fails_at_a_later_boundary_rejects_the_steer(store: Store) -> None:
    gates, hook = Gates(), Asked(S=lambda batch: batch.rewrite("nobody", "x"))
    async with crew(store, agent(two_steps(gates), tools={"t": Recorded("t")}, hooks=[hook])):
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "S", "steer")
        gates.open("half")
        events = await rested(store, "s")
    assert (await history(store, "s")).endswith("s1 c[S] rej[S] t1(error) I")
    assert ends(events)[0]["message"] == "hook hook: ValueError: there is no message 'nobody' in this batch"


async def test_hooks_share_the_wall_time_of_the_turn(store: Store) -> None:
    """Semantics T10: the shortest wall time is a second, so this test takes one."""
    async with crew(store, agent(EchoModel(), hooks=[takes_for_ever], wall_seconds_per_turn=1)):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert [end["code"] for end in ends(events)] == ["budget-wall-time"]


# -- hooks and everything else ------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [takes_for_ever, blocks_for_ever])
async def test_a_cancel_does_not_wait_for_a_hook(store: Store, waits: Any) -> None:
    """Trace 15 (semantics C4, M10)."""
    async with crew(store, agent(EchoModel(), hooks=[waits], hook_ms=600_000), lease_ms=900):
        await prompt(store, "s", "A")
        await seen(store, "s", "c[A]")
        await store.cancel("s", cause="user")
        await rested(store, "s")
    assert await history(store, "s") == "q[A] R T1 c[A] cancel x[A] t1(aborted user) I"


async def test_a_long_hook_keeps_its_lease(store: Store) -> None:
    """Semantics R2: it is a declared call."""
    came, go_on = asyncio.Event(), asyncio.Event()

    async def slow(batch: Batch) -> None:
        came.set()
        await go_on.wait()

    async with crew(store, agent(EchoModel(), hooks=[slow], hook_ms=60_000), lease_ms=200, stall_ms=1_000):
        await prompt(store, "s", "A")
        await came.wait()
        await passed(store, 1_300)
        go_on.set()
        await rested(store, "s")
    assert await history(store, "s") == ONE_TURN


def context(batch: Batch) -> Batch:
    return batch.add("context")


async def test_a_hook_is_asked_again_after_a_crash_before_the_messages_entered(store: Store) -> None:
    """Semantics R4: the step that was never written and the one that is are the same, ids and all."""
    tried: list[Sequence[Draft]] = []

    async def commit(lease: Any, call: int, drafts: Sequence[Draft], **options: Any) -> Any:
        tried.append(drafts)
        if len(tried) == 1:
            raise StoreFault("the worker dies here")
        return await store.commit(lease, call, drafts, **options)

    hook = Asked(A=context)
    wrapped: Any = Wrapped(store, commit=commit)
    async with crew(wrapped, agent(EchoModel(delay_ms=1), hooks=[hook]), lease_ms=200):
        await prompt(store, "s", "A")
        events = await rested(store, "s")
    assert hook.saw == [(1, 1, ["A"])] * 2
    assert tried[0] == tried[1]
    assert [words for _, words in admitted(events)] == ["A", "context"]


async def test_a_hook_is_not_asked_again_about_what_has_entered(store: Store) -> None:
    await prompt(store, "s", "A")
    grant = await acquired(store, "dead/0", 1)
    await store.commit(grant.lease, 2, step_start("A"))
    hook = Asked(A=no)
    async with crew(store, agent(EchoModel(), hooks=[hook])):
        await rested(store, "s")
    assert hook.shown == []
    assert (await history(store, "s")).endswith("a s1 t1(completed) I")


async def test_draining_gives_a_turn_back_from_within_a_hook(store: Store) -> None:
    """Semantics R6: nothing has entered; the next worker asks its own hook."""
    stop = asyncio.Event()
    async with crew(
        store, agent(EchoModel(), hooks=[takes_for_ever], hook_ms=600_000), stop=stop, drain_ms=1
    ) as worker:
        await prompt(store, "s", "A")
        await wait_until(lambda: [t for t in worker._keeper.held if t.calling_until], 5, "the hook to be asked")
    assert await history(store, "s") == "q[A] R T1 c[A]"
    async with crew(store, agent(EchoModel(), hooks=[Asked()])):
        await rested(store, "s")
    assert await history(store, "s") == (
        "q[A] R T1 c[A] recovered(1, attempt 1, handback) S1 u[A] a s1 t1(completed) I"
    )

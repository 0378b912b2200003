"""What holds when a worker stops, is slow, or loses a session: leases, recovery, draining (semantics R1-R6)."""

import asyncio
from typing import Any

import pytest

from mailslot_core.agent import Effect
from mailslot_core.errors import Fenced, OutcomeUnknown
from mailslot_core.session import Event
from mailslot_core.store import Store
from mailslot_core.turn import Draft
from mailslot_services.agent_worker.models.echo import EchoModel
from mailslot_services.agent_worker.models.gate import Gates
from mailslot_services.agent_worker.models.scripted import ScriptedModel
from mailslot_services.agent_worker.transcript import check_history, extend
from tests.crew import agent, crew, history, ledger, passed, prompt, rested, seen
from tests.integration.test_worker_turns import Recorded
from tests.waiting import wait_until

FOREVER_MS = 86_400_000


async def acquired(store: Store, owner: str, lease_ms: int) -> Any:
    """Lease the one ready session, as a worker would that then dies."""

    async def found() -> Any:
        for partition in range(store.partitions):
            grant = await store.acquire(partition, owner, 1, lease_ms)
            if grant is not None:
                return grant
        return None

    return await wait_until(found, 5, "a ready session")


def step_start(message_id: str) -> list[Draft]:
    content = [{"type": "text", "text": message_id}]
    data = {"messageId": message_id, "turn": 1, "step": 1, "content": content, "source": {"kind": "user"}}
    return [Draft("step/start", {"turn": 1, "step": 1}), Draft("user/message", data)]


def asks_for(name: str) -> Draft:
    calls = [{"callId": "c1", "name": name, "arguments": {}}]
    return Draft("assistant/message", {"turn": 1, "step": 1, "content": [], "model": "m", "toolCalls": calls})


def called(name: str) -> Draft:
    return Draft("tool/call", {"turn": 1, "step": 1, "callId": "c1", "name": name, "arguments": {}})


def results(events: list[Event]) -> list[Any]:
    return [e.data.get("error", {}).get("code", e.data["content"]) for e in events if e.type == "tool/result"]


async def test_a_turn_whose_worker_died_goes_on_where_it_was(store: Store) -> None:
    """Trace 10 (semantics R3): the lease lapses, the sweeper finds it, another worker continues the step."""
    await prompt(store, "s", "A")
    grant = await acquired(store, "dead/0", 1)
    await store.commit(grant.lease, 2, step_start("A"))
    async with crew(store, agent(EchoModel())):
        await rested(store, "s")
    assert await history(store, "s") == ("q[A] R T1 c[A] S1 u[A] recovered(1, attempt 2, crash) a s1 t1(completed) I")


async def test_messages_that_were_claimed_and_not_admitted_are_taken_up(store: Store) -> None:
    """Semantics R4: without a second claim; none lost, none admitted twice."""
    await prompt(store, "s", "A")
    await acquired(store, "dead/0", 1)
    async with crew(store, agent(EchoModel())):
        await rested(store, "s")
    assert await history(store, "s") == ("q[A] R T1 c[A] recovered(1, attempt 2, crash) S1 u[A] a s1 t1(completed) I")


@pytest.mark.parametrize(
    ("effect", "runs", "result"),
    [
        (Effect.UNSAFE, 0, "TOOL_OUTCOME_UNKNOWN"),
        (Effect.IDEMPOTENT, 1, "done"),
        (Effect.READONLY, 1, "done"),
    ],
)
async def test_a_started_call_runs_again_only_if_that_is_harmless(
    store: Store, effect: Effect, runs: int, result: str
) -> None:
    """Semantics R3."""
    tool = Recorded("t", effect)
    await prompt(store, "s", "A")
    grant = await acquired(store, "dead/0", 1)
    await store.commit(grant.lease, 2, [*step_start("A"), asks_for("t"), called("t")])
    async with crew(store, agent(EchoModel(), tools={"t": tool})):
        events = await rested(store, "s")
    assert tool.keys == [f"s/{events[0].time}/1/1/c1"] * runs
    assert results(events) == [result]
    assert check_history(extend((), events)) == []


async def test_an_idempotent_call_gets_the_same_key_from_every_worker(store: Store) -> None:
    """Semantics R3: a worker is stopped in the middle of the call; a service that is given a key twice acts once."""
    tool = Recorded("t", Effect.IDEMPOTENT)
    tool.may_end.clear()
    model = ScriptedModel.sequence([{"calls": [{"name": "t", "arguments": {}}]}, {"say": "done"}])
    only = agent(model, tools={"t": tool})
    async with crew(store, only, drain_ms=1):
        await prompt(store, "s", "A")
        await tool.started.wait()
    tool.may_end.set()
    async with crew(store, only):
        events = await rested(store, "s")
    assert len(tool.keys) == 2
    assert len(set(tool.keys)) == 1
    assert results(events) == ["done"]
    assert len([e for e in events if e.type == "tool/call"]) == 1


async def test_a_call_that_was_never_started_gets_run(store: Store) -> None:
    """Semantics R3: also an unsafe one."""
    tool = Recorded("t", Effect.UNSAFE)
    await prompt(store, "s", "A")
    grant = await acquired(store, "dead/0", 1)
    await store.commit(grant.lease, 2, [*step_start("A"), asks_for("t")])
    async with crew(store, agent(EchoModel(), tools={"t": tool})):
        events = await rested(store, "s")
    assert results(events) == ["done"]
    assert len([e for e in events if e.type == "tool/call"]) == 1


async def test_a_cancel_of_a_dead_workers_turn_is_honoured_by_the_next(store: Store) -> None:
    """Semantics C1; openclaw-style corpse (T12)."""
    await prompt(store, "s", "A")
    grant = await acquired(store, "dead/0", 1)
    await store.commit(grant.lease, 2, step_start("A"))
    assert (await store.cancel("s", cause="user")).outcome == "requested"
    async with crew(store, agent(EchoModel())):
        await rested(store, "s")
    assert await history(store, "s") == (
        "q[A] R T1 c[A] S1 u[A] cancel recovered(1, attempt 2, crash) s1 t1(aborted user) I"
    )


async def dies(store: Store, owner: str, *drafts: Draft) -> None:
    """A worker that leases the one ready session, writes this, and is never heard of again."""
    grant = await acquired(store, owner, 600_000)
    await store.commit(grant.lease, 2, drafts)
    await store.renew([grant.lease], -1)
    for partition in range(store.partitions):
        await store.sweep(partition, forget_after_ms=FOREVER_MS)


async def test_a_message_that_kills_its_workers_costs_a_bounded_amount(store: Store) -> None:
    """Semantics R5, acceptance T10: the session goes on with the next message, and the letter names what died."""
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    for number in range(3):
        await dies(store, f"dead/{number}")
    async with crew(store, agent(EchoModel())):
        await seen(store, "s", "t2(completed)")
        events = await rested(store, "s")
    assert (await history(store, "s")).endswith("dead[A] t1(interrupted) T2 c[B] S1 u[B] a s1 t2(completed) I")
    [letter] = await store.dead(after="", limit=10)
    assert (letter.session_id, letter.turn, letter.attempts) == ("s", 1, 3)
    assert [message.message_id for message in letter.messages] == ["A"]
    assert [e.data["attempts"] for e in events if e.type == "inbox/dead"] == [3]


async def test_a_message_that_died_runs_when_it_is_redriven(store: Store) -> None:
    """Semantics R5: with its own id, in a turn of its own."""
    await prompt(store, "s", "A")
    for number in range(3):
        await dies(store, f"dead/{number}")
    async with crew(store, agent(EchoModel())):
        await seen(store, "s", "t1(interrupted)")
        [letter] = await store.dead(after="", limit=10)
        [receipt] = await store.redrive(letter.letter_id)
        assert receipt.message_id == "A"
        await seen(store, "s", "t2(completed)")
        await rested(store, "s")
    assert "T2 c[A] S1 u[A] a s1 t2(completed) I" in await history(store, "s")


async def test_what_a_turn_that_was_given_up_had_said_stays_a_valid_history(store: Store) -> None:
    """Semantics R5: the calls that were open have results, and the next turn's model sees them."""
    heard: list[Any] = []

    class Hearing:
        name, instant = "hearing", False

        async def answer(self, request: Any, on_delta: Any) -> Any:
            heard.append(list(request.transcript))
            return await EchoModel().answer(request, on_delta)

    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await dies(store, "dead/0", *step_start("A"), asks_for("t"), called("t"))
    for number in (1, 2):
        await dies(store, f"dead/{number}")
    async with crew(store, agent(Hearing())):
        await seen(store, "s", "t2(completed)")
        events = await rested(store, "s")
    assert results(events) == ["TOOL_OUTCOME_UNKNOWN"]
    [transcript] = heard
    assert check_history(transcript) == []
    assert [type(entry).__name__ for entry in transcript] == ["UserEntry", "AssistantEntry", "ToolEntry", "UserEntry"]


async def test_a_cancel_wins_over_giving_up(store: Store) -> None:
    """Semantics R5: nothing is dead, the turn was cancelled."""
    await prompt(store, "s", "A")
    for number in range(2):
        await dies(store, f"dead/{number}")
    grant = await acquired(store, "dead/2", 600_000)
    await store.cancel("s", cause="user")
    await store.renew([grant.lease], -1)
    async with crew(store, agent(EchoModel())):
        await rested(store, "s")
    assert (await history(store, "s")).endswith("x[A] t1(aborted user) I")
    assert await store.dead(after="", limit=10) == []


async def test_a_worker_that_was_overtaken_writes_nothing_more(store: Store) -> None:
    """Semantics L3, R2: the zombie's late write is refused and counted, and its slot goes on to other work."""
    gates = Gates()
    slow = agent(ScriptedModel.sequence([{"say": "late", "wait": "half"}], gates=gates))
    async with crew(store, slow, lease_ms=600_000, sweep_ms=60_000, concurrency=1) as zombie:
        await prompt(store, "s", "A")
        await gates.reached("half")
        [tenure] = zombie._keeper.held
        await store.renew([tenure.lease], -1)  # its lease is over, and it does not know
        async with crew(store, agent(EchoModel())):
            events = await rested(store, "s")
        gates.open("half")
        await wait_until(lambda: zombie.metrics.fenced._value.get() == 1, 5, "the late write to be refused")
        assert await ledger(store, "s") == events
        assert sum([(await store.load(p)).fenced for p in range(store.partitions)]) == 1


async def test_a_worker_that_cannot_renew_stops_itself(store: Store) -> None:
    """Semantics R2: by its own clock, before anybody takes the session."""
    gates = Gates()
    slow = agent(ScriptedModel.sequence([{"say": "late", "wait": "half"}], gates=gates))

    async def unreachable(leases: Any, lease_ms: int) -> Any:
        raise OutcomeUnknown("cut")

    async with crew(store, slow, lease_ms=300, sweep_ms=60_000) as worker:
        worker._keeper._store = type("Cut", (), {"renew": staticmethod(unreachable)})()
        await prompt(store, "s", "A")
        await gates.reached("half")
        await wait_until(lambda: not worker._keeper.held, 5, "the worker to let go")
        assert "lease-over" in {labels[0] for labels in worker.metrics.lost._metrics}


async def test_a_long_model_call_keeps_its_lease(store: Store) -> None:
    """Semantics R2: a declared call makes progress; the lease is renewed many times over."""
    gates = Gates()
    slow = agent(ScriptedModel.sequence([{"say": "at last", "wait": "half"}], gates=gates))
    async with crew(store, slow, lease_ms=200, stall_ms=1_000):
        await prompt(store, "s", "A")
        await gates.reached("half")
        before = await history(store, "s")
        await passed(store, 600)
        assert await history(store, "s") == before
        gates.open("half")
        await rested(store, "s")
    assert "recovered" not in await history(store, "s")


async def test_draining_gives_a_turn_back_at_a_step_boundary(store: Store) -> None:
    """Semantics R6: the next worker goes on with a hand-back, which counts as no crash."""
    tool = Recorded("t")
    tool.may_end.clear()
    model = ScriptedModel.sequence([{"calls": [{"name": "t", "arguments": {}}]}, {"say": "done"}])
    only = agent(model, tools={"t": tool})
    stop = asyncio.Event()
    async with crew(store, only, stop=stop) as worker:
        await prompt(store, "s", "A")
        await tool.started.wait()
        stop.set()
        await wait_until(lambda: worker.draining, 5, "the worker to drain")
        tool.may_end.set()
    assert (await history(store, "s")).endswith("s1")
    async with crew(store, only):
        await rested(store, "s")
    assert "s1 recovered(1, attempt 1, handback) S2 a s2 t1(completed) I" in await history(store, "s")


async def test_a_worker_that_holds_nothing_ends_at_once(store: Store) -> None:
    """Semantics R6: whatever the grace period and the lease."""
    stop = asyncio.Event()
    async with crew(store, agent(EchoModel()), stop=stop, drain_ms=600_000, lease_ms=600_000) as worker:
        await prompt(store, "s", "A")
        await rested(store, "s")
        await wait_until(lambda: not worker._keeper.held, 5, "the session to be given back")
        began = asyncio.get_running_loop().time()
        stop.set()
    assert asyncio.get_running_loop().time() - began < 2


async def test_draining_acquires_nothing_new(store: Store) -> None:
    """Semantics R6: what is sent meanwhile waits for another worker, and is not even claimed."""
    gates = Gates()
    model = ScriptedModel.sequence([{"say": "one", "wait": "half"}], gates=gates)
    stop = asyncio.Event()
    async with crew(store, agent(model), stop=stop) as worker:
        await prompt(store, "s", "A")
        await gates.reached("half")
        stop.set()
        await wait_until(lambda: worker.draining, 5, "the worker to drain")
        others = [f"other{number}" for number in range(10)]
        for other in others:
            await prompt(store, other, "B")
        gates.open("half")
        await rested(store, "s")
    for other in others:
        assert await history(store, other) == "q[B] R"


async def test_what_is_given_back_rings_the_doorbell(store: Store) -> None:
    """Semantics R6: the next worker hears of it by the bell alone: nobody sweeps for a minute."""
    gates, stop = Gates(), asyncio.Event()
    slow = agent(ScriptedModel.sequence([{"say": "late", "wait": "half"}], gates=gates))
    async with crew(store, slow, stop=stop, drain_ms=1, sweep_ms=60_000):
        await prompt(store, "s", "A")
        await gates.reached("half")
        async with crew(store, agent(EchoModel()), sweep_ms=60_000):
            stop.set()
            await rested(store, "s")


async def test_draining_does_not_wait_longer_than_it_may(store: Store) -> None:
    """Semantics R6: when the grace period ends the step is given back in its middle, and run again."""
    gates = Gates()
    slow = agent(ScriptedModel.sequence([{"say": "late", "wait": "half"}], gates=gates))
    async with crew(store, slow, drain_ms=1):
        await prompt(store, "s", "A")
        await gates.reached("half")
    assert await history(store, "s") == "q[A] R T1 c[A] S1 u[A]"
    async with crew(store, agent(EchoModel())):
        await rested(store, "s")
    assert "S1 u[A] recovered(1, attempt 1, handback) a s1 t1(completed) I" in await history(store, "s")


async def test_draining_keeps_the_inbox(store: Store) -> None:
    """Semantics R6: what is queued stays queued and runs later."""
    gates = Gates()
    model = ScriptedModel.sequence([{"say": "one", "wait": "half"}, {"say": "two"}], gates=gates)
    stop = asyncio.Event()
    async with crew(store, agent(model), stop=stop) as worker:
        await prompt(store, "s", "A")
        await gates.reached("half")
        await prompt(store, "s", "B")
        stop.set()
        await wait_until(lambda: worker.draining, 5, "the worker to drain")
        gates.open("half")
        await seen(store, "s", "t1(completed)")
    assert (await history(store, "s")).endswith("t1(completed)")
    async with crew(store, agent(model)):
        await seen(store, "s", "t2(completed)")
        await rested(store, "s")


async def test_a_lost_answer_of_the_store_is_asked_for_again(store: Store) -> None:
    """Semantics L3: each answer is lost once; nothing is written twice."""
    lossy: Any = Lossy(store)
    async with crew(lossy, agent(EchoModel(delay_ms=1))):
        for name in ("A", "B", "C"):
            await prompt(store, "s", name)
        await seen(store, "s", "t3(completed)")
        events = await rested(store, "s")
    assert lossy.lost > 5
    assert [e.data["messageId"] for e in events if e.type == "user/message"] == ["A", "B", "C"]
    assert not [e for e in events if e.type == "turn/recovered"]


class Lossy:
    """A store that carries out every numbered call and loses its first answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answered: set[tuple[str, int]] = set()
        self.lost = 0

    async def _acquire(self, partition: int, owner: str, number: int, lease_ms: int) -> Any:
        answer = await self._store.acquire(partition, owner, number, lease_ms)
        if answer is not None and (owner, number) not in self._answered:
            self._answered.add((owner, number))
            self.lost += 1
            raise OutcomeUnknown("lost")
        return answer

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._store, name)
        if name == "acquire":
            return self._acquire
        if name not in ("commit", "settle", "handback"):
            return act

        async def call(lease: Any, number: int, *args: Any, **options: Any) -> Any:
            answer = await act(lease, number, *args, **options)
            if (lease.owner, number) not in self._answered:
                self._answered.add((lease.owner, number))
                self.lost += 1
                raise OutcomeUnknown("lost")
            return answer

        return call


async def test_a_session_that_keeps_running_makes_way_for_others(store: Store) -> None:
    """One slot, sessions with many messages, and others that came later, in every partition: none waits for all."""
    turns: list[str] = []

    class Noting:
        name, instant = "noting", True

        async def answer(self, request: Any, on_delta: Any) -> Any:
            turns.append(request.session_id)
            return await EchoModel().answer(request, on_delta)

    for number in range(60):
        await prompt(store, "busy", f"m{number}")
    late = [f"late{number}" for number in range(8)]
    for session_id in late:
        await prompt(store, session_id, "A")
    async with crew(store, agent(Noting()), concurrency=1, turns_per_slot=2):
        await rested(store, "busy")
    assert max(turns.index(session_id) for session_id in late) < 40


async def test_a_fenced_worker_says_who_and_where(store: Store) -> None:
    await prompt(store, "s", "A")
    grant = await acquired(store, "w/0", 1)
    stale = grant.lease._replace(epoch=grant.lease.epoch - 1)
    with pytest.raises(Fenced, match="w/0 no longer owns session s at epoch 0"):
        await store.commit(stale, 2, step_start("A"))

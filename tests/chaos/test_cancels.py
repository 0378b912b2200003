"""A cancel stops one turn, whoever is dead, deaf or faster; and what is queued obeys it."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from mailslot_core.redis.keys import partition_of
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from mailslot_core.store import Grant
from mailslot_core.turn import Draft, End, Then
from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.history import now_ms as told_ms
from tests.chaos.ledger import Ledger, admitted, ends, ledger, now_ms, of_type
from tests.chaos.proxy import proxy_to
from tests.chaos.stand import LEASE_MS, Stand, all_idle, made, passing, ready, without_others
from tests.chaos.trial import hold_trial
from tests.conftest import empty
from tests.crew import prompt
from tests.echo_worker import beginning, text
from tests.servers import Server
from tests.waiting import pace, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PATIENCE_S: Final = 40.0
RACES: Final = 10_000
AT_ONCE: Final = 200
LONG_MS: Final = 60_000
JITTER_S: Final = 0.03
"""About how long an act takes with so many at once."""
SOON_S: Final = LEASE_MS / 1000 + 2


async def test_the_turn_of_a_dead_worker_is_cancelled_from_another_node(rough: Stand, figure: Figure) -> None:
    """T12 (aegra/aegra#475): the worker is dead, nobody hears anything over pub/sub, and the cancel comes through an
    ingest that has never seen the session. Waiting for it never lies; the agent rests soon; the next prompt runs."""
    history, session, (here,) = History(), "T12-corpse", rough.of_kind("ingest")
    path = f"/v1/sessions/{session}"
    async with proxy_to(rough.store.port) as deaf, http(here.url) as client:
        deaf.mute_subscribers = True
        there, doomed = rough.ingest(store_url=deaf.redis_url), rough.worker(store_url=deaf.redis_url)
        successor = rough.worker(store_url=deaf.redis_url)
        with passing(rough, there, doomed, successor), without_others(rough, doomed, successor):
            await ready(there, doomed, successor)
            successor.freeze()
            async with http(there.url) as elsewhere:
                await made(client, [session], "endless")
                await history.surely(client, session, "hello", message_id="first")
                await wait_until(lambda: admitted(ledger(rough.client, session)), PATIENCE_S, "the model to be asked")
                doomed.kill()
                figure.fault(2)
                waited = await elsewhere.post(f"{path}/cancel?wait=0.5")
                assert waited.json()["outcome"] == "requested", "nobody is there to stop it yet"
                assert ends(ledger(rough.client, session)) == []
                await history.surely(client, session, "and then", message_id="next")
                thawed_ms = now_ms(rough.client)
                successor.thaw()
                await wait_until(lambda: ends(ledger(rough.client, session)), PATIENCE_S, "the turn to be aborted")
                (first, *_) = of_type(ledger(rough.client, session), "turn/end")
                figure.recoveries_s.append((first.time - thawed_ms) / 1000)
                assert figure.recoveries_s[-1] < SOON_S
                await wait_until(partial(is_asked, rough, session), PATIENCE_S, "the next to run")
                stopped_late = await elsewhere.post(f"{path}/cancel?wait=20")
                assert stopped_late.json()["outcome"] == "settled"
                assert ends(ledger(rough.client, session)) == ["aborted", "aborted"]
        await all_idle(rough, PATIENCE_S)
    facts = hold_trial(rough, history, figure, sessions=session)[session]
    assert ends(facts) == ["aborted", "aborted"]
    assert admitted(facts) == ["first", "next"]


def is_asked(own: Stand, session: str) -> bool:
    """The model was asked about the message `next`."""
    return "next" in admitted(ledger(own.client, session))


# -- cancel against completion --------------------------------------------------------------------------------


class Race(NamedTuple):
    """Where a turn is when the cancel comes at the same moment as its next act, and how it wants to end."""

    stage: str
    kind: str


STAGES: Final = ("read", "claimed", "asked", "answered", "ending")
KINDS: Final = ("completed", "max-tokens", "error")
KIND_WHEN: Final = {
    # a cancel was recorded for the turn -> what its end must say, by what its owner wanted to say
    **{(True, kind): "aborted" for kind in KINDS},
    **{(False, kind): kind for kind in KINDS},
}


async def test_a_cancel_and_a_completion_at_the_same_moment_make_one_end_of_the_right_kind(
    redis70: Server, tmp_path: Path, figure: Figure, rng: random.Random
) -> None:
    """T13 (Abilityai/trinity#671): 10,000 races on a real Redis, over two connections: a cancel between read and claim,
    between claim and step, before the first token, after the answer, and with the act that ends the turn."""
    empty(redis70.url)
    races = {f"s{number}": Race(rng.choice(STAGES), rng.choice(KINDS)) for number in range(RACES)}
    settings = StoreSettings(redis_url=redis70.url, durability="memory")
    answers: dict[str, str] = {}
    async with RedisStore.connect(settings) as owner, RedisStore.connect(settings) as canceller:
        room, arena, history = asyncio.Semaphore(AT_ONCE), Arena(owner, canceller, rng), History()

        async def run(session: str, race: Race) -> None:
            async with room:
                answers[session] = await arena.race(session, race, history)

        await asyncio.gather(*(run(session, race) for session, race in races.items()))
    with redis70.client() as client:
        found = hold_trial(Stand(redis70, tmp_path, client), history, figure)
    figure.fault(RACES)
    came = Counter(judge(found[session], race, answers[session]) for session, race in races.items())
    print("T13", dict(came))
    for stage in STAGES:
        assert came[stage, "requested"], f"no cancel ever hit at {stage}: {came}"
    for stage in ("read", "ending"):
        assert came[stage, "nothing_to_cancel"], f"no cancel was too early or too late at {stage}: {came}"


def judge(facts: Ledger, race: Race, outcome: str) -> tuple[str, str]:
    """One turn, one end, of the kind that the table says."""
    (end,) = of_type(facts, "turn/end")
    cancelled = any(each.data.get("turn") == 1 for each in of_type(facts, "cancel/requested"))
    assert cancelled == (outcome == "requested"), "what the canceller was told is what the ledger says"
    assert end.data["reason"]["kind"] == KIND_WHEN[cancelled, race.kind], (race, facts)
    assert facts[-1].data == {"status": "idle"}
    return race.stage, outcome


class Arena:
    """Drives turns over one connection and cancels over another."""

    def __init__(self, owner: RedisStore, canceller: RedisStore, rng: random.Random) -> None:
        self._owner, self._canceller, self._rng = owner, canceller, rng
        self._granted: dict[str, asyncio.Future[Grant]] = {}

    async def race(self, session: str, race: Race, history: History) -> str:
        """Drive one turn to its end; at its stage, cancel at the same moment. What the cancel came to."""
        self._granted[session] = asyncio.get_running_loop().create_future()
        sent_ms, outcome = told_ms(), ""
        history.kept(session, "A", (await prompt(self._owner, session, "A")).cursor, sent_ms)
        for stage, act in self._acts(session, race.kind).items():
            if stage == race.stage:
                _, outcome = await asyncio.gather(act(), self._cancel(session))
            else:
                await act()
        return outcome

    async def _cancel(self, session: str) -> str:
        await pace(self._rng.uniform(0, JITTER_S))  # the owner's line is the busier one
        return (await self._canceller.cancel(session, cause="user")).outcome

    def _acts(self, session: str, kind: str) -> dict[str, Callable[[], Coroutine[Any, Any, object]]]:
        """The acts of one turn, by the stage at which each begins."""
        store, granted, names = self._owner, self._granted[session], {"turn": 1, "step": 1}
        answer = Draft("assistant/message", {**names, "content": text("done"), "model": "echo"})
        failure = {"code": "broken", "message": "gone", "retryable": False} if kind == "error" else {}
        end = End({"kind": kind, **failure})

        async def acquire() -> None:
            """Each race acquires one session, which may be another one's: the one that is ready longest comes first."""
            partition = partition_of(session, store.partitions)
            grant = await store.acquire(partition, f"{session}/0", 1, LONG_MS)
            assert grant is not None
            self._granted[grant.lease.session_id].set_result(grant)
            await granted

        async def begin() -> None:
            await store.commit(granted.result().lease, 2, beginning(granted.result()))

        async def say() -> None:
            await store.commit(granted.result().lease, 3, [answer])

        async def finish() -> None:
            await store.commit(granted.result().lease, 4, [Draft("step/end", names)])

        async def settle() -> None:
            lease = granted.result().lease
            await store.settle(lease, 5, (), end, then=Then.TAKE, hand_out=False, lease_ms=LONG_MS)

        return {"read": acquire, "claimed": begin, "asked": say, "answered": finish, "ending": settle}


# -- keep, hold, clear ----------------------------------------------------------------------------------------

QUEUED: Final = ["one", "two", "three"]


async def test_what_is_queued_obeys_the_cancel_and_a_hold_survives_a_restart_of_the_store(
    durable: Stand, figure: Figure
) -> None:
    """T14 (compozy/compozy#522): keep, hold or clear with three queued behind a backend that never answers; the cancel
    comes twice, and once more when its turn is long over. Meanwhile the store is killed and started again."""
    history, (ingest,), (worker,) = History(), durable.of_kind("ingest"), durable.of_kind("worker")
    async with http(ingest.url) as client:
        await made(client, [f"T14-{queue}" for queue in OBEYED], "handy")
        await asyncio.gather(*(filled(durable, client, history, queue) for queue in OBEYED))
        worker.freeze()  # so that both cancels come to an open turn
        await asyncio.gather(*(stopped(client, queue) for queue in OBEYED))
        worker.thaw()
        await all_idle(durable, PATIENCE_S)
        durable.store.kill()
        durable.store.start()
        await ready(ingest)
        figure.fault()
        for queue, obeyed in OBEYED.items():
            late = await client.post(f"/v1/sessions/T14-{queue}/cancel", json={"queue": "clear", "turn": 1})
            assert (late.status_code, late.json()["code"]) == (409, "not-open")
            await obeyed(durable, client)
            await history.surely(client, f"T14-{queue}", "take your time", message_id=f"{queue}-last")
            await late_again(durable, client, queue)
        await all_idle(durable, PATIENCE_S)
    found = hold_trial(durable, history, figure, sessions="T14-")
    for queue in OBEYED:
        facts = found[f"T14-{queue}"]
        run = [] if queue == "clear" else [f"{queue}-{word}" for word in QUEUED]
        assert ends(facts) == ["aborted", *["completed"] * (len(run) + 1)]
        assert admitted(facts) == [f"{queue}-zero", *run, f"{queue}-last"]


async def filled(own: Stand, client: httpx2.AsyncClient, history: History, queue: str) -> None:
    """A turn that never answers, and three messages behind it."""
    await history.surely(client, f"T14-{queue}", "never answer", message_id=f"{queue}-zero")
    await wait_until(lambda: admitted(ledger(own.client, f"T14-{queue}")), PATIENCE_S, "the model to be asked")
    for word in QUEUED:
        await history.surely(client, f"T14-{queue}", word, message_id=f"{queue}-{word}")


async def stopped(client: httpx2.AsyncClient, queue: str) -> None:
    """Two cancels that say what becomes of what is queued, and get the same answer."""
    still = [] if queue == "clear" else [f"{queue}-{word}" for word in QUEUED]
    for _ in range(2):
        answer = await client.post(f"/v1/sessions/T14-{queue}/cancel", json={"queue": queue, "turn": 1})
        assert answer.status_code == 202, answer.text
        assert (answer.json()["outcome"], answer.json()["stillQueued"]) == ("requested", still)


async def late_again(own: Stand, client: httpx2.AsyncClient, queue: str) -> None:
    """A cancel of the first turn while the last one is at work: it is refused, and hits nobody else."""
    session = f"T14-{queue}"
    await wait_until(
        lambda: f"{queue}-last" in admitted(ledger(own.client, session)), PATIENCE_S, "the last one to be at work"
    )
    late = await client.post(f"/v1/sessions/{session}/cancel", json={"queue": "clear", "turn": 1})
    assert (late.status_code, late.json()["code"]) == (409, "not-open")
    assert (await client.get(f"/v1/sessions/{session}")).json()["status"] == "running", "it came while one was open"


async def kept(own: Stand, client: httpx2.AsyncClient) -> None:
    """All three have run."""
    assert await waiting(client, "T14-keep") == []


async def held(own: Stand, client: httpx2.AsyncClient) -> None:
    """All three wait, visibly, and no worker touches them, until they are released."""
    level = (await client.get("/v1/sessions/T14-hold")).json()
    assert (level["status"], level["held"], level["pending"]) == ("idle", 3, 3)
    assert [each.data.get("held") for each in of_type(ledger(own.client, "T14-hold"), "agent/status")][-1] == 3
    assert await waiting(client, "T14-hold") == [f"hold-{word}" for word in QUEUED]
    assert (await client.post("/v1/sessions/T14-hold/release")).status_code in {200, 202}
    await all_idle(own, PATIENCE_S)
    again = await client.post("/v1/sessions/T14-hold/release")
    assert (again.status_code, again.json()["code"]) == (409, "not-held")


async def cleared(own: Stand, client: httpx2.AsyncClient) -> None:
    """All three are cancelled, each with the cause."""
    causes = [each.data["cause"] for each in of_type(ledger(own.client, "T14-clear"), "inbox/cancelled")]
    assert causes == ["cancel"] * 3
    assert await waiting(client, "T14-clear") == []


OBEYED: Final = {"keep": kept, "hold": held, "clear": cleared}


async def waiting(client: httpx2.AsyncClient, session: str) -> list[str]:
    """The ids of what waits, in order."""
    page = (await client.get(f"/v1/sessions/{session}/messages?state=pending")).json()
    return [message["messageId"] for message in page["messages"]]

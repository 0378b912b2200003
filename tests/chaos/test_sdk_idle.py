"""Idle as clients of the SDK and the command meet it: `run`, `when_idle` and `mailslot run` end at a true idle.

What is true is worked out here from the ledger alone (`State`), by semantics S3 and S7, and by no code of the product:

    queued, due, not held ──┐
    turn open ──────────────┼── any of them: running, and the reasons name it
    claimed, not settled ───┘

Each walk puts every factor into one session at random moments: retries, holds, queued continuations, delayed messages,
rounds of a goal, steers at the edge of a turn, long answers and tools. Whoever waits does so over a line that is cut.
"""

import asyncio
import json
import random
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from mailslot import AsyncClient, Budgets, Client, Refused
from mailslot.answer import Level, Receipt
from mailslot.client import AsyncSession
from mailslot_core.task import end
from tests.chaos.figure import Figure
from tests.chaos.history import History, now_ms
from tests.chaos.ledger import Ledger, ledger
from tests.chaos.proxy import proxy_to
from tests.chaos.stand import Stand
from tests.chaos.test_idle import PATIENCE_S, said
from tests.chaos.test_sdk import cut_now_and_then, port_of
from tests.chaos.trial import hold_trial
from tests.e2e.house import MAILSLOT
from tests.integration.test_typescript import run, tool
from tests.waiting import pace, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

CUT_EVERY_S: Final = (1.0, 3.0)
"""Programs with the patience they are shipped with give up a call that is cut some times in a row."""
OWNER: Final = Path(__file__).with_name("owner.mjs")
WALKS: Final = 3
PAUSE_S_MAX: Final = 0.35
DELAY_MS: Final = (100, 900)
TASKS: Final = ("hello", "try hard", "slowly", "chores please")
SETTLED: Final = frozenset({"user/message", "inbox/cancelled", "inbox/rejected", "inbox/expired", "inbox/dead"})
ENDED: Final = frozenset({0, 1, 3})
"""Exit codes of a command that saw its interval to the end: completed, ended otherwise, no turn."""


# -- what is true, by the ledger ----------------------------------------------------------------------------


@dataclass
class State:
    """What is left to do after some events."""

    waking: dict[str, bool] = field(default_factory=dict)
    """Queued follow-ups and steers; whether they are due."""
    claimed: set[str] = field(default_factory=set)
    turn: int | None = None
    held: bool = False
    status: str = "idle"

    def left(self) -> list[str]:
        """Why the agent must be running, as a level's reasons say it."""
        queued = 0 if self.held else sum(self.waking.values())
        return [f"turn {self.turn}"] * (self.turn is not None) + [f"{queued} queued"] * (queued > 0)

    def rests(self) -> bool:
        """Nothing is left (S3)."""
        return not self.left() and not self.claimed

    def take(self, kind: str, time_ms: int, data: Mapping[str, Any]) -> None:
        """One more event."""
        match kind:
            case "inbox/queued" if data["wake"]:
                self.waking[data["messageId"]] = data.get("notBefore", 0) <= time_ms
            case "inbox/due" | "inbox/moved" if data["messageId"] in self.waking:
                self.waking[data["messageId"]] = True
            case "inbox/claimed":
                self.claimed.update(data["messageIds"])
                for message_id in data["messageIds"]:
                    self.waking.pop(message_id, None)
            case "inbox/held" | "inbox/released":
                self.held = kind == "inbox/held"
            case "turn/start":
                self.turn = data["turn"]
            case "turn/end":
                self.turn = None
            case "agent/status":
                self.status = data["status"]
            case _ if kind in SETTLED:
                self.claimed.discard(data["messageId"])
                self.waking.pop(data["messageId"], None)


def states(facts: Ledger) -> Iterator[tuple[int, str, State]]:
    """After each event: its seq, its type, and the state, which is the same object all the time."""
    state = State()
    for fact in facts:
        state.take(fact.type, fact.time, fact.data)
        yield fact.seq, fact.type, state


def true_idles(facts: Ledger) -> list[int]:
    """The seqs of the idles, each of which is true."""
    found = []
    for seq, kind, state in states(facts):
        if kind == "agent/status" and state.status == "idle":
            assert state.rests(), f"idle at {seq} with {state}"
            found.append(seq)
    return found


def honest(facts: Ledger, levels: Sequence[Level]) -> set[str]:
    """Each level says what the ledger says at its seq; all the words that were given as reasons."""
    known = {seq: (state.status, state.left(), state.rests()) for seq, _, state in states(facts)}
    for level in levels:
        status, left, rests = known[level.cursor]
        named = [reason for reason in level.reasons if not reason.startswith("retry in")]
        assert (level.status, named) == (status, left), level
        assert rests or level.reasons, level
        assert not (level.status == "idle" and level.reasons), level
    return {reason.rstrip("0123456789 s").lstrip("0123456789 ") for level in levels for reason in level.reasons}


# -- what happens in a walk ---------------------------------------------------------------------------------


@dataclass
class Walk:
    """One session, in which everything happens."""

    session: AsyncSession
    history: History
    rng: random.Random

    async def kept(self, sending: Awaitable[Receipt]) -> None:
        """A message with its receipt."""
        began = now_ms()
        receipt = await sending
        self.history.kept(self.session.id, receipt.message_id, receipt.cursor, began)

    async def follow_up(self) -> None:
        """A continuation is queued behind whatever runs."""
        await self.kept(self.session.prompt("and then"))

    async def retry(self) -> None:
        """A provider that fails twice."""
        await self.kept(self.session.prompt("try hard"))

    async def delayed(self) -> None:
        """A message whose time comes later."""
        later = int(time.time() * 1000) + self.rng.randint(*DELAY_MS)
        await self.kept(self.session.prompt("the time has come", not_before=later))

    async def steered(self) -> None:
        """A few steers in a row: some join a turn, some come when it has just ended."""
        for _ in range(self.rng.randint(1, 4)):
            await self.kept(self.session.steer("to the left"))
            await pace(self.rng.uniform(0, 0.05))

    async def injected(self) -> None:
        """Context, which wakes nobody."""
        await self.kept(self.session.inject("by the way"))

    async def goal(self) -> None:
        """A goal with a few rounds, which follow an idle each."""
        await refusable(self.session.goal.set("count the stars", Budgets(rounds=self.rng.randint(1, 3))))

    async def hold(self) -> None:
        """What is queued waits; some time later it goes on."""
        await self.session.cancel("hold")
        await pace(self.rng.uniform(0, PAUSE_S_MAX))
        await refusable(self.session.release())

    async def cancelled(self) -> None:
        """The open turn is stopped, and what is queued goes on."""
        await self.session.cancel("keep")

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        """Every factor at least once, in an order of its own."""
        every = [
            *(self.follow_up, self.retry, self.delayed, self.steered, self.injected, self.goal, self.hold),
            *(self.cancelled, self.delayed, self.steered, self.follow_up),
        ]
        return self.rng.sample(every, len(every))


async def refusable(asking: Awaitable[object]) -> None:
    """What depends on the moment may be refused."""
    try:
        await asking
    except Refused as refused:
        if refused.code not in {"not-held", "goal-exists"}:
            raise


async def watched(session: AsyncSession, over: asyncio.Event, levels: list[Level]) -> None:
    """The level, again and again."""
    while not over.is_set():
        levels.append(await session.status())
        await pace(0.02)


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TypeScript client, built into a folder of its own."""
    out = tmp_path_factory.mktemp("typescript")
    run(tool("typescript", "tsc", "--project", "tsconfig.build.json", "--outDir", str(out)))
    return out / "index.js"


async def printed(*words: object) -> tuple[str, int]:
    """The message and the end of the interval of a program that owned one."""
    program = await asyncio.create_subprocess_exec(*map(str, words), stdout=PIPE, stderr=PIPE)
    code, out = await said(program)
    assert code in ENDED, out
    result = json.loads(out.splitlines()[-1])
    return result["messageId"], result["to"]


async def owned(walk: Walk, url: str, typescript: Path, ends: list[tuple[str, int]]) -> None:
    """Runs by all clients and by the command, and waits for idle, one after the other; where each of them ended."""
    async with AsyncClient(url) as client:
        await owned_by(walk, client.session(walk.session.id), url, ends)
    ends.append(await printed("node", OWNER, typescript, url, walk.session.id, "hello", PATIENCE_S * 1000))
    ends.append(await printed(MAILSLOT, "run", "hello", "--json", "--session", walk.session.id, "--url", url))


async def owned_by(walk: Walk, session: AsyncSession, url: str, ends: list[tuple[str, int]]) -> None:
    """The part of Python's clients."""

    def run_in_thread(task: str) -> tuple[str, int]:
        with Client(url) as client:
            result = client.session(session.id).run(task, timeout=PATIENCE_S)
            return result.message_id, result.to_seq

    for task in walk.rng.sample(TASKS, len(TASKS)):
        match walk.rng.choice(("run", "thread", "idle")):
            case "run":
                result = await session.run(task, timeout=PATIENCE_S)
                ends.append((result.message_id, result.to_seq))
            case "thread":
                ends.append(await asyncio.to_thread(run_in_thread, task))
            case "idle":
                receipt = await session.prompt(task)
                seq = await session.when_idle(receipt.cursor, timeout=PATIENCE_S)
                ends.append((receipt.message_id, seq))


async def at_rest(session: AsyncSession) -> None:
    """Nothing waits any more, neither for its time nor for a release, and the goal has spent its rounds."""

    async def rests() -> bool:
        await refusable(session.release())
        level = await session.status()
        phase = level.goal.phase if level.goal else "complete"
        return level.status == "idle" and phase != "active" and not level.held

    await session.prompt("the last word")  # takes what was injected with it
    await wait_until(rests, PATIENCE_S, f"{session.id} to be at rest")
    await session.cancel("clear")


@pytest.mark.parametrize("number", range(WALKS))
async def test_whoever_waits_for_an_agent_in_the_middle_of_everything_is_told_of_a_true_idle(
    calm: Stand, figure: Figure, rng: random.Random, typescript: Path, number: int
) -> None:
    """T16 (Kilo-Org/kilocode PR13623): every factor in one session, in a random order and overlapping. Runs end at the
    first idle after their message, each idle is true, and the level always names what keeps the agent running."""
    history, levels, ends, over = History(), list[Level](), list[tuple[str, int]](), asyncio.Event()
    async with AsyncClient(calm.services[0].url) as client:
        session = client.session(f"T16-walk-{number}", agent="handy")
        await session.prompt("begin")
        walk = Walk(session, history, rng)
        watching = asyncio.create_task(watched(session, over, levels))
        async with proxy_to(port_of(calm), rng=rng) as line:
            cutting = asyncio.create_task(cut_now_and_then(line, rng, CUT_EVERY_S))
            owning = asyncio.create_task(owned(walk, line.http_url, typescript, ends))
            for step in walk.steps():
                await pace(rng.uniform(0, PAUSE_S_MAX))
                await step()
            await asyncio.wait_for(owning, PATIENCE_S)
            await end(cutting)
            figure.fault(line.faults)
        await at_rest(session)
        over.set()
        await watching
    facts = hold_trial(calm, history, figure, sessions=session.id)[session.id]
    idles = true_idles(facts)
    queued = {fact.data["messageId"]: fact.seq for fact in facts if fact.type == "inbox/queued"}
    assert len(ends) == len(TASKS) + 2
    for message_id, to_seq in ends:
        assert to_seq == min(seq for seq in idles if seq > queued[message_id]), f"{message_id} ended at {to_seq}"
    assert {"turn", "queued"} <= honest(facts, levels)


async def test_a_run_that_is_put_on_hold_ends_at_that_idle_and_the_next_one_waits_for_all_that_was_held(
    calm: Stand, figure: Figure
) -> None:
    """T16 (Kilo-Org/kilocode PR13623): a hold is a true idle, with its number of held messages; the next run ends the
    hold and ends only when what was held is done, too."""
    async with AsyncClient(calm.services[0].url) as client:
        session = client.session("T16-run-hold", agent="handy")
        await session.prompt("never answer")

        async def reasons(*wanted: str) -> bool:
            return set(wanted) <= set((await session.status()).reasons)

        await wait_until(lambda: reasons("turn 1"), PATIENCE_S, "the turn to be open")
        running = asyncio.create_task(session.run("held", timeout=PATIENCE_S))
        await wait_until(lambda: reasons("turn 1", "1 queued"), PATIENCE_S, "the run to be queued behind it")
        await session.cancel("hold")
        held = await running
        assert held.message.state == "held"
        assert held.events[-1].data == {"status": "idle", "held": 1}
        assert (await session.status()).reasons == ()
        after = await session.run("and on", timeout=PATIENCE_S)
        texts = [event.data["messageId"] for event in after.events if event.type == "user/message"]
        assert texts == [held.message_id, after.message_id]
    facts = hold_trial(calm, History(), figure, sessions=session.id)[session.id]
    assert {held.to_seq, after.to_seq} <= set(true_idles(facts))


async def test_a_delayed_message_keeps_nobody_waiting_and_a_run_ends_before_it(calm: Stand, figure: Figure) -> None:
    """T16 (Kilo-Org/kilocode PR13623): what is not due is no reason to run. Its own turn has an idle of its own."""
    async with AsyncClient(calm.services[0].url) as client:
        session = client.session("T16-run-delay", agent="brisk")
        receipt = await session.prompt("later", not_before=int(time.time() * 1000) + 2_000)
        result = await session.run("now", timeout=PATIENCE_S)
        assert (await session.message(receipt.message_id)).state == "queued"
        seq = await session.when_idle(result.to_seq, timeout=PATIENCE_S)
    facts = hold_trial(calm, History(), figure, sessions=session.id)[session.id]
    assert true_idles(facts) == [result.to_seq, seq]
    assert seq == ledger(calm.client, session.id)[-1].seq

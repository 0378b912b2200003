"""No timing makes a history that a provider of models refuses."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import httpx2
import pytest

from mailslot_services.verify.ledger import Entry
from tests.chaos import provider_shape
from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import Ledger, ends, of_type
from tests.chaos.stand import Service, Stand, all_idle, made
from tests.chaos.trial import hold_trial
from tests.waiting import pace

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

SESSIONS: Final = 16
ROUNDS: Final = 4
KILLS: Final = 6
TURN_S: Final = 0.3
"""About how long the turn takes: two steps with tools that take tens of milliseconds, and an answer."""
PATIENCE_S: Final = 40.0


async def test_whatever_comes_in_between_parallel_tool_calls_the_history_stays_valid(
    calm: Stand, figure: Figure, rng: random.Random
) -> None:
    """T6 (Yanyutin753/LambChat#496): a steer, injected context or a cancel at any moment around three parallel calls.
    The history is valid after every fact, and the next request succeeds."""
    history = History()
    sessions = [f"T6-{number}" for number in range(SESSIONS)]
    async with http(calm.services[0].url) as client:
        await made(client, sessions, "handy")
        chances = [random.Random(rng.random()) for _ in sessions]
        await asyncio.gather(*(disturb(client, history, *pair) for pair in zip(sessions, chances, strict=True)))
        await all_idle(calm, PATIENCE_S)
        await asyncio.gather(*(history.surely(client, session, "and now?") for session in sessions))
    await all_idle(calm, PATIENCE_S)
    found = hold_trial(calm, history, figure, sessions="T6-")
    check_histories(found)
    kinds = {kind for facts in found.values() for kind in ends(facts)}
    assert kinds == {"completed", "aborted"}
    figure.fault(sum(1 for facts in found.values() for _ in of_type(facts, "cancel/requested")))


async def test_a_kill_in_between_parallel_tool_calls_leaves_a_history_that_can_be_gone_on_with(
    rough: Stand, figure: Figure, rng: random.Random
) -> None:
    """T6 (Yanyutin753/LambChat#496): workers are killed at any moment around three parallel calls, of which one may not
    be done twice. Those that were under way and may not be repeated are answered with TOOL_OUTCOME_UNKNOWN."""
    done_before = len(rough.entries("block"))
    history, workers = History(), rough.of_kind("worker")
    sessions = [f"T6-{number}" for number in range(SESSIONS)]
    async with http(rough.of_kind("ingest")[0].url) as client:
        await made(client, sessions, "handy")
        for number in range(KILLS):
            await asyncio.gather(*(history.surely(client, session, "chores please") for session in sessions))
            await pace(rng.uniform(0, TURN_S))
            revive(workers[number % len(workers)], figure)
            await all_idle(rough, PATIENCE_S)
        await asyncio.gather(*(history.surely(client, session, "and now?") for session in sessions))
    await all_idle(rough, PATIENCE_S)
    found = hold_trial(rough, history, figure, sessions="T6-")
    check_histories(found)
    done = Counter(effect_key_of(line) for line in rough.entries("block")[done_before:])
    asked = {call for session, facts in found.items() for call in calls(session, facts) if call.tool == "block"}
    unknown = {call for session, facts in found.items() for call in calls(session, facts, is_unknown)}
    print("T6", f"asked {len(asked)}, done {len(done)}, unknown {len(unknown)}")
    assert set(done.values()) == {1}, "what may not be done twice was not"
    assert len(asked) - len(unknown) <= len(done) <= len(asked), "whatever has a known outcome was done"
    assert unknown, "no kill hit a call that may not be made twice"
    assert unknown <= asked, "what may be done again was"


def effect_key_of(line: str) -> str:
    """The call in a line `block <tag> <effect key> <pid>` of the diary."""
    return line.split()[2]


class Call(NamedTuple):
    """One call of a tool."""

    session: str
    call_id: str
    tool: str


def calls(session: str, facts: Ledger, chosen: Callable[[Entry], bool] = lambda result: True) -> set[Call]:
    """The calls whose result is one of the chosen."""
    tools = {each.data["callId"]: each.data["name"] for each in of_type(facts, "tool/call")}
    results = (each.data["callId"] for each in of_type(facts, "tool/result") if chosen(each))
    return {Call(session, call_id, tools[call_id]) for call_id in results}


def is_unknown(result: Entry) -> bool:
    """It stands for an outcome that nobody knows."""
    return bool((result.data.get("error") or {}).get("code") == "TOOL_OUTCOME_UNKNOWN")


def revive(worker: Service, figure: Figure) -> None:
    worker.kill()
    figure.fault()
    worker.start()


async def disturb(client: httpx2.AsyncClient, history: History, session: str, rng: random.Random) -> None:
    """Ask for chores, and come in between."""
    for _ in range(ROUNDS):
        await history.surely(client, session, "chores please")
        await pace(rng.uniform(0, TURN_S))
        match rng.choice(["steer", "inject", "cancel", "cancel", "steer"]):
            case "cancel":
                assert (await client.post(f"/v1/sessions/{session}/cancel")).status_code == 202
            case delivery:
                await history.surely(client, session, "by the way", delivery=delivery)


def check_histories(found: dict[str, Ledger]) -> None:
    """Each is one that a provider takes, and its last turn completed."""
    provider_shape.check_all(found.values())
    for session, facts in found.items():
        assert ends(facts)[-1] == "completed", session

"""Idle is true: it is said when nothing is left to do, and while something is left the reasons are told."""

import asyncio
from asyncio.subprocess import PIPE, Process
from typing import Any, Final

import httpx2
import pytest

from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import ends, ledger, of_type
from tests.chaos.stand import Stand, all_idle, made
from tests.chaos.trial import hold_trial
from tests.e2e.house import MAILSLOT
from tests.waiting import pace, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PATIENCE_S: Final = 40.0


async def run_command(calm: Stand, session: str, task: str) -> Process:
    """`mailslot run`, started."""
    words = [str(MAILSLOT), "run", task, "--session", session, "--url", calm.services[0].url]
    return await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE)


async def said(command: Process) -> tuple[int, str]:
    """How the command ended, and what it printed."""
    out, err = await asyncio.wait_for(command.communicate(), PATIENCE_S)
    assert command.returncode is not None, err
    return command.returncode, out.decode().strip()


async def levels(client: httpx2.AsyncClient, session: str, stop: asyncio.Event) -> list[dict[str, Any]]:
    """The level, again and again."""
    seen = []
    while not stop.is_set():
        answer = await client.get(f"/v1/sessions/{session}")
        if answer.status_code == 200:
            seen.append(answer.json())
        await pace(0.01)
    return seen


@pytest.mark.parametrize(
    ("name", "task", "answer", "reason", "kind"),
    [
        ("retry", "try hard", "Here it is.", "retry in", "completed"),
        ("slow", "slowly", "half an answer", "turn", "completed"),
        ("chores", "chores please", "It says:", "turn", "completed"),
        ("failure", "fail for good", "fail for good", "turn", "error"),
    ],
)
async def test_the_command_waits_for_the_true_idle_and_kills_nothing(
    calm: Stand, figure: Figure, name: str, task: str, answer: str, reason: str, kind: str
) -> None:
    """T16 (Kilo-Org/kilocode PR13623): retries, long answers, tools and failures, each with a message of somebody else
    queued behind. The command ends at the idle after all of it; the level is never idle with something left, and says
    why it is running."""
    history, session, stop = History(), f"T16-{name}", asyncio.Event()
    async with http(calm.services[0].url) as client:
        await made(client, [session], "handy")
        watching = asyncio.create_task(levels(client, session, stop))
        command = await run_command(calm, session, task)
        await wait_until(lambda: len(ledger(calm.client, session)) > 2, PATIENCE_S, "the task to be at work")
        await history.surely(client, session, "somebody else's", delivery="steer" if name == "slow" else "queue")
        ended = await said(command)
        level = (await client.get(f"/v1/sessions/{session}")).json()
        stop.set()
        seen = await watching
    assert (level["status"], level["pending"]) == ("idle", 0), "it did not leave early"
    assert (ended[0], ended[1].splitlines()[-1]) == (0, "somebody else's"), "the last turn is the one that counts"
    facts = hold_trial(calm, history, figure, sessions=session)[session]
    first, *others = ends(facts)
    assert (first, set(others) - {"completed"}) == (kind, set())
    for each in seen:
        consistent(each)
    reasons = {word for each in seen for word in each["reasons"]}
    assert any(word.startswith(reason) for word in reasons), reasons
    texts = [each.data["content"][0]["text"] for each in of_type(facts, "assistant/message") if each.data["content"]]
    assert any(text.startswith(answer) for text in texts), texts


def consistent(level: dict[str, Any]) -> None:
    """Running with reasons, or idle with nothing but what is on hold."""
    if level["status"] == "running":
        assert level["reasons"], level
    else:
        assert not level.get("turn"), level
        assert not level["reasons"], level
        assert level["pending"] == level["held"], level


async def test_a_hold_is_idle_and_says_how_much_it_holds(calm: Stand, figure: Figure) -> None:
    """T16 (Kilo-Org/kilocode PR13623): a held queue is idle, with the number of what it holds; the next task of the
    command ends the hold, and waits for everything that was held."""
    history, session = History(), "T16-hold"
    async with http(calm.services[0].url) as client:
        await made(client, [session], "handy")
        await history.surely(client, session, "slowly")
        await history.surely(client, session, "one")
        await history.surely(client, session, "two", delivery="steer")
        await client.post(f"/v1/sessions/{session}/cancel", json={"queue": "hold"})
        await all_idle(calm, PATIENCE_S, session)
        level = (await client.get(f"/v1/sessions/{session}")).json()
        consistent(level)
        held = level["held"]
        assert held >= 1
        code, answer = await said(await run_command(calm, session, "and on"))
        assert (code, answer.splitlines()[-1]) == (0, "and on")
        level = (await client.get(f"/v1/sessions/{session}")).json()
        assert (level["status"], level["pending"], level["held"]) == ("idle", 0, 0)
    hold_trial(calm, history, figure, sessions=session)


async def test_a_goal_goes_on_after_an_idle_and_the_command_ends_there(calm: Stand, figure: Figure) -> None:
    """T16 (Kilo-Org/kilocode PR13623): a goal continues the session at each idle. The command ends at the first one,
    and does not stop the goal."""
    history, session = History(), "T16-goal"
    async with http(calm.services[0].url) as client:
        await made(client, [session], "brisk")
        body = {"objective": "count the stars", "budgets": {"rounds": 3}}
        assert (await client.put(f"/v1/sessions/{session}/goal", json=body)).status_code == 201
        code, _ = await said(await run_command(calm, session, "by the way"))
        assert code == 0

        async def over() -> bool:
            goal = (await client.get(f"/v1/sessions/{session}/goal")).json()
            return bool(goal["phase"] != "active")

        await wait_until(over, PATIENCE_S, "the goal to have spent its rounds")
        await all_idle(calm, PATIENCE_S, session)
        goal = (await client.get(f"/v1/sessions/{session}/goal")).json()
    facts = hold_trial(calm, history, figure, sessions=session)[session]
    rounds = [each for each in of_type(facts, "user/message") if each.data["source"]["kind"] == "goal"]
    assert (goal["rounds"], len(rounds)) == (3, 3)
    assert set(ends(facts)) == {"completed"}

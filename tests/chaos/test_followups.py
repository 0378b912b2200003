"""What was queued outlives the fate of the turn before it."""

import asyncio
from typing import Final

import httpx2
import pytest

from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import admitted, ends, of_type
from tests.chaos.stand import Stand, all_idle, made
from tests.chaos.trial import hold_trial
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PATIENCE_S: Final = 40.0
QUEUED: Final = ("one", "two", "three")


@pytest.mark.parametrize(
    ("agent", "kind"), [("hasty", "error"), ("endless", "aborted"), ("nobody", "error"), ("brisk", "completed")]
)
async def test_three_follow_ups_run_in_order_whatever_becomes_of_the_turn_before(
    calm: Stand, figure: Figure, agent: str, kind: str
) -> None:
    """T4 (openclaw/openclaw#29497): turns that time out, are aborted, have an agent that cannot start, or whose client
    hangs up right after the receipt."""
    history, session = History(), f"T4-{agent}"
    url = calm.services[0].url
    async with http(url) as client:
        await made(client, [session], agent)
        for message_id in QUEUED:
            async with http(url) as leaving:
                await history.surely(leaving, session, "hello", message_id=message_id)
        for turn in range(1, 4) if agent == "endless" else ():
            await aborted(client, session, turn)
    figure.fault(3)
    await all_idle(calm, PATIENCE_S, session)
    facts = hold_trial(calm, history, figure, sessions=session)[session]
    assert ends(facts) == [kind] * 3
    entered = [message for each in of_type(facts, "inbox/claimed") for message in each.data["messageIds"]]
    assert entered == list(QUEUED)
    if agent != "nobody":
        assert admitted(facts) == list(QUEUED)
    else:
        assert [each.data["reason"] for each in of_type(facts, "inbox/rejected")] == ["unknown-agent"] * 3


async def aborted(client: httpx2.AsyncClient, session: str, turn: int) -> None:
    """The turn with this number is open, and cancelled."""

    async def cancelled() -> bool:
        answer = await client.post(f"/v1/sessions/{session}/cancel", json={"turn": turn})
        assert answer.status_code == 202 or answer.json()["code"] == "not-open"
        return answer.status_code == 202

    await wait_until(cancelled, PATIENCE_S, f"turn {turn} to be open")


async def test_three_follow_ups_run_in_order_after_a_turn_that_kills_its_worker(rough: Stand, figure: Figure) -> None:
    """T4 (openclaw/openclaw#29497): the turn before ends its worker's process; so does the second one."""
    history, session = History(), "T4-crash"
    async with http(rough.of_kind("ingest")[0].url) as client:
        await made(client, [session], "handy")
        for message_id, content in zip(QUEUED, ("stumble here", "stumble there", "hello"), strict=True):
            await history.surely(client, session, content, message_id=message_id)
    await all_idle(rough, PATIENCE_S)
    facts = hold_trial(rough, history, figure, sessions=session)[session]
    figure.fault(2)
    assert sum(worker.is_alive() for worker in rough.of_kind("worker")) == 1
    assert admitted(facts) == list(QUEUED)
    assert ends(facts) == ["completed"] * 3
    assert [each.data["attempt"] for each in of_type(facts, "turn/recovered")] == [2, 2]


async def test_steers_around_the_end_of_a_turn_are_consumed_once_and_in_order(calm: Stand, figure: Figure) -> None:
    """T5 (openclaw/openclaw#119794): 25 steers while turns without tools end, with one follow-up waiting; and a steer
    that races the first message of its session."""
    history = History()
    sessions = [f"T5-{number}" for number in range(8)]
    async with http(calm.services[0].url) as client:
        await made(client, sessions, "brisk")
        await asyncio.gather(*(steered(client, history, session) for session in sessions))
    await all_idle(calm, PATIENCE_S)
    found = hold_trial(calm, history, figure, sessions="T5-")
    for session in sessions:
        facts = found[session]
        lanes = {each.data["messageId"]: each.data["lane"] for each in of_type(facts, "inbox/queued")}
        steers = [message for message, lane in lanes.items() if lane == "next-step"]
        assert len(steers) == 25
        assert [message for message in admitted(facts) if lanes[message] == "next-step"] == steers, "in order of seq"
        assert set(ends(facts)) == {"completed"}


async def steered(client: httpx2.AsyncClient, history: History, session: str) -> None:
    """A steer and a follow-up at the same time, then a follow-up that waits, then steers one after the other."""
    await asyncio.gather(
        history.surely(client, session, "begin"), history.surely(client, session, "and so", delivery="steer")
    )
    await history.surely(client, session, "the one that waits")
    for number in range(24):
        await history.surely(client, session, f"steer {number}", delivery="steer")
        if number % 3 == 0:  # a pause of about a turn, so that some come when the agent has just gone idle
            await client.get(f"/v1/sessions/{session}/idle?timeout=0.02")

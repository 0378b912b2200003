"""Sessions: made once, listed in order, read as a level, cancelled for one turn."""

import asyncio
from typing import Any

import pytest

from mailslot_contracts.protocol import CancelAnswer, LevelPage, SessionAnswer
from mailslot_contracts.status import Level
from tests.echo_worker import EchoWorker
from tests.unit.ingest.served import PATIENCE_S, House, in_process
from tests.waiting import wait_until


async def test_a_session_is_made_once() -> None:
    async with in_process() as house:
        body = {"sessionId": "s", "agent": "writer", "metadata": {"tenant": "a"}}
        first = await house.client.post("/v1/sessions", json=body)
        again = await house.client.post("/v1/sessions", json=body)
        other = await house.client.post("/v1/sessions", json={**body, "agent": "reader"})
        assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
        assert SessionAnswer.model_validate(first.json()) == SessionAnswer(session_id="s", cursor=1)  # type: ignore[arg-type]
        assert other.json()["code"] == "session-exists"


async def test_a_session_without_an_id_gets_one() -> None:
    async with in_process() as house:
        body: dict[str, str] | None
        for body in (None, {}):
            made = await house.client.post("/v1/sessions", json=body)
            assert made.status_code == 201
            assert (await house.level(made.json()["sessionId"]))["status"] == "idle"


async def test_the_level_says_how_the_agent_stands_and_where_it_was_read() -> None:
    async with in_process() as house:
        await house.client.post("/v1/sessions", json={"sessionId": "s"})
        idle = Level.model_validate(await house.level("s"))
        assert (idle.status, idle.reasons, idle.cursor, idle.pending) == ("idle", (), 1, 0)
        await house.prompt("s")
        running = Level.model_validate(await house.level("s"))
        assert (running.status, running.reasons, running.pending) == ("running", ("1 queued",), 1)
        worker = EchoWorker(house.store)
        assert await worker.acquire()
        assert (await house.level("s"))["turn"] == 1


async def test_a_level_says_nothing_of_any_message() -> None:
    async with in_process() as house:
        await house.prompt("s", messageId="m")
        assert "m" not in (await house.level("s")).values()
        assert (await house.level("s")).keys() <= {
            "sessionId", "status", "reasons", "cursor", "turn", "pending", "held", "goal", "usage", "conservation",
        }  # fmt: skip


async def pages(house: House, query: str) -> list[str]:
    """All session ids that a list gives, page by page."""
    names: list[str] = []
    after = ""
    while True:
        tail = f"&after={after}" if after else ""
        page = LevelPage.model_validate((await house.client.get(f"/v1/sessions?{query}{tail}")).json())
        names += [level.session_id for level in page.sessions]
        if page.next is None:
            return names
        after = page.next


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_show_every_session_once_in_order(limit: int) -> None:
    async with in_process() as house:
        for n in range(7):
            await house.client.post("/v1/sessions", json={"sessionId": f"s{n}"})
        assert await pages(house, f"limit={limit}") == [f"s{n}" for n in range(7)]


async def test_a_list_can_be_of_running_sessions_alone() -> None:
    async with in_process() as house:
        for n in range(9):
            await house.prompt(f"s{n}", delivery="queue" if n % 3 == 0 else "inject")
        assert await pages(house, "status=running&limit=2") == ["s0", "s3", "s6"]
        assert await pages(house, "status=idle&limit=4") == ["s1", "s2", "s4", "s5", "s7", "s8"]


async def cancel(house: House, query: str = "", body: dict[str, Any] | None = None) -> CancelAnswer:
    response = await house.client.post(f"/v1/sessions/s/cancel{query}", json=body)
    assert response.status_code == 202, response.json()
    return CancelAnswer.model_validate(response.json())


async def test_a_cancel_without_an_open_turn_has_nothing_to_cancel_and_keeps_the_queue() -> None:
    async with in_process() as house:
        await house.prompt("s", messageId="m")
        answer = await cancel(house)
        assert (answer.outcome, answer.turn, answer.still_queued) == ("nothing_to_cancel", None, ("m",))


async def test_a_cancel_names_the_open_turn_and_lists_what_is_still_queued() -> None:
    async with in_process() as house:
        await house.prompt("s", messageId="a")
        await EchoWorker(house.store).acquire()
        await house.prompt("s", messageId="b")
        answer = await cancel(house, body={"turn": 1})
        assert (answer.outcome, answer.turn, answer.still_queued) == ("requested", 1, ("b",))


async def test_a_cancel_that_waits_is_settled_when_the_turn_has_ended() -> None:
    async with in_process() as house:
        await house.prompt("s")
        worker = EchoWorker(house.store)
        grant = await worker.acquire()
        assert grant
        waiting = asyncio.create_task(cancel(house, "?wait=30"))
        await wait_until(lambda: cancelled(house), PATIENCE_S, "the cancel to be recorded")
        assert not waiting.done()
        await worker.answer(grant)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).outcome == "settled"


async def cancelled(house: House) -> bool:
    events = await house.store.events("s", after=0, limit=100)
    return any(event.type == "cancel/requested" for event in events)


async def test_a_cancel_that_waited_in_vain_says_so() -> None:
    async with in_process() as house:
        await house.prompt("s")
        await EchoWorker(house.store).acquire()
        assert (await cancel(house, "?wait=0.05")).outcome == "requested"


async def test_a_cancel_of_an_idle_agent_with_a_goal_pauses_the_goal() -> None:
    async with in_process() as house:
        await house.client.put("/v1/sessions/s/goal", json={"objective": "a"})
        assert (await cancel(house, "?wait=5")).outcome == "settled"
        assert (await house.level("s"))["goal"]["phase"] == "paused"

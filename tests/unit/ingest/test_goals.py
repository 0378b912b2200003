"""Goals over HTTP: every change by compare-and-set on the revision (semantics G1)."""

from typing import Any

import pytest

from mailslot_contracts import BUDGETS, Goal
from tests.unit.ingest.served import House, in_process

ADDRESS = "/v1/sessions/s/goal"


async def put(house: House, **fields: Any) -> dict[str, Any]:
    response = await house.client.put(ADDRESS, json={"objective": "tidy up", **fields})
    assert response.status_code == 201, response.json()
    found: dict[str, Any] = response.json()
    return found


async def test_a_goal_is_created_with_every_budget_and_read_back() -> None:
    async with in_process() as house:
        goal = Goal.model_validate(await put(house, budgets={"rounds": 3}))
        assert (goal.revision, goal.phase, goal.rounds) == (1, "active", 0)
        assert goal.budgets.wire() == {row.name: row.default for row in BUDGETS} | {"rounds": 3}
        response = await house.client.get(ADDRESS)
        assert response.json()["goalId"] == goal.goal_id
        assert response.headers["etag"] == '"1"'
        assert (await house.level("s"))["goal"] == response.json()


async def test_a_second_goal_is_refused_while_there_is_one() -> None:
    async with in_process() as house:
        await put(house)
        response = await house.client.put(ADDRESS, json={"objective": "something else"})
        assert (response.status_code, response.json()["code"]) == (409, "goal-exists")


@pytest.mark.parametrize(
    ("body", "phase", "reason"),
    [
        ({"operation": "pause"}, "paused", {"kind": "user"}),
        ({"operation": "complete"}, "complete", None),
        ({"operation": "block"}, "blocked", {"code": "blocked", "message": "blocked by a caller"}),
        (
            {"operation": "block", "code": "no-key", "message": "the key is lost"},
            "blocked",
            {"code": "no-key", "message": "the key is lost"},
        ),
    ],
)
async def test_an_operation_changes_the_phase(body: dict[str, str], phase: str, reason: dict[str, str] | None) -> None:
    async with in_process() as house:
        await put(house)
        response = await house.client.patch(ADDRESS, json=body, headers={"If-Match": '"1"'})
        assert response.status_code == 200
        assert (response.json()["phase"], response.json()["revision"]) == (phase, 2)
        assert response.json().get("reason") == reason
        assert response.headers["etag"] == '"2"'


async def test_a_paused_goal_is_resumed() -> None:
    async with in_process() as house:
        await put(house)
        await house.client.patch(ADDRESS, json={"operation": "pause"})
        assert (await house.client.patch(ADDRESS, json={"operation": "resume"})).json()["phase"] == "active"


async def test_an_operation_that_the_phase_does_not_allow_is_refused() -> None:
    async with in_process() as house:
        await put(house)
        response = await house.client.patch(ADDRESS, json={"operation": "resume"})
        assert (response.status_code, response.json()["code"]) == (409, "not-allowed")


async def test_an_edit_changes_what_it_names() -> None:
    async with in_process() as house:
        await put(house, budgets={"rounds": 3, "tokens": 100})
        edited = (await house.client.patch(ADDRESS, json={"budgets": {"rounds": 9}})).json()
        assert (edited["objective"], edited["budgets"]["rounds"], edited["budgets"]["tokens"]) == ("tidy up", 9, 100)


async def test_a_put_with_a_revision_sets_that_goal_anew() -> None:
    async with in_process() as house:
        goal = await put(house, budgets={"rounds": 3})
        response = await house.client.put(ADDRESS, json={"objective": "new"}, headers={"If-Match": '"1"'})
        assert response.status_code == 200
        changed = response.json()
        assert (changed["goalId"], changed["objective"], changed["revision"]) == (goal["goalId"], "new", 2)
        assert changed["budgets"]["rounds"] == 25


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("tag", ['"1"', "1", 'W/"1"'])
async def test_an_old_revision_is_refused_and_changes_nothing(method: str, tag: str) -> None:
    async with in_process() as house:
        await put(house)
        await house.client.patch(ADDRESS, json={"operation": "pause"})
        body = {"PUT": {"objective": "b"}, "PATCH": {"operation": "resume"}, "DELETE": None}[method]
        before = await house.store.events("s", after=0, limit=100)
        response = await house.client.request(method, ADDRESS, json=body, headers={"If-Match": tag})
        assert (response.status_code, response.json()["code"]) == (412, "revision")
        assert await house.store.events("s", after=0, limit=100) == before


async def test_a_cleared_goal_is_gone_and_a_new_one_may_come() -> None:
    async with in_process() as house:
        await put(house)
        response = await house.client.delete(ADDRESS, headers={"If-Match": "*"})
        assert response.status_code == 200
        assert (await house.client.get(ADDRESS)).status_code == 404
        assert "goal" not in await house.level("s")
        await put(house)

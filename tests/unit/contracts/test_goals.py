"""What may be asked of a goal, and that every goal has every budget."""

from typing import Any

import pytest

from mailslot_contracts import goals
from mailslot_contracts.door import read
from mailslot_contracts.goals import BUDGETS, GoalEdit, GoalOperate, GoalPut, read_goal_patch
from mailslot_contracts.problems import Code, ContractError


def test_a_goal_gets_the_default_of_every_budget_that_is_not_given() -> None:
    put = read(GoalPut, {"objective": "tidy up", "budgets": {"rounds": 3, "cost": 2}})
    assert put.all_budgets() == {
        "rounds": 3,
        "turns": 250,
        "modelCalls": 1_000,
        "tokens": 5_000_000,
        "cost": 2.0,
        "wallSeconds": 86_400,
    }
    assert read(GoalPut, {"objective": "x"}).all_budgets() == {row.name: row.default for row in BUDGETS}


@pytest.mark.parametrize("row", BUDGETS, ids=lambda row: row.name)
def test_a_budget_is_more_than_zero_and_at_most_its_maximum(row: goals.BudgetRow) -> None:
    assert 0 < row.default <= row.maximum
    read(GoalPut, {"objective": "x", "budgets": {row.name: row.maximum}})
    for wrong in (0, -1, row.maximum + 1, "1", True, [1]):
        with pytest.raises(ContractError, match=f"budgets.{row.name}"):
            read(GoalPut, {"objective": "x", "budgets": {row.name: wrong}})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "objective: is missing"),
        ({"objective": ""}, "must say something"),
        ({"objective": " \n"}, "must say something"),
        ({"objective": 5}, "must be text"),
        ({"objective": "x", "budgets": {"time": 5}}, "budgets.time: is not a field"),
        ({"objective": "x", "phase": "active"}, "phase: is not a field"),
        ({"objective": "x", "revision": 1}, "revision: is not a field"),
        ({"objective": "x\ud800"}, "lone surrogate"),
        (None, "must be an object"),
    ],
)
def test_a_goal_is_not_made_from_bad_input(body: object, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence) as caught:
        read(GoalPut, body)
    assert caught.value.code is Code.BAD_INPUT


def test_an_objective_has_a_limit_in_bytes() -> None:
    read(GoalPut, {"objective": "x" * goals.OBJECTIVE_BYTES_MAX})
    with pytest.raises(ContractError, match="objective has 65538 bytes; the limit is 65536") as caught:
        read(GoalPut, {"objective": "é" * (goals.OBJECTIVE_BYTES_MAX // 2 + 1)})
    assert caught.value.code is Code.TOO_LARGE


@pytest.mark.parametrize(
    "body",
    [
        {"operation": "pause"},
        {"operation": "resume"},
        {"operation": "complete"},
        {"operation": "block"},
        {"operation": "block", "code": "needs-key", "message": "no key"},
    ],
)
def test_an_operation_is_read_as_one(body: dict[str, Any]) -> None:
    patch = read_goal_patch(body)
    assert isinstance(patch, GoalOperate)
    assert patch.wire() == body


@pytest.mark.parametrize("body", [{"objective": "y"}, {"budgets": {"rounds": 9}}])
def test_an_edit_names_only_what_it_changes(body: dict[str, Any]) -> None:
    patch = read_goal_patch(body)
    assert isinstance(patch, GoalEdit)
    assert patch.wire() == body


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "none is given"),
        ({"budgets": {}}, "none is given"),
        ({"operation": "clear"}, "operation"),
        ({"operation": "create"}, "operation"),
        ({"operation": None}, "operation"),
        ({"operation": "pause", "objective": "y"}, "objective: is not a field"),
        ({"operation": "pause", "message": "tired"}, "takes no code and no message"),
        ({"operation": "block", "code": "Not A Code"}, "code"),
        ({"operation": "block", "message": "x" * 4097}, "message has 4097 bytes"),
        ({"revision": 3, "objective": "y"}, "revision: is not a field"),
        ([], "must be an object"),
    ],
)
def test_a_goal_is_not_changed_by_bad_input(body: object, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        read_goal_patch(body)

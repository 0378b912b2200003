"""Goals: set, read, change, clear. A change names the revision it saw by `If-Match`; an old one is refused (G1)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mailslot_contracts import GoalEdit, GoalOperation, GoalPut, read, read_goal_patch
from mailslot_contracts.goals import GoalOperate
from mailslot_core.errors import Refused
from mailslot_core.goal import Change
from mailslot_core.session import Data
from mailslot_services.ingest.admission import created, new_id
from mailslot_services.ingest.door import Door, answer, level_of
from mailslot_services.ingest.request import if_match, read_json, session_id

PAUSED_BY = "user"
BLOCK_CODE_DEFAULT = "blocked"
BLOCK_MESSAGE_DEFAULT = "blocked by a caller"


async def put_goal(door: Door, request: Request) -> Response:
    """Without a revision: a goal is created, and its session if need be. With one: that goal is set anew."""
    name = session_id(request)
    revision = if_match(request)
    wanted = read(GoalPut, await read_json(request, door.settings.body_bytes_max))
    budgets = wanted.all_budgets()
    if "if-match" in request.headers:
        expected = await _expected(door, name, revision)
        change = Change(GoalOperation.EDIT, expected, objective=wanted.objective, budgets=budgets)
        return goal_answer(await door.store.goal_change(name, change))
    change = Change(GoalOperation.CREATE, goal_id=new_id(door.clock), objective=wanted.objective, budgets=budgets)
    return goal_answer(await door.store.goal_change(name, change, created()), 201)


async def read_goal(door: Door, request: Request) -> Response:
    """The goal as it stands."""
    return goal_answer(await _goal(door, session_id(request)))


async def patch_goal(door: Door, request: Request) -> Response:
    """An edit of objective or budgets, or an operation."""
    name = session_id(request)
    revision = if_match(request)
    wanted = read_goal_patch(await read_json(request, door.settings.body_bytes_max))
    expected = await _expected(door, name, revision)
    return goal_answer(await door.store.goal_change(name, change_of(wanted, expected)))


async def clear_goal(door: Door, request: Request) -> Response:
    """The goal is gone; its last record."""
    name = session_id(request)
    expected = await _expected(door, name, if_match(request))
    return goal_answer(await door.store.goal_change(name, Change(GoalOperation.CLEAR, expected)))


def change_of(wanted: GoalEdit | GoalOperate, expected: tuple[str, int] | None) -> Change:
    """What the core is asked to do."""
    if isinstance(wanted, GoalEdit):
        budgets = wanted.budgets.wire() if wanted.budgets else None
        return Change(GoalOperation.EDIT, expected, objective=wanted.objective, budgets=budgets)
    return Change(wanted.operation, expected, reason=_reason(wanted))


def _reason(wanted: GoalOperate) -> Data | None:
    if wanted.operation == "pause":
        return {"kind": PAUSED_BY}
    if wanted.operation == "block":
        return {"code": wanted.code or BLOCK_CODE_DEFAULT, "message": wanted.message or BLOCK_MESSAGE_DEFAULT}
    return None


def goal_answer(goal: Data, status: int = 200) -> Response:
    """A goal, with its revision as the entity tag."""
    return answer(dict(goal), status, {"ETag": f'"{goal["revision"]}"'})


async def _goal(door: Door, name: str) -> Data:
    goal = (await level_of(door, name)).goal
    if goal is None:
        raise Refused("not-found", f"session {name} has no goal")
    return goal


async def _expected(door: Door, name: str, revision: int | None) -> tuple[str, int] | None:
    """What compare-and-set compares with: the goal that is there now, at the revision that the caller saw."""
    goal = await _goal(door, name)
    return None if revision is None else (goal["goalId"], revision)

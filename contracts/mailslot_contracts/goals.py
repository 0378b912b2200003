"""Goals: a durable objective that sends its own continuation messages, and what may be asked of one.

    PUT goal ──> [active] ──complete──> [complete]
                  │  ^  └──block──> [blocked{code, message}]
            pause v  │ resume           │ resume
                 [paused{kind}] <───────┘ to active

Rule 1: every change raises `revision` by one; a change names the revision it saw, an old one is refused.
Rule 2: every goal has every budget: what the caller does not give gets the default of its row in BUDGETS.
Rule 3: budgets are for life. A spent one blocks the goal with its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from mailslot_contracts.door import Count, Door, Fact, GoalIdField, Ordinal, read
from mailslot_contracts.problems import BadInput, TooLarge

OBJECTIVE_BYTES_MAX = 64 * 1024
"""Bytes of UTF-8 of an objective: it is repeated in every change of the goal."""

REASON_BYTES_MAX = 4 * 1024
"""Bytes of UTF-8 of the message with which a goal is blocked."""


class GoalPhase(StrEnum):
    """How a goal stands."""

    ACTIVE = "active"
    PAUSED = "paused"
    BLOCKED = "blocked"
    COMPLETE = "complete"


class GoalOperation(StrEnum):
    """What a `goal/change` did."""

    CREATE = "create"
    EDIT = "edit"
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    BLOCK = "block"
    CLEAR = "clear"


class BudgetRow(NamedTuple):
    """One budget: wire name, code of a goal that spent it, value when none is given, most it may be."""

    name: str
    code: str
    default: int | float
    maximum: int | float


BUDGETS: tuple[BudgetRow, ...] = (
    BudgetRow("rounds", "budget-rounds", 25, 10_000),
    BudgetRow("turns", "budget-turns", 250, 100_000),
    BudgetRow("modelCalls", "budget-model-calls", 1_000, 1_000_000),
    BudgetRow("tokens", "budget-tokens", 5_000_000, 10_000_000_000),
    BudgetRow("cost", "budget-cost", 100.0, 1_000_000.0),
    BudgetRow("wallSeconds", "budget-wall-seconds", 86_400, 31_536_000),
)
"""`cost` is in the currency of the prices in `agents.toml`; `wallSeconds` counts from the goal's creation."""

_MAXIMUM = {row.name: row.maximum for row in BUDGETS}


class Budgets(Door):
    """Limits for a goal's whole life; each is more than zero and at most its maximum."""

    rounds: Annotated[int, Field(gt=0, le=_MAXIMUM["rounds"])] | None = None
    turns: Annotated[int, Field(gt=0, le=_MAXIMUM["turns"])] | None = None
    model_calls: Annotated[int, Field(gt=0, le=_MAXIMUM["modelCalls"])] | None = None
    tokens: Annotated[int, Field(gt=0, le=_MAXIMUM["tokens"])] | None = None
    cost: Annotated[float, Field(gt=0, le=_MAXIMUM["cost"])] | None = None
    wall_seconds: Annotated[int, Field(gt=0, le=_MAXIMUM["wallSeconds"])] | None = None


def filled_budgets(given: Mapping[str, object]) -> dict[str, object]:
    """Every budget by its wire name: the given ones, and the default for each that is not."""
    return {row.name: given.get(row.name, row.default) for row in BUDGETS}


class GoalBudgets(Fact):
    """The budgets that a goal has."""

    rounds: Count | None = None
    turns: Count | None = None
    model_calls: Count | None = None
    tokens: Count | None = None
    cost: Annotated[float, Field(ge=0)] | None = None
    wall_seconds: Count | None = None


class GoalSpent(Fact):
    """What a goal has spent of each budget; nothing yet when it is not named."""

    rounds: Count = 0
    turns: Count = 0
    model_calls: Count = 0
    tokens: Count = 0
    cost: Annotated[float, Field(ge=0)] = 0.0
    wall_seconds: Count = 0


class GoalReason(Fact):
    """Why a goal does not go on: paused has `kind`, blocked has `code` and `message`."""

    kind: str | None = None
    code: str | None = None
    message: str | None = None


class Goal(Fact):
    """A goal as it stands."""

    goal_id: GoalIdField
    revision: Ordinal
    objective: str
    phase: Literal["active", "paused", "blocked", "complete"]
    rounds: Count
    """Rounds whose message was admitted."""
    budgets: GoalBudgets
    spent: GoalSpent
    reason: GoalReason | None = None


def _objective(text: str) -> str:
    if not text or text.isspace():
        raise BadInput("objective: must say something; it is empty or only white space")
    return _within("objective", text, OBJECTIVE_BYTES_MAX)


def _reason_message(text: str) -> str:
    return _within("message", text, REASON_BYTES_MAX)


def _within(what: str, text: str, limit_bytes: int) -> str:
    size_bytes = len(text.encode("utf-8"))
    if size_bytes > limit_bytes:
        raise TooLarge(what, size_bytes, limit_bytes, "bytes")
    return text


Objective = Annotated[str, AfterValidator(_objective), Field(min_length=1)]


class GoalPut(Door):
    """Create a goal."""

    objective: Objective
    budgets: Budgets = Field(default_factory=Budgets)

    def all_budgets(self) -> dict[str, object]:
        """Every budget by its wire name, defaults filled in."""
        return filled_budgets(self.budgets.wire())


class GoalEdit(Door):
    """Change a goal's objective or some of its budgets; what is not named stays."""

    objective: Objective | None = None
    budgets: Budgets | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.objective is None and (self.budgets is None or not self.budgets.wire()):
            raise BadInput("a goal is changed by objective, budgets or operation; none is given")
        return self


class GoalOperate(Door):
    """Do something to a goal. Only block takes a reason."""

    operation: Literal["pause", "resume", "complete", "block"]
    code: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")] | None = None
    message: Annotated[str, AfterValidator(_reason_message)] | None = None

    @model_validator(mode="after")
    def _reason_belongs_to_block(self) -> Self:
        if self.operation != "block" and not (self.code is None and self.message is None):
            raise BadInput(f"operation {self.operation} takes no code and no message")
        return self


GoalPatch = GoalEdit | GoalOperate


def read_goal_patch(value: object) -> GoalPatch:
    """An edit or an operation; a body that has `operation` is held to be an operation."""
    if isinstance(value, dict) and "operation" in value:
        return read(GoalOperate, value)
    return read(GoalEdit, value)

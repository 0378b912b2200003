"""A session's goal: `mailslot goal set|get|edit|pause|resume|complete|block|clear`.

Rule 1: a change with `--revision` is refused when somebody was faster. Without it the last one to change wins.
Rule 2: a budget is for the goal's whole life, as the protocol names it; what is not given is left as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from mailslot import operation
from mailslot.answer import Budgets, Goal
from mailslot.cli.exits import Exit
from mailslot.cli.inbox import asked, show
from mailslot.cli.options import (
    Command,
    Group,
    Parser,
    add_json,
    add_text,
    counted,
    identifier,
    parser,
    seconds,
    text_of,
)
from mailslot.cli.terminal import put, say
from mailslot.operation import Address

COUNTED: Final[dict[str, str]] = {
    "rounds": "continuation messages",
    "turns": "turns",
    "model_calls": "model calls",
    "tokens": "tokens",
}
"""The budgets that are whole numbers, and what they count."""


def _about(action: str, description: str, *examples: str, change: bool = True) -> Parser:
    made = parser(f"goal {action}", description, *examples)
    made.add_argument("session", type=identifier, help="the session")
    add_json(made, "print the goal as one line of JSON")
    if change:
        made.add_argument(
            "--revision", type=counted("a revision", 1), help="refuse it unless the goal still has this revision"
        )
    return made


def _add_budgets(made: Parser) -> None:
    for name, what in COUNTED.items():
        made.add_argument(
            f"--{name.replace('_', '-')}", type=counted("a budget", 1), metavar="COUNT", help=f"at most so many {what}"
        )
    made.add_argument("--cost", type=_cost, metavar="AMOUNT", help="at most so much money, in the unit of the prices")
    made.add_argument("--wall-seconds", type=seconds, metavar="DURATION", help="at most so long: 90 (seconds), 2h, 1d")


def _cost(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount above 0")
    return value


def _budgets(options: argparse.Namespace) -> Budgets | None:
    found = Budgets(
        **{name: getattr(options, name) for name in COUNTED},
        cost=options.cost,
        wall_seconds=None if options.wall_seconds is None else max(1, round(options.wall_seconds)),
    )
    return found if found.wire() else None


def _shown(options: argparse.Namespace, goal: Goal) -> int:
    if options.json:
        return show(options, goal)
    reason = goal.reason
    said = None if reason is None else " ".join(filter(None, (reason.kind, reason.code, reason.message)))
    pairs = {
        "goalId": goal.goal_id,
        "revision": goal.revision,
        "objective": goal.objective,
        "phase": goal.phase,
        "reason": said or None,
        "rounds": goal.rounds,
        "budgets": _words(goal.budgets),
        "spent": _words(goal.spent),
    }
    return show(options, pairs)


def _words(budgets: Budgets) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in budgets.wire().items()) or None


# -- set, get, edit -----------------------------------------------------------------------------------------------


def _set_parser() -> Parser:
    made = _about(
        "set",
        "Give a session a goal: whenever its agent is idle, it is sent another round until the goal is complete.",
        'mailslot goal set demo "write the report" --rounds 5 --wall-seconds 2h',
        change=False,
    )
    add_text(made, "objective")
    made.add_argument("--agent", type=identifier, help="the agent of a session that does not exist yet")
    _add_budgets(made)
    return made


def _set(made: Parser, options: argparse.Namespace) -> int:
    objective, address = text_of(made, options, "objective"), Address(options.session, options.agent)
    budgets = _budgets(options)
    return _shown(options, asked(made, options, lambda terms: operation.set_goal(terms, address, objective, budgets)))


def _get_parser() -> Parser:
    return _about("get", "Show a session's goal, and what it has spent.", "mailslot goal get demo", change=False)


def _get(made: Parser, options: argparse.Namespace) -> int:
    address = Address(options.session)
    goal = asked(made, options, lambda terms: operation.goal(terms, address))
    if goal is None:
        say(f"mailslot goal get: session {address.session_id} has no goal")
        return Exit.REFUSED
    return _shown(options, goal)


def _edit_parser() -> Parser:
    made = _about(
        "edit",
        "Change a goal's objective or budgets; what is not named stays.",
        "mailslot goal edit demo --rounds 20",
        'mailslot goal edit demo --objective "write a short report"',
    )
    made.add_argument("--objective", metavar="TEXT", help="the new objective")
    _add_budgets(made)
    return made


def _edit(made: Parser, options: argparse.Namespace) -> int:
    body = operation.goal_edit(options.objective, _budgets(options))
    if not body:
        made.error("say what to change: --objective, or a budget")
    return _patched(made, options, body)


# -- one word -----------------------------------------------------------------------------------------------------


def _block_parser() -> Parser:
    made = _about(
        "block",
        "Say that a goal cannot go on, and why.",
        'mailslot goal block demo --code no-access --message "the archive is locked"',
    )
    made.add_argument("--code", help="a word for why")
    made.add_argument("--message", metavar="TEXT", help="a sentence about why")
    return made


def _block(made: Parser, options: argparse.Namespace) -> int:
    return _patched(made, options, operation.goal_block(options.code, options.message))


def _clear_parser() -> Parser:
    return _about("clear", "Take a session's goal away.", "mailslot goal clear demo")


def _clear(made: Parser, options: argparse.Namespace) -> int:
    address = Address(options.session)
    asked(made, options, lambda terms: operation.clear_goal(terms, address, options.revision))
    if options.json:
        put("{}")
    return Exit.COMPLETED


def _word(action: str, description: str) -> Command:
    def made() -> Parser:
        return _about(action, description, f"mailslot goal {action} demo")

    def act(made: Parser, options: argparse.Namespace) -> int:
        return _patched(made, options, {"operation": action})

    return Command(made, act)


def _patched(made: Parser, options: argparse.Namespace, body: Mapping[str, object]) -> int:
    address = Address(options.session)
    goal = asked(made, options, lambda terms: operation.patch_goal(terms, address, body, options.revision))
    return _shown(options, goal)


GOAL: Final = Group(
    "goal",
    "A goal is an objective that an agent goes on with by itself, round by round, until it is complete.",
    {
        "set": ("give a session a goal", Command(_set_parser, _set)),
        "get": ("show the goal, and what it has spent", Command(_get_parser, _get)),
        "edit": ("change its objective or its budgets", Command(_edit_parser, _edit)),
        "pause": ("no further round until it is resumed", _word("pause", "Pause a goal: no further round.")),
        "resume": ("go on with the next round", _word("resume", "Go on with a goal that is paused or blocked.")),
        "complete": ("say that it is reached", _word("complete", "Say that a goal is reached.")),
        "block": ("say that it cannot go on, and why", Command(_block_parser, _block)),
        "clear": ("take it away", Command(_clear_parser, _clear)),
    },
)

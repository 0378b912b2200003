"""Marking a Python function as a tool for agents. The function stays what it was; a worker reads the mark.

    from mailslot.tools import tool

    @tool(effect="readonly")
    def weather(city: str) -> str:
        "The weather in a city."

Rule 1: the mark is one attribute, `__mailslot_tool__`, with what was said and nothing else. A plain function without
        it is a tool as well, with every default.
Rule 2: the effect decides what happens to a call that was under way when its worker died: `readonly` and `idempotent`
        calls are made again, an `unsafe` one (the default) is left to the model, as an unknown outcome.
Rule 3: a function that computes for long without letting others run, or that must be ended at its timeout, runs in a
        process of its own (`process=True`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

Effect: TypeAlias = Literal["readonly", "idempotent", "unsafe"]
F = TypeVar("F", bound=Callable[..., Any])

MARK = "__mailslot_tool__"


def tool(
    *,
    effect: Effect = "unsafe",
    name: str | None = None,
    timeout_ms: int | None = None,
    blocking: bool | None = None,
    process: bool | None = None,
) -> Callable[[F], F]:
    """Say of a function how a worker is to treat it as a tool.

    `timeout_ms` is how long one call may take; `blocking=False` says of a function without `await` that it is quick
    enough to run on the event loop; `process=True` gives each of its calls a process, which is killed when the call
    may take no longer.
    """
    if timeout_ms is not None and timeout_ms <= 0:
        raise ValueError(f"timeout_ms must be more than 0, got {timeout_ms}")
    if process and blocking is False:
        raise ValueError("process=True and blocking=False exclude each other")
    asked = {"effect": effect, "name": name, "timeout_ms": timeout_ms, "blocking": blocking, "process": process}
    said = {field: value for field, value in asked.items() if value is not None}

    def mark(function: F) -> F:
        setattr(function, MARK, said)
        return function

    return mark

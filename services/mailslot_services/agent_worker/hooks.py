"""Admission hooks: Python functions that see what a turn claimed before it enters (semantics T4).

    hooks = ["polite", "shop_hooks:context"]        in agents.toml, see `offer`; in the order they are asked
                |
                v
    claimed batch --> hook --> hook --> what enters, what is rejected (`batch`)

Rule 1: what a hook is shown and what it may answer are the values of `mailslot.hooks`.
Rule 2: a hook has a cap (`hook_ms`). One that raises, takes longer or answers what cannot be ends its turn, and only
        that one: `turn/end{error{hook-failed}}`, which rejects what was claimed (M10).
Rule 3: async functions run on the loop, others in a thread (`call`).
Rule 4: nothing that was claimed, nothing to see: a step boundary at which nothing waited asks nobody.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mailslot.hooks import Batch
from mailslot_core.agent import ToolError
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.batch import HookFailed, Occasion, Standing, heed, shown
from mailslot_services.agent_worker.call import Overdue, in_a_thread, is_async, on_the_loop, within
from mailslot_services.agent_worker.metrics import WorkerMetrics
from mailslot_services.agent_worker.offer import offered

GROUP: Final = "mailslot.hooks"
"""The entry point group in which distributions offer hooks."""

HOOK_FAILED: Final = "hook-failed"
"""Code of a turn that one of its hooks ended."""


@dataclass(frozen=True, slots=True)
class AdmissionHook:
    """A function that is asked, and the name it is known by in agents.toml and in the ledger."""

    name: str
    function: Callable[[Batch], object]

    async def ask(self, batch: Batch, cap_s: float) -> object:
        """What it answers. Raises `HookFailed`."""
        where = on_the_loop if is_async(self.function) else in_a_thread
        try:
            return await within(where(functools.partial(self.function, batch)), cap_s)
        except Overdue:
            raise HookFailed(f"hook {self.name} did not answer within {cap_s:g} s") from None
        except ToolError as error:
            raise HookFailed(f"hook {self.name}: {error}") from error


async def consult(
    hooks: Sequence[AdmissionHook], occasion: Occasion, now: Standing, cap_s: float, metrics: WorkerMetrics
) -> Standing:
    """How the batch stands when every hook was asked; once nothing claimed is left, nobody more is. Raises
    `HookFailed`."""
    for hook in hooks:
        if not now.claimed:
            break
        outcome = "failed"
        try:
            now = heed(now, occasion, hook.name, await hook.ask(shown(now, occasion), cap_s))
            outcome = "entered" if now.claimed else "rejected"
        finally:
            metrics.hook_calls.labels(hook=hook.name, outcome=outcome).inc()
    return now


def load_hooks(names: Sequence[str], folder: Path) -> tuple[AdmissionHook, ...]:
    """The hooks of these names, in their order. Modules are looked for in the folder too."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Misconfigured(f"hook {twice} is named twice")
    return tuple(_hook(name, folder) for name in names)


def _hook(name: str, folder: Path) -> AdmissionHook:
    function = offered("hook", GROUP, name, folder)
    try:
        inspect.signature(function).bind(None)
    except ValueError:  # it is no Python function: calling it will show
        pass
    except TypeError as error:
        raise Misconfigured(f"hook {name} cannot be called with a batch: {error}") from None
    return AdmissionHook(name, function)

"""Python functions that agents.toml names: those that an installed package offers, and those of a module.

    tools = ["weather", "shop.tools:refund"]
                |               |
     entry point in a group    module:function, looked for beside agents.toml as well

Rule 1: whatever is wrong with a name is one sentence (`Misconfigured`), when the file is loaded.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from mailslot_core.errors import Misconfigured


def offered(kind: str, group: str, name: str, folder: Path) -> Callable[..., object]:
    """The function of this name; `kind` says what it is to be (`tool`, `hook`)."""
    try:
        loaded: object = _reference(kind, group, name, folder).load()
    except Misconfigured:
        raise
    except Exception as error:
        raise Misconfigured(f"{kind} {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(loaded) or inspect.isclass(loaded):
        raise Misconfigured(f"{kind} {name} is no function but {type(loaded).__name__}")
    return loaded


def _reference(kind: str, group: str, name: str, folder: Path) -> EntryPoint:
    if ":" in name:
        # Last, so that a file beside agents.toml never takes the place of an installed module.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        return EntryPoint(name, name, group)
    all_offers = entry_points(group=group)
    matching = {entry.value: entry for entry in all_offers if entry.name == name}
    if not matching:
        known = ", ".join(sorted(all_offers.names)) or "none"
        raise Misconfigured(f"no installed package offers a {kind} {name} in the group {group} (offered: {known})")
    if len(matching) > 1:
        raise Misconfigured(
            f"{kind} {name} is offered more than once: {', '.join(sorted(matching))}; write the one meant"
        )
    return next(iter(matching.values()))

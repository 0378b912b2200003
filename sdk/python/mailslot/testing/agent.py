"""An agent as a test writes it: what agents.toml says of one, with functions where that has names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mailslot.hooks import Hook
from mailslot.testing.script import Rule


@dataclass(frozen=True, slots=True)
class Agent:
    """Who answers in a session. Without a script it echoes, until `Server.answers` gives it something to say."""

    script: Sequence[str | Rule] = ()
    tools: Sequence[Callable[..., Any]] = ()
    """Python functions, marked with `mailslot.tools.tool` or not. Plain ones run in a thread, async ones on the
    server's own event loop."""
    hooks: Sequence[Hook] = ()
    """Admission hooks (`mailslot.hooks`), in the order in which they are asked."""
    instructions: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    """By the names of `[agents.<name>.limits]`."""

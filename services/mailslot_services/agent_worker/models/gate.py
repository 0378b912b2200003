"""Gates: places in a script where a model waits until somebody lets it go on.

    model --wait("half")--> [closed] ........ open("half") --> goes on

Rule 1: a gate has a name and is closed until it is opened; once open, it lets everyone through.
Rule 2: who keeps the gates decides who opens them: the test in the same process, or anybody who can make a file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

POLL_S: Final = 0.02
"""How often a gate that is a file is looked for."""


class GateKeeper(Protocol):
    """Where a script's `wait` waits."""

    async def wait(self, name: str) -> None:
        """Returns once the gate is open."""
        ...


class Gates:
    """Gates in this process: `await gates.reached("half")`, look around, `gates.open("half")`."""

    def __init__(self) -> None:
        self._reached: dict[str, asyncio.Event] = {}
        self._open: dict[str, asyncio.Event] = {}

    async def wait(self, name: str) -> None:
        """A model has come to the gate; it goes on when the gate is open."""
        _event(self._reached, name).set()
        await _event(self._open, name).wait()

    async def reached(self, name: str) -> None:
        """Returns once a model has come to the gate."""
        await _event(self._reached, name).wait()

    def open(self, name: str) -> None:
        """Let models through from now on."""
        _event(self._open, name).set()

    def close(self, name: str) -> None:
        """Stop models here again, and forget that one came. Whoever waits already waits on for the next opening."""
        _event(self._open, name).clear()
        _event(self._reached, name).clear()


def _event(events: dict[str, asyncio.Event], name: str) -> asyncio.Event:
    return events.setdefault(name, asyncio.Event())


class FolderGates:
    """Gates between processes: a gate is open once a file of its name is in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def wait(self, name: str) -> None:
        """Returns once the file is there."""
        while not self.is_open(name):  # noqa: ASYNC110 - no event tells of a file
            await asyncio.sleep(POLL_S)

    def is_open(self, name: str) -> bool:
        """Whether the file is there."""
        return (self._folder / name).exists()

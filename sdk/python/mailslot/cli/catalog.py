"""Every command of a client: where it is, what it means, and under which heading people find it.

A command is loaded when it is called: `mailslot --help` and a misspelt word load none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from mailslot.cli.options import Command, Group

    Loaded: TypeAlias = Command | Group


class Row(NamedTuple):
    """One command of the table."""

    heading: str
    module: str
    name: str
    meaning: str


TALK: Final = "talk to an agent"
LOOK: Final = "see what goes on"
QUEUE: Final = "change what waits"
STOP: Final = "stop and go on"
GOALS: Final = "goals"
SHELL: Final = "for programs and shells"

ROWS: Final[dict[str, Row]] = {
    "run": Row(TALK, "run", "RUN", "send a task, wait until the agent is idle, print what it said last"),
    "send": Row(TALK, "send", "SEND", "queue a message and print its receipt"),
    "tail": Row(LOOK, "tail", "TAIL", "print a session's events; with -f also those that come"),
    "status": Row(LOOK, "session", "STATUS", "say how an agent stands: running or idle, why, what waits"),
    "sessions": Row(LOOK, "session", "SESSIONS", "list all sessions and how they stand"),
    "message": Row(LOOK, "inbox", "MESSAGE", "say what happened to a message"),
    "queue": Row(QUEUE, "inbox", "QUEUE", "list what waits in a session, in order"),
    "replace": Row(QUEUE, "inbox", "REPLACE", "give a queued message other words"),
    "withdraw": Row(QUEUE, "inbox", "WITHDRAW", "take a queued message back"),
    "move": Row(QUEUE, "inbox", "MOVE", "steer the running turn with a queued message"),
    "cancel": Row(STOP, "session", "CANCEL", "stop the open turn"),
    "release": Row(STOP, "session", "RELEASE", "go on with what is on hold"),
    "close": Row(STOP, "session", "CLOSE", "end a session; its history stays"),
    "erase": Row(STOP, "session", "ERASE", "end a session and erase all of it"),
    "dead": Row(STOP, "letter", "DEAD", "list what died with crashed turns"),
    "redrive": Row(STOP, "letter", "REDRIVE", "queue dead messages again"),
    "goal": Row(GOALS, "goal", "GOAL", "set, get, edit, pause, resume, complete, block or clear a goal"),
    "rpc": Row(SHELL, "rpc", "RPC", "speak JSON-RPC on stdin and stdout, for a program that starts it"),
    "completion": Row(SHELL, "completion", "COMPLETION", "print a script that completes these commands in your shell"),
}

OTHER_WORDS: Final[dict[str, str]] = {
    "delete": "erase",
    "list": "sessions",
    "log": "tail -f",
    "logs": "tail -f",
    "ls": "sessions",
    "ps": "sessions",
    "prompt": "send",
    "resume": "release",
    "start": "up",
    "steer": "send --delivery steer (or move, for a message that is queued)",
    "stop": "cancel",
    "watch": "tail -f",
}
"""What people type who know other tools -> what it is called here."""


def load(name: str) -> Loaded:
    """A command, ready to be called."""
    row = ROWS[name]
    loaded: Loaded = getattr(import_module(f"mailslot.cli.{row.module}"), row.name)
    return loaded

"""How the command line says what happened, to programs: its exit codes.

The numbers are part of the contract; scripts depend on them. `TABLE` is the only list of them: `--help` prints it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from mailslot.errors import MailslotError, Refused, RunTimeout
from mailslot.interval import RunResult


class Exit(IntEnum):
    """Every exit code of `run`, `send` and `tail`; services have their own."""

    COMPLETED = 0
    ENDED_OTHERWISE = 1
    USAGE = 2
    NO_TURN = 3
    REFUSED = 4
    LOST = 5
    TIMEOUT = 6
    INTERRUPTED = 130
    READER_GONE = 141


TABLE: Final[dict[Exit, str]] = {
    Exit.COMPLETED: "done; for run: the last turn of the interval ended completed",
    Exit.ENDED_OTHERWISE: "run: the last turn ended otherwise (its kind is on stderr)",
    Exit.USAGE: "the command line makes no sense, or the command is not there",
    Exit.NO_TURN: "run: no turn ended in the interval (what became of the message is on stderr)",
    Exit.REFUSED: "the server refused; nothing was kept",
    Exit.LOST: "the server cannot be reached or read, or the outcome is not known",
    Exit.TIMEOUT: "run: --timeout is over; the agent goes on",
    Exit.INTERRUPTED: "interrupted (Ctrl-C); the agent goes on",
    Exit.READER_GONE: "whoever read the output went away",
}


def table() -> str:
    """The exit codes as lines for `--help`."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in TABLE.items())


def of_error(error: MailslotError) -> Exit:
    """The exit code of an error."""
    if isinstance(error, Refused):
        return Exit.REFUSED
    return Exit.TIMEOUT if isinstance(error, RunTimeout) else Exit.LOST


def of_result(result: RunResult) -> Exit:
    """The exit code of a run: a success only when the last turn completed; a kind not known here is none."""
    if result.finish_reason is None:
        return Exit.NO_TURN
    return Exit.COMPLETED if result.finish_reason == "completed" else Exit.ENDED_OTHERWISE

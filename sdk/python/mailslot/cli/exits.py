"""How the command line says what happened, to programs: its exit codes.

The numbers are part of the contract; scripts depend on them. `TABLE` is the only list of them: `--help` prints it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from mailslot.errors import MailslotError, Refused, RunTimeout

if TYPE_CHECKING:
    from mailslot.interval import RunResult


class Exit(IntEnum):
    """Every exit code of the client's commands; services have their own."""

    COMPLETED = 0
    ENDED_OTHERWISE = 1
    USAGE = 2
    NO_TURN = 3
    REFUSED = 4
    LOST = 5
    TIMEOUT = 6
    DECLINED = 7
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


TABLE: Final[dict[Exit, str]] = {
    Exit.COMPLETED: "done; for run: the last turn of the interval ended completed",
    Exit.ENDED_OTHERWISE: "run: the last turn ended otherwise (its kind is on stderr)",
    Exit.USAGE: "the command line makes no sense, or the command is not there",
    Exit.NO_TURN: "run: no turn ended in the interval (what became of the message is on stderr)",
    Exit.REFUSED: "the server refused, or has no such thing; nothing was kept or changed",
    Exit.LOST: "the server cannot be reached or read, or the outcome is not known",
    Exit.TIMEOUT: "--timeout or --wait is over; the agent goes on",
    Exit.DECLINED: "you were asked and did not say yes; nothing was changed",
    Exit.INTERRUPTED: "interrupted (Ctrl-C; run: twice, or before its task was sent); the agent goes on",
    Exit.READER_GONE: "whoever read the output went away, or it cannot be written",
    Exit.TERMINATED: "ended by SIGTERM; the agent goes on",
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

"""The command `mailslot`.

    mailslot run "task"        send a task, wait until the agent is idle, print what it said last
    mailslot send …            queue a message, print its receipt
    mailslot tail session      print a session's events
    mailslot status | queue | cancel | goal …           everything else a client can do: `catalog` is the table
    mailslot up | ingest | worker | goals | doctor …    services, found through entry points

| exit code | means |
|---|---|
| 0   | done; for run: the last turn of the interval ended completed |
| 1   | run: the last turn ended otherwise (its kind is on stderr) |
| 2   | the command line makes no sense, or the command is not there |
| 3   | run: no turn ended in the interval (what became of the message is on stderr) |
| 4   | the server refused, or has no such thing; nothing was kept or changed |
| 5   | the server cannot be reached or read, or the outcome is not known |
| 6   | --timeout or --wait is over; the agent goes on |
| 7   | you were asked and did not say yes; nothing was changed |
| 130 | interrupted (Ctrl-C; run: twice, or before its task was sent); the agent goes on |
| 141 | whoever read the output went away, or it cannot be written |
| 143 | ended by SIGTERM; the agent goes on |

Services have exit codes of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from mailslot.cli.catalog import ROWS, load
from mailslot.cli.exits import Exit, of_error, table
from mailslot.cli.terminal import say
from mailslot.errors import MailslotError, TransportLost

__all__ = ["Exit", "main"]

EXAMPLES: Final = """\
  mailslot up                                   a server on this machine, in one terminal
  mailslot run "hello"                          ask its agent something, in another
  mailslot run --session demo "and now?"        go on with a conversation
  mailslot tail -f demo                         watch it
  mailslot send --session demo --delivery steer "shorter, please"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _let_any_text_out()
    try:
        return _dispatch(words)
    except SystemExit as leaving:
        return _left(leaving.code)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return Exit.READER_GONE


def _dispatch(words: list[str]) -> int:
    if not words:
        say(_help())
        return Exit.USAGE
    name, rest = words[0], words[1:]
    if name == "help" and rest:
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("-h", "--help", "help"):
        print(_help())
        return Exit.COMPLETED
    if name in ("-V", "--version"):
        print(f"mailslot {_version()}")
        return Exit.COMPLETED
    if name in ROWS:
        return _client(name, rest)

    from mailslot.cli import service

    return service.call(name, rest, tuple(ROWS))


def _client(name: str, rest: list[str]) -> int:
    try:
        return load(name)(rest)
    except MailslotError as error:
        hint = "; start one with `mailslot up`, or name yours with --url" if _nobody_there(error) else ""
        say(f"mailslot {name}: {error}{hint}")
        return of_error(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        # The connection's errors are no OSError by the time they come here: this is a full disk under stdout.
        _discard_output()
        say(f"mailslot {name}: the output cannot be written: {error.strerror or error}")
        return Exit.READER_GONE


def _nobody_there(error: MailslotError) -> bool:
    return isinstance(error, TransportLost) and not error.reached


def _help() -> str:
    from mailslot.cli import service

    services = service.described()
    width = max(len(name) for name in (*ROWS, *services))
    headed: dict[str, list[str]] = {}
    for name, row in ROWS.items():
        headed.setdefault(row.heading, []).append(f"  {name:<{width}}  {row.meaning}")
    if services:
        headed["run a server"] = [f"  {name:<{width}}  {meaning}" for name, meaning in services.items()]
    commands = "\n\n".join("\n".join([f"{heading}:", *lines]) for heading, lines in headed.items())
    return (
        "usage: mailslot <command> [options]\n\n"
        "A durable inbox and event ledger for agents.\n\n"
        f"examples:\n{EXAMPLES}\n"
        f"{commands}\n\n"
        "  mailslot <command> --help   what a command takes, with examples\n"
        "  mailslot --version          which version this is\n\n"
        "environment:\n"
        "  MAILSLOT_URL                the server, as --url\n"
        "  MAILSLOT_TOKEN              the bearer token to show it, as --token\n"
        "  NO_COLOR                    no colours on a terminal\n\n"
        f"exit codes (services have their own):\n{table()}"
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mailslot")
    except PackageNotFoundError:
        return "(not installed)"


def _left(status: str | int | None) -> int:
    """The code with which a command wants to leave."""
    return status if isinstance(status, int) else Exit.USAGE if status else Exit.COMPLETED


def _let_any_text_out() -> None:
    """A terminal whose encoding lacks a character shows an escape; that is no reason to fail after the work.

    Whoever started this with a closed stdout or stderr does not want to see anything.
    """
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _discard_output() -> None:
    """Nobody reads stdout any more; without this the interpreter would complain when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

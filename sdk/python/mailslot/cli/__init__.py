"""The command `mailslot`.

    mailslot run "task"        send a task, wait until the agent is idle, print what it said last
    mailslot send …            queue a message, print its receipt
    mailslot tail session      print events as they come
    mailslot up | ingest | worker | goals | doctor …    services, found through entry points

| exit code | means |
|---|---|
| 0   | done; for run: the last turn of the interval ended completed |
| 1   | run: the last turn ended otherwise (its kind is on stderr) |
| 2   | the command line makes no sense, or the command is not there |
| 3   | run: no turn ended in the interval (what became of the message is on stderr) |
| 4   | the server refused; nothing was kept |
| 5   | the server cannot be reached or read, or the outcome is not known |
| 6   | run: --timeout is over; the agent goes on |
| 130 | interrupted (Ctrl-C); the agent goes on |
| 141 | whoever read the output went away |

Services have exit codes of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from mailslot.cli import run, send, service, tail
from mailslot.cli.exits import Exit, of_error, table
from mailslot.cli.options import exit_code
from mailslot.cli.terminal import say
from mailslot.errors import MailslotError, TransportLost

__all__ = ["Exit", "main"]

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run.command,
    "send": send.command,
    "tail": tail.command,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _let_any_text_out()
    try:
        return _dispatch(words)
    except SystemExit as leaving:
        return exit_code(leaving.code)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Nobody reads stdout any more; without this the interpreter would complain when it flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.READER_GONE


def _dispatch(words: list[str]) -> int:
    if not words:
        say(_help())
        return Exit.USAGE
    name, rest = words[0], words[1:]
    if name in ("-h", "--help", "help"):
        print(_help())
        return Exit.COMPLETED
    if name in ("-V", "--version"):
        print(f"mailslot {_version()}")
        return Exit.COMPLETED
    if name in COMMANDS:
        return _client(name, rest)
    return service.call(name, rest)


def _client(name: str, rest: list[str]) -> int:
    try:
        return COMMANDS[name](rest)
    except MailslotError as error:
        hint = "; start one with `mailslot up`, or name yours with --url" if _nobody_there(error) else ""
        say(f"mailslot {name}: {error}{hint}")
        return of_error(error)


def _nobody_there(error: MailslotError) -> bool:
    return isinstance(error, TransportLost) and not error.reached


def _help() -> str:
    own = {name: (command.__doc__ or "").strip().rstrip(".").lower() for name, command in COMMANDS.items()}
    listed = own | service.described()
    width = max(len(name) for name in listed)
    commands = "\n".join(f"  {name:<{width}}  {meaning}" for name, meaning in listed.items())
    return (
        "usage: mailslot <command> [options]\n\n"
        "A durable inbox and event ledger for agents.\n\n"
        f"commands:\n{commands}\n\n"
        "  mailslot <command> --help   what a command takes\n"
        "  mailslot --version          which version this is\n\n"
        f"exit codes of run, send and tail:\n{table()}"
    )


def _version() -> str:
    try:
        return version("mailslot")
    except PackageNotFoundError:
        return "(not installed)"


def _let_any_text_out() -> None:
    """A terminal whose encoding lacks a character shows an escape; that is no reason to fail after the work."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

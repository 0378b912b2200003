"""What the commands of a client have in common: where the server is, what to say, and how to say what is wrong.

Rule 1: a flag wins over the environment, the environment over the default.
Rule 2: what makes no sense is one sentence on stderr and exit code 2, before anything is sent.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final, NoReturn

from mailslot.cli.exits import Exit, table
from mailslot.client import DEFAULT_URL
from mailslot.settings import Settings
from mailslot.transport import Transport, checked_token, checked_url

SETTINGS: Final = Settings(attempts_max=4, idle_poll_s=2.0)
"""A person is waiting: a server that is not there is reported soon, and reasons are shown while they are true."""

STDIN_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes read from stdin; the server's own limit is lower."""


def parser(command: str, description: str, usage: str | None = None) -> argparse.ArgumentParser:
    """A parser with the options of every client command."""
    made = argparse.ArgumentParser(
        prog=f"mailslot {command}",
        usage=usage,
        description=description,
        epilog=f"exit codes:\n{table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--url",
        default=os.environ.get("MAILSLOT_URL") or DEFAULT_URL,
        help="the server (env MAILSLOT_URL, default %(default)s)",
    )
    made.add_argument(
        "--token",
        default=os.environ.get("MAILSLOT_TOKEN") or None,
        help="the bearer token to show it (env MAILSLOT_TOKEN, default none)",
    )
    return made


def add_text(made: argparse.ArgumentParser, what: str) -> None:
    """The words of a message, from the command line or from stdin."""
    made.add_argument("words", nargs="*", metavar=what, help=f"the {what}; several words are joined by spaces")
    made.add_argument("--stdin", action="store_true", help=f"read the {what} from stdin")


def text_of(made: argparse.ArgumentParser, options: argparse.Namespace, what: str) -> str:
    """The message that the command line gives; one that says nothing is refused here."""
    if options.stdin and options.words:
        made.error(f"give the {what} as words or with --stdin, not both")
    text = _from_stdin(made) if options.stdin else " ".join(options.words)
    if not text.strip():
        made.error(f"the {what} is blank")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        made.error(f"the {what} is not UTF-8")
    return text


def transport(made: argparse.ArgumentParser, options: argparse.Namespace) -> Transport:
    """The way to the server."""
    try:
        checked_url(options.url)
        if options.token is not None:
            checked_token(options.token)
    except ValueError as error:
        made.error(str(error))
    return Transport(options.url, options.token, SETTINGS)


def seconds(text: str) -> float:
    """A duration on the command line."""
    try:
        value = float(text)
    except ValueError:
        _no_duration(text)
    if not 0 < value < float("inf"):
        _no_duration(text)
    return value


def identifier(text: str) -> str:
    """An id on the command line."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("an id must be UTF-8") from None
    if not text:
        raise argparse.ArgumentTypeError("an id must not be empty")
    return text


def exit_code(status: str | int | None) -> int:
    """The code with which argparse wants to leave."""
    return status if isinstance(status, int) else Exit.USAGE if status else Exit.COMPLETED


def _no_duration(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _from_stdin(made: argparse.ArgumentParser) -> str:
    data = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        made.error(f"stdin has more than {STDIN_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        made.error("stdin is not UTF-8")

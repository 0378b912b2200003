"""What the commands of a client have in common: where the server is, what to say, and how to say what is wrong.

    argv ──> parser ──> options ──> act ──> exit code

Rule 1: a flag wins over the environment, the environment over the default.
Rule 2: what makes no sense is one sentence on stderr and exit code 2, before anything is sent.
Rule 3: a command is its parser and what it does. Help and shell completion are read off the parser: nothing is listed
        twice.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from mailslot.cli.exits import Exit, table
from mailslot.cli.moment import duration_s, moment_ms
from mailslot.client import DEFAULT_URL
from mailslot.settings import Settings
from mailslot.transport import Transport, checked_token, checked_url

SETTINGS: Final = Settings(attempts_max=4, idle_poll_s=2.0)
"""A person is waiting: a server that is not there is reported soon, and reasons are shown while they are true."""

STDIN_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes read from stdin; the server's own limit is lower."""

STDIN_WORD: Final = "-"
"""In place of a text: read it from stdin."""


class Parser(argparse.ArgumentParser):
    """A parser that takes options anywhere, and says which one was perhaps meant."""

    def parsed(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options; leaves with a sentence when there is a word too many."""
        # Not every Python's intermixed parsing knows that nothing after `--` is an option.
        read = self.parse_known_args if "--" in argv else self.parse_known_intermixed_args
        options, extra = read(list(argv))
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}{self._meant(extra[0])}")
        return options

    def options(self) -> list[argparse.Action]:
        """What it takes besides its positional words."""
        return [action for action in self._actions if action.option_strings]

    def positionals(self) -> list[argparse.Action]:
        """The words it takes by their place."""
        return self._get_positional_actions()

    def _meant(self, word: str) -> str:
        known = [name for action in self.options() for name in action.option_strings]
        return meant(word.partition("=")[0], known) if word.startswith("-") else ""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: how its words are read, and what it does with them."""

    parser: Callable[[], Parser]
    act: Callable[[Parser, argparse.Namespace], int]

    def __call__(self, argv: Sequence[str]) -> int:
        """Read the words and do it; the exit code."""
        made = self.parser()
        return self.act(made, made.parsed(argv))


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under one name, such as `goal set` and `goal get`."""

    name: str
    summary: str
    commands: Mapping[str, tuple[str, Command]]
    """By their second word: what it means, and the command."""

    def __call__(self, argv: Sequence[str]) -> int:
        """Do what the second word says; the exit code."""
        word = argv[0] if argv else ""
        if word in ("-h", "--help", "help"):
            print(self.help())
            return Exit.COMPLETED
        if word in self.commands:
            return self.commands[word][1](argv[1:])
        what = f"there is no {self.name} command {word!r}{meant(word, self.commands)}" if word else self.help()
        print(f"mailslot {self.name}: {what}" if word else what, file=sys.stderr)
        return Exit.USAGE

    def help(self) -> str:
        """What there is."""
        width = max(map(len, self.commands))
        lines = "\n".join(f"  {name:<{width}}  {meaning}" for name, (meaning, _) in self.commands.items())
        return (
            f"usage: mailslot {self.name} <command> SESSION [options]\n\n{self.summary}\n\ncommands:\n{lines}\n\n"
            f"  mailslot {self.name} <command> --help   what a command takes"
        )


def meant(word: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """A question to add to a sentence about a word that is not known; empty when nothing is like it."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def parser(command: str, description: str, *examples: str, server: bool = True) -> Parser:
    """A parser with the options of every client command; `server=False` is for one that asks no server."""
    shown = "examples:\n" + "".join(f"  {example}\n" for example in examples) + "\n" if examples else ""
    made = Parser(
        prog=f"mailslot {command}",
        description=description,
        epilog=f"{shown}exit codes:\n{table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if server:
        _add_server(made)
    return made


def _add_server(made: Parser) -> None:
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


def add_json(made: Parser, what: str) -> None:
    """Output for programs."""
    made.add_argument("--json", action="store_true", help=what)


def add_session(made: Parser) -> None:
    """The session that a command is about, by place or by name."""
    made.add_argument("named", nargs="?", type=identifier, metavar="session", help="the session")
    made.add_argument("--session", type=identifier, metavar="SESSION", help="the session, as an option")


def session_of(made: Parser, options: argparse.Namespace) -> str:
    """The session that the command line names."""
    if (options.session is None) == (options.named is None):
        made.error("name one session")
    named: str = options.session or options.named
    return named


def add_text(made: Parser, what: str) -> None:
    """The words of a message, from the command line or from stdin."""
    made.add_argument("words", nargs="*", metavar=what, help=f"the {what}; several words are joined by spaces")
    made.add_argument("--stdin", action="store_true", help=f"read the {what} from stdin; a {what} of - does the same")


def text_of(made: Parser, options: argparse.Namespace, what: str) -> str:
    """The message that the command line gives; one that says nothing is refused here."""
    if options.stdin and options.words:
        made.error(f"give the {what} as words or with --stdin, not both")
    text = _from_stdin(made) if options.stdin or options.words == [STDIN_WORD] else " ".join(options.words)
    if not text.strip():
        made.error(f"the {what} is blank; give it as words, or with --stdin")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        made.error(f"the {what} is not UTF-8")
    return text


def check_server(made: Parser, options: argparse.Namespace) -> None:
    """Leave with a sentence when the server's address or the token cannot be one."""
    try:
        checked_url(options.url)
        if options.token is not None:
            checked_token(options.token)
    except ValueError as error:
        made.error(str(error))


def transport(made: Parser, options: argparse.Namespace) -> Transport:
    """The way to the server."""
    check_server(made, options)
    return Transport(options.url, options.token, SETTINGS)


# -- kinds of words -----------------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """A duration on the command line."""
    try:
        return duration_s(text)
    except ValueError as error:
        _wrong(str(error))


def moment(text: str) -> int:
    """A moment on the command line, in milliseconds since 1970."""
    try:
        return moment_ms(text)
    except ValueError as error:
        _wrong(str(error))


def identifier(text: str) -> str:
    """An id on the command line."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        _wrong("an id must be UTF-8")
    if not text:
        _wrong("an id must not be empty")
    return text


def counted(what: str, least: int) -> Callable[[str], int]:
    """A whole number on the command line, not below `least`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) >= least):
            _wrong(f"{text!r} is not {what}: a whole number from {least}")
        return int(text)

    return read


def _wrong(sentence: str) -> NoReturn:
    raise argparse.ArgumentTypeError(sentence)


def _from_stdin(made: Parser) -> str:
    if sys.stdin is None:
        made.error("stdin is closed")
    data = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        made.error(f"stdin has more than {STDIN_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        made.error("stdin is not UTF-8")

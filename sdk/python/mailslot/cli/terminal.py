"""What people see: text that cannot steer their terminal, colours, and one line that shows that work goes on.

Rule 1: text of others, models included, is shown without control characters on a terminal; a pipe gets it as it is.
Rule 2: colours are for terminals whose user did not set NO_COLOR.
Rule 3: the status line is on stderr, only on a terminal, and gone when the command ends.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Final, Self, TextIO

TICK_S = 1.0
"""Seconds between two drawings of the status line: its clock shows whole seconds."""

COLOURS: Final[dict[str, str]] = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "dim": "2",
}
"""The codes by which a terminal colours (ECMA-48, SGR)."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Line ends of Unicode, and what makes a terminal show the rest of the line from right to left.
_LINE_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CLEAR_LINE = "\r\x1b[2K"


def plain(text: str) -> str:
    """Text without control characters, line ends and tabs excepted."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, characters_max: int) -> str:
    """The beginning of a text on one line, without control characters."""
    flat = flattened(text[: characters_max + 1])
    return flat if len(flat) <= characters_max else flat[: characters_max - 1] + "…"


def flattened(text: str) -> str:
    """A text on one line, without control characters."""
    return _LINE_CONTROL.sub(" ", text)


def is_coloured(stream: TextIO | None = None) -> bool:
    """Whether whoever sees the stream (stdout by default) wants colours."""
    shown = (stream or sys.stdout).isatty()
    return shown and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str) -> str:
    """The text in a colour."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def put(text: str) -> None:
    """Write text and a line end to stdout, at once."""
    print(plain(text) if sys.stdout.isatty() else text, flush=True)


def put_safe(text: str) -> None:
    """Write a line that holds colours and text that was made safe before."""
    print(text, flush=True)


def say(text: str) -> None:
    """Write one sentence to stderr."""
    print(plain(text), file=sys.stderr, flush=True)


def asked(question: str) -> bool:
    """Whether the person at the terminal says yes. Nothing but a yes is one."""
    print(f"{plain(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class StatusLine:
    """A line that says what goes on, and since when. Nothing at all when stderr is not a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._text = ""
        self._since = time.monotonic()
        self._over = threading.Event()
        self._drawing = threading.Lock()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def show(self, text: str) -> None:
        """What goes on from now."""
        self._text = text
        self._draw()

    def put(self, text: str) -> None:
        """Write a line to stdout; the status line makes room, as both may be on one terminal."""
        with self._drawing:
            self._clear()
            put(text)
        self._draw()

    def say(self, text: str) -> None:
        """Write a sentence to stderr that stays."""
        with self._drawing:
            self._clear()
            say(text)
        self._draw()

    def leave(self, text: str) -> None:
        """Write the last sentence, even while somebody else is stuck in writing."""
        drawing = self._drawing.acquire(timeout=TICK_S)
        self._clear()
        say(text)
        self._over.set()
        if drawing:
            self._drawing.release()

    def __enter__(self) -> Self:
        if self._shown:
            self._clock.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._drawing:
            self._over.set()
            self._clear()

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            self._draw()

    def _draw(self) -> None:
        with self._drawing:
            if self._shown and self._text and not self._over.is_set():
                seconds = int(time.monotonic() - self._since)
                columns = shutil.get_terminal_size().columns
                self._write(_CLEAR_LINE + one_line(f"{self._text} ({seconds} s)", columns - 1))

    def _clear(self) -> None:
        if self._shown:
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

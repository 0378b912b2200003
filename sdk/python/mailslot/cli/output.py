"""How a command shows values: aligned for people, tab separated for pipes, JSON for programs.

| stdout is  | several things                  | one thing              | --json                           |
|------------|---------------------------------|------------------------|----------------------------------|
| a terminal | a table under its column names  | a name and a value a line | one object a line             |
| a pipe     | tab separated, without names    | the same, tab separated | the same                        |

Rule 1: a value is one cell on one line, whatever is in it. Who needs it to the letter takes the JSON.
Rule 2: JSON has the protocol's names, and leaves out what is not known.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from mailslot.cli.terminal import flattened, one_line, put

LAST_COLUMN_CHARACTERS_MIN: Final = 24
"""What the last column of a table gets, however narrow the terminal is."""

GAP: Final = "  "


def wire(value: object) -> Any:
    """A value as the protocol writes it: names in camelCase, nothing for what is None."""
    if is_dataclass(value) and not isinstance(value, type):
        found = ((entry.name, getattr(value, entry.name)) for entry in fields(value))
        return {_camel(name): wire(entry) for name, entry in found if entry is not None}
    if isinstance(value, Mapping):
        return {name: wire(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [wire(entry) for entry in value]
    return value


def line_of(value: object) -> str:
    """A value as one line of JSON that stdout can hold."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return json.dumps(wire(value), ensure_ascii=encoding != "utf8", separators=(",", ":"))


def put_json(value: object) -> None:
    """Write a value as one line of JSON."""
    put(line_of(value))


def put_record(pairs: Mapping[str, object]) -> None:
    """Write one thing: a name and a value a line, without those that are not known."""
    cells = {name: cell(value) for name, value in pairs.items() if value is not None}
    width = max(map(len, cells)) if sys.stdout.isatty() else 0
    for name, text in cells.items():
        put(f"{name:<{width}}{GAP}{text}" if width else f"{name}\t{text}")


def put_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write several things, a line each."""
    if not sys.stdout.isatty():
        for row in rows:
            put("\t".join(map(cell, row)))
        return
    cells = [[cell(value) or "-" for value in row] for row in rows]
    if cells:
        for line in aligned([list(columns), *cells], shutil.get_terminal_size().columns):
            put(line)


def aligned(rows: Sequence[Sequence[str]], columns_max: int) -> list[str]:
    """Rows as lines with straight columns; only the last column is cut to what fits."""
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    left = max(LAST_COLUMN_CHARACTERS_MIN, columns_max - sum(widths) - len(GAP) * len(widths))
    return [
        GAP.join(
            [*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), one_line(row[-1], left)]
        ).rstrip()
        for row in rows
    ]


def cell(value: object) -> str:
    """A value on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    return flattened(str(value))


def clock(milliseconds: int | None) -> str | None:
    """A moment as people write it, on this machine's clock."""
    if milliseconds is None:
        return None
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)

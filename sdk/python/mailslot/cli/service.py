"""Commands that other distributions and the services bring: entry points of the group `mailslot.commands`.

    [project.entry-points."mailslot.commands"]
    worker = "mailslot_services.agent_worker:command"      # command(argv: list[str]) -> int

The command line finds them by name, so this package imports no service. A command that is not there, or that cannot be
loaded, is one clear sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points

from mailslot.cli.catalog import OTHER_WORDS
from mailslot.cli.exits import Exit
from mailslot.cli.terminal import say

GROUP = "mailslot.commands"

KNOWN = {
    "up": "everything in one terminal: store, ingest, worker and goals",
    "ingest": "the doors: HTTP, event streams and the broker queue",
    "worker": "runs agents; start as many as you like",
    "goals": "lets goals go on when their agent is idle",
    "doctor": "checks a live system: ledgers, conservation, configuration",
    "verify": "shows that nothing is lost on your server, under faults",
}
"""What `--help` says of the commands that the product brings, without loading them."""


def found() -> dict[str, EntryPoint]:
    """The commands that are installed, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def described() -> dict[str, str]:
    """What `--help` says of each installed command; the product's own first."""
    points = found()
    own = {name: meaning for name, meaning in KNOWN.items() if name in points}
    others = {name: f"from {point.value}" for name, point in sorted(points.items()) if name not in KNOWN}
    return own | others


def call(name: str, argv: Sequence[str], own: Sequence[str] = ()) -> int:
    """Run a command that something else brings; `own` are the commands that may have been meant instead."""
    points = found()
    point = points.get(name)
    if point is None:
        say(f"mailslot: {_missing(name, [*own, *points])}")
        return Exit.USAGE
    try:
        command = point.load()
    except (ImportError, AttributeError) as error:
        say(f"mailslot: the command {name} cannot be loaded from {point.value}: {error}")
        return Exit.USAGE
    return int(command(list(argv)))


def _missing(name: str, known: Sequence[str]) -> str:
    if name in KNOWN:
        return f"the command {name} is not installed here; it comes with the services of mailslot"
    if name in OTHER_WORDS:
        return f"there is no command {name!r}; here it is called mailslot {OTHER_WORDS[name]}"
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean mailslot {close[0]}?" if close else "see mailslot --help"
    return f"there is no command {name!r}; {hint}"

"""What a scenario came to, in one line of the table that `make chaos` ends with.

    scenario  operations  faults  losses  duplicates  inversions  fenced  recovery p50  max

Rule 1: losses, duplicates and inversions are counted from the ledgers at the end (`trial`), never assumed; each is 0 in
        a test that passed, so the table says what was looked for.
Rule 2: a recovery is the time, by the store's clock, from a fault to the first event that shows it was overcome.
"""

from dataclasses import dataclass, field
from typing import Final

COLUMNS: Final = ("operations", "faults", "losses", "duplicates", "inversions", "fenced", "recoveries", "p50", "max")


@dataclass
class Figure:
    """The figures of one scenario."""

    scenario: str
    operations: int = 0
    faults: int = 0
    losses: int = 0
    duplicates: int = 0
    inversions: int = 0
    fenced: int = 0
    recoveries_s: list[float] = field(default_factory=list)

    def fault(self, count: int = 1) -> None:
        """So many faults were injected."""
        self.faults += count

    def add(self, other: "Figure") -> None:
        """Another test of the same scenario."""
        for name in ("operations", "faults", "losses", "duplicates", "inversions", "fenced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.recoveries_s += other.recoveries_s

    def row(self) -> tuple[str, ...]:
        """As it stands in the table."""
        counts = (self.operations, self.faults, self.losses, self.duplicates, self.inversions, self.fenced)
        times = sorted(self.recoveries_s)
        recovery = (str(len(times)), f"{times[len(times) // 2]:.2f} s", f"{times[-1]:.2f} s") if times else ("", "", "")
        return (self.scenario, *(f"{count:,}" for count in counts), *recovery)


def table(figures: list[Figure]) -> list[str]:
    """The lines of the table, one for each scenario in order of its number."""
    merged: dict[str, Figure] = {}
    for figure in figures:
        merged.setdefault(figure.scenario, Figure(figure.scenario)).add(figure)
    ordered = sorted(merged.values(), key=lambda figure: number_of(figure.scenario))
    rows = [("scenario", *COLUMNS), *(figure.row() for figure in ordered)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def number_of(scenario: str) -> tuple[int, str]:
    """T2 stands before T10."""
    digits = "".join(letter for letter in scenario.split(maxsplit=1)[0] if letter.isdigit())
    return (int(digits or 0), scenario)

"""What `mailslot verify` says: one line a second on a terminal, and the figures at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from mailslot_services.verify.database import shown
from mailslot_services.verify.report import Kind, Report
from mailslot_services.verify.verification import Outcome

FINDINGS_SHOWN_MAX: Final = 50
"""Findings that are printed; the figures count all of them."""


def on_terminal() -> tuple[Callable[[str], None], Callable[[], None]]:
    """A function that shows one line in place of the one before, and one that removes it. In a pipe both do nothing."""
    if not sys.stderr.isatty():
        return lambda _: None, lambda: None

    def show(line: str) -> None:
        sys.stderr.write(f"\r\033[K{line}")
        sys.stderr.flush()

    def clear() -> None:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()

    return show, clear


def lines(outcome: Outcome) -> list[str]:
    """The outcome for people: what is broken, the figures, and one sentence."""
    report = outcome.report
    told = [f"wrong  {sentence}" for sentence in report.sentences[:FINDINGS_SHOWN_MAX]]
    if len(report.findings) > FINDINGS_SHOWN_MAX:
        told.append(f"wrong  … and {len(report.findings) - FINDINGS_SHOWN_MAX} more")
    if outcome.failure:
        told.append(f"wrong  {outcome.failure}")
    told += [f"{name:<18} {words}" for name, words in rows(outcome)]
    return [*told, summary(outcome)]


def rows(outcome: Outcome) -> list[tuple[str, str]]:
    """The figures by name."""
    report = outcome.report
    settled = " · ".join(f"{count} {state}" for state, count in sorted(report.settled.items()))
    turns = " · ".join(f"{count} {kind}" for kind, count in sorted(report.ends.items()))
    return [
        ("store", f"{shown(outcome.database.url)} · durability {outcome.durability} · seed {outcome.seed}"),
        ("load", f"{outcome.load_s:.1f} s · {report.sessions} sessions · {outcome.workers} workers"),
        ("messages", f"{report.messages} · {settled or 'none settled'}"),
        ("receipts", f"{report.receipts}, {report.duplicate_receipts} of them duplicates"),
        ("unknown outcomes", f"{report.unknowns}, each asked again with the same id"),
        ("refusals", " · ".join(f"{count} {code}" for code, count in sorted(report.refusals.items())) or "0"),
        ("turns", turns or "none"),
        ("faults", faults(outcome)),
        ("worker ends", f"{outcome.ended_by_themselves} that no fault had caused"),
        ("fenced writes", str(outcome.fenced)),
        ("recoveries", recoveries(outcome)),
        ("rest", "never" if outcome.rest_s is None else f"after {outcome.rest_s:.1f} s"),
        ("losses", str(report.losses)),
        ("other words", str(report.altered)),
        ("false refusals", str(report.false_refusals)),
        ("duplicates", str(report.duplicates)),
        ("order inversions", str(report.inversions)),
        ("other findings", others(report)),
    ]


def faults(outcome: Outcome) -> str:
    """What was done to workers and connections."""
    words = [f"{outcome.faults[kind]} {kind}s" for kind in ("kill", "stop", "cut")]
    if outcome.hindered:
        words.append(f"the server does not let us cut connections: {outcome.hindered}")
    return " · ".join(words)


def recoveries(outcome: Outcome) -> str:
    """How long turns rested between the last write of a lost owner and the first of the next one."""
    report = outcome.report
    lease = f"lease {outcome.lease_ms / 1000:.1f} s"
    if report.recovery_max_ms is None or report.recovery_p50_ms is None:
        return f"none · {lease}"
    times = f"p50 {report.recovery_p50_ms / 1000:.1f} s · max {report.recovery_max_ms / 1000:.1f} s"
    return f"{len(report.recovery_ms)} · {times} · {lease}"


COUNTED: Final = (Kind.LOSS, Kind.CONTENT, Kind.FALSE_REFUSAL, Kind.DUPLICATE, Kind.DUPLICATE_ADMISSION, Kind.INVERSION)


def others(report: Report) -> str:
    """Findings that have no row of their own."""
    found = {kind: report.count(kind) for kind in Kind if kind not in COUNTED}
    named = ", ".join(f"{count} {kind}" for kind, count in found.items() if count)
    return f"{sum(found.values())} ({named})" if named else "0"


def summary(outcome: Outcome) -> str:
    """The last line."""
    place = f"database {outcome.database.number}"
    left = f"{place} is kept" if outcome.kept else f"{place} is empty again"
    if outcome.sound:
        verdict = "zero loss"
    elif not outcome.report.receipts:
        verdict = "nothing was kept, so nothing was shown"
    elif outcome.report.sound and outcome.failure:
        verdict = "workers could not be kept running"
    elif outcome.report.sound and outcome.store_faults:
        verdict = f"the store failed inside an act {outcome.store_faults} times"
    elif outcome.report.sound and outcome.unharmed:
        verdict = "no harm could be done"
    elif outcome.report.sound:
        verdict = "not everything came to rest"
    else:
        verdict = f"{len(outcome.report.findings)} things are wrong"
    return f"{verdict} · {left}"


def document(outcome: Outcome) -> dict[str, Any]:
    """The outcome for programs."""
    return {
        **outcome.report.figures(),
        "sound": outcome.sound,
        "seed": outcome.seed,
        "database": outcome.database.number,
        "kept": outcome.kept,
        "durability": outcome.durability,
        "workers": outcome.workers,
        "loadSeconds": round(outcome.load_s, 3),
        "restSeconds": None if outcome.rest_s is None else round(outcome.rest_s, 3),
        "kills": outcome.faults["kill"],
        "stops": outcome.faults["stop"],
        "cuts": outcome.faults["cut"],
        "fencedWrites": outcome.fenced,
        "workersEndedByThemselves": outcome.ended_by_themselves,
        "workersFailed": outcome.failure,
        "leaseMs": outcome.lease_ms,
    }

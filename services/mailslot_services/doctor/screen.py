"""The report for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from mailslot_services.doctor.finding import PartitionFacts, Report, Severity


def lines(report: Report) -> list[str]:
    """The report for people: one line a finding, then what was looked at, then the summary."""
    told = [f"{finding.severity:<7} {finding.subject}: {finding.sentence}" for finding in report.findings]
    told.append(server_line(report))
    told += [partition_line(facts) for facts in report.partitions if facts.active or facts.ready or facts.leased]
    return [*told, summary(report)]


def server_line(report: Report) -> str:
    """Which server it is."""
    partitions = report.server["partitions"]
    kept = f"{partitions} partitions" if partitions else "no number of partitions"
    words = [report.server["version"], kept, _mebibytes(report.server["memoryBytes"]), *_room(report)]
    return f"server  {' · '.join(words)}"


def _room(report: Report) -> list[str]:
    """What a session costs, and how many more there is room for, where both are known."""
    per_session, limit = report.server.get("bytesPerSession"), report.server["memoryBytesMax"]
    if not per_session:
        return []
    words = [f"about {per_session / 1024:.1f} KiB a session"]
    if limit:
        words.append(f"room for {max(0, limit - report.server['memoryBytes']) // per_session} more")
    return words


def _mebibytes(size_bytes: int | None) -> str:
    return "memory unknown" if size_bytes is None else f"{size_bytes / 1024 / 1024:.1f} MiB in use"


def partition_line(facts: PartitionFacts) -> str:
    """The queue of a partition in which something goes on."""
    return (
        f"queue   partition {facts.partition}: {facts.ready} ready (oldest {facts.oldest_ready_ms} ms) · "
        f"{facts.leased} leased · {facts.lapsed} lapsed · {facts.active} active, {facts.unserved} of them unserved"
    )


def summary(report: Report) -> str:
    """The last line, which is all that a healthy store needs. It never praises what was not looked at."""
    folds = f"fold differs in {report.differing}" if report.differing else "fold matches"
    words = [f"conservation {report.conservation}", f"{report.sessions} sessions", f"{report.events} events", folds]
    if not report.sessions:
        words = ["no session was examined"]
    count = sum(1 for finding in report.findings if finding.severity is Severity.WRONG)
    return " · ".join([*words, f"{count} wrong"] if count else words)


def document(report: Report) -> dict[str, Any]:
    """The report for programs."""
    return {
        "healthy": report.healthy,
        "conservation": report.conservation,
        "sessions": report.sessions,
        "events": report.events,
        "foldDiffers": report.differing,
        "deadLetters": report.dead_letters,
        "findings": [finding._asdict() for finding in report.findings],
        "partitions": [_camel(facts._asdict()) for facts in report.partitions],
        "server": report.server,
    }


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields under the names that everything on the wire has."""
    return {to_camel(name): value for name, value in fields.items()}

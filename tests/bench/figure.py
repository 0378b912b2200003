"""What is measured, as a table: a name, a sentence, a unit, and the aim if there is one.

    scenario --{name: value}--> round --+
    scenario --{name: value}--> round --+--> Summary: median, least, most, ratios --> text, JSON
    scenario --{name: value}--> round --+

Rule 1: a scenario gives plain numbers under the names of FIGURES; a name that is not there is a defect.
Rule 2: a ratio is made inside one round, of two things measured side by side, and only then summarised: the machine's
        mood of the minute cancels out.
Rule 3: what is shown is the median over the rounds, with the least and the most beside it.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Round = Mapping[str, float]


class Aim(NamedTuple):
    """What a figure should reach."""

    sign: str
    bound: float

    def reached(self, value: float) -> bool:
        """Whether the value is on the right side of the bound."""
        return value >= self.bound if self.sign == ">=" else value < self.bound


class Figure(NamedTuple):
    """One line of the result."""

    name: str
    title: str
    unit: str
    aim: Aim | None = None


class Ratio(NamedTuple):
    """One line that compares two figures of the same round."""

    name: str
    title: str
    over: str
    under: str
    aim: Aim | None = None


def _streams(prefix: str, server: str) -> tuple[Figure, ...]:
    """The figures of one server that streams events."""
    found = [Figure(f"{prefix}_1_per_s", f"{server}: 1 stream", "events/s")]
    found += [Figure(f"{prefix}_1_cpu", "  CPU an event: server", "us")]
    for name, what in (("some", "100 on one session"), ("many", "1,000 on one"), ("spread", "1,000 on 100 sessions")):
        found += [
            Figure(f"{prefix}_{name}_per_s", f"{server}: {what}, all streams together", "events/s"),
            Figure(f"{prefix}_{name}_cpu", "  CPU an event on one stream: server", "us"),
            Figure(f"{prefix}_{name}_listener_cpu", "  CPU an event on one stream: who listens", "us"),
        ]
    return (*found, Figure(f"{prefix}_stream_bytes", f"{server}: memory of an open stream", "bytes"))


def _storm(kind: str, clients: str) -> tuple[Figure, ...]:
    """The figures of a storm."""
    found = (
        Figure(f"storm_{kind}_appended_per_s", f"{clients}: events appended", "events/s"),
        Figure(f"storm_{kind}_delivered_per_s", "  delivered to all clients together", "events/s"),
        Figure(f"storm_{kind}_cuts_per_s", "  streams cut and resumed", "1/s"),
        Figure(f"storm_{kind}_p50", "  submit to arrival, cuts included, p50", "ms"),
        Figure(f"storm_{kind}_p99", "  submit to arrival, cuts included, p99", "ms"),
    )
    if kind == "sdk":
        return found
    return (
        *found,
        Figure(f"storm_{kind}_open_p50", "  connect to first byte, p50", "ms"),
        Figure(f"storm_{kind}_open_p99", "  connect to first byte, p99", "ms"),
    )


FIGURES: Final[Mapping[str, Sequence[Figure]]] = {
    "submit, 64 in flight": (
        Figure("http_per_s", "HTTP: POST prompt to receipt", "messages/s"),
        Figure("http_p50", "  p50", "ms"),
        Figure("http_p99", "  p99", "ms"),
        Figure("http_cpu", "  CPU a message: ingest", "us"),
        Figure("http_store_cpu", "  CPU a message: store", "us"),
        Figure("door_per_s", "broker door: XADD mailslot:intake to ledger", "messages/s"),
        Figure("door_p50", "  p50", "ms"),
        Figure("door_p99", "  p99", "ms"),
        Figure("door_cpu", "  CPU a message: ingest", "us"),
        Figure("door_store_cpu", "  CPU a message: store", "us"),
    ),
    "end to end, echo model, 128 sessions, ledgers audited": (
        Figure("live1_per_s", "1 worker, live, 64 submits in flight", "messages/s"),
        Figure("live2_per_s", "2 workers, live, 64 submits in flight", "messages/s"),
        Figure("drain1_per_s", "1 worker, all submitted before", "messages/s"),
        Figure("drain2_per_s", "2 workers, all submitted before", "messages/s"),
        Figure("worker_cpu", "CPU a message: worker (1 worker, live)", "us"),
        Figure("store_cpu", "CPU a message: store, submit included", "us"),
        Figure("producer_cpu", "CPU a message: whoever submits", "us"),
        Figure("drain_worker_cpu", "CPU a message: worker (1 worker, drain)", "us"),
        Figure("drain_store_cpu", "CPU a message: store, without submit", "us"),
    ),
    "latency at 200 messages/s offered, 1 worker": (
        Figure("start_p50", "submit to turn/start, p50", "ms", Aim("<", 3.0)),
        Figure("start_p99", "submit to turn/start, p99", "ms"),
        Figure("idle_p50", "submit to idle, p50", "ms"),
        Figure("idle_p99", "submit to idle, p99", "ms"),
        Figure("http_start_p50", "POST to turn/start, p50", "ms", Aim("<", 3.0)),
        Figure("http_start_p99", "POST to turn/start, p99", "ms"),
        Figure("http_idle_p50", "POST to idle, p50", "ms"),
        Figure("http_idle_p99", "POST to idle, p99", "ms"),
    ),
    "beside, in the same rounds": (
        Figure("faststream_per_s", "FastStream stream consumer, 1 worker, live, 64 in flight", "messages/s"),
        Figure("faststream_worker_cpu", "  CPU a message: worker", "us"),
        Figure("faststream_store_cpu", "  CPU a message: store", "us"),
        Figure("faststream_producer_cpu", "  CPU a message: whoever publishes", "us"),
        Figure("faststream_drain_per_s", "FastStream stream consumer, 1 worker, all published before", "messages/s"),
        Figure("fcall_per_s", "redis-benchmark: FCALL of nothing, 64 connections", "calls/s"),
        Figure("fcall_piped_per_s", "redis-benchmark: FCALL of nothing, 16 in a pipeline", "calls/s"),
        Figure("submit_per_s", "redis-benchmark: FCALL submit_v1, 64 connections", "calls/s"),
        Figure("submit_piped_per_s", "redis-benchmark: FCALL submit_v1, 16 in a pipeline", "calls/s"),
    ),
    "event streams, 64 events on their way; every event counted on every stream": (
        *_streams("sse", "ingest"),
        *_streams("plain", "plain loop"),
    ),
    "resume storm: streams cut and resumed while events are appended; no gap, nothing twice": (
        *_storm("raw", "bare SSE"),
        *_storm("sdk", "SDK"),
    ),
    "SDK": (
        Figure("import_ms", "import mailslot, CPU", "ms", Aim("<", 200)),
        Figure("import_http_ms", "import httpx2, which it loads on first use", "ms"),
    ),
    "memory, idle sessions": (
        Figure("session_bytes", "a session at rest after one answered prompt", "bytes", Aim("<", 6 * 1024)),
        Figure("session_events", "  events in its ledger", ""),
        Figure("ledger_bytes", "  its ledger", "bytes"),
        Figure("state_bytes", "  its state", "bytes"),
        Figure("messages_bytes", "  its message records", "bytes"),
    ),
}

STREAMED: Final = Aim(">=", 0.77)
"""1 / 1.3: what a ledger, cursors and bounded buffers may cost."""

RATIOS: Final = (
    Ratio("live_ratio", "end to end, 1 worker live : FastStream live", "live1_per_s", "faststream_per_s", Aim(">=", 2)),
    Ratio(
        "drain_ratio",
        "end to end, 1 worker drain : FastStream drain",
        "drain1_per_s",
        "faststream_drain_per_s",
        Aim(">=", 2),
    ),
    Ratio("scale_ratio", "end to end, drain: 2 workers : 1 worker", "drain2_per_s", "drain1_per_s"),
    Ratio("sse_1_ratio", "SSE, 1 stream : plain loop", "sse_1_per_s", "plain_1_per_s", STREAMED),
    Ratio("sse_some_ratio", "SSE, 100 streams : plain loop", "sse_some_per_s", "plain_some_per_s", STREAMED),
    Ratio("sse_many_ratio", "SSE, 1,000 streams : plain loop", "sse_many_per_s", "plain_many_per_s", STREAMED),
    Ratio(
        "sse_spread_ratio",
        "SSE, 1,000 on 100 sessions : plain loop",
        "sse_spread_per_s",
        "plain_spread_per_s",
        STREAMED,
    ),
    Ratio("sse_bytes_ratio", "memory of an open stream : plain loop", "sse_stream_bytes", "plain_stream_bytes"),
    Ratio("http_ratio", "submit over HTTP : FCALL submit_v1", "http_per_s", "submit_per_s"),
    Ratio(
        "submit_ratio", "FCALL submit_v1 : FCALL of nothing, in pipelines", "submit_piped_per_s", "fcall_piped_per_s"
    ),
)

KNOWN: Final = {figure.name: figure for group in FIGURES.values() for figure in group}


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure over all rounds."""

    title: str
    unit: str
    aim: Aim | None
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is shown."""
        return statistics.median(self.values)

    def cells(self) -> tuple[str, str, str, str]:
        """Title, value with unit, spread, aim."""
        spread = f"{shown(min(self.values))} .. {shown(max(self.values))}" if len(self.values) > 1 else ""
        aim = ""
        if self.aim is not None:
            verdict = "reached" if self.aim.reached(self.median) else "MISSED"
            aim = f"{self.aim.sign} {shown(self.aim.bound)} {verdict}"
        return self.title, f"{shown(self.median)} {self.unit}".rstrip(), spread, aim


def shown(value: float) -> str:
    """A number as people read it: thousands separated, small ones with two digits behind the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")


def check_names(found: Iterable[str]) -> None:
    """Every name is in the table (rule 1)."""
    unknown = set(found) - KNOWN.keys()
    assert not unknown, f"figures without a line in the table: {sorted(unknown)}"


def summaries(rounds: Sequence[Round]) -> dict[str, dict[str, Summary]]:
    """Group, then name, then summary; what no round measured is left out."""
    groups: dict[str, dict[str, Summary]] = {}
    for group, figures in FIGURES.items():
        found = {f.name: _summary(f.title, f.unit, f.aim, rounds, _picked(f.name)) for f in figures}
        groups[group] = {name: summary for name, summary in found.items() if summary.values}
    ratios = {r.name: _summary(r.title, "x", r.aim, rounds, _divided(r)) for r in RATIOS}
    groups["ratios, measured side by side"] = {name: summary for name, summary in ratios.items() if summary.values}
    return {group: found for group, found in groups.items() if found}


def _summary(
    title: str, unit: str, aim: Aim | None, rounds: Sequence[Round], value: Callable[[Round], float | None]
) -> Summary:
    values = [value(one) for one in rounds]
    return Summary(title, unit, aim, tuple(found for found in values if found is not None))


def _picked(name: str) -> Callable[[Round], float | None]:
    return lambda one: one.get(name)


def _divided(ratio: Ratio) -> Callable[[Round], float | None]:
    def divide(one: Round) -> float | None:
        over, under = one.get(ratio.over), one.get(ratio.under)
        return over / under if over is not None and under else None

    return divide


def table(groups: Mapping[str, Mapping[str, Summary]]) -> str:
    """The result for people."""
    rows = [summary.cells() for group in groups.values() for summary in group.values()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines: list[str] = []
    for group, found in groups.items():
        lines += ["", group, "-" * len(group)]
        for summary in found.values():
            title, value, spread, aim = summary.cells()
            lines.append(f"{title:<{widths[0]}}  {value:>{widths[1]}}  {spread:>{widths[2]}}  {aim}".rstrip())
    return "\n".join(lines)


def as_json(facts: Mapping[str, Any], groups: Mapping[str, Mapping[str, Summary]], rounds: Sequence[Round]) -> str:
    """The result for programs: machine, medians, and every round as it was."""
    figures = {
        name: {
            "title": summary.title.strip(),
            "unit": summary.unit,
            "median": summary.median,
            "values": summary.values,
            "aim": None if summary.aim is None else f"{summary.aim.sign} {summary.aim.bound:g}",
            "reached": None if summary.aim is None else summary.aim.reached(summary.median),
        }
        for group in groups.values()
        for name, summary in group.items()
    }
    return json.dumps({**facts, "rounds": len(rounds), "figures": figures}, indent=2) + "\n"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

"""What ingest counts, on one registry of its own.

    name                                              labels                   what
    mailslot_ingest_requests_total                    route, method, status    requests answered
    mailslot_ingest_request_seconds                   route                    until the answer was ready to be sent
    mailslot_ingest_submits_total                     door, code               messages offered; code `accepted`,
                                                                               `duplicate`, or that of the problem
    mailslot_ingest_submit_seconds                    door                     one submit, the store's answer included
    mailslot_ingest_event_streams                                              SSE streams open now
    mailslot_ingest_rpc_connections                                            JSON-RPC connections open now
    mailslot_ingest_event_readers                                              sessions read for somebody who follows
    mailslot_ingest_events_read_total                                          events read by those readers
    mailslot_ingest_streams_ended_total               why                      overflow, gap, closing, left, or a code
    mailslot_ingest_intake_entries_total              outcome                  accepted, duplicate, dead, retried
    mailslot_ingest_intake_reclaimed_total                                     entries taken over from a lost consumer
    mailslot_ingest_intake_in_flight                                           entries read and not yet acknowledged
    mailslot_ingest_intake_stream_entries                                      entries in the intake stream
    mailslot_ingest_dead_stream_entries                                       entries in the stream of dead entries
    mailslot_ingest_partition_ready                   partition                sessions that want a worker
    mailslot_ingest_partition_oldest_ready_seconds    partition                how long the first of them has waited
    mailslot_ingest_partition_active                  partition                sessions that are running
    mailslot_ingest_partition_leased                  partition                sessions that a worker drives
    mailslot_ingest_partition_sessions                partition                sessions
    mailslot_ingest_partition_fenced_writes           partition                refused writes of former owners, ever
    mailslot_ingest_conservation                                               sum of what sessions miss (semantics M5);
                                                                               anything but 0 is a defect
    mailslot_ingest_audited_sessions                                           sessions that sum was taken over
    mailslot_ingest_store_up                                                   1 when the store answered this scrape

Rule 1: labels are bounded: routes are templates, codes and outcomes are tables. No id is ever a label.
Rule 2: gauges of the store are read when somebody scrapes, so they are as old as the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mailslot_core.store import Load

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets: a submit takes about a millisecond, a long poll up to a minute."""

PARTITION_GAUGES: dict[str, str] = {
    "ready": "sessions that want a worker",
    "oldest_ready_seconds": "how long the first of them has waited",
    "active": "sessions that are running",
    "leased": "sessions that a worker drives",
    "sessions": "sessions",
    "fenced_writes": "refused writes of former owners, ever",
}


class Metrics:
    """The instruments, by what they measure."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._counters: dict[tuple[object, ...], Counter] = {}
        self._histograms: dict[tuple[Histogram, str], Histogram] = {}
        self._requests = self._counter("requests_total", "requests answered", "route", "method", "status")
        self._request_seconds = self._histogram("request_seconds", "until the answer was ready", "route")
        self._submits = self._counter("submits_total", "messages offered", "door", "code")
        self._submit_seconds = self._histogram("submit_seconds", "one submit", "door")
        self.event_streams = self._gauge("event_streams", "SSE streams open now")
        self.rpc_connections = self._gauge("rpc_connections", "JSON-RPC connections open now")
        self.event_readers = self._gauge("event_readers", "sessions read for somebody who follows")
        self.events_read = self._counter("events_read_total", "events read by those readers")
        self._streams_ended = self._counter("streams_ended_total", "SSE streams ended", "why")
        self._intake = self._counter("intake_entries_total", "entries of the broker door", "outcome")
        self.intake_reclaimed = self._counter("intake_reclaimed_total", "entries taken over from a lost consumer")
        self.intake_in_flight = self._gauge("intake_in_flight", "entries read and not yet acknowledged")
        self.intake_entries = self._gauge("intake_stream_entries", "entries in the intake stream")
        self.dead_entries = self._gauge("dead_stream_entries", "entries in the stream of dead entries")
        self._partitions = {
            name: self._gauge(f"partition_{name}", text, "partition") for name, text in PARTITION_GAUGES.items()
        }
        self.conservation = self._gauge("conservation", "sum of what sessions miss; anything but 0 is a defect")
        self.audited_sessions = self._gauge("audited_sessions", "sessions that conservation was summed over")
        self.store_up = self._gauge("store_up", "1 when the store answered this scrape")

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self._counted(self._requests, route, method, str(status)).inc()
        self._timed(self._request_seconds, route).observe(seconds)

    def submit(self, door: str, code: str, seconds: float) -> None:
        """One message was offered to the store."""
        self._counted(self._submits, door, code).inc()
        self._timed(self._submit_seconds, door).observe(seconds)

    def stream_ended(self, why: str) -> None:
        """One SSE stream ended."""
        self._streams_ended.labels(why).inc()

    def intake(self, outcome: str, count: int = 1) -> None:
        """So many entries of the broker door came to this."""
        self._intake.labels(outcome).inc(count)

    def loads(self, loads: Sequence[Load]) -> None:
        """What the partitions are like now."""
        for partition, load in enumerate(loads):
            values = (
                load.ready,
                load.oldest_ready_ms / 1000,
                load.active,
                load.leased,
                load.sessions,
                load.fenced,
            )
            for gauge, value in zip(self._partitions.values(), values, strict=True):
                gauge.labels(str(partition)).set(value)

    def text(self) -> bytes:
        """Everything in the format that Prometheus reads."""
        return generate_latest(self.registry)

    def _counted(self, counter: Counter, *labels: str) -> Counter:
        """The counter of some labels; looked up once, because finding it costs more than counting."""
        key = (counter, *labels)
        found = self._counters.get(key)
        if found is None:
            found = self._counters[key] = counter.labels(*labels)
        return found

    def _timed(self, histogram: Histogram, label: str) -> Histogram:
        """The histogram of a label; likewise."""
        key = (histogram, label)
        found = self._histograms.get(key)
        if found is None:
            found = self._histograms[key] = histogram.labels(label)
        return found

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"mailslot_ingest_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"mailslot_ingest_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"mailslot_ingest_{name}", text, labels, registry=self.registry, buckets=SECONDS)

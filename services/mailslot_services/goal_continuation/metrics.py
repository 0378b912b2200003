"""What goal-continuation counts.

mailslot_goals_answers_total{path,outcome}   goals looked at, by `notice` or by `reconcile`: advanced, blocked, stale,
                                             failed (the store did not answer; the next reconcile asks again)
mailslot_goals_unreadable_total              notices that could not be read, and were dropped
mailslot_goals_reconcile_seconds             duration of one look through all active goals
mailslot_goals_revived_total                 subscribers that had lost their stream and were started again

`advanced` by `reconcile` counts the notices that were lost, or came while no service ran (semantics G8).
"""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

RECONCILE_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)


class Path(StrEnum):
    """What made the service look at a goal."""

    NOTICE = "notice"
    RECONCILE = "reconcile"


class Outcome(StrEnum):
    """What looking at it came to."""

    ADVANCED = "advanced"
    BLOCKED = "blocked"
    STALE = "stale"
    FAILED = "failed"


class GoalMetrics:
    """The metrics of one goal-continuation process, on a registry of its own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        prefix = "mailslot_goals_"
        self.answers = Counter(prefix + "answers", "Goals looked at", ["path", "outcome"], registry=registry)
        self.unreadable = Counter(prefix + "unreadable", "Notices that could not be read", registry=registry)
        self.revived = Counter(prefix + "revived", "Subscribers started again", registry=registry)
        self.reconcile_seconds = Histogram(
            prefix + "reconcile_seconds", "Duration of one reconcile", buckets=RECONCILE_SECONDS, registry=registry
        )
        for path in Path:
            for outcome in Outcome:
                self.answers.labels(path, outcome)  # every series is there from the start, so that rates have a zero

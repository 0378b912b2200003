"""What an agent-worker counts.

mailslot_worker_sessions                         sessions in this worker's hands now
mailslot_worker_turns_total{kind}                turns ended, by kind of their end
mailslot_worker_steps_total                      steps begun
mailslot_worker_model_calls_total{model,outcome} attempts: ok, retried, failed, cancelled
mailslot_worker_model_seconds{model}             duration of one attempt
mailslot_worker_tool_calls_total{tool,outcome}   ok, or the error's code
mailslot_worker_hook_calls_total{hook,outcome}   batches seen: entered, rejected (nothing of it enters), failed
mailslot_worker_recovered_total{reason}          open turns taken up: crash, handback, resume
mailslot_worker_lost_total{reason}               sessions this worker had to let go of
mailslot_worker_fenced_total                     writes the store refused this worker
mailslot_worker_swept_total{kind}                lapsed leases, repaired sessions, forgotten records, messages that
                                                 became due or expired, erased sessions
"""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

MODEL_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)  # a model may think for minutes


class WorkerMetrics:
    """The metrics of one worker process, on a registry of its own.

    What a turn counts is called with its labels and gives the child: the library checks and joins them anew each time,
    which is dearer than counting.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        prefix = "mailslot_worker_"
        self.sessions = Gauge(prefix + "sessions", "Sessions in this worker's hands", registry=registry)
        self.turns = cache(Counter(prefix + "turns", "Turns ended", ["kind"], registry=registry).labels)
        self.steps = Counter(prefix + "steps", "Steps begun", registry=registry)
        model_calls = Counter(prefix + "model_calls", "Model attempts", ["model", "outcome"], registry=registry)
        model_seconds = Histogram(
            prefix + "model_seconds", "Duration of a model attempt", ["model"], buckets=MODEL_SECONDS, registry=registry
        )
        self.model_calls, self.model_seconds = cache(model_calls.labels), cache(model_seconds.labels)
        self.tool_calls = Counter(prefix + "tool_calls", "Tool calls", ["tool", "outcome"], registry=registry)
        self.hook_calls = Counter(prefix + "hook_calls", "Batches a hook saw", ["hook", "outcome"], registry=registry)
        self.recovered = Counter(prefix + "recovered", "Open turns taken up", ["reason"], registry=registry)
        self.lost = Counter(prefix + "lost", "Sessions let go of", ["reason"], registry=registry)
        self.fenced = Counter(prefix + "fenced", "Writes refused by the store", registry=registry)
        self.swept = Counter(prefix + "swept", "What sweeping found", ["kind"], registry=registry)

"""How much one round does. FULL is what the figures mean; QUICK shows in seconds that everything runs."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts and times of one round."""

    messages: int
    """Messages end to end, and as many for the consumer beside it."""
    door_messages: int
    """Entries on the broker door."""
    http_s: float
    """How long prompts are posted as fast as they are taken."""
    paced_s: float
    """How long messages are offered at PACED_PER_S."""
    idle_sessions: int
    """Sessions at rest whose memory is weighed."""
    calls: int
    """Calls of one run of redis-benchmark."""
    deliveries: int
    """Events times streams, for each number of streams."""
    streams: tuple[int, int, int]
    """Some streams, many streams, and over how many sessions the many are spread, beside a single stream."""
    imports: int
    """Fresh interpreters for one figure."""
    storm_clients: int
    """Clients whose streams are cut and resumed again and again, for `paced_s`."""
    storm_per_s: int
    """Events appended a second meanwhile."""


FULL: Final = Scale(
    messages=10_000,
    door_messages=5_000,
    http_s=3,
    paced_s=5,
    idle_sessions=10_000,
    calls=50_000,
    deliveries=100_000,
    streams=(100, 1_000, 100),
    imports=10,
    storm_clients=200,
    storm_per_s=2_000,
)
QUICK: Final = Scale(
    messages=256,
    door_messages=128,
    http_s=0.3,
    paced_s=0.5,
    idle_sessions=200,
    calls=2_000,
    deliveries=100,
    streams=(5, 50, 5),
    imports=2,
    storm_clients=20,
    storm_per_s=200,
)

SESSIONS: Final = 128
"""Sessions that all messages but those for memory go to, in turn."""

IN_FLIGHT: Final = 64
"""Callers that wait for their answer at once. It divides SESSIONS: each session has one caller and keeps its order."""

PACED_PER_S: Final = 200
"""Messages offered a second where latency is measured: far from what the machine can do."""

TEXT: Final = "x" * 400
"""What every message says; with its envelope some 500 bytes."""

PATIENCE_S: Final = 60.0
"""How long anything may take before the run is given up as broken."""

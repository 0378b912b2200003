"""The limits of the broker door, each with its unit and default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RETRIES: Final[dict[str, int]] = {
    "queue-full": 20,
    "store-refused": 1_000,
    "outcome-unknown": 1_000,
}
"""How often in a row a lane meets a problem that may pass before its letters are dead, until one is taken again. A
full queue is given some five minutes; a store that refuses, hours: an outage must not turn the intake into dead
letters."""

RETRY_FIRST_S: Final = 0.1
RETRY_CAP_S: Final = 15.0
"""Delay before the second attempt, doubled for each further one up to the cap, less up to half of it by chance."""

CLAIM_COUNT: Final = 100
"""Pending entries looked at in one command."""

DEAD_COUNT_MAX: Final = 100_000
"""Dead entries kept, about; the oldest go first."""

DEAD_DATA_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a dead entry's data that are kept; the reason says what was wrong with a longer one."""


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """What a test or an unusual deployment may set otherwise."""

    batch_count: int = 128
    """Entries in one read."""
    in_flight_count: int = 10_000
    in_flight_bytes: int = 256 * 1024 * 1024
    """Entries in hand, waiting ones included, and their bytes, before reading pauses."""
    lane_count: int = 1_000
    """Entries that wait for room in one session's queue; further ones are refused at once, or one session that takes
    nothing would bring reading to a halt for all."""
    recover_ms: int = 2_000
    """Between two rounds of recovery."""
    dead_ms: int = 15_000
    """A consumer not heard of for so long is lost: that is several rounds of recovery."""
    lost_ms: int = 5_000
    """An own entry that has rested for so long and is not in hand was lost on its way to us."""
    gone_ms: int = 3_600_000
    """A consumer not heard of for so long is removed, if nothing is pending with it."""
    deliveries: int = 10
    """An entry that was handed out so often and never settled is dead."""

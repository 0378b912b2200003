"""Times as people type them. Pure.

| typed                             | is                                                        |
|-----------------------------------|-----------------------------------------------------------|
| `90`, `1.5`                       | a duration in seconds                                     |
| `250ms`, `90s`, `5m`, `1h30m`, `2d` | a duration                                              |
| `1764554400000`                   | a moment: milliseconds since 1970, as in the protocol     |
| `2026-01-31T09:00`                | a moment on this machine's clock                          |
| `2026-01-31T09:00Z`, `…+01:00`    | a moment in the zone that it names                        |

Rule 1: what could be read in two ways is refused: a number as small as seconds since 1970 is no moment.
"""

from __future__ import annotations

import re
from typing import Final

DURATION_S_MAX: Final = 3_650 * 24 * 3_600
"""Ten years in seconds; what waits longer than that is a mistake."""

MOMENT_MS_MIN: Final = 10**11
"""The year 1973 in milliseconds since 1970. A smaller number was meant as seconds."""

MOMENT_MS_MAX: Final = 2**53 - 1
"""The largest whole number that every JSON reader keeps."""

UNIT_S: Final[dict[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_PARTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PARTS.pattern})+")


def duration_s(text: str) -> float:
    """The seconds that a duration says; ValueError with a sentence when it is none."""
    if _SECONDS.fullmatch(text):
        found = float(text)
    elif _DURATION.fullmatch(text):
        found = sum(float(count) * UNIT_S[unit] for count, unit in _PARTS.findall(text))
    else:
        found = 0.0
    if found <= 0:
        raise ValueError(f"{text!r} is not a duration above 0: write 90, 90s, 5m, 1h30m or 2d")
    if found > DURATION_S_MAX:
        raise ValueError(f"{text!r} is longer than {DURATION_S_MAX // 86_400}d")
    return found


def moment_ms(text: str) -> int:
    """The milliseconds since 1970 that a moment says; ValueError with a sentence when it is none."""
    if text.isascii() and text.isdigit():
        return _counted(text)
    from datetime import datetime

    try:
        found = datetime.fromisoformat(text).astimezone()
        return int(found.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is not a time: write 2026-01-31T09:00 (this machine's clock), 2026-01-31T09:00Z, "
            "or milliseconds since 1970"
        ) from None


def _counted(text: str) -> int:
    found = int(text[:32])
    if found < MOMENT_MS_MIN:
        raise ValueError(f"{text!r} is no time: give milliseconds since 1970, or a date such as 2026-01-31T09:00")
    if found > MOMENT_MS_MAX:
        raise ValueError(f"{text[:32]!r} is too large for a time in milliseconds since 1970")
    return found

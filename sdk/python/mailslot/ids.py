"""Ids that the client makes itself, so that what it sends can be sent again.

A message id is a UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits. Nothing reads the time out of it.
"""

from __future__ import annotations

import os
import time
import uuid

_RANDOM_BITS = 80
_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_RAND_A = 0xFFF << 64
_RAND_B = (1 << 62) - 1


def new_id() -> str:
    """A fresh id."""
    drawn = int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")
    milliseconds = time.time_ns() // 1_000_000
    return str(uuid.UUID(int=milliseconds << 80 | _VERSION_7 | drawn & _RAND_A | _VARIANT | drawn & _RAND_B))

"""The options of `mailslot verify`."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import SettingsConfigDict

from mailslot_core.settings import StoreSettings

UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
DURATION_S_MAX: Final = 24 * 3600.0
"""Longest load: every event of it is held in memory when it is checked."""
HARM_DUE_S: Final = 15.0
"""Chaos that was to go on for so long must have killed one worker and stopped one, else it has shown nothing. The first
four faults, 2.4 s apart at most, hold one of each kind; the rest is for a busy machine."""


def seconds(text: str) -> float:
    """What `60s`, `500ms`, `2m`, `1h`, or a bare number of seconds says."""
    found = DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise PydanticCustomError("duration", "must be a duration such as 60s, 2m or 500ms")
    duration_s = float(found[1]) * UNITS_S[found[2]]
    if duration_s > DURATION_S_MAX:
        raise PydanticCustomError("duration", "must be at most 24h")
    return duration_s


class VerifySettings(StoreSettings):
    """What to run against the store, and for how long."""

    model_config = SettingsConfigDict(validate_by_name=True, validate_by_alias=True)

    chaos: str = Field(
        "0s",
        description="how long to load with faults: 60s, 2m; 0s: no faults; from 15s on a kill and a stop must have hit",
    )
    load: str = Field("30s", description="how long to load when there are no faults")
    workers: int = Field(3, ge=1, le=64, description="worker processes of its own")
    sessions: int = Field(64, ge=1, le=100_000, description="sessions that are talked to")
    rate: float = Field(50.0, gt=0, le=10_000, allow_inf_nan=False, description="messages offered per second")
    lease_ms: int = Field(3_000, ge=500, le=60_000, description="lease of its workers, ms")
    database: int | None = Field(
        None, ge=0, le=1_000_000, description="number of an empty database to use; without it the highest empty one"
    )
    seed: int | None = Field(None, ge=0, description="number that all choices come from; without it a new one")
    keep: bool = Field(False, description="leave everything in the database, for a look at it")
    json_: bool = Field(False, validation_alias="MAILSLOT_JSON", description="print one JSON document instead of lines")
    state_dir: str = Field(
        ".mailslot", description="folder of a running `mailslot up`, whose store is used when no --redis-url is given"
    )
    durability: Literal["memory", "fsync", "replicated"] = Field(
        "memory", description="what a receipt promises: memory, fsync (on disk), replicated (on --replicas others)"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "error", description="least level of the workers' lines that is shown"
    )

    @field_validator("chaos", "load")
    @classmethod
    def _is_a_duration(cls, text: str) -> str:
        seconds(text)
        return text

    @property
    def chaos_s(self) -> float:
        """How long harm is done."""
        return seconds(self.chaos)

    @property
    def load_s(self) -> float:
        """How long messages are sent."""
        return self.chaos_s or seconds(self.load)

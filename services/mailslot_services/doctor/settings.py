"""The options of `mailslot doctor`."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from mailslot_contracts.ids import check_id
from mailslot_core.settings import StoreSettings, WorkerSettings

WORKER = WorkerSettings.model_fields


class DoctorSettings(StoreSettings):
    """What to examine, and how to tell."""

    model_config = SettingsConfigDict(validate_by_name=True, validate_by_alias=True)

    session: str = Field("", description="examine this session alone")
    json_: bool = Field(False, validation_alias="MAILSLOT_JSON", description="print one JSON document instead of lines")
    lease_ms: int = Field(WORKER["lease_ms"].default, ge=1, description="the workers' --lease-ms, to judge it")
    drain_ms: int = Field(WORKER["drain_ms"].default, ge=0, description="the workers' --drain-ms, to judge it")
    grace_ms: int = Field(
        0, ge=0, description="how long workers are given between SIGTERM and SIGKILL, ms, to judge it; 0: not known"
    )
    state_dir: str = Field(
        ".mailslot",
        description="folder of a running `mailslot up`, whose store is examined when no --redis-url is given",
    )

    @field_validator("session")
    @classmethod
    def _is_an_id(cls, name: str) -> str:
        return check_id(name, "session") if name else name

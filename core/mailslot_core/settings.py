"""Every option of the services in one place: a flag, an environment name, a default, and what it is for.

`--redis-url` on the command line is `MAILSLOT_REDIS_URL` in the environment; a flag wins. Read once at the start
of a process and passed down; nothing reads the environment later.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

Port = Annotated[int, Ge(0), Le(65_535)]


class StoreSettings(BaseSettings):
    """Where sessions are kept, and how well."""

    model_config = SettingsConfigDict(env_prefix="MAILSLOT_", frozen=True, extra="ignore")

    redis_url: str = Field("redis://127.0.0.1:6379/0", description="Redis >= 7.0 or Valkey >= 7.2 to keep sessions in")
    partitions: int = Field(
        16, ge=1, le=1024, description="partitions of sessions; fixed when a database is first used"
    )
    durability: Literal["memory", "fsync", "replicated"] = Field(
        "fsync", description="what a receipt promises: memory, fsync (on disk), replicated (on --replicas others)"
    )
    replicas: int = Field(1, ge=1, le=10, description="replicas that must have a message at durability `replicated`")
    durability_timeout_ms: int = Field(
        2_000, ge=10, le=60_000, description="how long a receipt may wait for its level, ms"
    )
    call_timeout_ms: int = Field(5_000, ge=100, le=60_000, description="how long one store call may take, ms")
    pending_max: int = Field(
        10_000,
        ge=1,
        le=25_000,  # one cancel clears them all in one act, which takes the server some 0.1 ms each
        description="queued messages of one session before 429 queue-full",
    )
    pending_bytes_max: int = Field(64 * 1024 * 1024, ge=2 * 1024 * 1024, description="bytes of their bodies, likewise")
    crashes_max: int = Field(
        3, ge=1, le=1_000, description="crashes of one turn before it is given up and its messages are dead letters"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")


class IngestSettings(StoreSettings):
    """The doors."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(8080, description="port to listen on; 0 takes a free one")
    body_bytes_max: int = Field(8 * 1024 * 1024, ge=1024, le=8 * 1024 * 1024, description="largest request body, bytes")
    sse_buffer_events_max: int = Field(4_096, ge=16, description="events a slow SSE reader may lag before it is closed")
    sse_buffer_bytes_max: int = Field(
        8 * 1024 * 1024, ge=65_536, description="bytes a slow SSE reader may lag, likewise"
    )
    sse_heartbeat_ms: int = Field(15_000, ge=100, description="comment heartbeat of a quiet SSE stream, ms")
    poll_ms: int = Field(1_000, ge=10, description="how often a watched ledger is read when no notice came, ms")
    intake: bool = Field(True, description="consume the broker door, stream mailslot:intake")
    token: str = Field("", repr=False, description="bearer token that callers of /v1 must show; without one all may")
    origins: str = Field(
        "", description="web pages that may use the doors: origins with commas between, or * (CORS, WebSocket)"
    )


class WorkerSettings(StoreSettings):
    """Whoever drives sessions."""

    concurrency: int = Field(64, ge=1, le=10_000, description="sessions driven at once by this process")
    lease_ms: int = Field(15_000, ge=200, le=600_000, description="how long a session stays leased without renewal, ms")
    sweep_ms: int = Field(1_000, ge=50, le=60_000, description="how often lapsed leases are looked for, ms")
    turns_per_slot: int = Field(
        16,
        ge=1,
        description="turns in a row before a slot looks at the doorbell again, so that no session waits for ever",
    )
    stall_ms: int = Field(
        60_000, ge=1_000, description="a turn without progress or declared call this long loses its lease, ms"
    )
    drain_ms: int = Field(
        30_000, ge=0, description="how long SIGTERM waits for a step boundary before handing back, ms"
    )
    forget_after_ms: int = Field(86_400_000, ge=1_000, description="how long a settled message id is remembered, ms")
    agents: str = Field("", description="agents.toml; without it the agent `default` echoes")
    metrics_port: Port = Field(0, description="port for /metrics on 127.0.0.1; 0 serves none")


class GoalSettings(StoreSettings):
    """Whoever continues goals."""

    reconcile_ms: int = Field(5_000, ge=50, description="how often durable goals are looked through, ms")
    metrics_port: Port = Field(0, description="port for /metrics on 127.0.0.1; 0 serves none")

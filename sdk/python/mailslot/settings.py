"""How patient a client is: every limit with its name, its unit and its default, in one place.

Pass your own with `Client(url, settings=Settings(request_timeout_s=5))`. Nothing here is read from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of one client."""

    connect_timeout_s: float = 5.0
    """Seconds to wait for a connection."""

    request_timeout_s: float = 30.0
    """Seconds to wait for each part of an ordinary answer."""

    silence_timeout_s: float = 45.0
    """Seconds after which a silent event stream counts as cut: three heartbeats of the server."""

    attempts_max: int = 5
    """How often a request that is safe to repeat is sent at most."""

    reconnects_max: int = 10
    """How often in a row an event stream is opened again without getting any further."""

    settled_s: float = 5.0
    """A stream that lived this long was a good one, even if the agent was silent: its end is not held against it."""

    backoff_first_ms: int = 100
    """Longest first wait before a repetition; each further one is twice as long, and a random part of it is waited."""

    backoff_max_ms: int = 5_000
    """Longest wait before a repetition, unless the server asks for more."""

    retry_after_max_ms: int = 60_000
    """Longest wait that a server may ask for; asked for more, the client gives the refusal to its caller."""

    idle_poll_s: float = 25.0
    """Seconds of one long poll for idle: below what common proxies cut."""

    idle_grace_s: float = 1.0
    """Seconds that the server may answer a long poll late: its last answer says why the agent was not idle."""

    abort_timeout_s: float = 5.0
    """Seconds that cancelling an abandoned run may take."""

    frame_bytes_max: int = 16 * 1024 * 1024
    """Bytes of one frame of an event stream: the largest message as JSON, with room."""

    answer_bytes_max: int = 64 * 1024 * 1024
    """Bytes of one ordinary answer."""

    connections_max: int = 100
    """Connections for ordinary requests."""

    streams_max: int = 1_000
    """Connections for event streams. They have a pool of their own, so that no run can keep another from sending."""

    keep_alive_s: float = 3.0
    """Seconds that an unused connection is kept: less than common servers keep theirs, so that none is found dead."""

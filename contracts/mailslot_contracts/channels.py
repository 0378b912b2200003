"""Names of the streams and topics that cross a process boundary (protocol section 3).

    mailslot:intake             stream   backends put prompts in; ingest consumes it with a group
    mailslot:intake:dead        stream   entries that can never become a message, with the reason
    session.event.<sessionId>   topic    every event of one session but agent/status
    session.status              topic    agent/status of every session
    mailslot:control:<worker>   topic    word to one worker, e.g. that a cancel was recorded

Topics are hints and may lose what they carry; the ledger is the truth. The store's own keys are
not here: nobody but the store knows them.
"""

from __future__ import annotations

INTAKE = "mailslot:intake"
INTAKE_GROUP = "mailslot:ingest"
INTAKE_DEAD = "mailslot:intake:dead"
STATUS_CHANNEL = "session.status"

EVENT_CHANNEL_PREFIX = "session.event."
EVENT_CHANNEL_PATTERN = EVENT_CHANNEL_PREFIX + "*"
"""Redis pattern that subscribes to every session's events."""

CONTROL_CHANNEL_PREFIX = "mailslot:control:"


def event_channel(session_id: str) -> str:
    """The topic of one session's events."""
    return EVENT_CHANNEL_PREFIX + session_id


def control_channel(worker: str) -> str:
    """The topic on which one worker is spoken to."""
    return CONTROL_CHANNEL_PREFIX + worker

"""The AsyncAPI 3 document of the broker door and the topics, made by FastStream from what is declared here.

    mailslot:intake              receive    an IntakeEntry, as JSON or msgpack
    {reply_to}                   send       {messageId}, or a problem
    mailslot:intake:dead         send       what never became a message
    session.event.{sessionId}    send       every event but agent/status, and deltas
    session.status               send       agent/status of every session
    mailslot:control:{worker}    send       word to one worker

Rule 1: nothing of this process is in it, so it can be checked in and compared (`generate --check`).
Rule 2: what FastStream has no words for (parameters of an address, the reply, msgpack) is added by a table.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from faststream.redis import RedisBroker, StreamSub
from faststream.specification import AsyncAPI
from pydantic import Field

from mailslot_contracts import (
    INTAKE,
    INTAKE_DEAD,
    INTAKE_GROUP,
    STATUS_CHANNEL,
    Accepted,
    DeltaNotice,
    Envelope,
    IntakeEntry,
    Problem,
    control_channel,
    event_channel,
)
from mailslot_contracts.door import Answer, Count, NameField, Ordinal, SessionIdField

TITLE: Final = "mailslot"
VERSION: Final = "1"
DESCRIPTION: Final = (
    "The broker door and the topics. A reply proves that a message is inside, and nothing more. "
    "Topics are hints and may lose what they carry; the ledger, read over HTTP, is the truth."
)
PACKED: Final = "application/vnd.mailslot.v1+msgpack"
"""One version byte 0x01, then msgpack: how everything travels inside Redis."""

INTAKE_TEXT: Final = (
    "Put prompts in: a FastStream publisher, or a plain `XADD mailslot:intake * data <JSON or msgpack>` with the "
    "optional fields `reply_to` (a channel) and `correlation_id`. Entries of one session become messages in order."
)


class DeadEntry(Answer):
    """An entry that never became a message, as a stream entry with these fields."""

    id: str = Field(description="the id it had in the intake stream")
    reason: str = Field(description="the problem (RFC 9457) as JSON text")
    data: str = Field(description="its data as it came; bytes")
    reply_to: str | None = Field(None, alias="reply_to")
    correlation_id: str | None = Field(None, alias="correlation_id")


class CancelNotice(Answer):
    """A cancel was recorded against a turn that the worker drives."""

    session_id: SessionIdField
    epoch: Count
    turn: Ordinal
    cause: NameField


ADDRESSES: Final[dict[str, dict[str, str]]] = {
    "SessionEvents": {"sessionId": "the session's id"},
    "Control": {"worker": "the worker's name"},
    "Reply": {"replyTo": "the channel that the entry named in `reply_to`"},
}
"""Parameters of addresses, by channel."""

SECTIONS: Final = (("", "channels"), ("", "operations"), ("components", "messages"), ("components", "schemas"))
"""Parts whose order says nothing."""

PACKED_CHANNELS: Final = ("SessionEvents", "SessionStatus", "Control")


def _declared() -> RedisBroker:
    """Every stream and topic, declared to FastStream. Nothing here is ever started."""
    broker = RedisBroker("redis://localhost:6379", description="Redis or Valkey")
    intake = StreamSub(INTAKE, group=INTAKE_GROUP, consumer="any")

    @broker.subscriber(stream=intake, title="Intake", description=INTAKE_TEXT)
    async def take(entry: IntakeEntry) -> None:
        """Submit the prompt."""

    publishers: tuple[tuple[str, str, Any, str], ...] = (
        ("Reply", "{replyTo}", Accepted | Problem, "The answer to an entry that named a channel in `reply_to`."),
        ("SessionEvents", event_channel("{sessionId}"), Envelope | DeltaNotice, "Events of one session, and deltas."),
        ("SessionStatus", STATUS_CHANNEL, Envelope, "`agent/status` of every session."),
        ("Control", control_channel("{worker}"), CancelNotice, "Word to one worker."),
    )
    for title, channel, schema, description in publishers:
        broker.publisher(channel, title=title, description=description, schema=schema)
    broker.publisher(
        stream=StreamSub(INTAKE_DEAD),
        title="DeadEntries",
        description="What never became a message.",
        schema=DeadEntry,
    )
    return broker


def document() -> dict[str, Any]:
    """The whole document as plain data."""
    api = AsyncAPI(_declared(), title=TITLE, version=VERSION, description=DESCRIPTION, schema_version="3.0.0")
    made: dict[str, Any] = api.to_specification().to_jsonable()
    for name, parameters in ADDRESSES.items():
        made["channels"][name]["parameters"] = {each: {"description": text} for each, text in parameters.items()}
    for name in PACKED_CHANNELS:
        made["components"]["messages"][f"{name}:Message"]["contentType"] = PACKED
    del made["channels"]["Intake"]["bindings"]["redis"]["consumerName"]  # each process has its own
    made["operations"]["Intake"]["reply"] = {
        "address": {"location": "$message.header#/reply_to"},
        "channel": {"$ref": "#/channels/Reply"},
    }
    for holder, section in SECTIONS:  # FastStream keeps what is declared in sets
        place = made[holder] if holder else made
        place[section] = dict(sorted(place[section].items()))
    return made


def text() -> str:
    """The whole document as the text of its file."""
    return yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)

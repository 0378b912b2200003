"""Messages: what a sender says, and the receipt that proves only that it is kept.

    sender ── Prompt ──> HTTP   ┐
                                ├─ submit ──> Receipt{messageId, cursor, duplicate, durability}
    backend ─ IntakeEntry ─> broker ┘

Rule 1: a bare string is one text block. Content that says nothing is refused.
Rule 2: `delivery` decides lane and wake by the table DELIVERY, and nothing else does.
Rule 3: content never counts as identity. The same messageId with the same *body* (content,
        delivery, times, source, metadata) is the same message; with another body it is a conflict.
        What a prompt makes its submit depend on (`ifBusy`, `ifIdle`, `expectTurn`) is no part of it.
Rule 4: a receipt says that the message is durably queued. It has no status, no result, no turn.
Rule 5: times are integers, milliseconds since 1970 by the store's clock. A `notBefore` in the past means now.
Rule 6: every limit is named here with its unit, and over it is `too-large`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, Strict, model_validator

from mailslot_contracts.codec import canonical
from mailslot_contracts.door import (
    Answer,
    Door,
    MessageIdField,
    NameField,
    Ordinal,
    Seq,
    SessionIdField,
    UnixMs,
)
from mailslot_contracts.problems import BadInput, TooLarge

CONTENT_BYTES_MAX = 1024 * 1024
"""Bytes of UTF-8 of all texts, image data and URLs of one message: 1 MiB, a long document or a small picture."""

CONTENT_BLOCKS_MAX = 256
"""Blocks of one message."""

METADATA_BYTES_MAX = 16 * 1024
"""Encoded bytes of a message's or session's metadata: it rides along in the ledger, it is not a store."""

URL_BYTES_MAX = 8 * 1024
"""Bytes of an image's URL."""

BATCH_COUNT_MAX = 1000
"""Prompts in one batch."""

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one request body. JSON may spell one byte of content in six (\\u0001), so 8 times the content fits."""

FINGERPRINT_BYTES = 16
"""Bytes of a body's fingerprint: no two bodies share one by chance, and it is kept for every message."""


class Delivery(StrEnum):
    """How a message wants to reach the agent."""

    QUEUE = "queue"
    STEER = "steer"
    INJECT = "inject"


class Lane(StrEnum):
    """Where a queued message waits."""

    NEXT_TURN = "next-turn"
    NEXT_STEP = "next-step"


class Placement(NamedTuple):
    """The lane a message is queued in, and whether it wakes an idle agent."""

    lane: Lane
    wake: bool


DELIVERY: dict[Delivery, Placement] = {
    Delivery.QUEUE: Placement(Lane.NEXT_TURN, wake=True),
    Delivery.STEER: Placement(Lane.NEXT_STEP, wake=True),
    Delivery.INJECT: Placement(Lane.NEXT_STEP, wake=False),
}


class Durability(StrEnum):
    """How well a receipt's message is kept (semantics M2)."""

    MEMORY = "memory"
    FSYNC = "fsync"
    REPLICATED = "replicated"


class SourceKind(StrEnum):
    """Where a message comes from. Provenance only; it never grants authority."""

    USER = "user"
    SYSTEM = "system"
    GOAL = "goal"
    CHILD = "child"
    SCHEDULE = "schedule"
    PLUGIN = "plugin"


def _says_something(text: str) -> str:
    if not text or text.isspace():
        raise BadInput("content: a text block must say something; it is empty or only white space")
    return text


def _is_base64(data: str) -> str:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("content: image data must be base64") from None
    if not data:
        raise BadInput("content: image data must not be empty")
    return data


_WEB_URL = re.compile(r"https?://[^\s\x00-\x20\x7f]+", re.ASCII)


def _is_web_url(url: str) -> str:
    size_bytes = len(url.encode("utf-8"))
    if size_bytes > URL_BYTES_MAX:
        raise TooLarge("content: an image's url", size_bytes, URL_BYTES_MAX, "bytes")
    if _WEB_URL.fullmatch(url) is None:
        raise BadInput("content: an image's url must be an http or https address")
    return url


class Text(Door):
    """A text block."""

    type: Literal["text"]
    text: Annotated[str, AfterValidator(_says_something), Field(min_length=1)]


class Image(Door):
    """An image block: either the bytes as base64 or an address to fetch them from."""

    type: Literal["image"]
    media_type: Annotated[str, Field(pattern=r"^image/[a-z0-9.+-]{1,100}$")]
    data: Annotated[str, AfterValidator(_is_base64)] | None = None
    url: Annotated[str, AfterValidator(_is_web_url)] | None = None

    @model_validator(mode="after")
    def _either_data_or_url(self) -> Self:
        if (self.data is None) == (self.url is None):
            raise BadInput("content: an image has either data or url")
        return self


Block = Annotated[Text | Image, Field(discriminator="type")]


def normalise_content(content: object) -> object:
    """A bare string as its one text block; anything else as it is."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def content_bytes(content: tuple[Text | Image, ...]) -> int:
    """What counts against CONTENT_BYTES_MAX: the UTF-8 of every text, image data and URL."""
    return sum(_block_bytes(block) for block in content)


def _block_bytes(block: Text | Image) -> int:
    if isinstance(block, Text):
        return len(block.text.encode("utf-8"))
    return len((block.data or block.url or "").encode("utf-8"))


def _within_content_limits(content: tuple[Text | Image, ...]) -> tuple[Text | Image, ...]:
    if not content:
        raise BadInput("content: must not be empty")
    if len(content) > CONTENT_BLOCKS_MAX:
        raise TooLarge("content", len(content), CONTENT_BLOCKS_MAX, "blocks")
    size_bytes = content_bytes(content)
    if size_bytes > CONTENT_BYTES_MAX:
        raise TooLarge("content", size_bytes, CONTENT_BYTES_MAX, "bytes")
    return content


def _within_metadata_limit(metadata: dict[str, JsonValue]) -> dict[str, JsonValue]:
    size_bytes = len(canonical(metadata))
    if size_bytes > METADATA_BYTES_MAX:
        raise TooLarge("metadata", size_bytes, METADATA_BYTES_MAX, "bytes")
    return metadata


Content = Annotated[
    tuple[Block, ...],
    Strict(strict=False),
    BeforeValidator(normalise_content, json_schema_input_type=str | tuple[Block, ...]),
    AfterValidator(_within_content_limits),
]
Metadata = Annotated[dict[str, JsonValue], AfterValidator(_within_metadata_limit)]
DeliveryField = Annotated[Delivery, Strict(strict=False)]


class Source(Door):
    """Provenance that a sender may claim. Messages of goals and children are made by the store alone."""

    kind: Literal["user", "system", "schedule", "plugin"]


DEFAULT_SOURCE = Source(kind="user")
"""What a message without a source comes from. A door that knows its callers may say otherwise."""


Reject = Literal["reject"]
"""What a prompt says to be refused in a state of the agent instead of queued."""


class Prompt(Door):
    """What a sender says to one session."""

    message_id: MessageIdField | None = None
    """The sender's own id for the message; without one, ingest makes it."""
    content: Content
    delivery: DeliveryField = Delivery.QUEUE
    """queue = the next turn; steer = the next step, waking; inject = the next step, not waking."""
    if_busy: Reject | None = None
    """reject refuses it (`busy`) unless the agent is idle and no follow-up or steer is due or held."""
    if_idle: Reject | None = None
    """reject refuses a steer (`idle`) that would open a turn of its own."""
    expect_turn: Ordinal | None = None
    """A steer is refused (`turn-mismatch`) unless this turn is open."""
    not_before: UnixMs | None = None
    """It waits, and neither wakes nor blocks anything, until then. A time that is over means now."""
    expires_at: UnixMs | None = None
    """It expires if it is still queued then; a time that is over is refused (`expired`)."""
    source: Source | None = None
    metadata: Metadata = Field(default_factory=dict)
    create_session: bool = True
    """false refuses an unknown session instead of creating it."""

    @model_validator(mode="after")
    def _conditions_fit(self) -> Self:
        if self.delivery is not Delivery.STEER:
            for name, given in (("ifIdle", self.if_idle), ("expectTurn", self.expect_turn)):
                if given is not None:
                    raise BadInput(f"{name}: only a steer can have it; delivery is {self.delivery}")
        return self

    @model_validator(mode="after")
    def _time_is_left(self) -> Self:
        if self.not_before is not None and self.expires_at is not None and self.expires_at <= self.not_before:
            raise BadInput("expiresAt: must be later than notBefore")
        return self

    def times(self) -> dict[str, int]:
        """`notBefore` and `expiresAt`, as far as they are given."""
        given = {"notBefore": self.not_before, "expiresAt": self.expires_at}
        return {name: time for name, time in given.items() if time is not None}

    def body(self) -> dict[str, object]:
        """The part that belongs to the message's identity, as plain data: what the ledger keeps of it."""
        source = self.source or DEFAULT_SOURCE
        return {
            "content": [block.wire() for block in self.content],
            "delivery": self.delivery.value,
            "source": source.wire(),
            "metadata": self.metadata,
            **self.times(),
        }


class IntakeEntry(Prompt):
    """What a backend puts on the broker door: a prompt that names its session."""

    session_id: SessionIdField
    agent: NameField | None = None
    """Which agent a session that does not exist yet gets."""


class MessagePatch(Door):
    """Change a message that is still queued: give it new content, or steer with it."""

    content: Content | None = None
    """The new content, in the message's old place."""
    delivery: Literal["steer"] | None = None
    """steer moves it to the next step, at the place of the move."""

    @model_validator(mode="after")
    def _one_change(self) -> Self:
        if (self.content is None) == (self.delivery is None):
            raise BadInput("a change of a message has either content or delivery")
        return self


class Receipt(Answer):
    """The message is durably queued, at the level that is named. Nothing else is said."""

    model_config = ConfigDict(extra="forbid")

    message_id: MessageIdField
    cursor: Seq
    """The seq of the message's `inbox/queued`; reading events after it shows what came next."""
    duplicate: bool
    """true when the same message was accepted before and nothing was appended now."""
    durability: Annotated[Durability, Strict(strict=False)]


class Accepted(Answer):
    """What the broker door puts on `reply_to`: the receipt at its barest."""

    model_config = ConfigDict(extra="forbid")

    message_id: MessageIdField


def body_fingerprint(body: Mapping[str, object]) -> bytes:
    """16 bytes that stand for a body; the same body gives the same bytes whatever its key order.

    Times (`notBefore`, `expiresAt`) belong to the body when a message has them, so every key counts.
    """
    return hashlib.blake2b(canonical(dict(body)), digest_size=FINGERPRINT_BYTES).digest()

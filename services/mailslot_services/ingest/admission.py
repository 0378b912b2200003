"""From a prompt to the store: the same few lines for every door.

    Prompt --> Submission{data of inbox/queued, fingerprint} --> store.submit --> Receipt

Rule 1: the receipt says what the store said, and nothing when the store said nothing (semantics M1).
Rule 2: whatever the door, the same prompt is the same message: the fingerprint is of its body alone (semantics M3).
Rule 3: what a prompt makes its submit depend on is decided by the store, in the act that would queue it (semantics U5).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from mailslot_contracts import DELIVERY, Prompt, body_fingerprint, uuid7
from mailslot_contracts.ids import UUID7_RANDOM_BYTES
from mailslot_contracts.protocol import DEFAULT_AGENT
from mailslot_core.clock import Clock
from mailslot_core.errors import CoreError, OutcomeUnknown
from mailslot_core.inbox import Receipt, Submission
from mailslot_core.session import Data, Lane
from mailslot_core.store import Store
from mailslot_services.ingest.metric import Metrics


def new_id(clock: Clock) -> str:
    """A UUIDv7: sorts by the time it was made."""
    return uuid7(clock.now_ms(), secrets.token_bytes(UUID7_RANDOM_BYTES))


def created(
    agent: str | None = None, metadata: Mapping[str, object] | None = None, on_failure: str = "continue"
) -> Data:
    """The data of `session/created` for a session that a door makes."""
    return {
        "agent": agent or DEFAULT_AGENT,
        "onFailure": on_failure,
        "depth": 0,
        "metadata": dict(metadata or {}),
    }


def submission(message_id: str, prompt: Prompt) -> Submission:
    """The message as the store takes it."""
    body = prompt.body()
    placement = DELIVERY[prompt.delivery]
    data: dict[str, object] = {
        "messageId": message_id,
        "lane": placement.lane.value,
        "wake": placement.wake,
        "content": body["content"],
        "source": body["source"],
        **prompt.times(),
    }
    if prompt.metadata:
        data["metadata"] = prompt.metadata
    return Submission(
        message_id,
        Lane(placement.lane),
        placement.wake,
        data,
        body_fingerprint(body).hex(),
        if_busy=prompt.if_busy is not None,
        if_idle=prompt.if_idle is not None,
        expect_turn=prompt.expect_turn,
    )


class Admission:
    """Submits, and counts what came of it."""

    def __init__(self, store: Store, clock: Clock, metrics: Metrics, door: str) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._door = door

    async def submit(self, session_id: str, message_id: str, prompt: Prompt, agent: str | None = None) -> Receipt:
        """The store's receipt, or its refusal. An unknown session is made with `agent` unless the prompt forbids it."""
        started = self._clock.monotonic()
        code = "internal"
        try:
            birth = created(agent) if prompt.create_session else None
            receipt = await self._store.submit(session_id, submission(message_id, prompt), birth)
            code = "duplicate" if receipt.duplicate else "accepted"
        except CoreError as error:
            code = error.code
            if isinstance(error, OutcomeUnknown):
                error.message_id = message_id
            raise
        finally:
            self._metrics.submit(self._door, code, self._clock.monotonic() - started)
        return receipt

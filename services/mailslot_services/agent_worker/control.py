"""Word to one worker, over the topic `mailslot:control:<worker>`.

    cancel (store function) --PUBLISH--> mailslot:control:<worker> --FastStream--> Worker.cancel

Rule 1: it is a hint that makes a cancel quick. When it is lost, the next commit or renewal brings the same news,
        and the act that ends the turn decides (semantics C3).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from mailslot_contracts.channels import control_channel
from mailslot_contracts.codec import decode
from mailslot_contracts.problems import CodecError
from mailslot_core.settings import StoreSettings
from mailslot_services.broker import make_broker

log = logging.getLogger("mailslot.worker")


class Hears(Protocol):
    """Whoever the word is for."""

    name: str

    def cancel(self, session_id: str, epoch: int, turn: int, cause: str) -> None:
        """A cancel was recorded against this turn."""
        ...


@asynccontextmanager
async def listening(settings: StoreSettings, worker: Hears) -> AsyncIterator[None]:
    """The worker hears its topic while the context is open."""
    broker = make_broker(settings)

    @broker.subscriber(control_channel(worker.name))
    async def on_word(body: bytes) -> None:
        tell(worker, body)

    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


def tell(worker: Hears, body: bytes) -> None:
    """Pass one notice on. What cannot be read is dropped: it was only a hint."""
    try:
        word: Any = decode(body)
        worker.cancel(word["sessionId"], word["epoch"], word["turn"], word["cause"])
    except (CodecError, KeyError, TypeError) as error:
        log.warning("a control notice cannot be read: %s", error)

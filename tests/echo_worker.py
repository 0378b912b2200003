"""A worker for tests that need turns to happen and do not care how: it drives one store by hand.

`answer_one` leases the next ready session and answers its whole batch in one step; `answer_all` goes on until nothing
is ready. Everything goes through the port, so what it leaves behind is what any worker would leave behind.
"""

from collections.abc import Mapping
from typing import Any, Final

from mailslot_core.inbox import Submission
from mailslot_core.session import Lane, Phase
from mailslot_core.store import Grant, Store
from mailslot_core.turn import Draft, End, Then

LEASE_MS: Final = 60_000
CREATED: Final[Mapping[str, Any]] = {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}}

FAILURE: Final = {"code": "broken", "message": "the model is gone", "retryable": False}


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


def submission(message_id: str, lane: Lane = Lane.NEXT_TURN, *, wake: bool = True) -> Submission:
    data = {
        "messageId": message_id,
        "lane": str(lane),
        "wake": wake,
        "content": text(f"message {message_id}"),
        "source": {"kind": "user"},
    }
    return Submission(message_id, lane, wake, data, fingerprint=message_id)


async def prompt(store: Store, session_id: str, message_id: str) -> int:
    """Queue a follow-up by a person; the cursor of its receipt."""
    return (await store.submit(session_id, submission(message_id), CREATED)).cursor


def beginning(grant: Grant) -> list[Draft]:
    """What begins the next step: the whole batch is admitted."""
    names = {"turn": grant.turn, "step": grant.step + 1}
    heard = [
        {"messageId": message_id, **names, "content": data["content"], "source": data["source"]}
        for message_id, data in grant.batch
    ]
    return [Draft("step/start", names), *(Draft("user/message", data) for data in heard)]


class EchoWorker:
    """One slot of a worker."""

    def __init__(self, store: Store, name: str = "echo") -> None:
        self.store = store
        self.owner = f"{name}/0"
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls

    async def acquire(self) -> Grant | None:
        """The next ready session of any partition, with its turn open."""
        for partition in range(self.store.partitions):
            grant = await self.store.acquire(partition, self.owner, self.call(), LEASE_MS)
            if grant is not None:
                return grant
        return None

    async def begin_step(self, grant: Grant) -> Grant:
        """Begin the next step with the grant's batch, and stop before the model answers."""
        return await self.store.commit(grant.lease, self.call(), beginning(grant))

    async def answer(self, grant: Grant, *, then: Then = Then.YIELD, kind: str = "completed") -> None:
        """Finish the turn that the grant opened, in one step, which may have been begun."""
        begun = grant.phase is Phase.OPEN
        names = {"turn": grant.turn, "step": grant.step if begun else grant.step + 1}
        drafts = [
            *([] if begun else beginning(grant)),
            Draft("assistant/message", {**names, "content": text("done"), "model": "echo"}),
            Draft("step/end", names),
        ]
        reason = {"kind": kind, **({} if kind == "completed" else FAILURE)}
        await self.store.settle(
            grant.lease, self.call(), drafts, End(reason), then=then, hand_out=False, lease_ms=LEASE_MS
        )

    async def answer_one(self, *, kind: str = "completed") -> Grant | None:
        """Answer the next ready session's turn, if one is ready."""
        grant = await self.acquire()
        if grant is not None:
            await self.answer(grant, kind=kind)
        return grant

    async def answer_all(self) -> int:
        """Answer until nothing is ready; how many turns that were."""
        turns = 0
        while await self.answer_one() is not None:
            turns += 1
        return turns

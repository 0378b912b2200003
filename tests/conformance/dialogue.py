"""The vocabulary of the conformance tests: what people say to a store, and what a worker's slot says to it.

    sent = await prompt(store, "s", "A")    Slot(store): acquire, take, commit, settle, handback
    await steer(store, "s", "S")            the slot counts its calls and remembers its last grant
    await inject(store, "s", "C")           slot.begin(), .says(), .call(), .result(), .end(): facts of a step

Nothing here decides or checks anything: a test that reads like a dialogue says what it expects by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mailslot_contracts import render
from mailslot_core.goal import Change, Round
from mailslot_core.inbox import Receipt, Submission
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Data, Event, Lane, Phase
from mailslot_core.store import Grant, Lease, Settled, Store, Swept
from mailslot_core.turn import Draft, End, Then

LEASE_MS: Final = 600_000
"""A lease that does not lapse while a test runs."""

NEVER_MS: Final = 1_000_000_000
"""A window that nothing falls out of."""

BIRTH: Final[Data] = {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}}
CAREFUL: Final[Data] = {**BIRTH, "onFailure": "hold"}
"""Settings of a session: the usual ones, and those that hold the queue after a failure."""

PLACES: Final = {
    "queue": (Lane.NEXT_TURN, True),
    "steer": (Lane.NEXT_STEP, True),
    "inject": (Lane.NEXT_STEP, False),
}


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def message(
    message_id: str, delivery: str = "queue", words: str | None = None, source: str = "user", **more: Any
) -> Submission:
    """A submission; `more` is data of its body, times for example."""
    lane, wake = PLACES[delivery]
    said = f"message {message_id}" if words is None else words
    data = {
        "messageId": message_id,
        "lane": str(lane),
        "wake": wake,
        "content": text(said),
        "source": {"kind": source},
        **more,
    }
    return Submission(message_id, lane, wake, data, f"{delivery} {said}{more or ''}")


async def prompt(store: Store, session_id: str, message_id: str, words: str | None = None) -> Receipt:
    return await store.submit(session_id, message(message_id, "queue", words), BIRTH)


async def steer(store: Store, session_id: str, message_id: str) -> Receipt:
    return await store.submit(session_id, message(message_id, "steer"), BIRTH)


async def inject(store: Store, session_id: str, message_id: str) -> Receipt:
    return await store.submit(session_id, message(message_id, "inject"), BIRTH)


async def say(
    store: Store, session_id: str, message_id: str, delivery: str = "queue", *, not_before: int = 0, expires_at: int = 0
) -> Receipt:
    """A message with times, in ms of the store's clock; 0 is none."""
    times: dict[str, Any] = {"notBefore": not_before, "expiresAt": expires_at}
    times = {name: time for name, time in times.items() if time}
    return await store.submit(session_id, message(message_id, delivery, **times), BIRTH)


async def sweep(store: Store, forget_after_ms: int = NEVER_MS) -> Swept:
    """Every partition once."""
    found = [await store.sweep(partition, forget_after_ms=forget_after_ms) for partition in range(store.partitions)]
    return sum(found, Swept())


async def set_goal(store: Store, session_id: str, *, rounds: int = 5, goal_id: str = "goal-1") -> Data:
    change = Change("create", goal_id=goal_id, objective="keep the garden", budgets={"rounds": rounds})
    return await store.goal_change(session_id, change, BIRTH)


async def next_round(store: Store, session_id: str, message_id: str | None = None) -> Round:
    """The round that a goal service would propose now."""
    level = await store.level(session_id)
    assert level is not None
    goal = level.goal
    assert goal is not None
    number = goal["rounds"] + 1
    return goal_round(goal["goalId"], goal["revision"], number, level.idle_cursor, message_id)


def goal_round(goal_id: str, revision: int, number: int, idle_seq: int, message_id: str | None = None) -> Round:
    name = message_id or f"{goal_id}.{revision}.{number}.{idle_seq}"
    source = {"kind": "goal", "goalId": goal_id, "revision": revision, "round": number}
    data = {**message(name).data, "source": source}
    return Round(goal_id, revision, number, idle_seq, name, data)


async def ledger(store: Store, session_id: str) -> list[Event]:
    return await store.events(session_id, after=0, limit=100_000)


async def history(store: Store, session_id: str) -> str:
    """The ledger in the notation of the golden traces."""
    return " ".join(render(await ledger(store, session_id)))


class Slot:
    """One of a worker's places for a session; the store knows it as the lease's owner. It counts its calls (L3)."""

    def __init__(self, store: Store, owner: str = "worker-1/0") -> None:
        self.store = store
        self.owner = owner
        self.calls = 0
        self._grant: Grant | None = None

    @property
    def grant(self) -> Grant:
        """What the store last said of the session in this slot."""
        assert self._grant is not None, f"{self.owner} has no session"
        return self._grant

    @property
    def lease(self) -> Lease:
        return self.grant.lease

    # -- calls ------------------------------------------------------------------------------------------------

    def next_call(self) -> int:
        self.calls += 1
        return self.calls

    async def acquire(self, session_id: str, lease_ms: int = LEASE_MS) -> Grant | None:
        """Ask the partition of the session for whatever is ready there."""
        partition = partition_of(session_id, self.store.partitions)
        self._grant = await self.store.acquire(partition, self.owner, self.next_call(), lease_ms)
        return self._grant

    async def take(self) -> Grant:
        self._grant = await self.store.take(self.lease, self.next_call())
        return self._grant

    async def commit(self, *drafts: Draft, take: bool = False) -> Grant:
        self._grant = await self.store.commit(self.lease, self.next_call(), drafts, take=take)
        return self._grant

    async def settle(
        self,
        *drafts: Draft,
        end: str | Data = "completed",
        then: Then = Then.TAKE,
        hand_out: bool = False,
        usage: Data | None = None,
    ) -> Settled:
        settled = await self.store.settle(
            self.lease,
            self.next_call(),
            drafts,
            ending(end, usage),
            then=then,
            hand_out=hand_out,
            lease_ms=LEASE_MS,
        )
        self._grant = settled.grant
        return settled

    async def handback(self) -> None:
        await self.store.handback(self.lease, self.next_call())
        self._grant = None

    async def echo(self, words: str | None = None, **options: Any) -> Settled:
        """One whole step that admits the batch and answers, and the end of the turn, in one act."""
        said = words or f"answer to {' and '.join(message.message_id for message in self.grant.batch)}"
        return await self.settle(*self.begin(), self.says(said), self.end(), **options)

    async def run(self, session_id: str) -> None:
        """Drive the session until the store hands out nothing more."""
        granted = await self.acquire(session_id)
        while granted is not None:
            granted = (await self.echo()).grant

    # -- facts of the open step, or of the next one at a boundary ---------------------------------------------

    @property
    def place(self) -> dict[str, int]:
        at_boundary = self.grant.phase is Phase.BOUNDARY
        return {"turn": self.grant.turn, "step": self.grant.step + (1 if at_boundary else 0)}

    def start(self) -> Draft:
        return Draft("step/start", self.place)

    def admits(self, message_id: str, words: str | None = None) -> Draft:
        said = text(words or f"message {message_id}")
        data = {"messageId": message_id, **self.place, "content": said, "source": {"kind": "user"}}
        return Draft("user/message", data)

    def rejects(self, message_id: str, reason: str = "the hook said no") -> Draft:
        return Draft("inbox/rejected", {"messageId": message_id, "turn": self.grant.turn, "reason": reason})

    def begin(self) -> Sequence[Draft]:
        """The step and every message of the batch."""
        return [self.start(), *(self.admits(message.message_id) for message in self.grant.batch)]

    def says(self, words: str, *calls: str, interrupted: bool = False) -> Draft:
        data: dict[str, Any] = {**self.place, "content": text(words), "model": "scripted"}
        if calls:
            data["toolCalls"] = [{"callId": call, "name": "clock", "arguments": {}} for call in calls]
        return Draft("assistant/message", {**data, "interrupted": True} if interrupted else data)

    def retry(self, attempt: int = 1, delay_ms: int = 500) -> Draft:
        said = {"attempt": attempt, "delayMs": delay_ms, "code": "overloaded", "message": "the provider is overloaded"}
        return Draft("llm/retry", {**self.place, **said})

    def spends(self, input_tokens: int, output_tokens: int, cost: float | None = None) -> Draft:
        data: dict[str, Any] = {**self.place, "attempt": 1, "model": "scripted"}
        data |= {"inputTokens": input_tokens, "outputTokens": output_tokens}
        return Draft("usage/recorded", data if cost is None else {**data, "cost": cost})

    def call(self, call_id: str) -> Draft:
        return Draft("tool/call", {**self.place, "callId": call_id, "name": "clock", "arguments": {}})

    def result(self, call_id: str, words: str = "noon") -> Draft:
        return Draft("tool/result", {**self.place, "callId": call_id, "content": words})

    def end(self) -> Draft:
        return Draft("step/end", self.place)


def ending(end: str | Data, usage: Data | None = None) -> End:
    """How a turn ends: by its kind alone, or by its whole reason."""
    return End(REASONS.get(end, {"kind": end}) if isinstance(end, str) else end, usage)


REASONS: Final[dict[str, Data]] = {
    "aborted": {"kind": "aborted", "cause": "hook"},
    "error": {"kind": "error", "code": "bad-request", "message": "the model refuses this request", "retryable": False},
}

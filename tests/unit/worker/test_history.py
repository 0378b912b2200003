"""What a worker knows of a session that others drove meanwhile."""

from collections.abc import Sequence

from mailslot_core.agent import Answer, Entry, OnDelta, Request
from mailslot_core.memory import MemoryStore
from mailslot_core.store import Page
from mailslot_services.agent_worker.transcript import extend
from mailslot_services.agent_worker.worker import Worker
from tests.crew import agent, ledger, prompt, rested, settings
from tests.waiting import wait_until

SESSION = "s"


class Reading(MemoryStore):
    """A store that says after which events its ledgers were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_after: list[int] = []

    async def events(self, session_id: str, *, after: int, limit: int) -> Page:
        self.read_after.append(after)
        return await super().events(session_id, after=after, limit=limit)


class Seeing:
    """A model that notes what it was shown."""

    name, instant = "seeing", True

    def __init__(self) -> None:
        self.shown: list[Sequence[Entry]] = []

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        self.shown.append(request.transcript)
        return Answer(text=f"answer {len(self.shown)}", model=self.name)


async def answered(worker: Worker, store: Reading, message_id: str) -> list[int]:
    """Have this worker, which answers no bell, take one message; after which events it read the ledger for that."""
    await prompt(store, SESSION, message_id)
    store.read_after.clear()
    for partition in range(store.partitions):
        if await worker._acquire(partition, worker._free.pop()):
            break
    await wait_until(lambda: not worker._tasks, 5, "the worker to be done")
    read = list(store.read_after)
    await rested(store, SESSION)
    return read


async def test_workers_that_take_turns_read_what_the_other_wrote_and_nothing_twice() -> None:
    store, model = Reading(), Seeing()
    one, other = (Worker(store, lambda _: agent(model), settings(), name=name) for name in ("one", "other"))
    known: dict[Worker, int] = {one: 0, other: 0}  # how far the ledger was when the worker last took a message
    before: Worker | None = None
    for number, worker in enumerate((one, one, other, one, other, other, one)):
        length = len(await ledger(store, SESSION)) if before else 0
        read = await answered(worker, store, f"m{number}")
        assert not read or worker is not before, "nobody else can have written anything"
        assert all(after >= known[worker] for after in read)
        events = await ledger(store, SESSION)
        answer = len(events) - len(["assistant/message", "step/end", "turn/end", "agent/status"])
        assert list(model.shown[-1]) == extend((), events[:answer])
        known[worker], before = length, worker
    assert len(model.shown) == 7

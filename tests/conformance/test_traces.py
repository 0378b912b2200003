"""The golden traces of semantics section 11, played on every store.

Each vector's history is its own script: what people and services did is done through the port, what a worker wrote is
committed by a slot, and what the store alone writes (claims, status, turn ends, cancellations) is only compared.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from mailslot_contracts import render
from mailslot_core import invariants
from mailslot_core.goal import Change, Round
from mailslot_core.inbox import Receipt, Submission
from mailslot_core.session import Lane, fold, indexes
from mailslot_core.store import Swept
from mailslot_core.turn import GRAMMAR, Draft, Outcome
from tests.conformance.dialogue import BIRTH, LEASE_MS, Slot, ledger, sweep
from tests.conformance.worlds import World

pytestmark = pytest.mark.conformance

FOLDER = Path(__file__).parents[2] / "contracts" / "vectors"
BIRTHS = 1  # events that a real ledger has before a vector's first

VECTORS = {vector["id"]: vector for vector in (json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json"))}
PLAYED = sorted(VECTORS)


@pytest.fixture
def steered() -> bool:
    """A vector's times lie a minute ahead of where a test's clock stands at first."""
    return True


class Player:
    """Plays one history on a store."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, world.store
        self.slot = Slot(world.store, "worker-1/0")
        self.drafts: list[Draft] = []
        self.receipts: list[Receipt] = []
        self.driving = False

    async def play(self, history: list[dict[str, Any]]) -> None:
        for event in history:
            kind, data = event["type"], event["data"]
            if kind in GRAMMAR and self.driving:
                self.drafts.append(Draft(kind, data))
            elif kind == "turn/end":
                settled = await self.slot.settle(*self.drafts, end=data["reason"])
                self.drafts, self.driving = [], settled.grant is not None
            elif kind == "turn/start" and not self.driving:
                lapses = any(event["type"] == "turn/recovered" for event in history)
                self.driving = await self.slot.acquire("s", 1 if lapses else LEASE_MS) is not None
            elif kind == "inbox/claimed" and "step" in data:
                assert (await self.slot.settle(*self.drafts)).outcome is Outcome.CONTINUE
                self.drafts = []
            elif kind in ACTS or data.get("cause") == "withdrawn":
                await self.flush()
                await ACTS.get(kind, Player.withdrawn)(self, data)

    async def flush(self) -> None:
        if self.drafts:
            await self.slot.commit(*self.drafts)
            self.drafts = []

    async def queued(self, data: dict[str, Any]) -> None:
        source = data["source"]
        if source["kind"] == "goal":
            level = await self.store.level("s")
            assert level is not None
            place = source["goalId"], source["revision"], source["round"], level.idle_cursor
            assert await self.store.goal_advance("s", Round(*place, data["messageId"], data))
            return
        submission = Submission(data["messageId"], Lane(data["lane"]), data["wake"], data, data["messageId"])
        self.receipts.append(await self.store.submit("s", submission, BIRTH))

    async def cancelled(self, data: dict[str, Any]) -> None:
        await self.store.cancel("s", cause=data["cause"], queue=data["queue"])

    async def withdrawn(self, data: dict[str, Any]) -> None:
        await self.store.withdraw("s", data["messageId"])

    async def due(self, data: dict[str, Any]) -> None:
        """Its time comes, and somebody sweeps."""
        (queued,) = (e.data for e in await ledger(self.store, "s") if e.data.get("messageId") == data["messageId"])
        before = queued["notBefore"] - self.world.now_ms() - 1
        await self.world.pass_ms(before)
        assert await sweep(self.store) == Swept()
        await self.world.pass_ms(1)
        assert await sweep(self.store) == Swept(due=1)

    async def goal(self, data: dict[str, Any]) -> None:
        goal = data["goal"]
        change = Change(data["operation"], None, goal["goalId"], goal["objective"], goal["budgets"])
        await self.store.goal_change("s", change, BIRTH)

    async def recovered(self, data: dict[str, Any]) -> None:
        """The owner died: its lease lapses, another worker comes."""
        await self.world.pass_ms(3)
        await sweep(self.store)
        self.slot = Slot(self.store, "worker-2/0")
        await self.slot.acquire("s")


ACTS = {
    "inbox/queued": Player.queued,
    "inbox/due": Player.due,
    "cancel/requested": Player.cancelled,
    "goal/change": Player.goal,
    "turn/recovered": Player.recovered,
}


def test_all_golden_traces_are_played() -> None:
    assert list(range(1, 17)) == PLAYED


@pytest.mark.parametrize("number", PLAYED)
async def test_a_golden_trace_comes_out_event_by_event(world: World, number: int) -> None:
    vector = VECTORS[number]
    player = Player(world)
    await player.play(vector["history"])
    events = await ledger(world.store, "s")
    assert render(events) == vector["pattern"]
    assert [event.type for event in events[:BIRTHS]] == ["session/created"]
    kept = [{"seq": event.seq - BIRTHS, "type": event.type, "data": event.data} for event in events[BIRTHS:]]
    assert kept == vector["history"]
    assert invariants.violations(events) == []
    assert await world.store.indexes("s") == indexes(fold("s", events))


@pytest.mark.parametrize("number", PLAYED)
async def test_the_receipts_of_a_golden_trace_come_out(world: World, number: int) -> None:
    vector = VECTORS[number]
    player = Player(world)
    await player.play(vector["history"])
    told = [{"messageId": receipt.message_id, "cursor": receipt.cursor - BIRTHS} for receipt in player.receipts]
    assert told == vector["receipts"]


async def test_the_next_owners_events_carry_a_higher_epoch(world: World) -> None:
    player = Player(world)
    await player.play(VECTORS[10]["history"])
    events = await ledger(world.store, "s")
    recovered = next(event.seq for event in events if event.type == "turn/recovered")
    assert {event.epoch for event in events if event.seq >= recovered} == {2}
    assert {event.epoch for event in events if event.seq < recovered} == {0, 1}

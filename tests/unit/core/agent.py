"""One agent, alone, for tests of the pure acts: a session, its ledger, and a clock that a test sets.

    agent = Agent(); agent.prompt("A"); agent.take(); agent.echo(); agent.told == "q[A] R T1 c[A] S1 u[A] a s1 ..."

Each method is one act: what a store would do atomically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from mailslot_contracts import render
from mailslot_core import activity, goal, inbox, turn
from mailslot_core.inbox import Receipt, Room, Submission, revived
from mailslot_core.session import Act, Data, Event, Session
from mailslot_core.turn import Cancelled, Draft, Outcome, Then
from tests.conformance.dialogue import BIRTH, ending, message, text

NOW_MS: Final = 1_764_554_400_000
ROOM: Final = Room(100, 1_000_000)

T = TypeVar("T")


class Agent:
    """A session and its ledger."""

    def __init__(self, *, born: Data | None = None) -> None:
        self.session = Session("s")
        self.events: list[Event] = []
        self.now = NOW_MS
        self.epoch = 0
        if born is not None:
            self.do(lambda act: act.append("session/created", born))

    @property
    def told(self) -> str:
        """The ledger in the notation of the golden traces."""
        return " ".join(render(self.events))

    def do(self, change: Callable[[Act], T]) -> T:
        """One act; a refused one has appended nothing."""
        act = Act(self.session, now=self.now, epoch=self.epoch)
        before = len(self.events)
        try:
            return change(act)
        finally:
            self.events.extend(act.events)
            assert self.session.seq == before + len(act.events)

    # -- doors ------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, room: Room = ROOM) -> Receipt:
        return self.do(lambda act: inbox.submit(act, submission, room=room))

    def prompt(self, message_id: str, **more: Any) -> Receipt:
        return self.say(message_id, "queue", **more)

    def steer(self, message_id: str, **more: Any) -> Receipt:
        return self.say(message_id, "steer", **more)

    def inject(self, message_id: str, **more: Any) -> Receipt:
        return self.say(message_id, "inject", **more)

    def say(self, message_id: str, delivery: str, **more: Any) -> Receipt:
        said = message(message_id, delivery)
        return self.submit(Submission(message_id, said.lane, said.wake, {**said.data, **more}, said.fingerprint))

    def submit_from_child(self, message_id: str) -> Receipt:
        """A waking message that ends no hold."""
        return self.submit(message(message_id, source="child"))

    def cancel(self, queue: str = "keep", *, cause: str = "user", turn_number: int | None = None) -> Cancelled:
        return self.do(lambda act: turn.cancel(act, cause=cause, queue=queue, turn=turn_number))

    def withdraw(self, message_id: str) -> None:
        self.do(lambda act: inbox.withdraw(act, message_id))

    def replace(self, message_id: str, words: str = "other words", room: Room = ROOM) -> None:
        self.do(lambda act: inbox.replace(act, message_id, text(words), room=room))

    def move(self, message_id: str) -> None:
        self.do(lambda act: inbox.move(act, message_id))

    def redrive(self, *message_ids: str, room: Room = ROOM) -> tuple[Receipt, ...]:
        """Give dead messages another life, as a store does with what it finds of them."""
        said = {event.data["messageId"]: event.data for event in self.events if event.type == "inbox/queued"}
        records = [self.session.messages[message_id] for message_id in message_ids]
        submissions = [
            Submission(m.message_id, m.lane, m.wake, revived(said[m.message_id], m.lane, wake=m.wake), "f")
            for m in records
        ]
        return self.do(lambda act: inbox.redrive(act, submissions, room=room))

    def close(self) -> bool:
        return self.do(turn.close_session)

    def sweep(self, after_ms: int = 0) -> None:
        self.now += after_ms
        self.do(inbox.sweep)

    def hold(self, cause: str = "cancel") -> None:
        self.do(lambda act: activity.hold(act, cause))

    # -- goals ------------------------------------------------------------------------------------------------

    def set_goal(self, **budgets: int) -> Data:
        change = goal.Change("create", None, "goal-1", "keep the garden", budgets or {"rounds": 5})
        return self.do(lambda act: goal.change(act, change))

    def change_goal(self, operation: str, **what: Any) -> Data:
        return self.do(lambda act: goal.change(act, goal.Change(operation, **what)))

    def next_round(self, message_id: str) -> bool:
        record = self.session.goal
        assert record is not None
        place = record["goalId"], record["revision"], record["rounds"] + 1, self.session.idle_seq
        source = {"kind": "goal", "goalId": place[0], "revision": place[1], "round": place[2]}
        proposed = goal.Round(*place, message_id, {**message(message_id).data, "source": source})
        return self.do(lambda act: goal.advance(act, proposed))

    # -- a worker ---------------------------------------------------------------------------------------------

    def take(self) -> bool:
        return self.do(turn.take)

    def take_step(self) -> bool:
        return self.do(turn.take_step)

    def commit(self, *drafts: Draft, take: bool = False) -> None:
        self.do(lambda act: turn.commit(act, drafts, take_next_step=take))

    def settle(self, *drafts: Draft, end: str | Data = "completed", then: Then = Then.TAKE) -> Outcome:
        return self.do(lambda act: turn.settle(act, drafts, ending(end), then=then))

    def echo(self, **options: Any) -> Outcome:
        """One whole step that admits what was claimed and answers, and the end of the turn."""
        return self.settle(*self.begin(), self.says(), self.end(), **options)

    def recover(self, reason: str = "crash") -> None:
        self.epoch += 1
        self.do(lambda act: turn.recover(act, reason))

    def give_up(self) -> bool:
        return self.do(turn.give_up)

    def rest(self) -> bool:
        return self.do(activity.rest)

    # -- facts ------------------------------------------------------------------------------------------------

    @property
    def place(self) -> dict[str, int]:
        at_boundary = self.session.phase == "boundary"
        return {"turn": self.session.turn, "step": self.session.step + (1 if at_boundary else 0)}

    def begin(self) -> Iterable[Draft]:
        yield Draft("step/start", self.place)
        for message_id in self.session.claimed:
            yield self.admits(message_id)

    def admits(self, message_id: str) -> Draft:
        data = {"messageId": message_id, **self.place, "content": text("hello"), "source": {"kind": "user"}}
        return Draft("user/message", data)

    def rejects(self, message_id: str) -> Draft:
        return Draft("inbox/rejected", {"messageId": message_id, "turn": self.session.turn, "reason": "no"})

    def says(self, *calls: str) -> Draft:
        asked = [{"callId": call, "name": "clock", "arguments": {}} for call in calls]
        data: dict[str, Any] = {**self.place, "content": text("well"), "model": "scripted"}
        return Draft("assistant/message", {**data, "toolCalls": asked} if asked else data)

    def call(self, call_id: str) -> Draft:
        return Draft("tool/call", {**self.place, "callId": call_id, "name": "clock", "arguments": {}})

    def result(self, call_id: str) -> Draft:
        return Draft("tool/result", {**self.place, "callId": call_id, "content": "noon"})

    def end(self) -> Draft:
        return Draft("step/end", self.place)


def careful() -> Agent:
    """An agent that holds its queue after a failure."""
    return Agent(born={**BIRTH, "onFailure": "hold"})

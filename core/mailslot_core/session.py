"""One agent's durable conversation: its ledger, and the indexes that folding the ledger gives.

    event, event, event, ...  --fold-->  Session  --an act decides-->  event, event, ...

Rule 1: `apply` is the only code that changes a `Session`; each event type has one line in `FOLD`.
Rule 2: an act checks everything first and appends afterwards, so a refused act changed nothing.
Rule 3: owner, lease and epoch are not facts (semantics L2): they live in the stores, not here.
Rule 4: an unknown event type changes nothing but `seq` and `time` (semantics L4).

The Redis functions keep the same indexes by the same table (`redis/functions.lua`, FOLD); the conformance
suite holds the two together, and `mailslot doctor` compares them on a live system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Any, NamedTuple

from mailslot_contracts.codec import frame
from mailslot_core.errors import Refused

Data = Mapping[str, Any]


class Event(NamedTuple):
    """One durable fact (semantics L1). `time` is the store's clock in ms; `data` has the wire's camelCase keys."""

    seq: int
    type: str
    time: int
    epoch: int
    data: Data


class MessageState(StrEnum):
    """Where a message is in its life (semantics section 3)."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    ADMITTED = "admitted"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"


TERMINAL = frozenset(MessageState) - {MessageState.QUEUED, MessageState.CLAIMED}


class Lane(StrEnum):
    """Where a queued message waits: follow-ups in next-turn, steering and injected context in next-step."""

    NEXT_TURN = "next-turn"
    NEXT_STEP = "next-step"


class Phase(StrEnum):
    """How far the open turn is. `turn.GRAMMAR` says which fact may come in which phase."""

    CLOSED = "closed"  # no turn is open
    BOUNDARY = "boundary"  # a turn is open, no step is
    OPEN = "open"  # a step is open, the model has not answered yet
    ANSWERED = "answered"  # the model has answered, its tool calls may be running


class Status(StrEnum):
    """Status of the whole agent (semantics S1)."""

    IDLE = "idle"
    RUNNING = "running"


@dataclass(slots=True)
class Message:
    """One message's record (semantics M6): what happened to the message, never how a turn ended.

    `queued_seq` is the cursor of its receipt, `body_seq` where its present content stands, `place` its order
    in the lane (semantics M4), `size` the bytes that its body takes in the ledger. `why` is the cause of a
    cancellation or the reason of a rejection or death.
    """

    message_id: str
    lane: Lane
    wake: bool
    queued_seq: int
    body_seq: int
    place: int
    due: bool
    size: int = 0
    goal_id: str | None = None  # of the goal that it is a round of
    not_before: int | None = None
    expires_at: int | None = None
    state: MessageState = MessageState.QUEUED
    turn: int | None = None
    step: int | None = None
    why: str | None = None

    @property
    def is_goal(self) -> bool:
        """It is a goal's round, whether or not that goal is still there."""
        return self.goal_id is not None

    @property
    def alarm(self) -> int | None:
        """When time alone changes the queued message: it becomes due, or it expires (semantics M11)."""
        times = (None if self.due else self.not_before, self.expires_at)
        return min((time for time in times if time is not None), default=None)


@dataclass(slots=True)
class Session:
    """The indexes. Everything here can be had again by folding the ledger."""

    session_id: str
    agent: str = "default"
    on_failure: str = "continue"
    created: bool = False
    born: int = 0  # when it was created, store's clock in ms: another session may take the name of an erased one
    closed: bool = False
    closing: bool = False  # a close was asked for while a turn was open: closed at the next idle (semantics M9)
    seq: int = 0
    time: int = 0
    status: Status = Status.IDLE
    idle_seq: int = 0  # seq of the last published idle, 0 when none was
    messages: dict[str, Message] = field(default_factory=dict)
    waiting: dict[str, Message] = field(default_factory=dict)  # those that are queued
    waiting_bytes: int = 0  # what their bodies take
    claimed: list[str] = field(default_factory=list)  # claimed and not settled, in the order they enter
    claims: list[int] = field(default_factory=list)  # seqs of what the last turn claimed (semantics R5)
    turn: int = 0
    step: int = 0
    phase: Phase = Phase.CLOSED
    attempt: int = 1  # of the open turn: 1 + crashes (semantics R3)
    retry_at: int = 0  # when the model is called again, while the open turn waits for that; else 0
    calls: dict[str, str] = field(default_factory=dict)  # callId -> asked | started; gone when its result is there
    cancel: str | None = None  # first cause recorded against the open turn
    hold: str | None = None
    goal: dict[str, Any] | None = None
    goal_revision: int = 0  # of the last goal/change: the revisions of all goals of a session are one row (G1)
    goal_message: str | None = None  # the goal message that is still queued
    queued: int = 0  # how many inbox/queued events, ever (semantics M5)
    settled: dict[str, int] = field(
        default_factory=lambda: {state.value: 0 for state in MessageState if state in TERMINAL}
    )
    usage: dict[str, Any] = field(default_factory=lambda: {"inputTokens": 0, "outputTokens": 0})

    @property
    def open(self) -> bool:
        """A turn is open."""
        return self.phase is not Phase.CLOSED

    @property
    def pending(self) -> int:
        """Messages that are queued or claimed: the other side of the conservation equation (semantics M5)."""
        return len(self.waiting) + len(self.claimed)

    @property
    def conservation(self) -> int:
        """0 unless a message was lost or counted twice (semantics M5)."""
        return self.queued - sum(self.settled.values()) - self.pending

    def check_open(self) -> None:
        """Refuse what brings work to a session that is closed or about to be (semantics M9)."""
        if self.closed or self.closing:
            raise Refused("closed", f"session {self.session_id} is closed")

    def serves(self, message: Message) -> bool:
        """The message is a round of the goal that is there now, and not of one before it (semantics G3)."""
        return self.goal is not None and self.goal["goalId"] == message.goal_id

    def lane(self, lane: Lane) -> list[Message]:
        """Queued and due messages of a lane, in order (semantics M4)."""
        found = (message for message in self.waiting.values() if message.lane is lane and message.due)
        return sorted(found, key=lambda message: message.place)

    def later(self) -> list[Message]:
        """Queued messages of both lanes that are not due yet, in the order they were queued (semantics M11)."""
        return sorted((m for m in self.waiting.values() if not m.due), key=lambda message: message.place)


def retry_reason(retry_at: int, now: int) -> list[str]:
    """Why an agent runs that waits to call the model again (semantics S4). Times are the store's clock in ms."""
    return [f"retry in {ceil((retry_at - now) / 1000)} s"] if retry_at > now else []


def goal_of(source: Data) -> str | None:
    """The goal that a message from this source is a round of."""
    return source.get("goalId") if source.get("kind") == "goal" else None


# -- fold ---------------------------------------------------------------------------------------------------


def _created(session: Session, event: Event) -> None:
    session.created, session.born = True, event.time
    session.agent = event.data["agent"]
    session.on_failure = event.data["onFailure"]


def _queued(session: Session, event: Event) -> None:
    data = event.data
    not_before = data.get("notBefore") or None  # 0 is no time to wait for
    goal_id = goal_of(data["source"])
    session.messages[data["messageId"]] = Message(
        message_id=data["messageId"],
        lane=Lane(data["lane"]),
        wake=data["wake"],
        queued_seq=event.seq,
        body_seq=event.seq,
        place=event.seq,
        due=not_before is None or not_before <= event.time,
        size=len(frame(data)),
        goal_id=goal_id,
        not_before=not_before,
        expires_at=data.get("expiresAt"),
    )
    session.waiting[data["messageId"]] = session.messages[data["messageId"]]
    session.waiting_bytes += session.messages[data["messageId"]].size
    session.queued += 1
    if goal_id is not None:
        session.goal_message = data["messageId"]


def _leave_queue(session: Session, message: Message) -> None:
    if session.waiting.pop(message.message_id, None) is not None:
        session.waiting_bytes -= message.size
    if session.goal_message == message.message_id:
        session.goal_message = None


def _claimed(session: Session, event: Event) -> None:
    session.claims.append(event.seq)
    for message_id in event.data["messageIds"]:
        message = session.messages[message_id]
        message.state = MessageState.CLAIMED
        _leave_queue(session, message)
        session.claimed.append(message_id)


def _settle(session: Session, message_id: str, state: MessageState) -> Message | None:
    """End a message's life. One that a hook added was never queued (T4), and one whose record the store has dropped
    by now looks like that to the store: its life was over before, and a settled message never changes (M5)."""
    message = session.messages.get(message_id)
    if message is None or message.state in TERMINAL:
        return None
    if message.state is MessageState.CLAIMED:
        session.claimed.remove(message_id)
    _leave_queue(session, message)
    message.state = state
    session.settled[state.value] += 1
    return message


def _settler(state: MessageState, why: str | None = None) -> Callable[[Session, Event], None]:
    def settle(session: Session, event: Event) -> None:
        message = _settle(session, event.data["messageId"], state)
        if message is not None:
            message.turn = event.data.get("turn")
            message.why = event.data[why] if why else None

    return settle


def _admitted(session: Session, event: Event) -> None:
    message = _settle(session, event.data["messageId"], MessageState.ADMITTED)
    if message is None:
        return
    message.turn, message.step = event.data["turn"], event.data["step"]
    if session.goal is not None and session.serves(message):
        rounds = session.goal["rounds"] + 1
        session.goal = {**session.goal, "rounds": rounds, "spent": {**session.goal["spent"], "rounds": rounds}}


def _replaced(session: Session, event: Event) -> None:
    message = session.messages[event.data["messageId"]]
    message.body_seq, size = event.seq, len(frame(event.data))
    session.waiting_bytes += size - message.size
    message.size = size


def _moved(session: Session, event: Event) -> None:
    message = session.messages[event.data["messageId"]]
    message.lane, message.place, message.due = Lane(event.data["lane"]), event.seq, True


def _due(session: Session, event: Event) -> None:
    message = session.messages[event.data["messageId"]]
    message.due, message.place = True, event.seq


def _held(session: Session, event: Event) -> None:
    session.hold = event.data["cause"]


def _released(session: Session, event: Event) -> None:
    session.hold = None


def _status(session: Session, event: Event) -> None:
    session.status = Status(event.data["status"])
    if session.status is Status.IDLE:
        session.idle_seq = event.seq


def _turn_start(session: Session, event: Event) -> None:
    session.turn, session.step, session.phase = event.data["turn"], 0, Phase.BOUNDARY
    session.attempt, session.cancel, session.claims = 1, None, []


def _turn_recovered(session: Session, event: Event) -> None:
    session.attempt, session.retry_at = event.data["attempt"], 0


def _turn_end(session: Session, event: Event) -> None:
    session.phase, session.cancel, session.attempt = Phase.CLOSED, None, 1


def _step_start(session: Session, event: Event) -> None:
    session.step, session.phase = event.data["step"], Phase.OPEN


def _step_end(session: Session, event: Event) -> None:
    session.phase, session.retry_at = Phase.BOUNDARY, 0


def _answered(session: Session, event: Event) -> None:
    session.phase, session.retry_at = Phase.ANSWERED, 0
    session.calls = {call["callId"]: "asked" for call in event.data.get("toolCalls", ())}


def _retry(session: Session, event: Event) -> None:
    session.retry_at = event.time + event.data["delayMs"]


def _call_started(session: Session, event: Event) -> None:
    session.calls[event.data["callId"]] = "started"


def _call_ended(session: Session, event: Event) -> None:
    session.calls.pop(event.data["callId"], None)


def _cancel(session: Session, event: Event) -> None:
    if session.cancel is None and event.data.get("turn") == session.turn and session.open:
        session.cancel = event.data["cause"]
    session.closing = session.closing or bool(event.data.get("closing"))


def _goal(session: Session, event: Event) -> None:
    session.goal = None if event.data["operation"] == "clear" else dict(event.data["goal"])
    session.goal_revision = event.data["goal"]["revision"]


def _usage(session: Session, event: Event) -> None:
    for name in ("inputTokens", "outputTokens", "cost"):
        if name in event.data:
            session.usage[name] = session.usage.get(name, 0) + event.data[name]


def _closed(session: Session, event: Event) -> None:
    session.closed, session.closing = True, False


FOLD: dict[str, Callable[[Session, Event], None]] = {
    "session/created": _created,
    "inbox/queued": _queued,
    "inbox/claimed": _claimed,
    "inbox/replaced": _replaced,
    "inbox/moved": _moved,
    "inbox/due": _due,
    "inbox/cancelled": _settler(MessageState.CANCELLED, "cause"),
    "inbox/rejected": _settler(MessageState.REJECTED, "reason"),
    "inbox/expired": _settler(MessageState.EXPIRED),
    "inbox/dead": _settler(MessageState.DEAD, "reason"),
    "inbox/held": _held,
    "inbox/released": _released,
    "user/message": _admitted,
    "agent/status": _status,
    "turn/start": _turn_start,
    "turn/recovered": _turn_recovered,
    "turn/end": _turn_end,
    "step/start": _step_start,
    "step/end": _step_end,
    "assistant/message": _answered,
    "tool/call": _call_started,
    "tool/result": _call_ended,
    "llm/retry": _retry,
    "cancel/requested": _cancel,
    "goal/change": _goal,
    "usage/recorded": _usage,
    "session/closed": _closed,
}


def apply(session: Session, event: Event) -> None:
    """Change the indexes by one event. The event's seq must be the next one."""
    if event.seq != session.seq + 1:
        raise ValueError(f"ledger of {session.session_id} has a gap: seq {event.seq} after {session.seq}")
    session.seq, session.time = event.seq, event.time
    change = FOLD.get(event.type)
    if change is not None:
        change(session, event)


def fold(session_id: str, events: Iterable[Event]) -> Session:
    """The indexes that a whole ledger gives (semantics L2)."""
    session = Session(session_id)
    for event in events:
        apply(session, event)
    return session


def indexes(session: Session) -> dict[str, Any]:
    """Every index by its name: what a store's own indexes must equal (semantics L2)."""
    return {
        "agent": session.agent,
        "attempt": session.attempt,
        "born": session.born,
        "calls": dict(session.calls),
        "cancel": session.cancel,
        "claimed": list(session.claimed),
        "claims": list(session.claims),
        "closed": session.closed,
        "closing": session.closing,
        "goal": session.goal,
        "goalMessage": session.goal_message,
        "goalRevision": session.goal_revision,
        "hold": session.hold,
        "idleSeq": session.idle_seq,
        "lanes": {str(lane): [message.message_id for message in session.lane(lane)] for lane in Lane},
        "later": [message.message_id for message in session.later()],
        "messages": {message.message_id: message_index(message) for message in session.messages.values()},
        "onFailure": session.on_failure,
        "phase": str(session.phase),
        "queued": session.queued,
        "retryAt": session.retry_at,
        "seq": session.seq,
        "settled": dict(session.settled),
        "status": str(session.status),
        "step": session.step,
        "time": session.time,
        "turn": session.turn,
        "usage": dict(session.usage),
        "waitingBytes": session.waiting_bytes,
    }


def message_index(message: Message) -> dict[str, Any]:
    """One message's index by its names."""
    return {
        "bodySeq": message.body_seq,
        "due": message.due,
        "expiresAt": message.expires_at,
        "lane": str(message.lane),
        "notBefore": message.not_before,
        "place": message.place,
        "queuedSeq": message.queued_seq,
        "size": message.size,
        "state": str(message.state),
        "step": message.step,
        "turn": message.turn,
        "wake": message.wake,
        "why": message.why,
    }


class Act:
    """One atomic change in the making: what was appended so far, already folded into the session.

    `now` is the store's raw clock in ms; events carry max(now, last event's time) (semantics L1).
    `epoch` is the session's current one (semantics L3).
    """

    def __init__(self, session: Session, *, now: int, epoch: int) -> None:
        self.session = session
        self.now = now
        self.epoch = epoch
        self.events: list[Event] = []

    @property
    def time(self) -> int:
        """What the events of this act carry."""
        return max(self.now, self.session.time)

    def append(self, event_type: str, data: Data) -> Event:
        """Append one fact and fold it in."""
        session = self.session
        event = Event(session.seq + 1, event_type, self.time, self.epoch, data)
        apply(session, event)
        self.events.append(event)
        return event

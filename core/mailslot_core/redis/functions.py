"""The typed twin of `functions.lua`: one method a function, and the only place that decodes replies.

Rule 1: a method makes the arguments, the function acts, the method reads the reply. It decides nothing.
Rule 2: what the store's functions refuse comes out as `Refused`, a lost lease as `Fenced`.
Rule 3: numbers that a function needs to know from event data travel beside the data, in a draft's subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgpack

from mailslot_contracts.codec import FRAME_BYTES_MAX, encode, frame, unframe
from mailslot_core.errors import Fenced, Refused
from mailslot_core.goal import Round
from mailslot_core.inbox import Receipt, Room, Submission
from mailslot_core.redis import keys
from mailslot_core.redis.wire import Wire
from mailslot_core.session import Data, Lane, MessageState, Phase, goal_of
from mailslot_core.store import (
    Claimed,
    Closing,
    Created,
    Grant,
    Lease,
    Place,
    QueuePage,
    Record,
    Renewal,
    Settled,
    Swept,
    Waiting,
)
from mailslot_core.turn import Cancelled, Draft, End, Outcome, Then

SOURCE = files("mailslot_core.redis").joinpath("functions.lua").read_text(encoding="utf-8")
LIBRARY = "mailslot_v1"  # as in the first line of the source
LANES = {Lane.NEXT_TURN: "t", Lane.NEXT_STEP: "s"}
LANE_OF = {letter: lane for lane, letter in LANES.items()}
STATES = {
    "q": MessageState.QUEUED,
    "c": MessageState.CLAIMED,
    "a": MessageState.ADMITTED,
    "r": MessageState.REJECTED,
    "x": MessageState.CANCELLED,
    "e": MessageState.EXPIRED,
    "d": MessageState.DEAD,
}

# What the functions need to know of a draft beside its turn and step, by its type; they never read its data.
SUBJECTS: dict[str, Callable[[Data], list[Any]]] = {
    "user/message": lambda data: [data["messageId"]],
    "inbox/rejected": lambda data: [data["messageId"], data["reason"]],
    "llm/retry": lambda data: [data["delayMs"]],
    "assistant/message": lambda data: [[call["callId"] for call in data.get("toolCalls", ())]],
    "tool/call": lambda data: [data["callId"]],
    "tool/result": lambda data: [data["callId"]],
    "usage/recorded": lambda data: [data["inputTokens"], data["outputTokens"], data.get("cost", -1)],
}

BIRTHS_CACHED = 1024  # kinds of sessions whose arguments are kept ready: most are made by a door, all alike

_pack = msgpack.Packer().pack  # what is small and ours; `packb` makes a packer for every value


class Birth:
    """A session to make if it is missing: its `session/created` data, and the fingerprint that recognises it."""

    def __init__(self, created: Data | None) -> None:
        self.args = ("", "", "", "") if created is None else _birth(frame(dict(created)))


@lru_cache(maxsize=BIRTHS_CACHED)
def _birth(data: bytes) -> tuple[str | bytes, ...]:
    created = unframe(data)
    return encode(created), created["agent"], created["onFailure"], fingerprint(created)


def fingerprint(created: Data) -> str:
    """Two sessions made with equal data have equal fingerprints, whatever the order of its keys."""
    return msgpack.packb(_ordered(created)).hex()


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[key, _ordered(value[key])] for key in sorted(value)]
    return [_ordered(item) for item in value] if isinstance(value, list | tuple) else value


class Functions:
    """Calls the functions on a wire."""

    def __init__(self, call: Callable[..., Any], partitions: int) -> None:
        self._call = call
        self._partitions = partitions

    # -- doors ------------------------------------------------------------------------------------------------

    async def create(self, session_id: str, created: Data) -> Created:
        """create_v1"""
        reply = await self._on_session("create", session_id, Birth(created).args, durable=True)
        return Created(reply[1], fresh=reply[2] == 1)

    async def submit(self, session_id: str, message: Submission, created: Data | None, room: Room) -> Receipt:
        """submit_v1"""
        args = (
            message.message_id,
            LANES[message.lane],
            int(message.wake),
            goal_of(message.data["source"]) or "",
            int(message.from_door),
            message.fingerprint,
            room.messages_max,
            frame(message.data),
            *Birth(created).args,
            room.bytes_max,
            message.data.get("notBefore", 0),
            message.data.get("expiresAt", ""),
            int(message.if_busy),
            int(message.if_idle),
            "" if message.expect_turn is None else message.expect_turn,
        )
        reply = await self._on_session("submit", session_id, args, durable=True)
        return Receipt(message.message_id, reply[1], duplicate=reply[2] == 1)

    async def cancel(self, session_id: str, cause: str, queue: str, turn: int | None) -> Cancelled:
        """cancel_v1"""
        args = (cause, "" if turn is None else turn, queue)
        reply = await self._on_session("cancel", session_id, args, durable=True)
        return Cancelled(_text(reply[1]), reply[2] or None, tuple(_text(message_id) for message_id in reply[3:]))

    async def replace(self, session_id: str, message_id: str, content: list[Any], room: Room) -> Record:
        """replace_v1"""
        args = (message_id, frame({"messageId": message_id, "content": content}), room.bytes_max)
        return _record(message_id, (await self._on_session("replace", session_id, args, durable=True))[1:])

    async def withdraw(self, session_id: str, message_id: str) -> Record:
        """withdraw_v1"""
        return _record(message_id, (await self._on_session("withdraw", session_id, (message_id,), durable=True))[1:])

    async def move(self, session_id: str, message_id: str) -> Record:
        """move_v1"""
        return _record(message_id, (await self._on_session("move", session_id, (message_id,), durable=True))[1:])

    async def release(self, session_id: str) -> int:
        """release_v1"""
        return int((await self._on_session("release", session_id, (), durable=True))[1])

    async def close(self, session_id: str, *, erase: bool) -> Closing:
        """close_v1"""
        reply = await self._on_session("close", session_id, (int(erase),), durable=True)
        return Closing(reply[1] == 1, reply[2])

    async def erase(self, session_id: str) -> tuple[bool, int, int]:
        """erase_v1: whether all is gone, and how many message records and events went with this call"""
        reply = await self._on_session("erase", session_id, (), durable=True)
        return reply[1] == 1, reply[2], reply[3]

    async def redrive(self, session_id: str, submissions: Sequence[Submission], room: Room) -> tuple[Receipt, ...]:
        """redrive_v1"""
        args: list[Any] = [room.messages_max, room.bytes_max]
        for message in submissions:
            args += (message.message_id, LANES[message.lane], int(message.wake), int(message.from_door))
            args += (message.fingerprint, frame(message.data))
        reply = await self._on_session("redrive", session_id, args, durable=True)
        pairs = zip(submissions, reply[1:], strict=True)
        return tuple(Receipt(message.message_id, cursor, duplicate=False) for message, cursor in pairs)

    async def queue(self, session_id: str, *, after: Place, limit: int, bytes_max: int) -> QueuePage:
        """queue_v1"""
        reply = await self._on_session("queue", session_id, (after.group, after.number, limit, bytes_max))
        found, place = list[Waiting](), after
        for i in range(2, len(reply), 6):
            group, number, message_id, record, body, replaced = reply[i : i + 6]
            place = Place(group, number)
            found.append(Waiting(_record(_text(message_id), record[1:]), _present(body, replaced)))
        return QueuePage(tuple(found), str(place) if reply[1] == 1 else None)

    async def goal_change(
        self, session_id: str, operation: str, seen: tuple[str, int] | None, goal: Data, created: Data | None
    ) -> Data:
        """goal_change_v1, or goal_create_v1 for a new goal"""
        name = "goal_create" if operation == "create" else "goal_change"
        goal_id, revision = seen or ("", 0)
        args = (operation, goal_id, revision, msgpack.packb(goal), *Birth(created).args)
        reply = await self._on_session(name, session_id, args, durable=True)
        return _unpacked(reply[1])  # type: ignore[no-any-return]

    async def goal_advance(self, session_id: str, proposed: Round) -> bool:
        """goal_advance_v1"""
        args = (
            proposed.goal_id,
            proposed.revision,
            proposed.round,
            proposed.idle_seq,
            proposed.message_id,
            "",
            encode(proposed.data),
        )
        reply = await self._on_session("goal_advance", session_id, args)
        return bool(reply[1] == 1)

    # -- workers ----------------------------------------------------------------------------------------------

    async def acquire(self, partition: int, owner: str, call: int, lease_ms: int, crashes_max: int) -> Grant | None:
        """acquire_v1"""
        args = (keys.session_prefix(partition), owner, call, lease_ms, crashes_max)
        reply = await self._on_partition("acquire", partition, args, owner=owner)
        return _grant(reply, 1) if len(reply) > 1 else None

    async def commit(self, lease: Lease, call: int, drafts: Sequence[Draft], *, take: bool) -> Grant:
        """commit_v1, or take_v1 when there is nothing to append"""
        name = "commit" if drafts else "take"
        args = (lease.epoch, lease.owner, call, int(take), *_drafts(drafts))
        return _grant(await self._on_session(name, lease.session_id, args, lease=lease), 1)

    async def settle(
        self,
        lease: Lease,
        call: int,
        drafts: Sequence[Draft],
        end: End,
        *,
        then: Then,
        hand_out: bool,
        lease_ms: int,
        crashes_max: int,
    ) -> Settled:
        """settle_v1"""
        partition = keys.partition_of(lease.session_id, self._partitions)
        why = end.reason.get("cause", end.reason.get("code", end.kind))
        args = (
            lease.epoch,
            lease.owner,
            call,
            keys.session_prefix(partition),
            lease_ms,
            str(then),
            int(hand_out),
            end.kind,
            why,
            _pack(dict(end.reason)),
            _pack(dict(end.usage)) if end.usage else b"",
            crashes_max,
            *_drafts(drafts),
        )
        reply = await self._on_session("settle", lease.session_id, args, lease=lease)
        return Settled(Outcome(_text(reply[1])), _grant(reply, 2) if len(reply) > 2 else None)

    async def renew(self, lease: Lease, lease_ms: int) -> Renewal:
        """renew_v1"""
        reply = await self._on_session("renew", lease.session_id, (lease.epoch, lease.owner, lease_ms), lease=lease)
        return Renewal(reply[1] == 1, _text(reply[2]) or None, reply[3])

    async def handback(self, lease: Lease, call: int) -> None:
        """handback_v1"""
        await self._on_session("handback", lease.session_id, (lease.epoch, lease.owner, call), lease=lease)

    async def sweep(self, partition: int, *, forget_after_ms: int, place: int) -> tuple[Swept, int, list[str]]:
        """sweep_v1; the second value is where to go on, -1 when the partition is swept; then the sessions to erase"""
        args = (keys.session_prefix(partition), forget_after_ms, place)
        reply = await self._on_partition("sweep", partition, args, owner="sweeper")
        swept = Swept(reply[1], reply[2], reply[3], reply[5], reply[6])
        return swept, reply[4], [_text(session_id) for session_id in reply[7:]]

    # -- inside -----------------------------------------------------------------------------------------------

    async def _on_session(
        self,
        name: str,
        session_id: str,
        args: Sequence[Any],
        *,
        lease: Lease | None = None,
        durable: bool = False,
    ) -> list[Any]:
        names = keys.act_keys(session_id, self._partitions)
        if lease is not None:
            names = (*names, keys.slot_key(keys.partition_of(session_id, self._partitions), lease.owner))
        command = ("FCALL", name + "_v1", len(names), *names, session_id, *args)
        return _checked(await self._call(command, durable=durable), session_id, lease)

    async def _on_partition(self, name: str, partition: int, args: Sequence[Any], *, owner: str) -> list[Any]:
        names = (*keys.partition_keys(partition), keys.slot_key(partition, owner))
        command = ("FCALL", name + "_v1", len(names), *names, *args)
        return _checked(await self._call(command), f"partition {partition}", None)


async def load(wire: Wire) -> None:
    """The library is on the server. One that is there already is left alone, so that a worker can start on a server
    that is full. Another process may load it at the same moment; it is the same one."""
    if SOURCE.encode() in _flat(await wire.call(("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY, "WITHCODE"))):
        return
    await wire.call(("FUNCTION", "LOAD", "REPLACE", SOURCE))


def _flat(reply: Any) -> Iterator[Any]:
    """Every value of a nested reply, whichever protocol the connection speaks."""
    if isinstance(reply, Mapping):
        reply = reply.values()
    elif not isinstance(reply, list):
        yield reply
        return
    for value in reply:
        yield from _flat(value)


def _checked(reply: Any, subject: str, lease: Lease | None) -> list[Any]:
    if reply[0] == b"ok":
        return reply  # type: ignore[no-any-return]
    if reply[0] == b"fenced":
        owner = lease.owner if lease else "the caller"
        raise Fenced(f"{owner} no longer owns session {subject} at epoch {lease.epoch if lease else 0}")
    code = _text(reply[1])
    raise Refused(code, _text(reply[2]), retry_after_ms=1000 if code == "queue-full" else None)


def _drafts(drafts: Sequence[Draft]) -> list[str | bytes]:
    packed: list[str | bytes] = []
    for draft in drafts:
        subject, data = SUBJECTS.get(draft.type), draft.data
        about = [data.get("turn", 0), data.get("step", 0), *(subject(data) if subject else ())]
        packed += (draft.type, _pack(about), _written(draft.type, data))
    return packed


def _written(kind: str, data: Data) -> bytes:
    """A draft's data as the ledger keeps it. The arguments of tool calls are maps that a model made and no door has
    checked; all other parts are ours or came through a door, and only their size is not known."""
    if kind == "tool/call" or data.get("toolCalls"):
        return encode(data)
    framed = frame(data)
    return framed if len(framed) <= FRAME_BYTES_MAX else encode(data)  # which says what is too large


def _grant(reply: Sequence[Any], at: int) -> Grant:
    session_id, epoch, owner, agent, seq, turn, step, phase, attempt, cancel, recovered, calls, born = reply[
        at : at + 13
    ]
    rest = reply[at + 13 :]
    return Grant(
        lease=Lease(session_id.decode(), int(epoch), owner.decode()),
        agent=agent.decode(),
        seq=int(seq),
        turn=int(turn),
        step=int(step),
        phase=Phase(phase.decode()),
        attempt=int(attempt),
        cancel=cancel.decode() or None,
        batch=tuple(Claimed(rest[i].decode(), _present(rest[i + 1], rest[i + 2])) for i in range(0, len(rest), 3)),
        calls=_unpacked(calls) if calls else {},
        recovered=recovered.decode() or None,
        born=int(born),
    )


def _present(queued: bytes, replaced: bytes) -> Data:
    """A message's `inbox/queued` data with its present content."""
    data: dict[str, Any] = unframe(queued)
    return {**data, "content": unframe(replaced)["content"]} if replaced else data


def _record(message_id: str, reply: Sequence[Any]) -> Record:
    state, lane, wake, due, held, cursor, turn, step, why = reply
    return Record(
        message_id=message_id,
        state=STATES[_text(state)],
        lane=LANE_OF[_text(lane)],
        wake=wake == 1,
        due=due == 1,
        held=held == 1,
        cursor=cursor,
        turn=turn or None,
        step=step or None,
        why=_text(why) or None,
    )


def _text(value: bytes) -> str:
    return value.decode()


def _unpacked(value: bytes) -> Any:
    return msgpack.unpackb(value)

"""The port on Redis Streams.

    RedisStore --> functions (typed) --> wire (group commit) --> Redis
               --> topics (hints)    --> bell (BLPOP)

Rule 1: an act is one function call; what it refuses changed nothing.
Rule 2: nothing is repeated here but a call that found the library missing, which did nothing.
Rule 3: an error of the server that means "not carried out" is `StoreUnavailable`; a lost answer is `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

import msgpack
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

from mailslot_contracts.channels import event_channel
from mailslot_contracts.codec import encode, unframe
from mailslot_core import goal as goals
from mailslot_core.errors import (
    CoreError,
    CursorExpired,
    Misconfigured,
    OutcomeUnknown,
    Refused,
    StoreFault,
    StoreUnavailable,
)
from mailslot_core.goal import Change, Round
from mailslot_core.inbox import Receipt, Room, Submission, redrivable, revived
from mailslot_core.redis import keys, server
from mailslot_core.redis.connection import CONNECTIONS
from mailslot_core.redis.functions import LANE_OF, STATES, Functions, load
from mailslot_core.redis.topics import Topics
from mailslot_core.redis.wire import REFUSALS, UNREACHABLE, Barrier, Command, GroupCommit
from mailslot_core.session import TERMINAL, Data, Event, MessageState, Phase, Session, Status, retry_reason
from mailslot_core.settings import StoreSettings
from mailslot_core.store import (
    PAGE_BYTES_MAX,
    Closing,
    Created,
    DeadLetter,
    DeadMessage,
    Grant,
    IdleNotice,
    Lease,
    LetterId,
    Level,
    Load,
    Page,
    Place,
    QueuePage,
    Record,
    Renewal,
    Settled,
    Swept,
    letter_named,
)
from mailslot_core.turn import Cancelled, Draft, End, Then

# What a server says when it did not carry out a command, by the first word (semantics M1: nothing was kept).
NOT_CARRIED_OUT = frozenset(
    {
        *("OOM", "READONLY", "MISCONF", "NOREPLICAS", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"),
        *("NOPERM", "NOAUTH", "WRONGPASS"),
    }
)
PACKED_FIELDS = frozenset({b"claimed", b"calls", b"goal", b"claims"})
GOAL_TRIES_MAX = 10  # changes of one goal that may come between reading and changing it
PIECE_EVENTS, PIECE_EVENTS_MAX = 8, 512  # events in one read of a page, at first and at most
LETTERS_MAX = 200  # dead letters looked at in one call
POOL_SPARE = 6  # connections beside the wire's: bell, notices, start checks, the doctor


log = logging.getLogger(__name__)


class RedisStore:
    """All sessions in one Redis or Valkey database."""

    def __init__(self, client: Redis, settings: StoreSettings, barrier: Barrier | None) -> None:
        self.partitions = settings.partitions
        self.durability: str = settings.durability
        self._client = client
        self._room = Room(settings.pending_max, settings.pending_bytes_max)
        self._crashes_max = settings.crashes_max
        self._call_s_max = settings.call_timeout_ms / 1000
        timeout_ms = settings.call_timeout_ms + (settings.durability_timeout_ms if barrier else 0)
        self._wire = GroupCommit(client.connection_pool, timeout_ms=timeout_ms, barrier=barrier)
        self._functions = Functions(self._act, settings.partitions)
        believed = settings.durability == "fsync" and barrier is None
        self._synced = server.SyncedAlways(self._call) if believed else None
        self._topics = Topics(client)
        self._bells = list(range(settings.partitions))

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: StoreSettings) -> AsyncIterator[Self]:
        """A store on a server that passed every check. Raises `Misconfigured`, or `StoreUnavailable` when the
        server cannot be reached."""
        client = connect(settings)
        try:
            try:
                barrier = await server.check(client, settings)
            except REFUSALS as error:
                raise _not_carried_out(error) from error
            except UNREACHABLE as error:
                raise StoreUnavailable(f"cannot reach the store at {_shown(settings.redis_url)}: {error}") from error
            store = cls(client, settings, barrier)
            try:
                await store._load()
                yield store
            finally:
                await store.close()
        finally:
            await client.aclose()

    # -- doors ------------------------------------------------------------------------------------------------

    async def create(self, session_id: str, created: Data) -> Created:
        """See `Store.create`."""
        return await self._functions.create(session_id, created)

    async def submit(self, session_id: str, submission: Submission, created: Data | None) -> Receipt:
        """See `Store.submit`."""
        try:
            return await self._functions.submit(session_id, submission, created, self._room)
        except OutcomeUnknown as error:
            error.message_id = submission.message_id
            raise
        except StoreUnavailable as error:
            await self._check_kept(session_id, submission, error)
            raise

    async def _check_kept(self, session_id: str, submission: Submission, refusal: StoreUnavailable) -> None:
        """A submit that the server refused kept nothing; an earlier one of the same message may have (semantics M3)."""
        message_id = submission.message_id
        try:
            found = await self._call(("HGET", self._key(session_id, "messages"), message_id))
        except CoreError:
            return  # it cannot be looked up: what is known is the refusal
        if found is None:
            return
        if _fingerprint(msgpack.unpackb(found)) != submission.fingerprint:
            raise Refused("conflict", f"message {message_id} was already submitted with another body") from refusal
        sentence = f"message {message_id} was kept before; its receipt cannot be given now: {refusal}"
        raise OutcomeUnknown(sentence, message_id=message_id) from refusal

    async def cancel(self, session_id: str, *, cause: str, queue: str = "keep", turn: int | None = None) -> Cancelled:
        """See `Store.cancel`."""
        return await self._functions.cancel(session_id, cause, queue, turn)

    async def replace(self, session_id: str, message_id: str, content: list[Any]) -> Record:
        """See `Store.replace`."""
        return await self._functions.replace(session_id, message_id, content, self._room)

    async def withdraw(self, session_id: str, message_id: str) -> Record:
        """See `Store.withdraw`."""
        return await self._functions.withdraw(session_id, message_id)

    async def move(self, session_id: str, message_id: str) -> Record:
        """See `Store.move`."""
        return await self._functions.move(session_id, message_id)

    async def release(self, session_id: str) -> int:
        """See `Store.release`."""
        return await self._functions.release(session_id)

    async def close_session(self, session_id: str, *, erase: bool = False) -> Closing:
        """See `Store.close_session`."""
        closing = await self._functions.close(session_id, erase=erase)
        return await self._erase(session_id, closing.cursor) if erase and closing.closed else closing

    async def _erase(self, session_id: str, cursor: int) -> Closing:
        """Erase a closed session, piece by piece; whoever is killed in between leaves the rest to the sweeper."""
        if await self._call(("HGET", self._key(session_id, "state"), "letters")):
            await self._erase_letters(session_id)
        messages = events = 0
        while True:
            done, dropped, events = await self._functions.erase(session_id)
            messages += dropped
            if done or not dropped:
                return Closing(True, cursor, done, events, messages)

    async def _erase_letters(self, session_id: str) -> None:
        partition = keys.partition_of(session_id, self.partitions)
        letters = await self._letters(partition, "-", LETTERS_MAX)
        while letters:
            for letter in letters:
                if letter.session_id == session_id:
                    name = LetterId.read(letter.letter_id)
                    await self._call(("XDEL", keys.partition_key(partition, "dead"), f"{name.time}-{name.number}"))
            last = LetterId.read(letters[-1].letter_id)
            letters = await self._letters(partition, f"({last.time}-{last.number}", LETTERS_MAX)

    async def redrive(self, letter_id: str) -> tuple[Receipt, ...]:
        """See `Store.redrive`. The function checks again that what was read as dead is dead."""
        name = letter_named(letter_id)
        place = f"{name.time}-{name.number}"
        letters = await self._letters(name.partition, place, 1, place) if name.partition < self.partitions else []
        if not letters or await self.level(letters[0].session_id) is None:
            raise Refused("not-found", f"there is no dead letter {letter_id}")
        session_id = letters[0].session_id
        records = await self._records(session_id, [message_id for message_id, _ in letters[0].messages])
        dead = {message_id: record for message_id, record in records.items() if record and record[0] == "d"}
        submissions = [await self._revived(session_id, message_id, record) for message_id, record in dead.items()]
        return await self._functions.redrive(session_id, redrivable(letter_id, submissions), self._room)

    async def _revived(self, session_id: str, message_id: str, record: Sequence[Any]) -> Submission:
        _, lane, wake, queued_seq, body_seq, *_ = record
        data = dict((await self._event(session_id, queued_seq)).data)
        data["content"] = (await self._event(session_id, body_seq)).data["content"]
        revival = revived(data, LANE_OF[lane], wake=wake == 1)
        return Submission(message_id, LANE_OF[lane], wake == 1, revival, _fingerprint(record))

    async def _event(self, session_id: str, seq: int) -> Event:
        page = await self._page(session_id, seq - 1, 1)
        if not page or page[0].seq != seq:
            raise Refused("not-found", f"session {session_id} is being erased")
        return page[0]

    async def goal_change(self, session_id: str, change: Change, created: Data | None = None) -> Data:
        """See `Store.goal_change`. Who names no revision means the present one, whatever it is by now."""
        for _ in range(GOAL_TRIES_MAX - 1):
            try:
                return await self._goal_change(session_id, change, created)
            except Refused as refused:
                if refused.code != "revision" or change.expected is not None:
                    raise
        return await self._goal_change(session_id, change, created)

    async def _goal_change(self, session_id: str, change: Change, created: Data | None) -> Data:
        """The pure table decides on what was read; the function compares and sets."""
        level = await self.level(session_id)
        if level is None and created is None:
            raise Refused("not-found", f"there is no session {session_id}")
        seen = Session(session_id, goal=dict(level.goal) if level and level.goal else None)
        wanted = goals.next_goal(seen, change)
        before = None if change.operation == "create" or seen.goal is None else seen.goal
        expected = (before["goalId"], before["revision"]) if before else None
        return await self._functions.goal_change(session_id, change.operation, expected, wanted, created)

    # -- workers ----------------------------------------------------------------------------------------------

    async def acquire(self, partition: int, owner: str, call: int, lease_ms: int) -> Grant | None:
        """See `Store.acquire`."""
        return await self._functions.acquire(partition, owner, call, lease_ms, self._crashes_max)

    async def take(self, lease: Lease, call: int) -> Grant:
        """See `Store.take`."""
        return await self._functions.commit(lease, call, (), take=True)

    async def commit(self, lease: Lease, call: int, drafts: Sequence[Draft], *, take: bool = False) -> Grant:
        """See `Store.commit`."""
        return await self._functions.commit(lease, call, drafts, take=take)

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
    ) -> Settled:
        """See `Store.settle`."""
        return await self._functions.settle(
            lease,
            call,
            drafts,
            end,
            then=then,
            hand_out=hand_out,
            lease_ms=lease_ms,
            crashes_max=self._crashes_max,
        )

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Renewal]:
        """See `Store.renew`."""
        return list(await asyncio.gather(*(self._functions.renew(lease, lease_ms) for lease in leases)))

    async def handback(self, lease: Lease, call: int) -> None:
        """See `Store.handback`."""
        await self._functions.handback(lease, call)

    async def sweep(self, partition: int, *, forget_after_ms: int) -> Swept:
        """See `Store.sweep`."""
        total, place, leaving = Swept(), 0, list[str]()
        while place >= 0:
            swept, place, leaving = await self._functions.sweep(partition, forget_after_ms=forget_after_ms, place=place)
            total += swept
        for session_id in leaving:
            try:
                total += Swept(erased=int((await self._erase(session_id, 0)).erased))
            except StoreFault as fault:  # what is damaged must not keep the others
                log.warning("session %s was not erased: %s", session_id, fault)
        return total

    # -- goals ------------------------------------------------------------------------------------------------

    async def goal_advance(self, session_id: str, proposed: Round) -> bool:
        """See `Store.goal_advance`."""
        return await self._functions.goal_advance(session_id, proposed)

    async def resting_goals(self, partition: int) -> list[IdleNotice]:
        """See `Store.resting_goals`."""
        members = await self._call(("SMEMBERS", keys.partition_key(partition, "goals")))
        levels = await asyncio.gather(*(self.level(member.decode()) for member in sorted(members)))
        return [
            IdleNotice(level.session_id, level.goal["goalId"], level.goal["revision"], level.idle_cursor)
            for level in levels
            if level is not None and level.goal and level.goal["phase"] == goals.ACTIVE and level.status is Status.IDLE
        ]

    # -- reading ----------------------------------------------------------------------------------------------

    async def level(self, session_id: str) -> Level | None:
        """See `Store.level`."""
        state = _fields(await self._call(("HGETALL", self._key(session_id, "state"))))
        if not state:
            return None
        now = _time_ms(await self._call(("TIME",))) if _number(state, b"retryAt") else 0
        return _level(session_id, state, now)

    async def message(self, session_id: str, message_id: str) -> Record | None:
        """See `Store.message`."""
        hold, records = await asyncio.gather(
            self._call(("HGET", self._key(session_id, "state"), "hold")), self._records(session_id, [message_id])
        )
        record = records[message_id]
        if record is None:
            return None
        state, lane, wake, cursor, _, _, _, turn, step, why, _, due = record[:12]
        held = state == "q" and wake == 1 and due == 1 and bool(hold)
        told = (
            STATES[state],
            LANE_OF[lane],
            wake == 1,
            due == 1,
            held,
            cursor,
            turn or None,
            step or None,
            why or None,
        )
        return Record(message_id, *told)

    async def _records(self, session_id: str, message_ids: Sequence[str]) -> dict[str, Sequence[Any] | None]:
        """Records as functions.lua keeps them."""
        if not message_ids:
            return {}
        raw = await self._call(("HMGET", self._key(session_id, "messages"), *message_ids))
        records = (msgpack.unpackb(record) if record else None for record in raw)
        return dict(zip(message_ids, records, strict=True))

    async def queue(self, session_id: str, *, after: str, limit: int) -> QueuePage:
        """See `Store.queue`."""
        begin = Place.read(after) if after else Place(-1, 0)
        return await self._functions.queue(session_id, after=begin, limit=limit, bytes_max=PAGE_BYTES_MAX)

    async def dead(self, *, after: str, limit: int) -> list[DeadLetter]:
        """See `Store.dead`."""
        begin = LetterId.read(after) if after else LetterId(0, 0, -1)
        found = await asyncio.gather(
            *(
                # Of two letters of one time and number, that of the lower partition comes first.
                self._letters(number, f"{'(' if number <= begin.partition else ''}{begin.time}-{begin.number}", limit)
                for number in range(self.partitions)
            )
        )
        letters = sorted((letter for some in found for letter in some), key=lambda x: LetterId.read(x.letter_id))
        return list(await asyncio.gather(*(self._with_states(letter) for letter in letters[:limit])))

    async def _letters(self, partition: int, begin: str, limit: int, end: str = "+") -> list[DeadLetter]:
        """Dead letters of a partition as they were kept."""
        command = ("XRANGE", keys.partition_key(partition, "dead"), begin, end, "COUNT", limit)
        return [_letter(partition, entry) for entry in await self._call(command)]

    async def _with_states(self, letter: DeadLetter) -> DeadLetter:
        records = await self._records(letter.session_id, [message_id for message_id, _ in letter.messages])
        states = {message_id: STATES[record[0]] if record else None for message_id, record in records.items()}
        return replace(letter, messages=tuple(DeadMessage(*pair) for pair in states.items()))

    async def indexes(self, session_id: str) -> Data | None:
        """See `Store.indexes`. Read in one transaction, so that no act falls between."""
        try:
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.hgetall(self._key(session_id, "state"))
                pipe.hgetall(self._key(session_id, "messages"))
                pipe.zrange(self._key(session_id, "turn"), 0, -1)
                pipe.zrange(self._key(session_id, "step"), 0, -1)
                pipe.zrange(self._key(session_id, "later"), 0, -1)
                state, messages, turn, step, later = await pipe.execute()
        except UNREACHABLE as error:
            raise _unreachable(error) from error
        if not state:
            return None
        lanes = {"next-turn": [name.decode() for name in turn], "next-step": [name.decode() for name in step]}
        return {
            **_indexes(_fields(state)),
            "lanes": lanes,
            "later": [name.decode() for name in later],
            "messages": {name.decode(): _message(msgpack.unpackb(record)) for name, record in messages.items()},
        }

    async def events(self, session_id: str, *, after: int, limit: int) -> Page:
        """See `Store.events`."""
        page = await self._page(session_id, after, limit)
        if not page:
            newest = int(await self._call(("HGET", self._key(session_id, "state"), "seq")) or 0)
            if after == newest:
                return page
            if after < newest:  # appended since, or trimmed away to the last one
                page = await self._page(session_id, after, limit)
        if page and page[0].seq == after + 1:
            return page
        raise await self._expired(session_id, after)

    async def _page(self, session_id: str, after: int, limit: int) -> Page:
        """Read in growing pieces, so that large events are not all fetched before they are found to be too many."""
        page, size_bytes, piece = Page(), 0, PIECE_EVENTS
        while True:
            asked = min(piece, limit - len(page))
            start = page[-1].seq if page else after
            command = ("XRANGE", self._key(session_id, "ledger"), f"({start}-0", "+", "COUNT", asked)
            entries = await self._call(command)
            page += [_event(entry) for entry in entries]
            size_bytes += sum(len(entry[1][-1]) for entry in entries)
            page.more = len(entries) == asked
            if not page.more or len(page) >= limit or size_bytes >= PAGE_BYTES_MAX:
                return page
            fits = (PAGE_BYTES_MAX - size_bytes) * len(page) // size_bytes  # if the next ones are like these
            piece = max(1, min(PIECE_EVENTS_MAX, piece * 8, fits))

    async def _expired(self, session_id: str, after: int) -> CursorExpired:
        """What can be read instead (L7): nothing yet, or nothing any more, is oldest = newest + 1."""
        newest = int(await self._call(("HGET", self._key(session_id, "state"), "seq")) or 0)
        first = await self._page(session_id, 0, 1)
        oldest = first[0].seq if first else min(1, newest) and newest + 1
        sentence = f"cursor {after} of session {session_id} cannot be continued: {oldest} to {newest} can be read"
        return CursorExpired(sentence, oldest=oldest, newest=newest)

    async def sessions(self, *, after: str, limit: int) -> list[str]:
        """See `Store.sessions`."""
        start = f"({after}" if after else "-"
        found = await asyncio.gather(
            *(
                self._call(("ZRANGEBYLEX", keys.partition_key(partition, "sessions"), start, "+", "LIMIT", 0, limit))
                for partition in range(self.partitions)
            )
        )
        return sorted(name.decode() for names in found for name in names)[:limit]

    async def load(self, partition: int) -> Load:
        """See `Store.load`."""
        key = keys.partition_key
        ready, oldest, active, leased, sessions, counts, dead, now = await asyncio.gather(
            self._call(("ZCARD", key(partition, "ready"))),
            self._call(("ZRANGE", key(partition, "ready"), 0, 0)),
            self._call(("ZCARD", key(partition, "active"))),
            self._call(("ZCARD", key(partition, "leases"))),
            self._call(("ZCARD", key(partition, "sessions"))),
            self._call(("HMGET", key(partition, "counts"), "fenced", "damaged")),
            self._call(("XLEN", key(partition, "dead"))),
            self._call(("TIME",)),
        )
        since = await self._call(("ZSCORE", key(partition, "ready"), oldest[0])) if oldest else None
        waited = max(0, _time_ms(now) - int(float(since))) if since is not None else 0
        fenced, damaged = (int(count or 0) for count in counts)
        return Load(ready, waited, active, leased, sessions, fenced, dead, damaged)

    # -- hints ------------------------------------------------------------------------------------------------

    async def wait_ready(self, timeout_ms: int) -> int | None:
        """See `Store.wait_ready`. The order of partitions is rotated, so that none is always first."""
        self._bells.append(self._bells.pop(0))
        order = tuple(self._bells)  # another wait may rotate it before this one is answered
        names = [keys.partition_key(partition, "bell") for partition in order]
        try:
            async with asyncio.timeout(timeout_ms / 1000 + self._call_s_max):
                rung: Any = await self._client.blpop(names, timeout=max(1, timeout_ms) / 1000)  # 0 would wait for ever
        except UNREACHABLE as error:
            raise _unreachable(error) from error
        return order[names.index(str(rung[0], "utf-8"))] if rung else None

    def watch(self, session_id: str) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """See `Store.watch`."""
        return self._topics.watch(session_id)

    async def publish_delta(self, session_id: str, data: Data) -> None:
        """See `Store.publish_delta`."""
        notice = {"v": 1, "sessionId": session_id, "type": "assistant/delta", "data": dict(data)}
        await self._call(("PUBLISH", event_channel(session_id), encode(notice)))

    async def close(self) -> None:
        """See `Store.close`."""
        await self._topics.close()
        await self._wire.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _key(self, session_id: str, name: str) -> str:
        return keys.session_key(session_id, self.partitions, name)

    async def _act(self, command: Command, *, durable: bool = False) -> Any:
        """A call of a function. A durable one is not even sent to a server that does not give the level any more."""
        if durable and self._synced is not None:
            await self._synced.confirm()
        return await self._call(command, durable=durable)

    async def _call(self, command: Command, *, durable: bool = False) -> Any:
        try:
            return await self._wire.call(command, durable=durable)
        except REFUSALS as error:
            if "function not found" not in str(error).lower():
                raise _not_carried_out(error) from error
        await self._load()
        try:
            return await self._wire.call(command, durable=durable)
        except REFUSALS as error:
            raise _not_carried_out(error) from error

    async def _load(self) -> None:
        try:
            await load(self._wire)
        except REFUSALS as error:
            raise _not_carried_out(error) from error


def connect(settings: StoreSettings) -> Redis:
    """A client with every option set on purpose: redis-py's defaults bite (reference: 5 s socket timeout below the
    block time, 100 connections that raise at once)."""
    if not settings.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise Misconfigured(
            f"{_shown(settings.redis_url)}: the store's URL must begin with redis://, rediss:// or unix://"
        )
    pool = BlockingConnectionPool.from_url(
        settings.redis_url,
        max_connections=2 + POOL_SPARE,
        timeout=settings.call_timeout_ms / 1000,
        socket_timeout=None,  # the wire and BLPOP bound their own waits
        socket_connect_timeout=settings.call_timeout_ms / 1000,
        socket_keepalive=True,
        health_check_interval=0,
        # With notifications of maintenance, redis-py uses connections that the server has closed.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        retry=Retry(ExponentialWithJitterBackoff(cap=0.2, base=0.01), 2),
    )
    pool.connection_class = CONNECTIONS[urlsplit(settings.redis_url).scheme]  # `from_url` lets nobody choose
    return Redis.from_pool(pool)


def _shown(url: str) -> str:
    """The URL without its password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _unreachable(error: Exception) -> StoreUnavailable:
    """What a caller may hear of a lost connection; the store's address, which the error may name, is for the log."""
    log.warning("the store cannot be reached: %s", error)
    return StoreUnavailable("the store cannot be reached")


def _not_carried_out(error: RedisError) -> Exception:
    """The refusal as ours; what is no refusal is a fault of what is kept, or of ours."""
    said = f"{getattr(error, 'status_code', None) or ''} {error}".strip()
    words = {word.strip("-:") for word in said.split(" ", 3)[:3]}
    if words & NOT_CARRIED_OUT:
        return StoreUnavailable(f"the store refused: {said}")
    return StoreFault(f"the store failed inside an act: {said}")


def _fields(reply: Any) -> dict[bytes, Any]:
    """HGETALL as a mapping, whichever protocol the connection speaks."""
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {name: _value(name, value) for name, value in pairs if value != b""}


def _value(name: bytes, value: bytes) -> Any:
    return msgpack.unpackb(value) if name in PACKED_FIELDS else value.decode()


def _time_ms(reply: Sequence[bytes]) -> int:
    """TIME in ms."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def _number(state: Mapping[bytes, Any], name: bytes) -> int:
    return int(state.get(name, 0))


def _settled(state: Mapping[bytes, Any]) -> dict[str, int]:
    return {str(name): _number(state, name.value.encode()) for name in MessageState if name in TERMINAL}


def _usage(state: Mapping[bytes, Any]) -> dict[str, Any]:
    usage: dict[str, Any] = {name: _number(state, name.encode()) for name in ("inputTokens", "outputTokens")}
    return {**usage, "cost": float(state[b"cost"])} if b"cost" in state else usage


def _level(session_id: str, state: Mapping[bytes, Any], now: int) -> Level:
    hold, phase, claimed = state.get(b"hold"), state.get(b"phase", "closed"), state.get(b"claimed", [])
    status = Status(state.get(b"status", "idle"))
    waiting = _number(state, b"followups") + _number(state, b"steers")
    pending = waiting + _number(state, b"injects") + _number(state, b"delayed") + len(claimed)
    turn = _number(state, b"turn")
    is_open = phase != Phase.CLOSED
    reasons = [f"turn {turn}"] if is_open else []
    reasons += [f"{waiting} queued"] if waiting and not hold else []
    reasons += retry_reason(_number(state, b"retryAt"), now)
    return Level(
        session_id=session_id,
        agent=state.get(b"agent", "default"),
        status=status,
        cursor=_number(state, b"seq"),
        idle_cursor=_number(state, b"idleSeq"),
        reasons=tuple(reasons) if status is Status.RUNNING else (),
        turn=turn if is_open else None,
        pending=pending,
        held=waiting if hold else 0,
        conservation=_number(state, b"queued") - sum(_settled(state).values()) - pending,
        goal=state.get(b"goal"),
        usage=_usage(state),
        hold=hold,
        closed=b"closed" in state,
    )


def _indexes(state: Mapping[bytes, Any]) -> dict[str, Any]:
    """The folded fields of a state hash under the names of `session.indexes`."""
    return {
        "agent": state.get(b"agent", "default"),
        "attempt": int(state.get(b"attempt", 1)),
        "born": _number(state, b"born"),
        "calls": state.get(b"calls", {}),
        "cancel": state.get(b"cancel"),
        "claimed": state.get(b"claimed", []),
        "claims": state.get(b"claims", []),
        "closed": b"closed" in state,
        "closing": b"closing" in state,
        "goal": state.get(b"goal"),
        "goalMessage": state.get(b"goalMessage"),
        "goalRevision": _number(state, b"goalRevision"),
        "hold": state.get(b"hold"),
        "idleSeq": _number(state, b"idleSeq"),
        "onFailure": state.get(b"onFailure", "continue"),
        "phase": state.get(b"phase", "closed"),
        "queued": _number(state, b"queued"),
        "retryAt": _number(state, b"retryAt"),
        "seq": _number(state, b"seq"),
        "settled": _settled(state),
        "status": state.get(b"status", "idle"),
        "step": _number(state, b"step"),
        "time": _number(state, b"time"),
        "turn": _number(state, b"turn"),
        "usage": _usage(state),
        "waitingBytes": _number(state, b"waitingBytes"),
    }


def _message(record: Sequence[Any]) -> dict[str, Any]:
    """A message's record under the names of `session.message_index`; functions.lua says what stands where."""
    state, lane, wake, queued_seq, body_seq, place, _goal, turn, step, why, _, due, not_before, expires_at, size = (
        record
    )
    return {
        "bodySeq": body_seq,
        "due": due == 1,
        "expiresAt": expires_at or None,
        "lane": str(LANE_OF[lane]),
        "notBefore": not_before or None,
        "place": place,
        "queuedSeq": queued_seq,
        "size": size,
        "state": str(STATES[state]),
        "step": step or None,
        "turn": turn or None,
        "wake": wake == 1,
        "why": why or None,
    }


def _letter(partition: int, entry: Sequence[Any]) -> DeadLetter:
    name, fields = entry
    found = fields if isinstance(fields, Mapping) else dict(zip(fields[::2], fields[1::2], strict=True))
    data: Any = unframe(found[b"data"])
    time, _, number = name.decode().partition("-")
    return DeadLetter(
        letter_id=str(LetterId(int(time), int(number), partition)),
        session_id=data["sessionId"],
        turn=data["turn"],
        reason=data["reason"],
        attempts=data["attempts"],
        time=data["time"],
        messages=tuple(DeadMessage(message_id, None) for message_id in data["messages"]),
    )


def _fingerprint(record: Sequence[Any]) -> str:
    """What recognises the body of a message's record."""
    return str(record[10])


def _event(entry: Sequence[Any]) -> Event:
    seq, fields = entry
    found = fields if isinstance(fields, Mapping) else dict(zip(fields[::2], fields[1::2], strict=True))
    data: Any = unframe(found[b"data"])
    number = int(seq.partition(b"-")[0])
    return Event(number, found[b"type"].decode(), int(found[b"time"]), int(found[b"epoch"]), data)

"""How commands get to Redis: group commit.

    caller --+
    caller --+--> waiting --> one pipeline --> Redis --> replies --> each caller its own
    caller --+

All calls that wait in the same moment leave in one write and come back in one read, which costs a fifth of a
round trip each (docs/decisions/0005-group-commit.md). A connection stays redis-py's: auth, TLS, RESP3.

Rule 1: a caller gets its own reply or its own error; a caller that was cancelled never shifts the others' replies.
Rule 2: a connection that broke is dropped whole. Who was sent gets `OutcomeUnknown`, who was not `StoreUnavailable`.
Rule 3: nothing is repeated here. Whether an act may be repeated is known where the act is known (`store.py`).
Rule 4: a durable call is answered after the barrier (WAITAOF or WAIT) of its batch: one wait serves all (semantics M2).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from mailslot_core.errors import CoreError, OutcomeUnknown, StoreUnavailable
from mailslot_core.task import end

Command = tuple[str | bytes | int, ...]

BATCH_MAX = 256  # calls in one pipeline: more would only make the first ones wait longer
PIPELINES = 2  # in flight at once: while one is answered the other is written

# How a connection fails.
UNREACHABLE = (RedisError, OSError, TimeoutError)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Barrier:
    """What a durable batch ends with: a command, and how many must confirm (`index` of its reply, None: the reply)."""

    command: tuple[str | int, ...]
    needed: int
    index: int | None = None

    def reached(self, reply: Any) -> bool:
        """Whether the level was reached."""
        if isinstance(reply, Exception):  # the server was told to stop giving the level
            return False
        confirmed = reply if self.index is None else reply[self.index]
        return isinstance(confirmed, int) and confirmed >= self.needed


class Wire(Protocol):
    """Sends commands. A hand-written multiplexed connection may take this place without anybody noticing."""

    async def call(self, command: Command, *, durable: bool = False) -> Any:
        """The command's reply. Raises one of REFUSALS when the server did not carry it out, `StoreUnavailable` when
        nothing was sent, `OutcomeUnknown` when the reply was lost or the durable level was not confirmed."""
        ...

    async def close(self) -> None:
        """Nothing is sent any more; who still waited was told."""
        ...


@dataclass(slots=True)
class _Waiting:
    packed: bytes
    durable: bool
    reply: asyncio.Future[Any]

    def answer(self, reply: Any) -> None:
        """Give the caller its reply, or raise it there if it is an error. Who was answered or went away stays so."""
        if self.reply.done():
            return
        if isinstance(reply, Exception):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)


class GroupCommit:
    """The wire over a redis-py connection pool."""

    def __init__(self, pool: ConnectionPool, *, timeout_ms: int, barrier: Barrier | None = None) -> None:
        self._pool = pool
        self._timeout_s = timeout_ms / 1000
        self._barrier = barrier
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._spare: list[Any] = []  # connections that have answered and wait for the next batch
        self._flushers = [asyncio.create_task(self._flush_forever()) for _ in range(PIPELINES)]

    async def call(self, command: Command, *, durable: bool = False) -> Any:
        """See `Wire.call`."""
        if self._closed:
            raise StoreUnavailable("the connection to the store is closed")
        # Packed here, so that what cannot be packed is its caller's error and nobody else's. hiredis packs ten times as
        # fast as redis-py's asynchronous connection does.
        packed = pack_command(command)  # type: ignore[arg-type]
        waiting = _Waiting(packed, durable, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.reply

    async def close(self) -> None:
        """See `Wire.close`."""
        self._closed = True
        await end(*self._flushers)
        while self._spare:
            await self._pool.release(self._spare.pop())
        while self._waiting:
            self._waiting.popleft().answer(StoreUnavailable("the connection to the store was closed"))

    async def _flush_forever(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if batch:
                await self._flush(batch)

    def _next_batch(self) -> list[_Waiting]:
        """The next calls to send. Those whose caller has gone away before they were sent are not sent."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < BATCH_MAX:
            waiting = self._waiting.popleft()
            if not waiting.reply.done():
                batch.append(waiting)
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _flush(self, batch: list[_Waiting]) -> None:
        """Answer every caller of the batch, whatever happens; whom the server has answered keeps that."""
        fate: CoreError = StoreUnavailable("the connection to the store was closed")
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._borrow()
            fate = OutcomeUnknown("the connection to the store was closed before its answer came")
            await self._use(connection, batch)
        except UNREACHABLE as error:
            sent = isinstance(fate, OutcomeUnknown)
            fate = _lost(error) if sent else StoreUnavailable(f"the store cannot be reached: {_sentence(error)}")
        finally:
            for waiting in batch:
                waiting.answer(fate)

    async def _use(self, connection: Any, batch: list[_Waiting]) -> None:
        """One exchange. A connection on which something may still come is not used again."""
        healthy = False
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(connection, batch)
            healthy = True
        finally:
            if healthy:
                self._spare.append(connection)
            else:
                await self._drop(connection)

    async def _borrow(self) -> Any:
        """The connection that answered last, if it still stands; else one from the pool. (The pool looks as well, but
        its bookkeeping costs as much as a call.)"""
        while self._spare:
            connection, stands = self._spare.pop(), False
            try:
                stands = await _stands(connection)
            finally:  # also when the look was cut short: the pool must have it back
                if not stands:
                    await self._drop(connection)
            if stands:
                return connection
        return await self._pool.get_connection()  # type: ignore[no-untyped-call]

    async def _drop(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
        await self._pool.release(connection)

    async def _exchange(self, connection: Any, batch: list[_Waiting]) -> None:
        """Send all, read all. Who is refused, or is not durable, is answered as soon as its own reply is there."""
        barrier = self._barrier if any(waiting.durable for waiting in batch) else None
        commands = [waiting.packed for waiting in batch]
        if barrier is not None:
            commands.append(pack_command(barrier.command))  # type: ignore[arg-type]
        await connection.send_packed_command(b"".join(commands), check_health=False)
        behind: list[tuple[_Waiting, Any]] = []
        for waiting in batch:
            reply = await _read(connection)
            if waiting.durable and barrier is not None and not isinstance(reply, Exception):
                behind.append((waiting, reply))
            else:
                waiting.answer(reply)
        reached = barrier is not None and barrier.reached(await _read(connection))
        for waiting, reply in behind:
            waiting.answer(reply if reached else _not_confirmed())


async def _stands(connection: Any) -> bool:
    """Nothing is left on the connection, and the server has not hung up."""
    await asyncio.sleep(0)  # so that the loop has seen what came
    try:
        return not await connection.can_read()
    except UNREACHABLE:
        return False


def _lost(error: BaseException) -> OutcomeUnknown:
    return OutcomeUnknown(f"the store's answer was lost: {_sentence(error)}")


def _not_confirmed() -> OutcomeUnknown:
    return OutcomeUnknown("the store did not confirm the configured durability level in time")


# What a server replies instead of carrying a command out; redis-py holds the last two for broken connections.
REFUSALS = (ResponseError, BusyLoadingError, AuthenticationError)


async def _read(connection: Any) -> Any:
    """One reply; a refusal is a reply too, and leaves the connection as it is."""
    try:
        return await connection.read_response(disconnect_on_error=False)
    except REFUSALS as error:
        return error


def _sentence(error: BaseException) -> str:
    """What a caller may hear; the store's address, which the error may name, is for the log."""
    log.warning("the store: %s", str(error) or type(error).__name__)
    if isinstance(error, TimeoutError) and not isinstance(error, RedisConnectionError):
        return "it did not answer in time"
    return "the connection failed"

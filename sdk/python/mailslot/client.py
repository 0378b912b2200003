"""The client, and its asynchronous twin: the same names, awaited.

    Client ──> Session ──> prompt, steer, inject             a receipt: the message is kept, and nothing more
           │         ├───> queue, message                     what waits; what happened to one message
           │         ├───> replace, move, withdraw            changes of what is still queued
           │         ├───> events, status, when_idle          what the whole agent does
           │         ├───> run, stream                        an interval that the caller owns
           │         ├───> exclusive                          the same, while nobody else is at work
           │         ├───> cancel, release, close, delete
           │         └───> goal                               a durable objective
           └─> sessions, dead, redrive

Rule 1: a receipt is never paired with a result, here or anywhere. Who wants to own what follows uses `run`.
Rule 2: neither class decides anything: each method is one operation, carried out by a transport.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from mailslot import inbox, operation
from mailslot.answer import Budgets, CancelOutcome, Closing, DeadLetter, Erasure, Goal, Level, Receipt
from mailslot.event import Delta, Event, Item
from mailslot.exclusive import alone
from mailslot.ids import new_id
from mailslot.interval import RunResult
from mailslot.operation import Address, Content, Delivery, Queue, Reject
from mailslot.record import MessageRecord, QueuedMessage
from mailslot.run import exclusive_run, owned_run
from mailslot.settings import Settings
from mailslot.subscription import followed
from mailslot.transport import AsyncTransport, Transport

ItemT = TypeVar("ItemT", bound=Item)

DEFAULT_URL = "http://127.0.0.1:8080"
"""Where `mailslot up` listens."""


class _Notes:
    """What a run that is being streamed has said beside its events."""

    def __init__(self) -> None:
        self.receipt: Receipt | None = None
        """The receipt of the run's message, from the moment it is there."""
        self._result: RunResult | None = None

    @property
    def result(self) -> RunResult:
        """The run's result, once its last event was read."""
        if self._result is None:
            raise RuntimeError("the run has no result yet: read its events to their end first")
        return self._result

    def _is_event(self, given: object) -> bool:
        if isinstance(given, Receipt):
            self.receipt = given
        elif isinstance(given, RunResult):
            self._result = given
        return isinstance(given, Event | Delta)


# -- synchronous ------------------------------------------------------------------------------------------------


class Client:
    """A mailslot server. Threads may share one. Close it, or use it in a `with`."""

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None, *, settings: Settings | None = None) -> None:
        self._transport = Transport(url, token, settings)

    def session(self, id: str | None = None, agent: str | None = None) -> Session:  # noqa: A002
        """The session of that id, or one with a new id; nothing is sent yet.

        It exists from its first message on. With an `agent`, it is made with that agent before; refused
        `session-exists` when it has another.
        """
        return Session(self._transport, Address(new_id() if id is None else id, agent))

    def sessions(self, *, status: Literal["running", "idle"] | None = None) -> Generator[Level, None, None]:
        """The level of every session."""
        return self._transport.follow(operation.levels(self._transport.terms, status))

    def dead(self) -> Generator[DeadLetter, None, None]:
        """Turns that were given up after too many crashes, oldest first, with the messages that died with them."""
        return self._transport.follow(inbox.dead(self._transport.terms))

    def redrive(self, letter_id: str) -> tuple[Receipt, ...]:
        """Queue a letter's dead messages again, each under its id; refused `not-dead` when none is dead any more."""
        return self._transport.perform(inbox.redrive(self._transport.terms, letter_id))

    def close(self) -> None:
        """Close every connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session:
    """One agent's durable conversation."""

    def __init__(self, transport: Transport, address: Address) -> None:
        self._transport = transport
        self._address = address
        self.goal = SessionGoal(transport, address)
        """The session's goal: `set`, `get`, `edit`, `pause`, `resume`, `complete`, `block`, `clear`."""

    @property
    def id(self) -> str:
        """The session's id."""
        return self._address.session_id

    def prompt(  # noqa: PLR0913 - the protocol names them (section 7)
        self,
        content: Content,
        *,
        message_id: str | None = None,
        delivery: Delivery = "queue",
        not_before: int | None = None,
        expires_at: int | None = None,
        if_busy: Reject | None = None,
        if_idle: Reject | None = None,
        expect_turn: int | None = None,
        source: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Send a message. The receipt proves that it is durably queued, and nothing else.

        Without a `message_id` one is made here, so that a lost answer is asked for again and never sends twice.
        Times are milliseconds since 1970. Before `not_before` it waits and does nothing; at `expires_at` it expires if
        it is still queued. `if_busy="reject"` has it refused unless nothing is under way. A steer with
        `if_idle="reject"` is refused when it would open a turn, one with `expect_turn` unless that turn is open.
        """
        message = operation.draft(
            content,
            message_id=message_id,
            delivery=delivery,
            not_before=not_before,
            expires_at=expires_at,
            if_busy=if_busy,
            if_idle=if_idle,
            expect_turn=expect_turn,
            source=source,
            metadata=metadata,
        )
        return self._transport.perform(operation.prompt(self._transport.terms, self._address, message))

    def steer(
        self,
        content: Content,
        *,
        message_id: str | None = None,
        not_before: int | None = None,
        expires_at: int | None = None,
        if_busy: Reject | None = None,
        if_idle: Reject | None = None,
        expect_turn: int | None = None,
    ) -> Receipt:
        """Send a message that joins the running turn at its next step, or wakes the agent."""
        return self.prompt(
            content,
            message_id=message_id,
            delivery="steer",
            not_before=not_before,
            expires_at=expires_at,
            if_busy=if_busy,
            if_idle=if_idle,
            expect_turn=expect_turn,
        )

    def inject(
        self,
        content: Content,
        *,
        message_id: str | None = None,
        not_before: int | None = None,
        expires_at: int | None = None,
        if_busy: Reject | None = None,
    ) -> Receipt:
        """Leave something for the agent to see at its next step; it does not wake it."""
        return self.prompt(
            content,
            message_id=message_id,
            delivery="inject",
            not_before=not_before,
            expires_at=expires_at,
            if_busy=if_busy,
        )

    def queue(self) -> tuple[QueuedMessage, ...]:
        """What waits: claimed messages, the next step's, the next turns', and last those that are not due."""
        return self._transport.perform(inbox.queue(self._transport.terms, self._address))

    def message(self, message_id: str) -> MessageRecord:
        """What happened to a message, until some time after it settled. It never says how a turn ended."""
        return self._transport.perform(inbox.message(self._transport.terms, self._address, message_id))

    def replace(self, message_id: str, content: Content) -> MessageRecord:
        """Give a queued message new content in its old place; refused `already-claimed` or `already-settled`."""
        return self._transport.perform(inbox.replace(self._transport.terms, self._address, message_id, content))

    def move(self, message_id: str) -> MessageRecord:
        """Steer with a queued message: it joins the running turn at its next step, or wakes the agent. Ends a hold."""
        return self._transport.perform(inbox.move(self._transport.terms, self._address, message_id))

    def withdraw(self, message_id: str) -> MessageRecord:
        """Take a queued message back; refused `already-claimed` or `already-settled`."""
        return self._transport.perform(inbox.withdraw(self._transport.terms, self._address, message_id))

    def cancel(self, queue: Queue = "keep", *, turn: int | None = None, wait: float | None = None) -> CancelOutcome:
        """Stop the open turn. What is queued goes on, waits for a release (`hold`), or is cancelled too (`clear`).

        `turn` stops only that one; `wait` waits so many seconds.
        """
        return self._transport.perform(
            operation.cancel(self._transport.terms, self._address, queue=queue, turn=turn, wait_s=wait)
        )

    def release(self) -> int:
        """End a hold: what is queued wakes the agent again. The newest seq; refused `not-held`."""
        return self._transport.perform(inbox.release(self._transport.terms, self._address))

    def close(self) -> Closing:
        """Close the session for good: what is queued is cancelled, an open turn is stopped, nothing more is taken.

        Its history stays readable.
        """
        return self._transport.perform(inbox.close(self._transport.terms, self._address))

    def delete(self, *, wait: float | None = None) -> Erasure:
        """Close the session and erase everything of it. `wait` waits so many seconds for its last turn to end.

        Its id is free afterwards. Refused `not-found` when it is not there (any more).
        """
        return self._transport.perform(inbox.erase(self._transport.terms, self._address, wait))

    @overload
    def events(self, after: int = 0, deltas: Literal[False] = False) -> Generator[Event, None, None]: ...

    @overload
    def events(self, after: int = 0, *, deltas: Literal[True]) -> Generator[Item, None, None]: ...

    def events(self, after: int = 0, deltas: bool = False) -> Generator[Any, None, None]:
        """Every event after that seq, and then each as it comes, for ever.

        A cut connection is taken up again by itself, without loss and without anything coming twice. `CursorExpired`
        when events after `after` are not kept any more. `deltas` adds the model's text as it is said.
        """
        return self._transport.follow(followed(self._transport.terms, self._address, after, deltas=deltas))

    def status(self) -> Level:
        """How the whole agent stands now."""
        return self._transport.perform(operation.level(self._transport.terms, self._address))

    def when_idle(self, after: int | None = None, timeout: float | None = None) -> int:
        """Wait until the whole agent is idle; the seq of that idle.

        With `after`, an idle that is later than that seq. `RunTimeout` after `timeout` seconds.
        """
        terms = self._transport.terms.within(timeout)
        return self._transport.perform(operation.rest(terms, self._address, after))

    def run(self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False) -> RunResult:
        """Send a message and own what happens from its receipt through the next idle of the whole agent.

        What the result tells is about that interval: other people's messages may be part of it. Leaving early
        (`RunTimeout`, Ctrl-C) leaves the agent at work. With `cancel_on_abort` it stops the turn that took this
        message, and no other; a message that no turn has taken yet stays queued.
        """
        with self.stream(content, timeout=timeout, cancel_on_abort=cancel_on_abort) as run:
            for _ in run:
                pass
            return run.result

    @overload
    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: Literal[False] = False,
    ) -> Run[Event]: ...

    @overload
    def stream(
        self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False, deltas: Literal[True]
    ) -> Run[Item]: ...

    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: bool = False,
    ) -> Run[Any]:
        """The same as `run`, event by event; `.result` is there after the last one."""
        message = operation.draft(content)
        terms = self._transport.terms.within(timeout)
        return Run(
            self._transport.follow(
                owned_run(terms, self._address, message, deltas=deltas, cancel_on_abort=cancel_on_abort)
            )
        )

    @contextlib.contextmanager
    def exclusive(self, *, timeout: float | None = None) -> Generator[Exclusive, None, None]:
        """Run while nobody else is at work: `with session.exclusive() as alone: alone.run("…")`.

        Each message that is sent through what the `with` gives is refused by the server unless the agent is idle and
        nothing is queued, in the act that would queue it. It is then sent again once the agent is idle, for at most
        `timeout` seconds a message; after that the refusal is raised (`Refused`, code `busy`: nothing was kept). So the
        intervals of two exclusive runs never overlap, whichever clients they belong to.

        It is not a lock. Who sends without it is not kept out: such a message joins the interval like any other.
        Nobody is first in line: of those who wait, any may be next, also between two runs of the same `with`.
        """
        yield Exclusive(self._transport, self._address, timeout)


class Exclusive:
    """What `Session.exclusive` gives: messages that are sent only while nobody else is at work."""

    def __init__(self, transport: Transport, address: Address, patience_s: float | None) -> None:
        self._transport = transport
        self._address = address
        self._patience_s = patience_s

    def prompt(
        self,
        content: Content,
        *,
        message_id: str | None = None,
        source: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """See `Session.prompt`."""
        message = operation.draft(content, message_id=message_id, if_busy="reject", source=source, metadata=metadata)
        return self._transport.perform(alone(self._transport.terms, self._address, message, self._patience_s))

    def run(self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False) -> RunResult:
        """See `Session.run`. Its `timeout` is about all of it, the waiting included."""
        with self.stream(content, timeout=timeout, cancel_on_abort=cancel_on_abort) as run:
            for _ in run:
                pass
            return run.result

    @overload
    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: Literal[False] = False,
    ) -> Run[Event]: ...

    @overload
    def stream(
        self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False, deltas: Literal[True]
    ) -> Run[Item]: ...

    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: bool = False,
    ) -> Run[Any]:
        """See `Session.stream`."""
        message = operation.draft(content, if_busy="reject")
        terms = self._transport.terms.within(timeout)
        options = {"deltas": deltas, "cancel_on_abort": cancel_on_abort}
        return Run(self._transport.follow(exclusive_run(terms, self._address, message, self._patience_s, **options)))


class Run(_Notes, Generic[ItemT]):
    """A run that is being read. Leaving its `with`, or `close()`, before the end abandons it."""

    def __init__(self, given: Generator[Any, None, None]) -> None:
        super().__init__()
        self._given = given

    def __iter__(self) -> Iterator[ItemT]:
        return self

    def __next__(self) -> ItemT:
        while True:
            given = next(self._given)
            if self._is_event(given):
                item: ItemT = given
                return item

    def close(self) -> None:
        """Stop reading. Nothing happens to the agent, unless the run was started with `cancel_on_abort`."""
        self._given.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SessionGoal:
    """A session's goal. `revision` makes a change fail with `Refused("revision")` when somebody was faster."""

    def __init__(self, transport: Transport, address: Address) -> None:
        self._transport = transport
        self._address = address

    def set(self, objective: str, budgets: Budgets | None = None) -> Goal:
        """Give the session a goal; refused `goal-exists` while it has one that is not complete."""
        return self._transport.perform(operation.set_goal(self._transport.terms, self._address, objective, budgets))

    def get(self) -> Goal | None:
        """The goal as it stands; None when there is none."""
        return self._transport.perform(operation.goal(self._transport.terms, self._address))

    def edit(
        self, *, objective: str | None = None, budgets: Budgets | None = None, revision: int | None = None
    ) -> Goal:
        """Change the objective or some budgets; what is not named stays."""
        return self._patch(operation.goal_edit(objective, budgets), revision)

    def pause(self, *, revision: int | None = None) -> Goal:
        """No further round until it is resumed."""
        return self._patch({"operation": "pause"}, revision)

    def resume(self, *, revision: int | None = None) -> Goal:
        """Go on with the next round."""
        return self._patch({"operation": "resume"}, revision)

    def complete(self, *, revision: int | None = None) -> Goal:
        """The goal is reached."""
        return self._patch({"operation": "complete"}, revision)

    def block(self, *, code: str | None = None, message: str | None = None, revision: int | None = None) -> Goal:
        """The goal cannot go on, and why."""
        return self._patch(operation.goal_block(code, message), revision)

    def clear(self, *, revision: int | None = None) -> None:
        """Take the goal away."""
        self._transport.perform(operation.clear_goal(self._transport.terms, self._address, revision))

    def _patch(self, body: Mapping[str, Any], revision: int | None) -> Goal:
        return self._transport.perform(operation.patch_goal(self._transport.terms, self._address, body, revision))


# -- asynchronous -----------------------------------------------------------------------------------------------


class AsyncClient:
    """A mailslot server, on an event loop. Close it, or use it in an `async with`."""

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None, *, settings: Settings | None = None) -> None:
        self._transport = AsyncTransport(url, token, settings)

    def session(self, id: str | None = None, agent: str | None = None) -> AsyncSession:  # noqa: A002
        """See `Client.session`."""
        return AsyncSession(self._transport, Address(new_id() if id is None else id, agent))

    def sessions(self, *, status: Literal["running", "idle"] | None = None) -> AsyncGenerator[Level, None]:
        """See `Client.sessions`."""
        return self._transport.follow(operation.levels(self._transport.terms, status))

    def dead(self) -> AsyncGenerator[DeadLetter, None]:
        """See `Client.dead`."""
        return self._transport.follow(inbox.dead(self._transport.terms))

    async def redrive(self, letter_id: str) -> tuple[Receipt, ...]:
        """See `Client.redrive`."""
        return await self._transport.perform(inbox.redrive(self._transport.terms, letter_id))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncSession:
    """One agent's durable conversation; see `Session`."""

    def __init__(self, transport: AsyncTransport, address: Address) -> None:
        self._transport = transport
        self._address = address
        self.goal = AsyncSessionGoal(transport, address)
        """The session's goal; see `Session.goal`."""

    @property
    def id(self) -> str:
        """The session's id."""
        return self._address.session_id

    async def prompt(  # noqa: PLR0913 - likewise
        self,
        content: Content,
        *,
        message_id: str | None = None,
        delivery: Delivery = "queue",
        not_before: int | None = None,
        expires_at: int | None = None,
        if_busy: Reject | None = None,
        if_idle: Reject | None = None,
        expect_turn: int | None = None,
        source: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """See `Session.prompt`."""
        message = operation.draft(
            content,
            message_id=message_id,
            delivery=delivery,
            not_before=not_before,
            expires_at=expires_at,
            if_busy=if_busy,
            if_idle=if_idle,
            expect_turn=expect_turn,
            source=source,
            metadata=metadata,
        )
        return await self._transport.perform(operation.prompt(self._transport.terms, self._address, message))

    async def steer(
        self,
        content: Content,
        *,
        message_id: str | None = None,
        not_before: int | None = None,
        expires_at: int | None = None,
        if_busy: Reject | None = None,
        if_idle: Reject | None = None,
        expect_turn: int | None = None,
    ) -> Receipt:
        """See `Session.steer`."""
        return await self.prompt(
            content,
            message_id=message_id,
            delivery="steer",
            not_before=not_before,
            expires_at=expires_at,
            if_busy=if_busy,
            if_idle=if_idle,
            expect_turn=expect_turn,
        )

    async def inject(
        self,
        content: Content,
        *,
        message_id: str | None = None,
        not_before: int | None = None,
        expires_at: int | None = None,
        if_busy: Reject | None = None,
    ) -> Receipt:
        """See `Session.inject`."""
        return await self.prompt(
            content,
            message_id=message_id,
            delivery="inject",
            not_before=not_before,
            expires_at=expires_at,
            if_busy=if_busy,
        )

    async def queue(self) -> tuple[QueuedMessage, ...]:
        """See `Session.queue`."""
        return await self._transport.perform(inbox.queue(self._transport.terms, self._address))

    async def message(self, message_id: str) -> MessageRecord:
        """See `Session.message`."""
        return await self._transport.perform(inbox.message(self._transport.terms, self._address, message_id))

    async def replace(self, message_id: str, content: Content) -> MessageRecord:
        """See `Session.replace`."""
        return await self._transport.perform(inbox.replace(self._transport.terms, self._address, message_id, content))

    async def move(self, message_id: str) -> MessageRecord:
        """See `Session.move`."""
        return await self._transport.perform(inbox.move(self._transport.terms, self._address, message_id))

    async def withdraw(self, message_id: str) -> MessageRecord:
        """See `Session.withdraw`."""
        return await self._transport.perform(inbox.withdraw(self._transport.terms, self._address, message_id))

    async def cancel(
        self, queue: Queue = "keep", *, turn: int | None = None, wait: float | None = None
    ) -> CancelOutcome:
        """See `Session.cancel`."""
        return await self._transport.perform(
            operation.cancel(self._transport.terms, self._address, queue=queue, turn=turn, wait_s=wait)
        )

    async def release(self) -> int:
        """See `Session.release`."""
        return await self._transport.perform(inbox.release(self._transport.terms, self._address))

    async def close(self) -> Closing:
        """See `Session.close`."""
        return await self._transport.perform(inbox.close(self._transport.terms, self._address))

    async def delete(self, *, wait: float | None = None) -> Erasure:
        """See `Session.delete`."""
        return await self._transport.perform(inbox.erase(self._transport.terms, self._address, wait))

    @overload
    def events(self, after: int = 0, deltas: Literal[False] = False) -> AsyncGenerator[Event, None]: ...

    @overload
    def events(self, after: int = 0, *, deltas: Literal[True]) -> AsyncGenerator[Item, None]: ...

    def events(self, after: int = 0, deltas: bool = False) -> AsyncGenerator[Any, None]:
        """See `Session.events`. Use `contextlib.aclosing` to leave it early."""
        return self._transport.follow(followed(self._transport.terms, self._address, after, deltas=deltas))

    async def status(self) -> Level:
        """See `Session.status`."""
        return await self._transport.perform(operation.level(self._transport.terms, self._address))

    async def when_idle(self, after: int | None = None, timeout: float | None = None) -> int:
        """See `Session.when_idle`."""
        terms = self._transport.terms.within(timeout)
        return await self._transport.perform(operation.rest(terms, self._address, after))

    async def run(self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False) -> RunResult:
        """See `Session.run`."""
        async with self.stream(content, timeout=timeout, cancel_on_abort=cancel_on_abort) as run:
            async for _ in run:
                pass
            return run.result

    @overload
    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: Literal[False] = False,
    ) -> AsyncRun[Event]: ...

    @overload
    def stream(
        self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False, deltas: Literal[True]
    ) -> AsyncRun[Item]: ...

    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: bool = False,
    ) -> AsyncRun[Any]:
        """See `Session.stream`."""
        message = operation.draft(content)
        terms = self._transport.terms.within(timeout)
        return AsyncRun(
            self._transport.follow(
                owned_run(terms, self._address, message, deltas=deltas, cancel_on_abort=cancel_on_abort)
            )
        )

    @contextlib.asynccontextmanager
    async def exclusive(self, *, timeout: float | None = None) -> AsyncGenerator[AsyncExclusive, None]:
        """See `Session.exclusive`."""
        yield AsyncExclusive(self._transport, self._address, timeout)


class AsyncExclusive:
    """What `AsyncSession.exclusive` gives: messages that are sent only while nobody else is at work."""

    def __init__(self, transport: AsyncTransport, address: Address, patience_s: float | None) -> None:
        self._transport = transport
        self._address = address
        self._patience_s = patience_s

    async def prompt(
        self,
        content: Content,
        *,
        message_id: str | None = None,
        source: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """See `Exclusive.prompt`."""
        message = operation.draft(content, message_id=message_id, if_busy="reject", source=source, metadata=metadata)
        return await self._transport.perform(alone(self._transport.terms, self._address, message, self._patience_s))

    async def run(self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False) -> RunResult:
        """See `Exclusive.run`."""
        async with self.stream(content, timeout=timeout, cancel_on_abort=cancel_on_abort) as run:
            async for _ in run:
                pass
            return run.result

    @overload
    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: Literal[False] = False,
    ) -> AsyncRun[Event]: ...

    @overload
    def stream(
        self, content: Content, *, timeout: float | None = None, cancel_on_abort: bool = False, deltas: Literal[True]
    ) -> AsyncRun[Item]: ...

    def stream(
        self,
        content: Content,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        deltas: bool = False,
    ) -> AsyncRun[Any]:
        """See `Exclusive.stream`."""
        message = operation.draft(content, if_busy="reject")
        terms = self._transport.terms.within(timeout)
        options = {"deltas": deltas, "cancel_on_abort": cancel_on_abort}
        return AsyncRun(
            self._transport.follow(exclusive_run(terms, self._address, message, self._patience_s, **options))
        )


class AsyncRun(_Notes, Generic[ItemT]):
    """A run that is being read; see `Run`."""

    def __init__(self, given: AsyncGenerator[Any, None]) -> None:
        super().__init__()
        self._given = given

    def __aiter__(self) -> AsyncIterator[ItemT]:
        return self

    async def __anext__(self) -> ItemT:
        while True:
            given = await anext(self._given)
            if self._is_event(given):
                item: ItemT = given
                return item

    async def aclose(self) -> None:
        """See `Run.close`."""
        await self._given.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncSessionGoal:
    """A session's goal; see `SessionGoal`."""

    def __init__(self, transport: AsyncTransport, address: Address) -> None:
        self._transport = transport
        self._address = address

    async def set(self, objective: str, budgets: Budgets | None = None) -> Goal:
        """See `SessionGoal.set`."""
        return await self._transport.perform(
            operation.set_goal(self._transport.terms, self._address, objective, budgets)
        )

    async def get(self) -> Goal | None:
        """See `SessionGoal.get`."""
        return await self._transport.perform(operation.goal(self._transport.terms, self._address))

    async def edit(
        self, *, objective: str | None = None, budgets: Budgets | None = None, revision: int | None = None
    ) -> Goal:
        """See `SessionGoal.edit`."""
        return await self._patch(operation.goal_edit(objective, budgets), revision)

    async def pause(self, *, revision: int | None = None) -> Goal:
        """See `SessionGoal.pause`."""
        return await self._patch({"operation": "pause"}, revision)

    async def resume(self, *, revision: int | None = None) -> Goal:
        """See `SessionGoal.resume`."""
        return await self._patch({"operation": "resume"}, revision)

    async def complete(self, *, revision: int | None = None) -> Goal:
        """See `SessionGoal.complete`."""
        return await self._patch({"operation": "complete"}, revision)

    async def block(self, *, code: str | None = None, message: str | None = None, revision: int | None = None) -> Goal:
        """See `SessionGoal.block`."""
        return await self._patch(operation.goal_block(code, message), revision)

    async def clear(self, *, revision: int | None = None) -> None:
        """See `SessionGoal.clear`."""
        await self._transport.perform(operation.clear_goal(self._transport.terms, self._address, revision))

    async def _patch(self, body: Mapping[str, Any], revision: int | None) -> Goal:
        return await self._transport.perform(operation.patch_goal(self._transport.terms, self._address, body, revision))

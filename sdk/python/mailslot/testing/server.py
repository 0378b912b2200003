"""A mailslot server in this process, for as long as a `with` lasts.

    with Server() as server:             async with Server() as server:
        client = server.client()             async with server.async_client() as client:

    server.answers(...)      what the model says          server.events, history, sessions      what the ledgers say
    server.model             hold it, see what it saw     server.assert_...                     the same, as assertions
    server.faults            what goes wrong              server.wait_..., async_wait_...       until the ledgers say so
    server.clock             let time pass

Rule 1: it runs in a thread of its own, so blocking and asynchronous tests use it alike. Waits that block have a twin
        to await; all else takes a moment and may be called anywhere.
Rule 2: it keeps a registry by URL, so that an assertion finds the server that a client or a session speaks to.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from mailslot.client import AsyncClient, Client
from mailslot.event import Event, read_event
from mailslot.hooks import Hook
from mailslot.record import MessageRecord
from mailslot.settings import Settings
from mailslot.testing import ledger
from mailslot.testing.agent import Agent
from mailslot.testing.ledger import Lane
from mailslot.testing.port import PATIENCE_S, Clock, Faults, Model, Setup, engine
from mailslot.testing.script import Answer, Rule, When

T = TypeVar("T")

DEFAULT_AGENT = "default"
PENDING_MAX = 10_000
CRASHES_MAX = 3
LEASE_MS = 10_000
"""Long enough that a busy machine costs no worker its session; a worker that is killed keeps it no moment longer."""

QUICK = Settings(backoff_first_ms=5, backoff_max_ms=50)
"""The clients of this server come back soon. They retry what any client does, and wait for a server's `Retry-After`."""


class HasId(Protocol):
    """A session of either client."""

    @property
    def id(self) -> str:
        """Its id."""
        ...


SessionLike: TypeAlias = str | HasId
Condition: TypeAlias = Callable[[Sequence[Event]], T]
_Wait: TypeAlias = Generator[tuple["Future[None]", float], None, T]

running: WeakValueDictionary[str, Server] = WeakValueDictionary()
"""Every server of this process that runs, by its URL."""


class Server:
    """Doors, worker and goal service on a store in memory. Agents that nobody gave anything to say echo."""

    def __init__(
        self,
        script: Sequence[str | Rule] = (),
        *,
        tools: Sequence[Callable[..., object]] = (),
        hooks: Sequence[Hook] = (),
        agents: Mapping[str, Agent] | str | os.PathLike[str] | None = None,
        pending_max: int = PENDING_MAX,
        crashes_max: int = CRASHES_MAX,
        lease_ms: int = LEASE_MS,
        token: str = "",
    ) -> None:
        """`script`, `tools` and `hooks` are those of the agent `default`. `agents` are further ones by name, or the
        path of an agents.toml, which then has them all. With a `token`, the doors want it of every caller; clients
        that the server makes have it."""
        named = _agents(agents, Agent(tuple(script), tuple(tools), tuple(hooks)))
        self._engine = engine()(Setup(named, pending_max, crashes_max, lease_ms, token))
        self._token = token or None
        self._url = ""
        self._clients: list[Client] = []

    # -- its life -----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin; the server answers when this returns."""
        self._url = self._engine.start()
        running[self._url] = self
        return self

    def close(self) -> None:
        """End. Its clients that block are closed too."""
        running.pop(self._url, None)
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._engine.close()

    def restart(self) -> None:
        """Doors and worker end as by SIGTERM and begin anew, at the same URL. What is kept is kept; streams are cut."""
        self._engine.restart()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def url(self) -> str:
        """Where it answers."""
        if not self._url:
            raise RuntimeError("the server has not been started: use it in a `with`")
        return self._url

    def client(self, *, settings: Settings = QUICK) -> Client:
        """A client of it. The server closes it at its end, if nobody did."""
        client = Client(self.url, self._token, settings=settings)
        self._clients.append(client)
        return client

    def async_client(self, *, settings: Settings = QUICK) -> AsyncClient:
        """A client of it, to be used in an `async with`."""
        return AsyncClient(self.url, self._token, settings=settings)

    # -- what happens -------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The handle of all models."""
        return self._engine.model

    @property
    def faults(self) -> Faults:
        """What can go wrong on purpose."""
        return self._engine.faults

    @property
    def clock(self) -> Clock:
        """Its time."""
        return self._engine.clock

    def answers(
        self, *answers: str | Answer, when: str | When | None = None, loop: bool = False, agent: str = DEFAULT_AGENT
    ) -> None:
        """What an agent's model answers from now on.

        One answer is given every time. Several are given one after the other: with `when`, one to each step of a
        message for which it holds; without, one to each model call of a session. After the last one comes the first
        (`loop`), or they do not apply any more.

        What was said last to answer comes first, but what has a `when` before what has none; then comes the agent's
        script. Once there is any of this, a call that nothing of it answers ends its turn as `error{script-ended}`.
        """
        if not answers:
            raise ValueError("name an answer at least")
        rule: Rule = {} if when is None else {"when": when}
        if len(answers) == 1 and not loop:
            only = answers[0]
            rule = {**rule, "say": only} if isinstance(only, str) else {**rule, **only}
        else:
            rule = {**rule, "answers": answers, "loop": loop, "per": "session" if when is None else "message"}
        self._engine.answers(agent, rule, first=when is not None)

    # -- what the ledgers say -----------------------------------------------------------------------------------

    def sessions(self) -> Sequence[str]:
        """The ids of all sessions."""
        return self._engine.sessions()

    def events(self, session: SessionLike) -> list[Event]:
        """The session's ledger, read past every door and every fault; empty when there is no such session."""
        session_id = id_of(session)
        return [read_event(envelope, session_id) for envelope in self._engine.envelopes(session_id)]

    def history(self, session: SessionLike, labels: Mapping[str, str] | None = None) -> str:
        """The ledger as one line: `q[A] R T1 c[A] S1 u[A] a s1 t1(completed) I`. `labels` are names for message ids;
        without them an id that nobody chose is shown as its message's text."""
        return self._line(id_of(session), self.events(session), labels)

    def assert_queued(
        self,
        session: SessionLike | None,
        what: str,
        *,
        lane: Lane | None = None,
        wake: bool | None = None,
        due: bool | None = None,
        times: int = 1,
    ) -> Event:
        """The message of this id or text was queued, so many `times`; its (last) `inbox/queued`, with content, source
        and metadata. `session` None looks everywhere. What became of it since is another question."""
        found = self._queued(session, what)
        if len(found) != times or not found:
            self._fail(session, f"{what!r} was queued {_times(len(found))}, not {_times(times)}")
        session_id, placed = found[-1]
        wrong = ledger.differences(self.events(session_id), placed, lane=lane, wake=wake, due=due)
        if wrong:
            self._fail(session_id, f"{what!r} was queued, but its {', its '.join(wrong)}")
        return placed

    def assert_not_queued(self, session: SessionLike | None, what: str) -> None:
        """No message of this id or text is in any inbox, or ever was."""
        found = self._queued(session, what)
        if found:
            self._fail(found[0][0], f"{what!r} was queued {_times(len(found))}")

    def assert_state(self, session: SessionLike | None, what: str, state: str) -> MessageRecord:
        """The message is in this state (`queued`, `held`, `claimed`, `admitted`, `cancelled`, `rejected`, `expired`,
        `dead`); its record as the ledger tells it, with turn and step or with the cause."""
        found = self._queued(session, what)
        if len(found) != 1:
            more = "" if len(found) < 2 else ": name one by its id"
            self._fail(session, f"{what!r} was queued {_times(len(found))}{more}")
        session_id, placed = found[0]
        record = ledger.told(self.events(session_id), placed).record
        if record.state != state:
            self._fail(session_id, f"{what!r} is {record.state}, not {state}")
        return record

    def assert_admitted(self, session: SessionLike | None, what: str) -> MessageRecord:
        """The message entered the transcript; its record names turn and step. It says nothing about an answer."""
        return self.assert_state(session, what, "admitted")

    def explain(self, session: SessionLike | None = None) -> str:
        """The ledger of a session, or of all, a line each: what failures show."""
        names = self.sessions() if session is None else [id_of(session)]
        lines = [f"  {name}: {self.history(name) or 'no such session'}" for name in names]
        return "\n".join(lines or ["  there is no session"])

    # -- waiting ------------------------------------------------------------------------------------------------

    def wait_until(
        self, session: SessionLike, condition: Condition[T], *, what: str = "this", timeout: float = PATIENCE_S
    ) -> T:
        """Wait until the condition finds something in the session's ledger, and give it back. An AssertionError says
        what was waited for (`what`) and shows the ledger."""
        return _drive(self._watched(id_of(session), condition, what, timeout))

    async def async_wait_until(
        self, session: SessionLike, condition: Condition[T], *, what: str = "this", timeout: float = PATIENCE_S
    ) -> T:
        """The same, to await."""
        return await _async_drive(self._watched(id_of(session), condition, what, timeout))

    def wait_queued(self, session: SessionLike, what: str, *, timeout: float = PATIENCE_S) -> Event:
        """Wait until the message of this id or text is queued."""
        return self.wait_until(session, _queued_by(what), what=f"{what!r} to be queued", timeout=timeout)

    async def async_wait_queued(self, session: SessionLike, what: str, *, timeout: float = PATIENCE_S) -> Event:
        """The same, to await."""
        return await self.async_wait_until(session, _queued_by(what), what=f"{what!r} to be queued", timeout=timeout)

    def wait_idle(self, session: SessionLike, *, timeout: float = PATIENCE_S) -> int:
        """Wait until the session is there and its whole agent is idle; the seq of that idle, 0 if it never ran."""
        return self.wait_until(session, _rest, what="the agent to be idle", timeout=timeout)[0]

    async def async_wait_idle(self, session: SessionLike, *, timeout: float = PATIENCE_S) -> int:
        """The same, to await."""
        return (await self.async_wait_until(session, _rest, what="the agent to be idle", timeout=timeout))[0]

    def wait_turn_open(self, session: SessionLike, *, timeout: float = PATIENCE_S) -> int:
        """Wait until a turn is open; its number. It stays open while the model is held."""
        return self.wait_until(session, _open_turn, what="a turn to be open", timeout=timeout)

    async def async_wait_turn_open(self, session: SessionLike, *, timeout: float = PATIENCE_S) -> int:
        """The same, to await."""
        return await self.async_wait_until(session, _open_turn, what="a turn to be open", timeout=timeout)

    # -- inside -------------------------------------------------------------------------------------------------

    def _queued(self, session: SessionLike | None, what: str) -> list[tuple[str, Event]]:
        names = self.sessions() if session is None else [id_of(session)]
        return [(name, placed) for name in names for placed in ledger.queued(self.events(name), what)]

    def _watched(self, session_id: str, condition: Condition[T], what: str, timeout: float) -> _Wait[T]:
        """Look, and look again whenever the ledger has changed."""
        deadline = time.monotonic() + timeout
        while True:
            events = self.events(session_id)
            found = condition(events)
            if found:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                self._fail(session_id, f"waited {timeout:g} s for {what}")
            yield self._engine.changed(session_id, len(events)), left

    def _line(self, session_id: str, events: Sequence[Event], labels: Mapping[str, str] | None) -> str:
        names = ledger.labels(events) if labels is None else labels
        return self._engine.notation([event.envelope(session_id) for event in events], names)

    def _fail(self, session: SessionLike | None, sentence: str) -> None:
        where = "" if session is None else f"session {id_of(session)}: "
        raise AssertionError(f"{where}{sentence}\n{self.explain(session)}")


def id_of(session: SessionLike) -> str:
    """The id of a session."""
    return session if isinstance(session, str) else session.id


def _agents(agents: Mapping[str, Agent] | str | os.PathLike[str] | None, default: Agent) -> Mapping[str, Agent] | str:
    if agents is None or isinstance(agents, Mapping):
        return {DEFAULT_AGENT: default, **(agents or {})}
    if default != Agent():
        raise ValueError("script, tools and hooks are of the agent `default`, and an agents.toml has all agents")
    return os.fspath(agents)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- conditions -------------------------------------------------------------------------------------------------


def _queued_by(what: str) -> Condition[Event]:
    def look(events: Sequence[Event]) -> Event | None:
        return next(iter(ledger.queued(events, what)), None)

    return look  # type: ignore[return-value]


def _rest(events: Sequence[Event]) -> tuple[int, ...]:
    """The seq of the idle in which the agent rests; empty while it runs, or is not there."""
    levels = [event for event in events if event.type == "agent/status"]
    if not levels:
        return (0,) if events else ()
    return (levels[-1].seq,) if levels[-1].data["status"] == "idle" else ()


def _open_turn(events: Sequence[Event]) -> int:
    """The number of the open turn; 0: none is."""
    edges = [event for event in events if event.type in ("turn/start", "turn/end")]
    return int(edges[-1].data["turn"]) if edges and edges[-1].type == "turn/start" else 0


# -- driving a wait ---------------------------------------------------------------------------------------------


def _drive(wait: _Wait[T]) -> T:
    """See a wait through in this thread."""
    try:
        while True:
            change, left_s = next(wait)
            with suppress(TimeoutError):
                change.result(left_s)
            change.cancel()
    except StopIteration as stop:
        found: T = stop.value
        return found


async def _async_drive(wait: _Wait[T]) -> T:
    """See a wait through on the running event loop."""
    try:
        while True:
            change, left_s = next(wait)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(change), left_s)
    except StopIteration as stop:
        found: T = stop.value
        return found

"""What stands behind `Server`, as ports, and where it is found.

    Server --Setup--> [entry point `server` of the group `mailslot.testing`] --> Engine: model, faults, clock, ledgers

Rule 1: the SDK imports no service. The services offer their engine by an entry point, as they offer their commands.
Rule 2: everything here may be called from any thread, but not from the engine's own: an async tool of a test runs
        there, and would wait for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias, runtime_checkable

from mailslot.testing.agent import Agent
from mailslot.testing.script import Rule

GROUP = "mailslot.testing"
NAME = "server"

PATIENCE_S = 10.0
"""How long anything here waits, unless it is told otherwise."""

Envelope: TypeAlias = dict[str, Any]


class NotInstalled(ImportError):
    """The kit is there, and the server it would start is not."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a server is made of."""

    agents: Mapping[str, Agent] | str
    """Agents by name, or the path of an agents.toml."""
    pending_max: int
    """Queued messages of one session before 429 `queue-full`."""
    crashes_max: int
    """Crashes of one turn before it is given up."""
    lease_ms: int
    """How long a worker that says nothing keeps a session."""
    token: str
    """What callers must show; empty: nothing."""


# -- the model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelCall:
    """What a model was asked: one attempt."""

    agent: str
    session_id: str
    turn: int
    step: int
    attempt: int
    text: str
    """The newest user text: all that people said since the last answer."""
    instructions: str
    tools: tuple[str, ...]
    transcript: tuple[Mapping[str, Any], ...]
    """All it was shown, each entry with `role` (`user`, `assistant`, `tool`) and `text`, a tool's with `name` too."""


class Model(Protocol):
    """The handle of every model of the server."""

    @property
    def calls(self) -> Sequence[ModelCall]:
        """What models were asked so far, those that wait included."""
        ...

    def held(self) -> AbstractContextManager[None]:
        """While the block is open, no model answers; those that are asked wait, and can be cancelled."""
        ...

    def hold(self) -> None:
        """The same, until `let_go`."""
        ...

    def let_go(self) -> None:
        """Whoever is held goes on."""
        ...

    def wait_held(self, *, count: int = 1, timeout: float = PATIENCE_S) -> Sequence[ModelCall]:
        """Wait until so many model calls are held; those that are."""
        ...

    def wait_gate(self, name: str, *, timeout: float = PATIENCE_S) -> None:
        """Wait until a model has come to a gate of its script (`wait`)."""
        ...

    def open_gate(self, name: str) -> None:
        """Let models through a gate of a script, from now on."""
        ...

    def close_gate(self, name: str) -> None:
        """Stop models at a gate again."""
        ...


# -- faults -------------------------------------------------------------------------------------------------


@runtime_checkable
class Fault(Protocol):
    """A fault that is switched on."""

    @property
    def struck(self) -> int:
        """How often it has struck. A test of a fault that never struck has shown nothing."""
        ...


class Faults(Protocol):
    """What can go wrong on purpose. Each is on while its block is open; with a `count`, so many times at most."""

    def lose_receipts(self, count: int | None = None) -> AbstractContextManager[Fault]:
        """Prompts over HTTP are kept, and the connection is cut before their receipt is sent."""
        ...

    def refuse_store(self, count: int | None = None) -> AbstractContextManager[Fault]:
        """The doors' store refuses everything: 503 `store-refused`, nothing is kept. Workers still reach it."""
        ...

    def outcome_unknown(self, count: int | None = None, *, kept: bool = True) -> AbstractContextManager[Fault]:
        """The store's answer to what changes something is lost: 503 `outcome-unknown`. It was done, or with
        `kept=False` it was not; nobody is told which."""
        ...

    def full_queue(self, count: int | None = None, *, retry_after_ms: int = 20) -> AbstractContextManager[Fault]:
        """There is no room for a new message in any session: 429 `queue-full`. One that is there already still gets
        its receipt."""
        ...

    def slow_answers(self, seconds: float, count: int | None = None) -> AbstractContextManager[Fault]:
        """Every answer comes so much later; what was asked is done at once."""
        ...

    def cut_streams(self, *, after_events: int = 1, count: int | None = None) -> AbstractContextManager[Fault]:
        """Each event stream that is opened is cut after so many events."""
        ...

    def cut_streams_now(self) -> int:
        """Cut every event stream and WebSocket that is open; how many."""
        ...

    def lose_notices(self) -> AbstractContextManager[Fault]:
        """Every notice is lost: of events, deltas, cancels, rests. Readers and services find the facts later."""
        ...

    def no_worker(self) -> AbstractContextManager[None]:
        """The worker is killed, and there is none until the block is left. Its open turns are recovered then."""
        ...

    def kill_worker(self) -> None:
        """The worker is killed as by `kill -9`, its leases are over at once, and a new one begins: open turns are
        recovered. A tool that runs in a thread goes on in it; what it returns is lost."""
        ...


# -- time ---------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """The server's time. It passes as anywhere, and jumps ahead when it is told to."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the store's clock: what `not_before` and `expires_at` are compared with."""
        ...

    def advance(self, seconds: float) -> None:
        """So much time has passed: what became due or expired by then says so in the ledger before this returns, and
        waits of the product (between retries) that end by then are over. Leases are kept; budgets of wall time and
        timeouts of tools count real time only."""
        ...


# -- all of it ----------------------------------------------------------------------------------------------


class Engine(Protocol):
    """A server that can be started once."""

    @property
    def model(self) -> Model:
        """The handle of its models."""
        ...

    @property
    def faults(self) -> Faults:
        """Its switches."""
        ...

    @property
    def clock(self) -> Clock:
        """Its time."""
        ...

    def start(self) -> str:
        """It answers at this URL."""
        ...

    def close(self) -> None:
        """Nothing of it is left: no thread, no socket, no session."""
        ...

    def restart(self) -> None:
        """Doors and worker have ended as by SIGTERM and begun anew, at the same URL, on the same store."""
        ...

    def answers(self, agent: str, rule: Rule, *, first: bool) -> None:
        """The agent answers by this rule from now on; `first`: before those that are not."""
        ...

    def sessions(self) -> Sequence[str]:
        """The ids of all sessions."""
        ...

    def envelopes(self, session_id: str) -> Sequence[Envelope]:
        """The session's ledger, read past every door and every fault."""
        ...

    def changed(self, session_id: str, count: int) -> Future[None]:
        """Done once the session's ledger does not have exactly so many events (any more)."""
        ...

    def notation(self, envelopes: Sequence[Envelope], labels: Mapping[str, str]) -> str:
        """The ledger as one line, in the notation of the golden traces."""
        ...


def engine() -> Callable[[Setup], Engine]:
    """What makes engines. `NotInstalled` says why there is none."""
    found = [point for point in entry_points(group=GROUP) if point.name == NAME]
    if not found:
        raise NotInstalled(
            "mailslot.testing starts a server in this process, and the services of mailslot are not installed here: "
            "install the distribution `mailslot` as a whole"
        )
    try:
        made: Callable[[Setup], Engine] = found[0].load()
    except (ImportError, AttributeError) as error:
        raise NotInstalled(f"the server of mailslot.testing cannot be loaded from {found[0].value}: {error}") from error
    return made

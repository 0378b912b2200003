"""The processes that `mailslot up` runs: started, watched, started again, ended in order, never orphaned.

    up ── pipe ──> watcher ── fork ──> service          service dies  ──> reported, started again after a delay
     ^                │                   │             up is killed  ──> watcher sees the pipe's end, SIGTERM, SIGKILL
     └──── stderr ────┴───────────────────┘             up ends       ──> drained in the order given, then the next

Rule 1: each service has a watcher of its own (`embedded_watcher`), so even a stopped one ends when `up` is killed.
Rule 2: each service is in a session of its own: Ctrl-C in a terminal reaches `up` alone, which ends them in order.
Rule 3: what ends before everything was ready, or keeps ending right after its start, cannot be helped by starting it
        again: `ChildFailed`, with its last words.
Rule 4: whatever else ends is started again, each time in a row after a longer delay, up to a bound.
Rule 5: lines of a service's stderr are passed on under its name.

    ChildFailed     a service could not be started, or does not keep running
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mailslot_core.errors import CoreError
from mailslot_services import embedded_watcher

ABANDONED_S: Final = 5.0
"""How long a service may take to end after SIGTERM when `up` itself is gone; then it is killed."""
STABLE_S: Final = 10.0
"""A service that ran this long was started well: its next death is the first in a row."""
DEATHS_MAX: Final = 5
"""Deaths in a row, each sooner than STABLE_S after the start, before `up` gives up."""
DELAY_S_FIRST: Final = 0.25
DELAY_S_MAX: Final = 4.0
"""Delay before a service is started again: the first one, doubled for each death in a row, and the longest."""
LINE_BYTES_MAX: Final = 16_384
"""Longest line of stderr that is passed on; the rest of a longer one is dropped."""
WORDS_KEPT: Final = 20
"""Lines of stderr kept for the report of a failure."""
FLUSH_S: Final = 0.5
"""How long the last lines of an ended service are waited for: a process that it left behind may hold its stderr."""

Tell = Callable[[str, str], None]
"""Is told (name of a service, one line): its stderr, and what becomes of it."""


class ChildFailed(CoreError):
    """A service could not be started, or does not keep running; the sentence has its last words."""

    code = "child-failed"


@dataclass(frozen=True)
class Service:
    """What to run, and how to know that it is ready. `drain_s` is how long it may take to end in order."""

    name: str
    words: Sequence[str]
    drain_s: float
    env: Mapping[str, str] = field(default_factory=dict)


def delay_s(deaths: int) -> float:
    """How long to wait before a service is started again after so many deaths in a row."""
    return min(DELAY_S_MAX, DELAY_S_FIRST * 2.0 ** (deaths - 1))


def cause(status: int) -> str:
    """An exit status in words, as shells count them."""
    if status > 128 and status - 128 in set(signal.Signals):
        return f"killed by {signal.Signals(status - 128).name}"
    return f"exit code {status}"


class Child:
    """One running service under its watcher."""

    def __init__(self, service: Service, tell: Tell) -> None:
        self.service = service
        self.pid = 0
        self._tell = tell
        self._words: deque[str] = deque(maxlen=WORDS_KEPT)
        self._watcher: asyncio.subprocess.Process | None = None
        self._owner_end = -1
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The process exists; whether it comes up is another matter."""
        watched_end, self._owner_end = os.pipe()
        try:
            self._watcher = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                embedded_watcher.__file__,
                str(os.getpid()),
                str(ABANDONED_S),
                "",
                "-1",
                "--",
                *self.service.words,
                stdin=watched_end,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **self.service.env},
                start_new_session=True,
            )
        finally:
            os.close(watched_end)
        self._listening = asyncio.create_task(self._listen(self._watcher))
        assert self._watcher.stdout is not None
        words = (await self._watcher.stdout.readline()).split()
        self.pid = int(words[1]) if words else 0

    async def wait(self) -> int:
        """Its exit status, once it has ended and its last lines were passed on."""
        assert self._watcher is not None, "not started"
        assert self._listening is not None, "not started"
        status = await self._watcher.wait()
        self._let_go()
        await asyncio.wait({self._listening}, timeout=FLUSH_S)
        self._listening.cancel()
        return status

    def terminate(self) -> None:
        """Ask it to end in order. A process that is only being started is ended by its watcher."""
        if self.pid:
            self._signal(signal.SIGTERM)
        else:
            self._let_go()

    def kill(self) -> None:
        """End it now."""
        self._signal(signal.SIGKILL)
        self._let_go()

    @property
    def last_words(self) -> str:
        """Its last lines, for the sentence that says why it failed."""
        return " / ".join(self._words) or "it said nothing"

    def _signal(self, number: signal.Signals) -> None:
        if self.pid and self._watcher is not None and self._watcher.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _let_go(self) -> None:
        """Close our end of the watcher's pipe, which ends whatever still runs."""
        if self._owner_end >= 0:
            os.close(self._owner_end)
            self._owner_end = -1

    async def _listen(self, watcher: asyncio.subprocess.Process) -> None:
        assert watcher.stderr is not None
        rest = b""
        while chunk := await watcher.stderr.read(LINE_BYTES_MAX):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                self._hear(line)
            rest = rest[:LINE_BYTES_MAX]
        if rest:
            self._hear(rest)

    def _hear(self, line: bytes) -> None:
        words = line[:LINE_BYTES_MAX].decode(errors="replace").rstrip()
        if words:
            self._words.append(words)
            self._tell(self.service.name, words)


class Crew:
    """All services together."""

    def __init__(self, services: Sequence[Service], tell: Tell) -> None:
        self._services = services
        self._tell = tell
        self._running: dict[str, Child] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._all_ready = False

    def start(self) -> None:
        """Begin to run every service."""
        for service in self._services:
            self._keeping[service.name] = asyncio.create_task(self._keep(service))

    def all_ready(self) -> None:
        """From now on a service that ends is started again (rules 3, 4)."""
        self._all_ready = True

    def child(self, name: str) -> Child | None:
        """The running process of a service, None between two of them."""
        return self._running.get(name)

    async def failure(self) -> None:
        """Raises `ChildFailed` as soon as one service cannot be kept running; never returns before."""
        done, _ = await asyncio.wait(self._keeping.values(), return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def drain(self) -> None:
        """End every service in the order given. Services that share a word before the space end together."""
        kinds = dict.fromkeys(service.name.partition(" ")[0] for service in self._services)
        for kind in kinds:
            together = [service for service in self._services if service.name.partition(" ")[0] == kind]
            await asyncio.gather(*(self._end(service) for service in together))

    async def kill(self) -> None:
        """End every service now; those that have ended in order are not there any more."""
        self._ending.update(self._keeping)
        for child in self._running.values():
            child.kill()
        done, between = await asyncio.wait(self._keeping.values(), timeout=FLUSH_S * 2)
        for task in between:
            task.cancel()
        for task in done:
            task.cancelled() or task.exception()  # whoever waited for `failure` knows; asyncio wants it looked at

    async def _keep(self, service: Service) -> None:
        """Run the service, again and again, until it is to end."""
        deaths = 0
        while service.name not in self._ending:
            child = self._running[service.name] = Child(service, self._tell)
            began = time.monotonic()
            await child.start()
            status = await child.wait()
            del self._running[service.name]
            if service.name in self._ending:
                return
            deaths = 1 if time.monotonic() - began >= STABLE_S else deaths + 1
            self._refuse_the_hopeless(child, status, deaths)
            self._tell(service.name, f"ended ({cause(status)}): it is started again in {delay_s(deaths):g} s")
            await asyncio.sleep(delay_s(deaths))

    def _refuse_the_hopeless(self, child: Child, status: int, deaths: int) -> None:
        name = child.service.name
        if not self._all_ready:
            raise ChildFailed(f"{name} could not be started ({cause(status)}): {child.last_words}")
        if deaths > DEATHS_MAX:
            raise ChildFailed(f"{name} does not keep running ({cause(status)}): {child.last_words}")

    async def _end(self, service: Service) -> None:
        self._ending.add(service.name)
        task, child = self._keeping.get(service.name), self._running.get(service.name)
        if task is None or task.done():
            return
        if child is None:  # between a death and the next start
            task.cancel()
        else:
            child.terminate()
        _, late = await asyncio.wait({task}, timeout=service.drain_s)
        if late and child is not None:
            self._tell(service.name, f"did not end within {service.drain_s:g} s: it is killed")
            child.kill()
            await asyncio.wait({task})

"""One thread, one seed, no waiting: the event loop that all simulated processes run on.

    ready: [worker-1: renew] [door: submit] [worker-2: acquire]  --seed draws one--> run it
    nothing ready                                                --> the clock jumps to the next timer

Rule 1: time is a number. It stands still while anything can run, and jumps when nothing can; nobody really waits.
Rule 2: whatever can run may run next; the seed draws. asyncio promises no order between tasks, so no code may need one.
Rule 3: a task belongs to the process that it was started in, and so do its children. A process that is frozen
        (SIGSTOP) or dead (kill -9) runs nothing; what it asked of others goes on without it.
Rule 4: the same seed draws the same, in every process of one Python version: no order comes from an address or from
        PYTHONHASHSEED.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from math import inf
from typing import Any, Final, TypeVar

from mailslot_core.clock import SystemClock

HANDLES_MAX: Final = 1_000_000
"""Callbacks after which a run is taken for one that never comes to an end: an ordinary one has some ten thousand."""

EPOCH_MS: Final = 1_764_554_400_000
"""The store's clock at the beginning: a date that is easy to recognise."""

NETWORK: Final = Context()
"""Where timers run that belong to no process: what is on the wire arrives whatever became of its sender."""

T = TypeVar("T")


class Endless(AssertionError):
    """The run goes on without getting anywhere."""


class Life(StrEnum):
    """How a process is."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


@dataclass(eq=False)
class Process:
    """A simulated process: a name, and what it may not run at the moment."""

    name: str
    life: Life = Life.RUNNING
    parked: list[asyncio.Handle] = field(default_factory=list)
    freezes: int = 0
    thawed_s: float = -inf  # when it went on last

    @property
    def runs(self) -> bool:
        return self.life is Life.RUNNING


OWNER: ContextVar[Process | None] = ContextVar("OWNER", default=None)
"""The process that the present task belongs to."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run (rule 4): asyncio keeps tasks in sets."""

    def __init__(self, serial: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._serial = serial
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._serial


class _Future(asyncio.Future[Any]):
    """The same for a future."""

    def __init__(self, serial: int, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class Scheduler(asyncio.BaseEventLoop):
    """The loop. It is asyncio's own, but for time, the choice of what runs next, and processes."""

    _ready: deque[asyncio.Handle]

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._now_s = 0.0
        self._serials = count(1)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.handles = 0
        self.closing = False
        self.set_task_factory(self._task)

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._serials), self)

    def _task(self, _loop: Any, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        return _Task(next(self._serials), coroutine, loop=self, **options)

    def _write_to_self(self) -> None:
        """Nothing sleeps, so nothing needs to be woken."""

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._serials), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    # -- running ----------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Run one callback: asyncio's loop calls this for ever."""
        ready = self._ready
        if not ready:
            self._jump()
            if not ready:
                return
        at = self._rng.randrange(len(ready)) if len(ready) > 1 else 0
        ready[at], ready[-1] = ready[-1], ready[at]
        handle = ready.pop()
        if handle._cancelled:
            return
        owner: Process | None = handle._context.get(OWNER)  # type: ignore[attr-defined]
        if owner is not None and not owner.runs and not self.closing:
            owner.parked.append(handle)
            return
        self.handles += 1
        if self.handles > HANDLES_MAX:
            raise Endless(f"{HANDLES_MAX} callbacks have run and there is no end of it, at {self._now_s:.3f} s")
        handle._run()

    def _jump(self) -> None:
        """Go to the next timer, and make ready all that are due then."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Endless("nothing will ever run again")
        self._now_s = now = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)

    # -- processes --------------------------------------------------------------------------------------------

    def start(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work of a process: a task that belongs to it."""
        context = copy_context()
        context.run(OWNER.set, process)
        return self.create_task(work, context=context)

    def freeze(self, process: Process) -> None:
        """SIGSTOP."""
        if process.runs:
            process.life = Life.FROZEN
            process.freezes += 1

    def thaw(self, process: Process) -> None:
        """SIGCONT: whatever waited can run now, in any order."""
        if process.life is Life.FROZEN:
            process.life, process.thawed_s = Life.RUNNING, self._now_s
            self._unpark(process)

    def kill(self, process: Process) -> None:
        """SIGKILL. Its tasks stay where they are: nothing in them runs any more, no `finally` either."""
        process.life = Life.DEAD

    def _unpark(self, process: Process) -> None:
        parked, process.parked = process.parked, []
        self._ready.extend(parked)

    def later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> None:
        """On the network: happens then, whatever became of who asked for it."""
        self.call_later(seconds, callback, *arguments, context=NETWORK)

    # -- the end ----------------------------------------------------------------------------------------------

    def clear(self, processes: Iterable[Process]) -> None:
        """End every task that is left, those of dead processes included. The world is over: nobody looks."""
        self.closing = True
        for process in processes:
            self._unpark(process)
        self.run_until_complete(_ended())
        self.close()


async def _ended() -> None:
    own = asyncio.current_task()
    while tasks := [task for task in asyncio.all_tasks() if task is not own]:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0)


class VirtualClock(SystemClock):
    """The loop's time. Monotonic clocks go on evenly; the wall clock, which only the store reads, may jump."""

    def __init__(self, loop: Scheduler) -> None:
        self._loop = loop
        self.offset_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000) + self.offset_ms

    def monotonic(self) -> float:
        return self._loop.time()

"""Calls of other people's Python functions: on the event loop or in a thread, and never longer than they may take.

    function --async, or said to be quick--> the loop    --+
             --anything else--------------> a thread     --+--> its result, or the error it is told by (`ToolError`)
             --marked so (`process`)------> a process    --+

Rule 1: whatever a function raises is its result; it never ends the turn, the session or the worker.
Rule 2: a call that may take no longer is told to stop. One that does not obey is not waited for.

    code            what happened to the call
    tool-failed     the function raised
    tool-busy       BLOCKING_CALLS_MAX blocking calls are under way already
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from mailslot_core.agent import ToolError
from mailslot_services.agent_worker.models.text import without_surrogates

MESSAGE_CHARACTERS_MAX: Final = 2_000
"""How much of an exception's message is passed on."""

BLOCKING_CALLS_MAX: Final = 256
"""How many blocking functions may run at once in one process, those that outlived their timeout included."""

CANCEL_GRACE_S: Final = 1.0
"""How long a function that was told to stop may take to do so before nobody waits for it any more."""

T = TypeVar("T")


class Overdue(Exception):
    """The call took longer than it may."""


async def within(work: Awaitable[T], seconds: float) -> T:
    """What the call comes to, if it does so in time. Raises `Overdue`, `ToolError`."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task)
        raise
    if not done:
        await _stop(task)
        if not task.done() or task.cancelled():
            raise Overdue
    if task.cancelled():
        raise ToolError("tool-failed", "it was cancelled from within")
    return task.result()


async def _stop(task: asyncio.Future[T]) -> None:
    """Tell a call to stop, and give it a moment. One that goes on regardless is left to itself."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait({task}, timeout=CANCEL_GRACE_S)


def is_async(function: Callable[..., object]) -> bool:
    """Whether a function awaits: its calls run on the loop."""
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )


async def on_the_loop(call: Callable[[], object]) -> object:
    """The call's result. Raises `ToolError`."""
    try:
        result = call()
        return await result if inspect.isawaitable(result) else result
    except (Exception, SystemExit) as error:  # somebody else's code: whatever it raises is its result
        raise failed(error) from error


async def in_a_thread(call: Callable[[], object]) -> object:
    """The call's result. Raises `ToolError`."""
    return await blocking_calls.run(call)


def failed(error: BaseException) -> ToolError:
    """What is told of an exception."""
    if isinstance(error, ToolError):
        return error
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ToolError("tool-failed", without_surrogates(message[:MESSAGE_CHARACTERS_MAX]))


class BlockingCalls:
    """Blocking functions, each in a thread of its own that nobody waits for at exit.

    A pool would let a few functions that never return hold up everybody behind them, and the exit of the process.
    """

    def __init__(self, calls_max: int = BLOCKING_CALLS_MAX) -> None:
        self._calls_max = calls_max
        self._running = 0
        self._lock = threading.Lock()

    def run(self, call: Callable[[], object]) -> asyncio.Future[object]:
        """The call's result, on the running loop. Raises `ToolError`."""
        with self._lock:
            if self._running >= self._calls_max:
                raise ToolError("tool-busy", f"{self._calls_max} blocking calls are under way; try again later")
            self._running += 1
        loop = asyncio.get_running_loop()
        told: asyncio.Future[object] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result: object = context.run(call)
            except BaseException as error:  # noqa: BLE001 - somebody else's code, and a thread has nobody to raise to
                self._end(loop, told, failed(error))
            else:
                self._end(loop, told, result)

        threading.Thread(target=work, name="mailslot-call", daemon=True).start()
        return told

    def _end(self, loop: asyncio.AbstractEventLoop, told: asyncio.Future[object], outcome: object) -> None:
        with self._lock:
            self._running -= 1
        if not loop.is_closed():
            loop.call_soon_threadsafe(_tell, told, outcome)


blocking_calls: Final = BlockingCalls()


def _tell(told: asyncio.Future[object], outcome: object) -> None:
    if told.done():
        return  # nobody waits any more
    if isinstance(outcome, ToolError):
        told.set_exception(outcome)
    else:
        told.set_result(outcome)

"""A call in a process of its own: for functions that let nobody else run, and for those that must be killable.

    worker ──pipe: what to call──> process_program ──> the function
       ^                                 │
       └──────────pipe: outcome──────────┘        no longer wanted, or the worker is gone ──> killed

Rule 1: the process is started for the call and ends with it; nothing is shared with the worker or with another call.
Rule 2: it is killed, with whatever it started itself, when the call has taken as long as it may, when nobody waits for
        it any more, and when the worker dies, kill -9 included (see `process_program`).
Rule 3: the function is found there by its module and name, so only functions that a module names can be called;
        arguments and result travel as pickles between two processes of the same program.

    code            what happened to the call
    tool-failed     the function raised, or its process ended without a word
    tool-busy       PROCESS_CALLS_MAX calls are under way already
    bad-result      the result cannot be passed between processes, or is longer than RESULT_FRAME_BYTES_MAX
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from mailslot_core.agent import ToolError
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker import process_program
from mailslot_services.agent_worker.call import CANCEL_GRACE_S, MESSAGE_CHARACTERS_MAX
from mailslot_services.agent_worker.models.text import without_surrogates

PROCESS_CALLS_MAX: Final = 64
"""How many calls may have a process at once in one worker."""

RESULT_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest result that a process may pass back; the model sees far less of it."""


class ProcessCalls:
    """Starts processes for calls, so many at once."""

    def __init__(self, calls_max: int = PROCESS_CALLS_MAX) -> None:
        self._calls_max = calls_max
        self._running = 0

    async def run(self, module: str, name: str, values: Mapping[str, Any], cap_s: float) -> object:
        """The call's result. Raises `ToolError`."""
        if self._running >= self._calls_max:
            raise ToolError("tool-busy", f"{self._calls_max} calls in processes are under way; try again later")
        self._running += 1
        try:
            return _result(*await _answered(_asked(module, name, values, cap_s)), name)
        finally:
            self._running -= 1


process_calls: Final = ProcessCalls()


def named(function: Callable[..., object], told: str) -> tuple[str, str]:
    """Module and name by which another process finds the function; Misconfigured if it cannot."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    try:
        if module in ("", "__main__") or process_program.found(module, name) is not function:
            raise AttributeError(name)  # noqa: TRY301 - one way to say no
    except (AttributeError, ImportError):
        raise Misconfigured(
            f"{told}: a process finds it by module and name only, and {module}:{name} is something else"
        ) from None
    return module, name


def _asked(module: str, name: str, values: Mapping[str, Any], cap_s: float) -> bytes:
    try:
        packed = pickle.dumps(dict(values))
    except Exception as error:  # whatever the arguments' own code raises
        raise ToolError("tool-failed", f"the arguments cannot be passed to a process: {error}") from error
    # By the time that the kernel ends the process by itself, the worker would have killed it long since.
    request = process_program.Request(sys.path, module, name, packed, cap_s + CANCEL_GRACE_S, RESULT_FRAME_BYTES_MAX)
    return process_program.framed(pickle.dumps(tuple(request)))


async def _answered(request: bytes) -> tuple[bytes, int]:
    """What a process answers, and the status it ended with."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        process_program.__file__,
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with contextlib.suppress(ConnectionError):  # it died first: what it said tells
            child.stdin.write(request)
            await child.stdin.drain()
        answer = await child.stdout.read()
        return answer, await child.wait()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
        child.stdin.close()


def _result(answer: bytes, status: int, name: str) -> object:
    """The outcome that a process wrote, or what can be said of one that wrote none."""
    try:
        outcome: tuple[str, str, bytes] = pickle.loads(answer)  # noqa: S301 - our own program wrote it
        code, message, packed = outcome
    except Exception:  # noqa: BLE001 - it was cut off: the process ended in between, or before
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        raise ToolError("tool-failed", f"the process of {name} ended with {how}") from None
    if code:
        raise ToolError(code, without_surrogates(message[:MESSAGE_CHARACTERS_MAX]))
    try:
        result: object = pickle.loads(packed)  # noqa: S301 - a tool's result: the tool is the operator's own code
    except Exception as error:
        raise ToolError("bad-result", f"the result of {name} cannot be read here: {error}") from error
    return result

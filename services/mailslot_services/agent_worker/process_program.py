"""The program of a process that makes one call (`process`): read what to call, call it, write what came of it, end.

    standard input:  length, request; then nothing, until the worker closes it or is gone
    standard output: (code, message, result): the code is empty for a result

Rule 1: it ends with its worker: on Linux the kernel kills it when the worker dies, elsewhere a thread sees the end of
        standard input.
Rule 2: it ends in time whatever the function does: the kernel's timer kills it, also while nothing in Python can run.
Rule 3: it ends with everything it started: it leads a process group, which is killed when the answer is written.
Rule 4: the function's own standard input is empty, and what it prints goes to standard error.

Run as a script on the standard library alone; everything else is the function's own import.
"""

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

PR_SET_PDEATHSIG: Final = 1
LENGTH_BYTES: Final = 8


class Request(NamedTuple):
    """What to call; it travels as a plain tuple. `arguments` is a pickle that needs `path` to be read."""

    path: list[str]
    module: str
    name: str
    arguments: bytes
    cap_s: float
    answer_bytes_max: int


def framed(body: bytes) -> bytes:
    """A request as it is written: its length first."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def found(module: str, name: str) -> Callable[..., object]:
    """The function that a module names, which may stand in a class."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    function: Callable[..., object] = value
    return function


def end_with(worker_pid: int) -> None:
    """Rule 1. The worker may have died before the kernel was told."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != worker_pid:
        end()


def end() -> NoReturn:
    """Rule 3."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def own_streams() -> tuple[int, int]:
    """Rule 4: the two pipes for us, something harmless for the function."""
    asked, answer = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return asked, answer


def wait_for_the_end(asked: int) -> None:
    """Rule 1. Nothing follows the request, so whatever can be read is the end."""
    os.read(asked, 1)
    end()


def outcome(request: Request) -> tuple[str, str, bytes]:
    """Call the function."""
    try:
        function = found(request.module, request.name)
        value = function(**pickle.loads(request.arguments))  # noqa: S301 - our worker wrote them
    except BaseException as error:  # noqa: BLE001 - somebody else's code: whatever it raises is its result
        core = sys.modules.get("mailslot_core.agent")
        if core is not None and isinstance(error, core.ToolError):
            return error.code, str(error), b""
        return "tool-failed", f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, b""
    try:
        packed = pickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - likewise
        return "bad-result", f"a result of type {type(value).__name__} cannot leave its process: {error}", b""
    if len(packed) > request.answer_bytes_max:
        return "bad-result", f"the result has {len(packed)} bytes; the limit is {request.answer_bytes_max}", b""
    return "", "", packed


def main() -> NoReturn:
    """One call."""
    end_with(int(sys.argv[1]))
    asked, answer = own_streams()
    with open(asked, "rb", closefd=False) as source:
        length = int.from_bytes(source.read(LENGTH_BYTES), "big")
        body = source.read(length)
    if not length or len(body) < length:
        end()  # the worker went away in the middle of it
    request = Request(*pickle.loads(body))  # noqa: S301 - our worker wrote it
    signal.setitimer(signal.ITIMER_REAL, request.cap_s)
    threading.Thread(target=wait_for_the_end, args=(asked,), daemon=True).start()
    sys.path[:] = request.path
    written = memoryview(pickle.dumps(outcome(request)))
    while written:
        written = written[os.write(answer, written) :]
    end()


if __name__ == "__main__":
    main()

"""The process between a server and the one who started it, so that a server never outlives its owner.

    owner ──── pipe (never written) ────> watcher ──── fork ────> server
      │                                      │
      └─ closes it, or is killed (-9 too) ─> end of file ─ SIGTERM ─> writes its files, exits

Rule 1: end of file on standard input means the owner is gone or wants the server gone; both end it in order.
Rule 2: the owner's process id is looked at as well: a copy of the pipe in another process must not keep a server alive.
Rule 3: a server that does not obey SIGTERM within the grace is killed.
Rule 4: on Linux the server gets SIGTERM from the kernel when the watcher itself is killed. (The kernel ties that to the
        thread that forked. The watcher has one thread only; that is why the owner does not fork the server itself.)
Rule 5: the watcher lives in a session of its own, so that Ctrl-C in a terminal reaches the owner and not the store that
        the owner's services still need to finish.

Run as a script, on the standard library alone, so that it starts in some 20 ms:

    python -I embedded_watcher.py OWNER_PID GRACE_S DIR_TO_REMOVE PASSED_FD -- PROGRAM ARGUMENT...

DIR_TO_REMOVE may be empty and PASSED_FD -1. It prints `pid N` once the server runs and exits with the server's status.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Final, NamedTuple, NoReturn

OWNER_CHECK_S: Final = 1.0
"""How often rule 2 looks. It is the bound on how long a server can outlive an owner whose pipe was copied."""

PR_SET_PDEATHSIG: Final = 1
WATCHER_GONE: Final = 70
"""Exit status of a server process whose watcher died before the kernel was told to mind it (EX_SOFTWARE)."""


class Order(NamedTuple):
    """What the owner asked for on the command line."""

    owner_pid: int
    grace_s: float
    dir_to_remove: str
    passed_fd: int
    command: list[str]


def read_order(arguments: list[str]) -> Order:
    """Read the command line; it is written by `EmbeddedServer` alone, so a wrong one is a defect and raises."""
    owner_pid, grace_s, dir_to_remove, passed_fd, dashes, *command = arguments
    assert dashes == "--"
    assert command
    return Order(int(owner_pid), float(grace_s), dir_to_remove, int(passed_fd), command)


def die_with_the_watcher(watcher_pid: int) -> None:
    """Rule 4, in the server's process before its program runs. The watcher may have died before the signal was set."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != watcher_pid:
        os._exit(WATCHER_GONE)


def start(order: Order) -> subprocess.Popen[bytes]:
    """Start the server. It inherits the passed descriptor, whose lock then lasts as long as the server does."""
    watcher_pid = os.getpid()
    return subprocess.Popen(  # noqa: S603 - the command comes from the owner
        order.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=() if order.passed_fd < 0 else (order.passed_fd,),
        preexec_fn=lambda: die_with_the_watcher(watcher_pid),  # noqa: PLW1509 - safe: the watcher has one thread
    )


def wake_on_signals() -> int:
    """Turn SIGCHLD, SIGTERM and SIGINT into bytes that `select` can wait for; returns the end to read them from."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return read_end


def pipe_ended(descriptor: int) -> bool:
    """Rule 1. Nothing is ever written to the pipe, so whatever can be read is its end."""
    try:
        return os.read(descriptor, 1024) == b""
    except OSError:
        return True


def told_to_end(server: subprocess.Popen[bytes], owner_pid: int, signals: int) -> bool:
    """Wait until the owner is gone or a signal asks for the end (True), or the server ended by itself (False)."""
    standard_input = sys.stdin.fileno()
    while server.poll() is None:
        readable, _, _ = select.select([standard_input, signals], [], [], OWNER_CHECK_S)
        if standard_input in readable and pipe_ended(standard_input):
            return True
        if signals in readable and any(number != signal.SIGCHLD for number in os.read(signals, 1024)):
            return True
        if os.getppid() != owner_pid:
            return True
    return False


def end(server: subprocess.Popen[bytes], grace_s: float) -> int:
    """Rule 3. End the server in order, or after the grace by force; returns its exit status."""
    server.terminate()
    try:
        return server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def main(arguments: list[str]) -> NoReturn:
    """Start, watch, end, tidy."""
    order = read_order(arguments)
    signals = wake_on_signals()
    server = start(order)
    with contextlib.suppress(OSError):  # an owner that is already gone is noticed below
        print(f"pid {server.pid}", flush=True)  # noqa: T201 - the owner reads this line
    if order.passed_fd >= 0:
        os.close(order.passed_fd)
    if told_to_end(server, order.owner_pid, signals):
        status = end(server, order.grace_s)
        if order.dir_to_remove:
            shutil.rmtree(order.dir_to_remove, ignore_errors=True)
    else:  # the owner lives and wants to read the log
        status = server.wait()
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(sys.argv[1:])

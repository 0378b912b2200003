"""Ctrl-C while a run is under way: once stops what the run began and waits for idle, twice leaves.

| when it comes                          | once                                                            |
|----------------------------------------|-----------------------------------------------------------------|
| the agent is not idle yet              | leaves: the task was not sent                                   |
| the task is sent, its receipt is not there | as below, as soon as the receipt is there                   |
| no turn has taken the message          | the message is withdrawn                                        |
| turn n has taken it                    | turn n is cancelled, by its number                              |
| its turn is over                       | nothing: what goes on is somebody else's                        |

Rule 1: the server decides between the rows: a withdrawal that is refused tells that a turn was faster, and the
        message's record names it. So neither somebody else's turn nor a later one is ever hit.
Rule 2: the run goes on meanwhile, through the idle of the whole agent. How it ended is reported as ever.
Rule 3: the second Ctrl-C, and SIGTERM at any time, leave at once. The agent goes on.
Rule 4: signals are read by a thread. The main thread may be blocked in reading a stream, where Python would get to a
        handler only when the next bytes come; and a person who presses Ctrl-C twice is not to wait for bytes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from mailslot.cli.exits import Exit
from mailslot.errors import MailslotError, Refused
from mailslot.inbox import message, withdraw
from mailslot.operation import Address, cancel
from mailslot.record import MessageRecord
from mailslot.transport import Transport

LAST_WORD_S_MAX: Final = 5.0
"""Seconds that a run which is over waits for what a Ctrl-C came to."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

TOO_LATE: Final = frozenset({"already-claimed", "already-settled"})
"""The refusals that say that the message is not queued any more."""


class Interrupt:
    """What Ctrl-C does to one run.

    `stop` stops what was begun, and says in words what came of that; `say` writes a sentence; `bye` writes the last one
    of a run that is left.
    """

    def __init__(self, stop: Callable[[], str], say: Callable[[str], None], bye: Callable[[], None]) -> None:
        self._stop = stop
        self._say = say
        self._bye = bye
        self._kept = threading.Event()
        self._stopping: threading.Thread | None = None
        self.begun = False
        """Whether the task is sent, or about to be."""

    @property
    def kept(self) -> bool:
        """Whether the message's receipt is there."""
        return self._kept.is_set()

    def sent(self) -> None:
        """The message is kept: there is something to stop."""
        self._kept.set()

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Signals come here while the block is open. One that was ignored before stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        threading.Thread(target=self._listen, args=(reader,), daemon=True).start()
        wakeup_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, _noted) for number in heeded}
        try:
            yield
            if self._stopping is not None:
                self._stopping.join(LAST_WORD_S_MAX)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_fd)
            writer.close()

    def _listen(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(64):
                for number in numbers:
                    self._signalled(number)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGTERM:
            self._leave(Exit.TERMINATED)
        if number == signal.SIGINT:
            if self._stopping is not None or not self.begun:
                self._leave(Exit.INTERRUPTED)
            self._stopping = threading.Thread(target=self._work, daemon=True)
            self._stopping.start()

    def _leave(self, code: Exit) -> NoReturn:
        """Nothing is left to be done: what was printed is written, and the server sees that the connections end."""
        try:
            self._bye()
        finally:
            os._exit(code)

    def _work(self) -> None:
        self._say("stopping, and waiting until the agent is idle; Ctrl-C again leaves it at work")
        self._kept.wait()
        try:
            self._say(self._stop())
        except MailslotError as error:
            self._say(f"it could not be stopped: {error}")


def _noted(_number: int, _frame: object) -> None:
    """Python wants a handler to call; the signal's number is in the socket by now."""


def stopped(way: Transport, address: Address, message_id: str) -> str:
    """Withdraw a message, or cancel the turn that took it; what was done, in words."""
    try:
        way.perform(withdraw(way.terms, address, message_id))
    except Refused as refused:
        if refused.code not in TOO_LATE:
            raise
    else:
        return "the message is withdrawn"
    record = way.perform(message(way.terms, address, message_id))
    return _cancelled(way, address, record)


def _cancelled(way: Transport, address: Address, record: MessageRecord) -> str:
    if record.turn is None:
        return f"there is nothing to stop: the message is {record.state}"
    try:
        way.perform(cancel(way.terms, address, queue="keep", turn=record.turn, wait_s=None))
    except Refused as refused:
        if refused.code != "not-open":
            raise
        return f"there is nothing to stop: turn {record.turn} is over"
    return f"turn {record.turn} is asked to stop"

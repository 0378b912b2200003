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
Rule 4: a signal handler does nothing but say that it was called, or leave: everything else is the work of a thread.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from mailslot.cli.exits import Exit
from mailslot.errors import MailslotError, Refused
from mailslot.inbox import message, withdraw
from mailslot.operation import Address, cancel
from mailslot.record import MessageRecord
from mailslot.transport import Transport

LAST_WORD_S_MAX: Final = 5.0
"""Seconds that a run which is over waits for what a Ctrl-C came to."""

TOO_LATE: Final = frozenset({"already-claimed", "already-settled"})
"""The refusals that say that the message is not queued any more."""


class Interrupt:
    """What Ctrl-C does to one run. `stop` stops what was begun, and says in words what came of that."""

    def __init__(self, stop: Callable[[], str], say: Callable[[str], None]) -> None:
        self._stop = stop
        self._say = say
        self._pulls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sent = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.begun = False
        """Whether the task is sent, or about to be."""
        self.pulled = False
        """Whether it was interrupted once."""

    def sent(self) -> None:
        """The message is kept: there is something to stop."""
        self._sent.set()

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Signals come here while the block is open. One that the caller's caller ignores stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._thread.start()
        handlers = {signal.SIGINT: self._interrupted, signal.SIGTERM: self._terminated}
        heeded = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handlers[number]) for number in heeded}
        try:
            yield
            if self.pulled:
                self._thread.join(LAST_WORD_S_MAX)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if self.pulled or not self.begun:
            raise KeyboardInterrupt
        self.pulled = True
        self._pulls.put(None)

    def _terminated(self, _number: int, _frame: FrameType | None) -> None:
        raise SystemExit(Exit.TERMINATED)

    def _work(self) -> None:
        self._pulls.get()
        self._say("stopping, and waiting until the agent is idle; Ctrl-C again leaves it at work")
        self._sent.wait()
        try:
            self._say(self._stop())
        except MailslotError as error:
            self._say(f"it could not be stopped: {error}")


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

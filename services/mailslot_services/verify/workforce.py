"""Workers of our own: real `mailslot worker` processes, started again whenever one ends, that may be hurt.

    start ──> running ──kill -9──> ended ──> started again at once
                 └─stop──> stopped ──cont──> running

Rule 1: each runs under a watcher (`child`): none outlives this process, not even a stopped one, not even under kill -9.
Rule 2: a worker that ends without being hurt is counted. One that keeps doing so, or that ends before anybody was hurt,
        cannot be helped: `ChildFailed`, with its last words.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

from mailslot_services.child import Child, ChildFailed, Service, Tell, cause

DEATHS_MAX: Final = 10
"""Ends of one worker in a row that nobody caused, before it counts as broken. One whose connections are cut while it
starts ends by itself, as it should."""
AGAIN_S: Final = 0.1
"""How long after such an end it is started again."""
DRAIN_S: Final = 10.0
"""How long workers may take to end in order."""
WORDS: Final = (sys.executable, "-P", "-m", "mailslot_services", "worker")
"""-P: the folder that `verify` was called in must not shadow what it imports."""


class Workforce:
    """All workers together. Numbers count from 1."""

    def __init__(self, environments: Mapping[int, Mapping[str, str]], tell: Tell) -> None:
        self._environments = environments
        self._tell = tell
        self._children: dict[int, Child] = {}
        self._stopped: set[int] = set()
        self._hurt: set[int] = set()
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._ending = asyncio.Event()
        self._harmed = False  # somebody was hurt at all
        self.ended_by_themselves = 0

    @property
    def running(self) -> list[int]:
        """Workers that are there and not stopped."""
        return [number for number in self.living if number not in self._stopped]

    @property
    def living(self) -> list[int]:
        """Workers that are there, stopped or not."""
        return [number for number, child in self._children.items() if child.pid]

    def start(self) -> None:
        """Begin to run all workers."""
        for number in self._environments:
            self._keeping[number] = asyncio.create_task(self._keep(number))

    async def failure(self) -> None:
        """Raises `ChildFailed` as soon as a worker cannot be kept running; never returns before."""
        done, _ = await asyncio.wait(self._keeping.values(), return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    # -- hurting ----------------------------------------------------------------------------------------------

    def kill(self, number: int) -> bool:
        """kill -9. False: there was nobody to hit."""
        return self._signal(number, signal.SIGKILL)

    def stop(self, number: int) -> bool:
        """SIGSTOP: it stands still, and its connections stay open. False: there was nobody to hit."""
        hit = self._signal(number, signal.SIGSTOP)
        if hit:
            self._stopped.add(number)
        return hit

    def go_on(self, number: int) -> None:
        """SIGCONT."""
        self._stopped.discard(number)
        self._signal(number, signal.SIGCONT)

    def forgive(self, number: int) -> None:
        """Something was done to it from outside that may end it."""
        self._hurt.add(number)
        self._harmed = True

    def _signal(self, number: int, what: signal.Signals) -> bool:
        self.forgive(number)
        child = self._children.get(number)
        if child is None or not child.pid:
            return False
        try:
            os.kill(child.pid, what)
        except ProcessLookupError:
            return False
        return True

    # -- keeping ----------------------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        service = Service(f"worker {number}", WORDS, DRAIN_S, self._environments[number])
        deaths = 0
        while not self._ending.is_set():
            child = self._children[number] = Child(service, self._tell)
            self._hurt.discard(number)
            await child.start()
            status = await child.wait()
            del self._children[number]
            self._stopped.discard(number)
            if self._ending.is_set():
                return
            if number in self._hurt:
                deaths = 0
                continue
            deaths += 1
            self.ended_by_themselves += 1
            if deaths > DEATHS_MAX or not self._harmed:
                raise ChildFailed(f"worker {number} does not keep running ({cause(status)}): {child.last_words}")
            await asyncio.sleep(AGAIN_S)

    async def end(self) -> None:
        """All workers have ended: in order, or by force after DRAIN_S."""
        self._ending.set()
        for number, child in list(self._children.items()):
            if number in self._stopped:
                self.go_on(number)
            child.terminate()
        if self._keeping:
            _, late = await asyncio.wait(self._keeping.values(), timeout=DRAIN_S)
            for child in list(self._children.values()) if late else ():
                child.kill()
            await asyncio.wait(self._keeping.values())
        for task in self._keeping.values():
            task.cancelled() or task.exception()  # whoever waited for `failure` knows; asyncio wants it looked at

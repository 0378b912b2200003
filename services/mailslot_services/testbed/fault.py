"""The faults of an engine by name: which switch each turns, and which hand it takes. Implements `testing.Faults`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mailslot.testing import Fault
from mailslot_services.testbed.switch import Switches


class EngineFaults:
    """See `mailslot.testing.Faults`. What takes a hand is done by the engine: `cut` streams, `kill` and `hire` a
    worker."""

    def __init__(
        self, switches: Switches, *, cut: Callable[[], int], kill: Callable[[], None], hire: Callable[[], None]
    ) -> None:
        self._switches, self._cut, self._kill, self._hire = switches, cut, kill, hire

    def lose_receipts(self, count: int | None = None) -> AbstractContextManager[Fault]:
        """See `Faults.lose_receipts`."""
        return self._switches.losing.turned_on(count)

    def refuse_store(self, count: int | None = None) -> AbstractContextManager[Fault]:
        """See `Faults.refuse_store`."""
        return self._switches.refusing.turned_on(count)

    def outcome_unknown(self, count: int | None = None, *, kept: bool = True) -> AbstractContextManager[Fault]:
        """See `Faults.outcome_unknown`."""
        switch = self._switches.unknowing if kept else self._switches.forgetting
        return switch.turned_on(count)

    def full_queue(self, count: int | None = None, *, retry_after_ms: int = 20) -> AbstractContextManager[Fault]:
        """See `Faults.full_queue`."""
        self._switches.full_retry_after_ms = retry_after_ms
        return self._switches.full.turned_on(count)

    def slow_answers(self, seconds: float, count: int | None = None) -> AbstractContextManager[Fault]:
        """See `Faults.slow_answers`."""
        self._switches.slow_s = seconds
        return self._switches.slowing.turned_on(count)

    def cut_streams(self, *, after_events: int = 1, count: int | None = None) -> AbstractContextManager[Fault]:
        """See `Faults.cut_streams`."""
        if after_events < 1:
            raise ValueError(f"a stream that is cut before its first event never gets anywhere; got {after_events}")
        self._switches.cut_after = after_events
        return self._switches.cutting.turned_on(count)

    def cut_streams_now(self) -> int:
        """See `Faults.cut_streams_now`."""
        return self._cut()

    def lose_notices(self) -> AbstractContextManager[Fault]:
        """See `Faults.lose_notices`."""
        return self._switches.deaf.turned_on(None)

    @contextmanager
    def no_worker(self) -> Iterator[None]:
        """See `Faults.no_worker`."""
        try:
            with self._switches.vacant.turned_on(None):
                self._kill()
                yield
        finally:
            self._hire()

    def kill_worker(self) -> None:
        """See `Faults.kill_worker`."""
        self._kill()
        self._hire()

"""Reading a session's events without a gap, over connections that may be cut at any byte.

    open ──> frames ──> events in order of seq ──> caller
      ^                     │ cut, silent, or a seq is missing
      └──── wait a bit <────┘ after = the last seq that was given

Rule 1: the next event is the one with the next seq. One that was given before is dropped; when one is missing, nothing
        after it is given: the stream is opened again after the last one that was.
Rule 2: a stream resumes from the last seq by itself, as often as it gets anywhere: an event came, or it lived for
        `settled_s`. `reconnects_max` times in a row without that is `TransportLost`.
Rule 3: what the server says is not kept any more is `CursorExpired`; never a silent skip.
Rule 4: deltas have no seq. They are passed on as they come and may be missing after a cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from mailslot.errors import BadAnswer, CursorExpired, TransportLost
from mailslot.event import Event, Item, read_delta, read_event
from mailslot.operation import Address
from mailslot.reading import decode, optional
from mailslot.retry import backoff_s, failure, judge
from mailslot.sse import Frame, Parser
from mailslot.step import Fault, Give, Open, Opened, Operation, Read, Request, Response, Shut, Terms, paused

EVENT_STREAM = "text/event-stream"


class Subscription:
    """One reader of one session, from just after a cursor."""

    def __init__(self, terms: Terms, address: Address, after: int, *, deltas: bool = False) -> None:
        self.seq = after
        """The seq of the last event that was given."""
        self._terms = terms
        self._address = address
        self._deltas = deltas
        self._parser: Parser | None = None
        self._opened_at = 0.0
        self._failures = 0
        self._reached = False
        self._trouble: str | None = None
        self._gap: CursorExpired | None = None

    def open(self) -> Operation[None]:
        """Return once the server is sending."""
        while self._parser is None:
            if self._failures:
                yield from self._wait(0)
            self._terms.left_s(0)
            answer = yield Open(self._request(), self._terms.deadline)
            if isinstance(answer, Opened):
                self._begin(answer)
            elif isinstance(answer, Response):
                yield from self._turned_away(answer)
            else:
                assert isinstance(answer, Fault)
                self._reached = self._reached or answer.sent
                self._fail(answer.why)

    def receive(self) -> Operation[Sequence[Item]]:
        """The next items, at least one."""
        while True:
            if self._gap is not None:
                raise self._gap
            if self._trouble is not None:
                yield Shut()
                self._cut(self._trouble)
            yield from self.open()
            self._terms.left_s(0)
            answer = yield Read(self._terms.deadline)
            if isinstance(answer, bytes):
                items = self._take(answer)
                if items:
                    return items
            else:
                assert isinstance(answer, Fault)
                self._cut(answer.why)

    def _request(self) -> Request:
        query = {"after": str(self.seq)} | ({"deltas": "1"} if self._deltas else {})
        headers = {"accept": EVENT_STREAM, "accept-encoding": "identity", "cache-control": "no-store"}
        return Request("GET", self._address.path("events"), query, headers=headers)

    def _begin(self, opened: Opened) -> None:
        kind = opened.content_type.partition(";")[0].strip().lower()
        if kind != EVENT_STREAM:
            raise BadAnswer(f"expected {EVENT_STREAM}, the server answered {kind or 'nothing that has a type'}")
        self._reached = True
        self._opened_at = self._terms.clock()
        self._parser = Parser(self._terms.settings.frame_bytes_max)

    def _turned_away(self, answer: Response) -> Operation[None]:
        self._reached = True
        verdict = judge(answer)
        if not verdict.transient or verdict.after_ms > self._terms.settings.retry_after_max_ms:
            raise failure(answer)
        self._fail(f"the server answered {answer.status}")
        if verdict.after_ms:
            yield from self._wait(verdict.after_ms)

    def _wait(self, after_ms: int) -> Operation[None]:
        terms = self._terms
        yield from paused(terms, backoff_s(terms.settings, max(self._failures, 1), terms.chance(), after_ms))

    def _cut(self, why: str) -> None:
        """The open stream is over; one that lived long enough is not held against the server."""
        self._parser = None
        self._trouble = None
        if self._terms.clock() - self._opened_at >= self._terms.settings.settled_s:
            self._failures = 0
        self._fail(why)

    def _fail(self, why: str) -> None:
        self._failures += 1
        if self._failures > self._terms.settings.reconnects_max:
            self._give_up(why)

    def _give_up(self, why: str) -> NoReturn:
        raise TransportLost(
            f"the events of session {self._address.session_id} after seq {self.seq} cannot be read: {why}",
            reached=self._reached,
        )

    def _take(self, chunk: bytes) -> list[Item]:
        assert self._parser is not None
        items: list[Item] = []
        for frame in self._parser.feed(chunk):
            item = self._item(frame)
            if item is not None:
                items.append(item)
            if self._trouble is not None or self._gap is not None:
                break
        return items

    def _item(self, frame: Frame) -> Item | None:
        if frame.event == "session.gap":
            self._gap = self._expired(frame)
        elif frame.event == "session.delta":
            return read_delta(decode(frame.data, "a delta"), self._address.session_id) if self._deltas else None
        elif frame.event in ("session.event", "session.status") and frame.id is not None:
            return self._in_order(read_event(decode(frame.data, "an event"), self._address.session_id))
        return None

    def _in_order(self, event: Event) -> Event | None:
        if event.seq <= self.seq:
            return None
        if event.seq > self.seq + 1:
            self._trouble = f"seq {event.seq} came after seq {self.seq}"
            return None
        self.seq = event.seq
        self._failures = 0
        return event

    def _expired(self, frame: Frame) -> CursorExpired:
        gap = decode(frame.data, "the gap")
        oldest, newest = optional(gap, "oldest", int), optional(gap, "newest", int)
        return CursorExpired(
            f"session {self._address.session_id} has no events after seq {self.seq}: it keeps {oldest} to {newest}",
            oldest=oldest,
            newest=newest,
        )


def followed(terms: Terms, address: Address, after: int, *, deltas: bool) -> Operation[None]:
    """Give everything after the cursor, and what comes, for ever."""
    subscription = Subscription(terms, address, after, deltas=deltas)
    while True:
        for item in (yield from subscription.receive()):
            yield Give(item)

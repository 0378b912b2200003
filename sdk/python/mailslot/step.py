"""The vocabulary between what a client decides and what carries it out.

An operation is a generator. It yields steps and is sent their answers; it does no I/O, awaits nothing, and so
serves the synchronous client and the asynchronous one alike.

    step                     answer
    Exchange(request)        Response, or Fault
    Open(request)            Opened; Response when it was not a stream that came; Fault
    Read()                   bytes, or Fault when there are no more: the stream is shut then
    Shut()                   None
    Pause(seconds)           None
    Give(item)               None: the item goes to the caller

Rule 1: an operation has at most one open stream. It is shut when the operation ends, however it ends.
Rule 2: a caller who walks away throws `Abandoned` into the operation, which may take some last steps.
Rule 3: a step that has a `deadline` (by `Terms.clock`) is over then at the latest, with a `Fault`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from mailslot.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request to the server; the path is quoted already."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Fault:
    """There is no answer. `sent`: the server may have got the request all the same."""

    why: str
    sent: bool = True


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream is open."""

    content_type: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """Send a request and read its whole answer."""

    request: Request
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request and leave its answer open, to be read."""

    request: Request
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """The next bytes of the open stream."""

    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Shut:
    """Close the open stream, if there is one."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Give:
    """Hand something to the caller."""

    item: Any


Step: TypeAlias = Exchange | Open | Read | Shut | Pause | Give
Answer: TypeAlias = Response | Fault | Opened | bytes | None
Operation: TypeAlias = Generator[Step, Answer, T]


class Abandoned(Exception):
    """The caller walked away from an operation."""


class DeadlinePassed(Exception):
    """The time that the caller gave is over; the operation turns this into an error with a sentence."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what terms an operation runs: its limits, its clock, its luck, and until when."""

    settings: Settings = field(default_factory=Settings)
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    deadline: float | None = None

    def within(self, timeout_s: float | None) -> Terms:
        """The same terms, over in so many seconds; None leaves them as they are."""
        return self if timeout_s is None else replace(self, deadline=self.clock() + timeout_s)

    def at_most(self, timeout_s: float | None) -> Terms:
        """The same terms, over in so many seconds or at their own deadline, whichever comes first."""
        sooner = self.within(timeout_s)
        is_later = self.deadline is not None and sooner.deadline is not None and sooner.deadline > self.deadline
        return self if is_later else sooner

    def left_s(self, most_s: float) -> float:
        """Seconds that a step may take: `most_s`, or what is left until the deadline."""
        if self.deadline is None:
            return most_s
        left_s = self.deadline - self.clock()
        if left_s <= 0:
            raise DeadlinePassed
        return min(most_s, left_s)


def exchanged(terms: Terms, request: Request, timeout_s: float) -> Operation[Response | Fault]:
    """One request, one answer."""
    answer = yield Exchange(request, terms.left_s(timeout_s))
    assert isinstance(answer, Response | Fault)
    return answer


def paused(terms: Terms, seconds: float) -> Operation[None]:
    """Wait, but not past the deadline."""
    yield Pause(terms.left_s(seconds))

"""Whether a request is sent again, after how long, and what it means when it is not. Pure.

| answer                                              | may it have been done? | send again?              |
|-----------------------------------------------------|------------------------|--------------------------|
| no connection                                       | no                     | yes                      |
| cut, or silent for too long                         | yes                    | if repeating is safe     |
| 429, 503 with a problem that is retryable           | no                     | yes                      |
| 503 `outcome-unknown`                               | yes                    | if repeating is safe     |
| 408, 502, 503, 504 of something in between          | yes                    | if repeating is safe     |
| any other refusal                                   | no                     | no                       |

Rule 1: a prompt is always safe to repeat, because the client makes its message id; a read is, too.
Rule 2: the wait doubles, and a random part of it is waited, so that clients that failed together do not come back
        together. Where the server says `Retry-After`, it is waited for, up to a limit.
Rule 3: a refusal that depends on the request alone settles also what an earlier, lost attempt came to.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from mailslot.errors import BadAnswer, CursorExpired, MailslotError, OutcomeUnknown, Refused, TransportLost
from mailslot.reading import JsonMap, decode, excerpt
from mailslot.settings import Settings
from mailslot.step import Fault, Operation, Request, Response, Terms, exchanged, paused

PROBLEM = "application/problem+json"
BETWEEN = frozenset({408, 502, 503, 504})
"""Statuses by which something between client and server says that it has no answer."""

DOUBLINGS_MAX = 30
"""Doublings of the first wait: far beyond any limit, and no huge number."""

DECIDED_BY_REQUEST = frozenset({400, 401, 403, 413, 422})
"""Refusals that an earlier attempt with the same request would have met as well."""


class Repeat(Enum):
    """Whether a request may be sent again."""

    SAFE = "doing it twice is the same as doing it once"
    UNSAFE = "only when it was certainly not done"


class Verdict(NamedTuple):
    """What an answer means for the next attempt."""

    doubt: bool
    """It may have been done."""
    transient: bool
    """It may go better next time."""
    after_ms: int = 0
    """Not sooner than this."""


DONE = Verdict(doubt=False, transient=False)


def judge(answer: Response | Fault) -> Verdict:
    """The row of the table that an answer is in."""
    if isinstance(answer, Fault):
        return Verdict(doubt=answer.sent, transient=True)
    if 200 <= answer.status < 300:
        return DONE
    problem = problem_of(answer)
    after_ms = _retry_after_ms(answer, problem)
    if problem is None:
        between = answer.status in BETWEEN
        return Verdict(doubt=between, transient=between or answer.status == 429, after_ms=after_ms)
    if problem.get("code") == OutcomeUnknown.code:
        return Verdict(doubt=True, transient=True, after_ms=after_ms)
    return Verdict(doubt=False, transient=answer.status in (429, 503), after_ms=after_ms)


def backoff_s(settings: Settings, failures: int, chance: float, after_ms: int = 0) -> float:
    """Seconds to wait after so many failures in a row; `chance` is a random number from 0 up to 1."""
    doublings = min(failures - 1, DOUBLINGS_MAX)
    longest_ms = min(settings.backoff_max_ms, settings.backoff_first_ms << doublings)
    return max(longest_ms * chance, after_ms) / 1000


def asked(
    terms: Terms,
    request: Request,
    *,
    repeat: Repeat = Repeat.SAFE,
    effect: str | None = None,
    message_id: str | None = None,
    timeout_s: float | None = None,
) -> Operation[Response]:
    """The good answer to a request, after as many attempts as are safe and allowed.

    `effect` names what the request does, in words; without it the request only reads.
    """
    settings = terms.settings
    doubt = False
    attempt = 0
    while True:
        attempt += 1
        answer = yield from exchanged(terms, request, timeout_s or settings.request_timeout_s)
        verdict = judge(answer)
        if verdict is DONE:
            assert isinstance(answer, Response)
            return answer
        doubt = doubt or verdict.doubt
        allowed = attempt < settings.attempts_max and verdict.after_ms <= settings.retry_after_max_ms
        if not (verdict.transient and allowed and (repeat is Repeat.SAFE or not verdict.doubt)):
            raise failure(answer, effect=effect if doubt else None, message_id=message_id)
        yield from paused(terms, backoff_s(settings, attempt, terms.chance(), verdict.after_ms))


def failure(answer: Response | Fault, *, effect: str | None = None, message_id: str | None = None) -> MailslotError:
    """The error that a last answer is; `effect` names what may have been done by it or by an attempt before it.

    The cause of an unknown outcome is what the last answer alone would be.
    """
    certain = isinstance(answer, Response) and answer.status in DECIDED_BY_REQUEST
    if effect is not None and not certain:
        again = "; repeat it with the same message id" if message_id is not None else ""
        unknown = OutcomeUnknown(f"{effect} may have been done or not: {_why(answer)}{again}", message_id=message_id)
        unknown.__cause__ = failure(answer)
        return unknown
    if isinstance(answer, Fault):
        return TransportLost(answer.why, reached=answer.sent)
    problem = problem_of(answer)
    if problem is not None:
        return _refusal(answer, problem)
    if answer.status in BETWEEN or answer.status == 429:
        return TransportLost(_why(answer), reached=True)
    return BadAnswer(f"{_why(answer)}: {excerpt(answer.body)}")


def problem_of(answer: Response) -> JsonMap | None:
    """The problem in a refusal; None when something else than the server of this protocol refused."""
    if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != PROBLEM:
        return None
    problem = decode(answer.body, "the problem")
    return problem if isinstance(problem.get("code"), str) else None


def _refusal(answer: Response, problem: JsonMap) -> MailslotError:
    sentence = str(problem.get("detail") or problem.get("title") or problem["code"])
    if problem["code"] == CursorExpired.code:
        return CursorExpired(sentence, oldest=_integer(problem, "oldest"), newest=_integer(problem, "newest"))
    return Refused(
        problem["code"],
        sentence,
        status=answer.status,
        retryable=problem.get("retryable") is True,
        retry_after_ms=_retry_after_ms(answer, problem) or None,
        problem=problem,
    )


def _why(answer: Response | Fault) -> str:
    if isinstance(answer, Fault):
        return answer.why
    problem = problem_of(answer)
    if problem is not None:
        return str(problem.get("detail") or problem["code"])
    place = answer.headers.get("location")
    return f"the server answered {answer.status}" + (f" and points to {place}" if place else "")


def _retry_after_ms(answer: Response, problem: JsonMap | None) -> int:
    """The server's own wish: of the problem, which is exact, or of the header. A date is not understood."""
    wished = _integer(problem or {}, "retryAfterMs")
    if wished is not None:
        return max(0, wished)
    header = answer.headers.get("retry-after", "")
    return int(header) * 1000 if header.isascii() and header.isdigit() else 0


def _integer(problem: JsonMap, name: str) -> int | None:
    found = problem.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None

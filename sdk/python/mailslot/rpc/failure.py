"""What a refusal of the REST door is on the JSON-RPC door: a code, a sentence, and the problem itself. Pure.

| problem                            | code                     |
|------------------------------------|--------------------------|
| bad-input                          | -32602 invalid params    |
| internal, or an answer of nobody   | -32603 internal error    |
| any other                          | -32000, problem as data  |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mailslot.errors import MailslotError, OutcomeUnknown, Refused
from mailslot.rpc.frame import APPLICATION_ERROR, INTERNAL_ERROR, INVALID_PARAMS, Failure

CODES: Final = {"bad-input": INVALID_PARAMS, "internal": INTERNAL_ERROR, "bad-answer": INTERNAL_ERROR}
"""JSON-RPC codes of problems that have one of their own."""

TITLES: Final = {
    "bad-input": "The request is not what this door takes",
    "outcome-unknown": "The outcome is not known; only a message is safe to repeat, with the same id",
    "transport-lost": "The server cannot be reached",
    "bad-answer": "What answered does not speak this protocol",
    "internal": "The service failed; this is a defect",
}
"""Of problems that are made here: no answer of the server was there to have one."""


def of_problem(problem: Mapping[str, Any]) -> Failure:
    """The failure for a problem."""
    code = CODES.get(problem.get("code", ""), APPLICATION_ERROR)
    return Failure(code, str(problem.get("detail") or problem.get("title") or problem.get("code")), problem)


def of_error(error: MailslotError) -> Failure:
    """The failure for what ended a call on its way."""
    if isinstance(error, Refused) and error.problem:
        return of_problem(error.problem)
    status = error.status if isinstance(error, Refused) else None
    return of_problem(problem(error.code, str(error), status or 503, message_id=getattr(error, "message_id", None)))


def problem(code: str, detail: str, status: int, *, message_id: str | None = None) -> dict[str, Any]:
    """A problem that is made here (RFC 9457)."""
    made: dict[str, Any] = {
        "type": f"urn:mailslot:problem:{code}",
        "title": TITLES.get(code, code),
        "status": status,
        "detail": detail,
        "code": code,
        # Without a message's id, doing it again could do it twice.
        "retryable": code == "transport-lost" or (code == OutcomeUnknown.code and message_id is not None),
    }
    return made if message_id is None else made | {"messageId": message_id}

"""Every error as a problem (RFC 9457), and every problem as an answer.

    ContractError          its own code               the sender's: nothing reached the store
    Refused                its own code               the act is not allowed now: nothing was kept
    CursorExpired          cursor-expired             with the seqs that can be read
    StoreUnavailable       store-refused              nothing was kept
    OutcomeUnknown         outcome-unknown            it may be kept; with the messageId to repeat it with
    anything else          internal                   a defect: logged, and nothing of it is told

Rule 1: the table CODES of the contracts decides the status; nothing here does.
Rule 2: a code that the contracts do not know is a defect of ours and becomes `internal`.
"""

from __future__ import annotations

import logging
import math

from starlette.responses import Response

from mailslot_contracts import CODES, PROBLEM_MEDIA_TYPE, Code, ContractError, Problem, encode_json
from mailslot_core.errors import CoreError, CursorExpired, OutcomeUnknown, Refused, StoreUnavailable

STORE_RETRY_AFTER_MS = 1_000
"""When a store refused, a caller may well ask again after this long."""

INTERNAL_DETAIL = "the service failed; its log says how"

log = logging.getLogger("mailslot.ingest")


def problem_of(error: CoreError | ContractError) -> Problem:
    """The problem that an error is to the caller."""
    if isinstance(error, ContractError):
        return error.problem()
    if error.code not in {code.value for code in CODES}:
        log.error("an error without a public code", exc_info=error, extra={"code": error.code})
        return Problem.of(Code.INTERNAL, INTERNAL_DETAIL)
    return Problem.of(
        error.code,
        str(error),
        retry_after_ms=_retry_after_ms(error),
        message_id=error.message_id if isinstance(error, OutcomeUnknown) else None,
        oldest=error.oldest if isinstance(error, CursorExpired) else None,
        newest=error.newest if isinstance(error, CursorExpired) else None,
    )


def _retry_after_ms(error: CoreError) -> int | None:
    if isinstance(error, Refused):
        return error.retry_after_ms
    return STORE_RETRY_AFTER_MS if isinstance(error, StoreUnavailable) else None


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """The answer that carries a problem."""
    found = dict(headers or {})
    if problem.retry_after_ms is not None:
        found["Retry-After"] = str(math.ceil(problem.retry_after_ms / 1000))
    if problem.status == 413:
        found["Connection"] = "close"  # the rest of the body is not read
    return Response(encode_json(problem.wire()), problem.status, found, PROBLEM_MEDIA_TYPE)

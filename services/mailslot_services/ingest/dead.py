"""Dead letters: turns that were given up after too many crashes, and the messages that died with them (R5)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mailslot_contracts.protocol import PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX
from mailslot_core.store import DeadLetter
from mailslot_services.ingest.door import Door, answer
from mailslot_services.ingest.prompts import receipt_wire
from mailslot_services.ingest.request import Query, letter_id


async def list_dead(door: Door, request: Request) -> Response:
    """Dead letters of all sessions, oldest first."""
    query = Query(request)
    limit = query.number("limit", PAGE_COUNT_DEFAULT, least=1, most=PAGE_COUNT_MAX)
    letters = await door.store.dead(after=query.name("after"), limit=limit)
    after = letters[-1].letter_id if len(letters) == limit else None
    return answer({"letters": [letter_wire(letter) for letter in letters], "next": after})


async def redrive_letter(door: Door, request: Request) -> Response:
    """The letter's messages that are dead are queued again, each under its own id: one receipt for each."""
    receipts = await door.store.redrive(letter_id(request))
    return answer({"receipts": [receipt_wire(door, receipt) for receipt in receipts]}, 202)


def letter_wire(letter: DeadLetter) -> dict[str, object]:
    """A dead letter as it stands on the public doors."""
    return {
        "letterId": letter.letter_id,
        "sessionId": letter.session_id,
        "turn": letter.turn,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "time": letter.time,
        "messages": [
            {"messageId": message.message_id} | ({} if message.state is None else {"state": str(message.state)})
            for message in letter.messages
        ],
    }

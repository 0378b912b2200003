"""Prompts: the hot path. Read, validate once, submit, answer the receipt."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mailslot_contracts import ContractError, Prompt, check_batch, read
from mailslot_core.errors import CoreError, OutcomeUnknown, StoreUnavailable
from mailslot_core.inbox import Receipt
from mailslot_services.ingest.admission import new_id
from mailslot_services.ingest.door import Door, answer
from mailslot_services.ingest.problem import problem_of
from mailslot_services.ingest.request import idempotency_key, read_json, session_id


async def submit_prompt(door: Door, request: Request) -> Response:
    """The message is durably queued: its receipt, and nothing about any turn."""
    name = session_id(request)
    prompt = read(Prompt, await read_json(request, door.settings.body_bytes_max))
    message_id = prompt.message_id or idempotency_key(request) or new_id(door.clock)
    return answer(receipt_wire(door, await door.admission.submit(name, message_id, prompt)), 202)


async def submit_prompts(door: Door, request: Request) -> Response:
    """One receipt or one problem per prompt, in order. They are queued one after the other, because their order in
    the lane is the order of their seq (semantics M4)."""
    name = session_id(request)
    items = check_batch(await read_json(request, door.settings.body_bytes_max))
    answers: list[dict[str, object]] = []
    broken: CoreError | None = None
    for item in items:
        if broken is not None:
            answers.append(_not_tried(broken))
            continue
        try:
            answers.append(await _submit_item(door, name, item))
        except (CoreError, ContractError) as error:
            answers.append(problem_of(error).wire())
            broken = error if isinstance(error, StoreUnavailable | OutcomeUnknown) else None
    return answer(answers, 202)


async def _submit_item(door: Door, name: str, item: object) -> dict[str, object]:
    prompt = read(Prompt, item)
    message_id = prompt.message_id or new_id(door.clock)
    return receipt_wire(door, await door.admission.submit(name, message_id, prompt))


def _not_tried(broken: CoreError) -> dict[str, object]:
    """The answer to the prompts behind one that the store failed: trying each would take its time limit each."""
    return problem_of(StoreUnavailable(f"not tried: an earlier prompt of this batch failed: {broken}")).wire()


def receipt_wire(door: Door, receipt: Receipt) -> dict[str, object]:
    """A receipt as it stands on the public doors."""
    return {
        "messageId": receipt.message_id,
        "cursor": receipt.cursor,
        "duplicate": receipt.duplicate,
        "durability": door.store.durability,
    }

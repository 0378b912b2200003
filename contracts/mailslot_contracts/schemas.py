"""The JSON Schemas (2020-12) of everything on the wire, as texts by file name.

Rule 1: a schema is generated from the models and checked in; a stale one fails the tests.
Rule 2: what others send is described as the door takes it, what we send as we write it.
Rule 3: nothing here touches a file; `generate` writes, tests compare.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from mailslot_contracts.events import EVENT_UNION, DeltaNotice, Envelope, GapNotice
from mailslot_contracts.goals import Goal, GoalEdit, GoalOperate, GoalPatch, GoalPut
from mailslot_contracts.messages import BATCH_COUNT_MAX, Accepted, IntakeEntry, MessagePatch, Prompt, Receipt
from mailslot_contracts.problems import Problem
from mailslot_contracts.protocol import (
    Cancel,
    CancelAnswer,
    CloseAnswer,
    EraseAnswer,
    EventPage,
    IdleAnswer,
    LevelPage,
    PromptBatchItem,
    SessionAnswer,
    SessionCreate,
)
from mailslot_contracts.records import DeadPage, MessageRecord, QueuePage, Redriven
from mailslot_contracts.results import RunResult
from mailslot_contracts.status import Level

Direction = Literal["validation", "serialization"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

RECEIVED: dict[str, type[BaseModel]] = {
    "prompt": Prompt,
    "intake-entry": IntakeEntry,
    "message-patch": MessagePatch,
    "session-create": SessionCreate,
    "cancel": Cancel,
    "goal-put": GoalPut,
    "goal-edit": GoalEdit,
    "goal-operate": GoalOperate,
}
"""What others send, by the name of its schema."""

SENT: dict[str, type[BaseModel]] = {
    "receipt": Receipt,
    "accepted": Accepted,
    "problem": Problem,
    "session-answer": SessionAnswer,
    "level": Level,
    "level-page": LevelPage,
    "cancel-answer": CancelAnswer,
    "close-answer": CloseAnswer,
    "erase-answer": EraseAnswer,
    "message-record": MessageRecord,
    "queue-page": QueuePage,
    "dead-page": DeadPage,
    "redriven": Redriven,
    "envelope": Envelope,
    "event-page": EventPage,
    "idle-answer": IdleAnswer,
    "delta": DeltaNotice,
    "gap": GapNotice,
    "goal": Goal,
    "run-result": RunResult,
}
"""What we send, by the name of its schema."""

UNIONS: dict[str, tuple[TypeAdapter[Any], Direction]] = {
    "event": (EVENT_UNION, "serialization"),
    "goal-patch": (TypeAdapter(GoalPatch), "validation"),
    "prompt-batch-item": (TypeAdapter(PromptBatchItem), "serialization"),
}
"""What is one of several things."""


def schema_texts() -> dict[str, str]:
    """Every schema as the text of its file, by file name."""
    schemas = {name: model.model_json_schema(mode="validation") for name, model in RECEIVED.items()}
    schemas |= {name: model.model_json_schema(mode="serialization") for name, model in SENT.items()}
    schemas |= {name: adapter.json_schema(mode=direction) for name, (adapter, direction) in UNIONS.items()}
    schemas["prompt-batch"] = _batch()
    return {f"{name}.json": _text(name, schemas[name]) for name in sorted(schemas)}


def _batch() -> dict[str, Any]:
    schema = TypeAdapter(list[Prompt]).json_schema(mode="validation")
    return {**schema, "minItems": 1, "maxItems": BATCH_COUNT_MAX}


def _text(name: str, schema: dict[str, Any]) -> str:
    whole = {"$schema": DIALECT, "$id": f"urn:mailslot:schema:{name}", **schema}
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

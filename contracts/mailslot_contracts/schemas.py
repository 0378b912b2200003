"""The JSON Schemas (2020-12) of everything on the wire, as texts by file name.

    prompt.json receipt.json …    one thing each, complete in itself: for whoever checks one thing
    bundle.json                   all of them once, under `$defs`: for whoever makes types or code of them

Rule 1: a schema is generated from the models and checked in; a stale one fails the tests.
Rule 2: what others send is described as the door takes it, what we send as we write it.
Rule 3: nothing here touches a file; `generate` writes, tests compare.
Rule 4: each file's thing is in the bundle under the file's name in CamelCase, and all its parts under theirs.
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

BUNDLE = "bundle"
"""The name of the schema that holds all others."""

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


BATCH: TypeAdapter[Any] = TypeAdapter(list[Prompt])


def schema_texts() -> dict[str, str]:
    """Every schema as the text of its file, by file name."""
    schemas = {name: adapter.json_schema(mode=mode) for name, (adapter, mode) in _described().items()}
    schemas["prompt-batch"] |= _batch_bounds()
    schemas[BUNDLE] = bundle()
    return {f"{name}.json": _text(name, schemas[name]) for name in sorted(schemas)}


def bundle() -> dict[str, Any]:
    """Everything under `$defs`, each thing once. It holds nothing to anything by itself: point at a definition."""
    inputs = [(name, mode, adapter) for name, (adapter, mode) in _described().items()]
    found, shared = TypeAdapter.json_schemas(inputs, ref_template="#/$defs/{model}")
    definitions: dict[str, Any] = dict(shared["$defs"])
    for (name, _mode), schema in found.items():
        whole = schema | _batch_bounds() if name == "prompt-batch" else schema
        # A model is there already; what is none, or has another name as a model, is added.
        definitions.setdefault(definition_name(name), whole)
    return {
        "title": "mailslot",
        "description": "Everything on the wire, by name. What you send is described as the door takes it.",
        "$defs": dict(sorted(definitions.items())),
    }


def definition_name(name: str) -> str:
    """What a file's schema is called in the bundle: `goal-put` is GoalPut."""
    return "".join(word.capitalize() for word in name.split("-"))


def _described() -> dict[str, tuple[TypeAdapter[Any], Direction]]:
    """What each schema is made of, and from which side it is seen."""
    received: dict[str, tuple[TypeAdapter[Any], Direction]] = {
        name: (TypeAdapter(model), "validation") for name, model in RECEIVED.items()
    }
    sent: dict[str, tuple[TypeAdapter[Any], Direction]] = {
        name: (TypeAdapter(model), "serialization") for name, model in SENT.items()
    }
    return {**received, **sent, **UNIONS, "prompt-batch": (BATCH, "validation")}


def _batch_bounds() -> dict[str, Any]:
    return {"minItems": 1, "maxItems": BATCH_COUNT_MAX}


def _text(name: str, schema: dict[str, Any]) -> str:
    whole = {"$schema": DIALECT, "$id": f"urn:mailslot:schema:{name}", **schema}
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

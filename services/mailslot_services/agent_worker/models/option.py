"""The options a model takes in agents.toml, by kind, each with a default, a limit and a unit.

echo                delay_ms, deltas
scripted            none: everything is in its file
openai, anthropic   base_url, api_key_env, timeout_ms, temperature
local               context_tokens, temperature
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from mailslot_services.agent_worker.models.echo import DELAY_MS_MAX, DELTAS_MAX

TIMEOUT_MS_DEFAULT: Final = 120_000
"""How long a provider may send nothing before an attempt counts as failed: longer than a model thinks in silence."""

TIMEOUT_MS_MAX: Final = 3_600_000
"""Longest such silence that may be configured."""

CONTEXT_TOKENS_DEFAULT: Final = 4_096
"""What the local model can see at once: about 90 MB of memory."""

CONTEXT_TOKENS_MAX: Final = 8_192
"""What the local model was trained for."""

Temperature = Annotated[float, Field(ge=0, le=2, strict=False)]


class ModelOptions(BaseModel):
    """No options; also the base of those that have some."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class EchoOptions(ModelOptions):
    """Options of the echo."""

    delay_ms: int = Field(0, ge=0, le=DELAY_MS_MAX)
    deltas: int = Field(0, ge=0, le=DELTAS_MAX)


class ProviderOptions(ModelOptions):
    """Options of models behind a provider's HTTP interface."""

    base_url: str | None = Field(None, pattern=r"^https?://[^\s]+$", max_length=2_000)
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)
    timeout_ms: int = Field(TIMEOUT_MS_DEFAULT, ge=100, le=TIMEOUT_MS_MAX)
    temperature: Temperature | None = None


class LocalOptions(ModelOptions):
    """Options of the small model in this process."""

    context_tokens: int = Field(CONTEXT_TOKENS_DEFAULT, ge=256, le=CONTEXT_TOKENS_MAX)
    temperature: Temperature = 0.0


def complaint(error: ValidationError, place: str = "") -> str:
    """The first thing wrong, in one sentence that names its place."""
    return sentence(error.errors(include_url=False, include_input=False)[0], place)


def sentence(detail: ErrorDetails, place: str = "") -> str:
    """One thing wrong, with its place seen from `place`."""
    where = ".".join(step for step in (place, *(str(step) for step in detail["loc"])) if step)
    reason = REASONS.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    return f"{where}: {reason}" if where else reason


REASONS: Final = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "too_short": "has too few items",
    "too_long": "has too many items",
}
"""Pydantic's words for what its users wrote in Python, in the words of people who wrote TOML or YAML."""

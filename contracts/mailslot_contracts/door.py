"""How plain data becomes a model and back: the two bases of everything on the wire.

    Door      what others send us: no unknown field, wire names only
    Answer    what we send: readers skip fields they do not know, so fields may be added
    Fact      what stands in a ledger: unknown fields are kept and passed on (semantics L4)

Names are camelCase on the wire and snake_case in Python. `read` is the only way in: it holds the
data to semantics L5 first, then to the model, and says in one sentence what is wrong and where.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from mailslot_contracts.codec import INT_MAX, check_value
from mailslot_contracts.ids import ID_BYTES_MAX, ID_PATTERN, GoalId, MessageId, SessionId, check_id
from mailslot_contracts.problems import BadInput, ContractError

PLACE_CHARACTERS_MAX = 200
"""Longest place named in an error sentence; unknown field names are the sender's, so they may be huge."""


class Wire(BaseModel):
    """Frozen, strict, camelCase outside and snake_case inside."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        use_enum_values=False,
    )

    def wire(self) -> dict[str, object]:
        """As plain data with the wire's names; what is absent is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Door(Wire):
    """What others send: an unknown field is refused, because a misspelt one would be lost in silence."""

    model_config = ConfigDict(extra="forbid")


class Answer(Wire):
    """What we send: readers skip what they do not know."""

    model_config = ConfigDict(extra="ignore")


class Fact(Wire):
    """What stands in a ledger: written by this version or a later one, so what is not known is kept."""

    model_config = ConfigDict(extra="allow")

    def wire(self) -> dict[str, object]:
        """As plain data with the wire's names; every field that was there is there, null included."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


D = TypeVar("D", bound=Wire)


def read(model: type[D], value: object) -> D:
    """The model that the plain data stands for; ContractError with a code and a sentence if it is none."""
    check_value(value)
    try:
        return model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise refusal(error) from None


def refusal(error: ValidationError) -> ContractError:
    """The first thing wrong, as one of our errors: its own code when a rule of ours refused it."""
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    return cause if isinstance(cause, ContractError) else BadInput(_sentence(first))


def _sentence(first: ErrorDetails) -> str:
    place = ".".join(str(step) for step in first["loc"])
    if len(place) > PLACE_CHARACTERS_MAX:
        place = place[: PLACE_CHARACTERS_MAX - 1] + "…"
    reason = _REASONS.get(first["type"]) or first["msg"][:1].lower() + first["msg"][1:]
    return f"{place}: {reason}" if place else reason


_REASONS = {
    "missing": "is missing",
    "extra_forbidden": "is not a field this door knows",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
}
"""Pydantic's words for what its users wrote in Python, in the words of people who wrote JSON."""


def _session_id(value: str) -> SessionId:
    return SessionId(check_id(value, "sessionId"))


def _message_id(value: str) -> MessageId:
    return MessageId(check_id(value, "messageId"))


def _goal_id(value: str) -> GoalId:
    return GoalId(check_id(value, "goalId"))


def _name(value: str) -> str:
    return check_id(value, "name")


_ID_SCHEMA = {"minLength": 1, "maxLength": ID_BYTES_MAX, "pattern": ID_PATTERN}

SessionIdField = Annotated[SessionId, AfterValidator(_session_id), Field(json_schema_extra=_ID_SCHEMA)]
MessageIdField = Annotated[MessageId, AfterValidator(_message_id), Field(json_schema_extra=_ID_SCHEMA)]
GoalIdField = Annotated[GoalId, AfterValidator(_goal_id), Field(json_schema_extra=_ID_SCHEMA)]
NameField = Annotated[str, AfterValidator(_name), Field(json_schema_extra=_ID_SCHEMA)]
"""A name that others chose (agent, call, child): held to the rules of ids."""

Seq = Annotated[int, Field(ge=0, le=INT_MAX)]
"""A place in a ledger; 0 is before the first event."""

Ordinal = Annotated[int, Field(ge=1, le=INT_MAX)]
"""A number of something counted from 1: an event, a turn, a step, an attempt."""

Count = Annotated[int, Field(ge=0, le=INT_MAX)]
"""How many."""

TIME_MS_MAX = 2**53 - 1
"""Latest time: the greatest integer that every reader of JSON, and the store's functions, know exactly."""

UnixMs = Annotated[int, Field(ge=0, le=TIME_MS_MAX)]
"""A time of the store's clock in ms since 1970."""

"""Tools: a Python function as something a model may call.

    tools = ["weather", "shop.tools:refund"]        in agents.toml, see `offer`
                |
                v
    arguments --checked by the signature--> the function --> text, at most RESULT_BYTES_MAX
                                            (`call`, `process`)

Rule 1: a function needs nothing but a signature and a docstring. What else there is to say stands in its attribute
        `__mailslot_tool__`, a mapping with any of `name`, `effect`, `timeout_ms`, `blocking`, `process`.
Rule 2: nobody is taken to be harmless: without a word the effect is `unsafe`, so a call whose outcome a crash hid is
        never made twice (semantics R3).
Rule 3: every call ends: with its result, with an error that the model sees, or at its `timeout_ms`.
Rule 4: a parameter named `effect_key` is not the model's. It gets a text that is the same at every attempt of the same
        call: an idempotency key.

    code            what happened to the call
    bad-arguments   the arguments do not fit the signature; the function was not called
    tool-failed     the function raised, or its process ended without a word
    tool-timeout    the function took longer than its `timeout_ms`
    bad-result      the result is neither text nor anything that JSON can say
    tool-busy       as many calls as may be under way at once in threads, or in processes, are
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from mailslot_core.agent import Effect, Tool, ToolError, ToolSpec
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.call import Overdue, in_a_thread, is_async, on_the_loop, within
from mailslot_services.agent_worker.models.option import complaint, sentence
from mailslot_services.agent_worker.models.text import within_bytes, without_surrogates
from mailslot_services.agent_worker.offer import offered
from mailslot_services.agent_worker.process import named, process_calls

GROUP: Final = "mailslot.tools"
"""The entry point group in which distributions offer tools."""

TIMEOUT_MS_DEFAULT: Final = 120_000
"""How long a call may take, if the tool does not say."""

TIMEOUT_MS_MAX: Final = 3_600_000
"""The longest time a tool may ask for."""

RESULT_BYTES_MAX: Final = 256 * 1024
"""How much of a result the model sees; the rest is cut off with a note."""

COMPLAINTS_MAX: Final = 10
"""How many of the things wrong with a call's arguments the model is told at once."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers take as the name of a tool."""


class Described(BaseModel):
    """What a function may say about itself in `__mailslot_tool__`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: str | None = None
    effect: Effect = Field(Effect.UNSAFE, strict=False)
    timeout_ms: int = Field(TIMEOUT_MS_DEFAULT, ge=1, le=TIMEOUT_MS_MAX)
    blocking: bool = True
    process: bool = False


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function behind the `Tool` port; `tool` makes one."""

    spec: ToolSpec
    effect: Effect
    timeout_ms: int
    _call: Callable[[dict[str, Any]], Awaitable[object]]
    _signature: Signature

    async def run(self, arguments: Mapping[str, Any], effect_key: str) -> str:
        """The result as text. Raises `ToolError`."""
        values = self._signature.checked(arguments)
        if self._signature.wants_key:
            values[EFFECT_KEY] = effect_key
        try:
            return said(await within(self._call(values), self.timeout_ms / 1000))
        except Overdue:
            raise ToolError("tool-timeout", f"{self.spec.name} did not end within {self.timeout_ms} ms") from None


# -- making -------------------------------------------------------------------------------------------------

EFFECT_KEY: Final = "effect_key"


def tool(function: Callable[..., object], name: str | None = None) -> FunctionTool:
    """The function as a tool. Misconfigured says why it cannot be one. Its own name for itself wins."""
    told = f"tool {name or getattr(function, '__name__', function)}"
    described = _described(function, told)
    called = str(described.name or name or getattr(function, "__name__", ""))
    if NAME.fullmatch(called) is None:
        raise Misconfigured(f"{told}: {called!r} is no name for a tool; 1 to 64 letters, digits, _ and - are")
    signature = Signature.of(function, told)
    description = inspect.getdoc(function) or ""
    spec = ToolSpec(called, description, signature.schema(told))
    return FunctionTool(
        spec, described.effect, described.timeout_ms, _way_to_call(function, described, told), signature
    )


def _described(function: Callable[..., object], told: str) -> Described:
    try:
        return Described.model_validate(dict(getattr(function, "__mailslot_tool__", {})))
    except ValidationError as error:
        raise Misconfigured(f"{told}: {complaint(error, '__mailslot_tool__')}") from None


class _Schema(GenerateJsonSchema):
    """Without titles: they repeat the parameters' names and are paid for in tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters, as a model that its arguments are checked by."""

    model: type[BaseModel]
    parameters: Mapping[str, str]  # field of the model -> parameter of the function
    wants_key: bool

    @classmethod
    def of(cls, function: Callable[..., object], told: str) -> Signature:
        """The signature of a function. Misconfigured if a model cannot be told how to call it."""
        try:
            parameters = inspect.signature(function, eval_str=True).parameters
        except (NameError, TypeError, ValueError) as error:
            raise Misconfigured(f"{told}: its signature cannot be read: {error}") from None
        fields: dict[str, Any] = {}
        names: dict[str, str] = {}
        for number, (name, parameter) in enumerate(parameters.items()):
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise Misconfigured(f"{told}: parameter {name} cannot be given by name")
            if name != EFFECT_KEY:
                # Parameters may have names that a model reserves; so its fields are numbered.
                default = ... if parameter.default is parameter.empty else parameter.default
                hint = Any if parameter.annotation is parameter.empty else parameter.annotation
                fields[f"argument_{number}"] = (hint, Field(default, alias=name))
                names[f"argument_{number}"] = name
        try:
            model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        except PydanticUserError as error:
            raise Misconfigured(f"{told}: {error.message}") from None
        return cls(model, names, EFFECT_KEY in parameters)

    def schema(self, told: str) -> dict[str, Any]:
        """The parameters as a JSON Schema."""
        try:
            schema = self.model.model_json_schema(schema_generator=_Schema)
        except PydanticUserError as error:
            raise Misconfigured(f"{told}: {error.message}") from None
        schema.pop("title", None)
        return {"properties": {}, **schema}

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as values of the parameters' types; those not given are left to their defaults."""
        try:
            values = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            complaints = [sentence(one) for one in found[:COMPLAINTS_MAX]]
            raise ToolError("bad-arguments", without_surrogates("; ".join(complaints))) from None
        return {self.parameters[field]: getattr(values, field) for field in values.model_fields_set}


# -- calling ------------------------------------------------------------------------------------------------


def _way_to_call(
    function: Callable[..., object], described: Described, told: str
) -> Callable[[dict[str, Any]], Awaitable[object]]:
    """Async functions run on the loop, others in a thread, unless they say that they never block, or that they need a
    process."""
    on_loop = is_async(function) or not described.blocking
    if not described.process:
        where = on_the_loop if on_loop else in_a_thread
        return lambda values: where(functools.partial(function, **values))
    if on_loop:
        raise Misconfigured(f"{told}: only a function that blocks can have a process of its own")
    module, name = named(function, told)
    return lambda values: process_calls.run(module, name, values, described.timeout_ms / 1000)


def said(value: object, *, bytes_max: int = RESULT_BYTES_MAX) -> str:
    """A result as the model sees it: text as it is, anything else as JSON, neither longer than `bytes_max`."""
    if isinstance(value, str):
        return within_bytes(without_surrogates(str.__str__(value)), bytes_max)  # an enum's value, not its name
    try:
        return within_bytes(to_json(value).decode(), bytes_max)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolError("bad-result", f"a result of type {type(value).__name__} cannot be said as JSON") from error


# -- finding ------------------------------------------------------------------------------------------------


def load_tools(names: Sequence[str], folder: Path) -> dict[str, Tool]:
    """The tools of these names, by the names that the model sees. Modules are looked for in the folder too."""
    found: dict[str, Tool] = {}
    for name in names:
        made = tool(offered("tool", GROUP, name, folder), None if ":" in name else name)
        if made.spec.name in found:
            raise Misconfigured(f"two tools are called {made.spec.name}: name one of them otherwise")
        found[made.spec.name] = made
    return found

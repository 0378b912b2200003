"""Tools: a Python function as something a model may call.

    tools = ["weather", "shop.tools:refund"]        in agents.toml
                |               |
     entry point in the group   module:function
       `mailslot.tools`         |
                v               v
    arguments --checked by the signature--> the function --> text, at most RESULT_BYTES_MAX

Rule 1: a function needs nothing but a signature and a docstring. What else there is to say stands in its attribute
        `__mailslot_tool__`, a mapping with any of `name`, `effect`, `timeout_ms`, `blocking`.
Rule 2: nobody is taken to be harmless: without a word the effect is `unsafe`, so a call whose outcome a crash hid is
        never made twice (semantics R3).
Rule 3: every call ends: with its result, with an error that the model sees, or at its `timeout_ms`.
Rule 4: a parameter named `effect_key` is not the model's. It gets a text that is the same at every attempt of the same
        call: an idempotency key.

    code            what happened to the call
    bad-arguments   the arguments do not fit the signature; the function was not called
    tool-failed     the function raised
    tool-timeout    the function took longer than its `timeout_ms`
    bad-result      the result is neither text nor anything that JSON can say
    tool-busy       BLOCKING_CALLS_MAX blocking calls are under way already
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_json

from mailslot_core.agent import Effect, Tool, ToolError, ToolSpec
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models.option import complaint, sentence
from mailslot_services.agent_worker.models.text import within_bytes, without_surrogates

GROUP: Final = "mailslot.tools"
"""The entry point group in which distributions offer tools."""

TIMEOUT_MS_DEFAULT: Final = 120_000
"""How long a call may take, if the tool does not say."""

TIMEOUT_MS_MAX: Final = 3_600_000
"""The longest time a tool may ask for."""

RESULT_BYTES_MAX: Final = 256 * 1024
"""How much of a result the model sees; the rest is cut off with a note."""

MESSAGE_CHARACTERS_MAX: Final = 2_000
"""How much of an exception's message the model sees."""

COMPLAINTS_MAX: Final = 10
"""How many of the things wrong with a call's arguments the model is told at once."""

BLOCKING_CALLS_MAX: Final = 256
"""How many blocking functions may run at once in one process, those that outlived their timeout included."""

CANCEL_GRACE_S: Final = 1.0
"""How long a function that was told to stop may take to do so before nobody waits for it any more."""

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers take as the name of a tool."""


class Described(BaseModel):
    """What a function may say about itself in `__mailslot_tool__`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: str | None = None
    effect: Effect = Field(Effect.UNSAFE, strict=False)
    timeout_ms: int = Field(TIMEOUT_MS_DEFAULT, ge=1, le=TIMEOUT_MS_MAX)
    blocking: bool = True


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
        return said(await self._within_cap(self._call(values)))

    async def _within_cap(self, work: Awaitable[object]) -> object:
        """What the call comes to, if it does so in time."""
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=self.timeout_ms / 1000)
        except asyncio.CancelledError:
            await _stop(task)
            raise
        if not done:
            await _stop(task)
            if not task.done() or task.cancelled():
                raise ToolError("tool-timeout", f"{self.spec.name} did not end within {self.timeout_ms} ms")
        if task.cancelled():
            raise ToolError("tool-failed", f"{self.spec.name} was cancelled from within")
        return task.result()


async def _stop(task: asyncio.Future[object]) -> None:
    """Tell a call to stop, and give it a moment. One that goes on regardless is left to itself."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait({task}, timeout=CANCEL_GRACE_S)


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
    return FunctionTool(spec, described.effect, described.timeout_ms, _way_to_call(function, described), signature)


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
    function: Callable[..., object], described: Described
) -> Callable[[dict[str, Any]], Awaitable[object]]:
    """Async functions run on the loop, others in a thread, unless they say that they never block."""

    async def on_the_loop(values: dict[str, Any]) -> object:
        try:
            result = function(**values)
            return await result if inspect.isawaitable(result) else result
        except (Exception, SystemExit) as error:  # somebody else's code: whatever it raises is its result
            raise failed(error) from error

    async def in_a_thread(values: dict[str, Any]) -> object:
        return await blocking_calls.run(functools.partial(function, **values))

    is_async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )
    return on_the_loop if is_async or not described.blocking else in_a_thread


def failed(error: BaseException) -> ToolError:
    """What the model sees of an exception."""
    if isinstance(error, ToolError):
        return error
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ToolError("tool-failed", without_surrogates(message[:MESSAGE_CHARACTERS_MAX]))


class BlockingCalls:
    """Blocking functions, each in a thread of its own that nobody waits for at exit.

    A pool would let a few functions that never return hold up everybody behind them, and the exit of the process.
    """

    def __init__(self, calls_max: int = BLOCKING_CALLS_MAX) -> None:
        self._calls_max = calls_max
        self._running = 0
        self._lock = threading.Lock()

    def run(self, call: Callable[[], object]) -> asyncio.Future[object]:
        """The call's result, on the running loop. Raises `ToolError`."""
        with self._lock:
            if self._running >= self._calls_max:
                raise ToolError("tool-busy", f"{self._calls_max} blocking tool calls are under way; try again later")
            self._running += 1
        loop = asyncio.get_running_loop()
        told: asyncio.Future[object] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result: object = context.run(call)
            except BaseException as error:  # noqa: BLE001 - somebody else's code, and a thread has nobody to raise to
                self._end(loop, told, failed(error))
            else:
                self._end(loop, told, result)

        threading.Thread(target=work, name="mailslot-tool", daemon=True).start()
        return told

    def _end(self, loop: asyncio.AbstractEventLoop, told: asyncio.Future[object], outcome: object) -> None:
        with self._lock:
            self._running -= 1
        if not loop.is_closed():
            loop.call_soon_threadsafe(_tell, told, outcome)


blocking_calls: Final = BlockingCalls()


def _tell(told: asyncio.Future[object], outcome: object) -> None:
    if told.done():
        return  # nobody waits any more
    if isinstance(outcome, ToolError):
        told.set_exception(outcome)
    else:
        told.set_result(outcome)


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
        made = tool(_load(_reference(name, folder), name), None if ":" in name else name)
        if made.spec.name in found:
            raise Misconfigured(f"two tools are called {made.spec.name}: name one of them otherwise")
        found[made.spec.name] = made
    return found


def _reference(name: str, folder: Path) -> EntryPoint:
    if ":" in name:
        # Last, so that a file beside agents.toml never takes the place of an installed module.
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        return EntryPoint(name, name, GROUP)
    offered = entry_points(group=GROUP)
    matching = {entry.value: entry for entry in offered if entry.name == name}
    if not matching:
        known = ", ".join(sorted(offered.names)) or "none"
        raise Misconfigured(f"no installed package offers a tool {name} in the group {GROUP} (offered: {known})")
    if len(matching) > 1:
        raise Misconfigured(
            f"tool {name} is offered more than once: {', '.join(sorted(matching))}; write the one meant"
        )
    return next(iter(matching.values()))


def _load(reference: EntryPoint, name: str) -> Callable[..., object]:
    try:
        loaded: object = reference.load()
    except Exception as error:
        raise Misconfigured(f"tool {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(loaded) or inspect.isclass(loaded):
        raise Misconfigured(f"tool {name} is no function but {type(loaded).__name__}")
    return loaded

"""The ports to whatever thinks (Model) and whatever acts (Tools). The turn loop is ours; the rest comes through here.

Rule 1: one call of a model is one attempt. Providers' own retries are off: the loop retries (semantics T8).
Rule 2: a model that is cancelled stops at once; what it passed to `on_delta` was visible and is kept (T9).
Rule 3: a tool declares what it does to the world; recovery runs it again only if that is harmless (R3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class UserEntry:
    """A `user/message` in the transcript. `content` is a list of content blocks."""

    content: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model asked for. `arguments` is a JSON object."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AssistantEntry:
    """An `assistant/message` in the transcript."""

    text: str
    calls: Sequence[ToolCall] = ()


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A `tool/result` in the transcript; `error` is its code when it failed."""

    call_id: str
    name: str
    content: str
    error: str | None = None


Entry = UserEntry | AssistantEntry | ToolEntry


@dataclass(frozen=True, slots=True)
class Usage:
    """What one model call used, in tokens."""

    input_tokens: int = 0
    output_tokens: int = 0


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One model call: the transcript (semantics L6), what to do, what may be called."""

    transcript: Sequence[Entry]
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    max_tokens: int | None = None
    session_id: str = ""
    turn: int = 1
    step: int = 1
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said. `model` is the name that really answered."""

    text: str
    calls: Sequence[ToolCall] = ()
    finish: Finish = Finish.STOP
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    request_id: str | None = None


class ModelError(Exception):
    """A model call that failed. `code` is stable (`rate-limited`, `overloaded`, `timeout`, `bad-request`, ...)."""

    def __init__(self, code: str, message: str, *, retryable: bool, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms


OnDelta = Callable[[str], Awaitable[None]]


class Model(Protocol):
    """Whatever thinks."""

    @property
    def name(self) -> str:
        """What `assistant/message.model` says when the answer names none."""
        ...

    @property
    def instant(self) -> bool:
        """The model answers without waiting for anything, so its step needs no checkpoint before the call."""
        ...

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """One attempt. Raises `ModelError`; anything else is a bug and ends the turn as `error{internal}`."""
        ...


class Effect(StrEnum):
    """What a tool does to the world (semantics R3)."""

    READONLY = "readonly"
    IDEMPOTENT = "idempotent"
    UNSAFE = "unsafe"


class ToolError(Exception):
    """A tool call that failed; the model sees `code` and the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Tool(Protocol):
    """Whatever acts."""

    @property
    def spec(self) -> ToolSpec:
        """As the model sees it."""
        ...

    @property
    def effect(self) -> Effect:
        """Whether recovery may run it again."""
        ...

    @property
    def timeout_ms(self) -> int:
        """The hard cap of one call: what makes a running tool a declared long call (semantics R2)."""
        ...

    async def run(self, arguments: Mapping[str, Any], effect_key: str) -> str:
        """The result as text. `effect_key` is the same at every attempt of the same call. Raises `ToolError`."""
        ...

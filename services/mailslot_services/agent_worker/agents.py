"""Agents: who answers in a session, as written in agents.toml.

    [agents.support]
    model = "openai:gpt-5-mini"          kind:name, see `models`
    fallback = "anthropic:claude-haiku-4-5"
    instructions = "Be brief."
    tools = ["shop.tools:refund"]        see `tools`
    hooks = ["shop.hooks:context"]       see `hooks`
    [agents.support.limits]
    steps_per_turn = 20

Rule 1: everything is checked when the file is loaded; a mistake is one sentence that names its place.
Rule 2: nothing unknown is passed over: an unknown key is refused.
Rule 3: every limit has a default, a maximum and a unit, in the table LIMITS; spending a budget has a code (T10).
Rule 4: without a file there is one agent, `default`, and it echoes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol, Self, runtime_checkable

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from mailslot_contracts.ids import check_id
from mailslot_contracts.problems import BadId
from mailslot_core.agent import Model, Tool
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.hooks import AdmissionHook, load_hooks
from mailslot_services.agent_worker.models import EchoModel, make_model
from mailslot_services.agent_worker.models.option import complaint
from mailslot_services.agent_worker.tools import load_tools

DEFAULT_AGENT: Final = "default"
"""The agent of a session that names none."""

AGENTS_MAX: Final = 1_000
"""Most agents in one file."""

TOOLS_MAX: Final = 128
"""Most tools of one agent: what the strictest provider takes."""

HOOKS_MAX: Final = 16
"""Most admission hooks of one agent; they are asked one after the other."""

INSTRUCTIONS_CHARACTERS_MAX: Final = 200_000
"""Longest instructions; they are sent with every model call."""


class AgentsInvalid(Misconfigured):
    """agents.toml says something that cannot be done; the sentence names the place."""

    code = "agents-invalid"


# -- limits -------------------------------------------------------------------------------------------------


class Limit(NamedTuple):
    """One limit: what holds without a word, the most that may be set, and the code of a turn that it ended."""

    default: int | None
    maximum: int
    unit: str
    code: str | None = None


def _limit(default: int | None, maximum: int, unit: str, code: str | None = None) -> Any:
    return field(default=default, metadata={"limit": Limit(default, maximum, unit, code)})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one turn may take. Without `max_tokens` the model decides how long an answer gets."""

    steps_per_turn: int = _limit(50, 1_000, "steps", "budget-steps")
    tool_calls_per_turn: int = _limit(200, 10_000, "tool calls", "budget-tool-calls")
    tokens_per_turn: int = _limit(1_000_000, 1_000_000_000, "tokens, read and written", "budget-tokens")
    wall_seconds_per_turn: int = _limit(3_600, 86_400, "seconds", "budget-wall-time")
    attempts: int = _limit(4, 20, "attempts of one model at one step")
    hook_ms: int = _limit(10_000, 600_000, "ms of one admission hook")
    max_tokens: int | None = _limit(None, 1_000_000, "tokens of one answer")


LIMITS: Final[Mapping[str, Limit]] = {limit.name: limit.metadata["limit"] for limit in fields(Limits)}


# -- agents -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agent:
    """Who answers: a model, what it is told, what it may call, how much it may take, who is asked before anything
    enters."""

    name: str
    model: Model
    fallback: Model | None = None
    instructions: str = ""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    hooks: tuple[AdmissionHook, ...] = ()


@runtime_checkable
class _Closing(Protocol):
    async def close(self) -> None:
        """Connections are closed."""
        ...


@runtime_checkable
class _Preparing(Protocol):
    async def prepare(self) -> None:
        """Whatever takes long at the first use is done."""
        ...


class Agents:
    """All agents of a worker, by name."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self._agents = {agent.name: agent for agent in agents}

    @classmethod
    def load(cls, path: str) -> Self:
        """The agents of a file, or the one that echoes when no file is named. Raises `AgentsInvalid`."""
        if not path:
            return cls([Agent(DEFAULT_AGENT, EchoModel())])
        file = Path(path)
        tables = _tables(file)
        return cls([_agent(file, name, table) for name, table in tables.items()])

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in the order of the file."""
        return tuple(self._agents)

    def get(self, name: str) -> Agent | None:
        """The agent of this name, None when there is none."""
        return self._agents.get(name)

    async def prepare(self) -> None:
        """Every model is ready to answer; a worker does this before it leases anything."""
        for model in self._models():
            if isinstance(model, _Preparing):
                await model.prepare()

    async def close(self) -> None:
        """What the models hold open is closed; nobody may use them after."""
        for model in self._models():
            if isinstance(model, _Closing):
                await model.close()

    def _models(self) -> list[object]:
        return [model for agent in self._agents.values() for model in (agent.model, agent.fallback)]


# -- the file -----------------------------------------------------------------------------------------------


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class _ModelTable(_Table):
    """A model with its options: whatever else stands beside it."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=1_000)


class _AgentTable(_ModelTable):
    """One `[agents.<name>]`; what is not known here is an option of its model."""

    instructions: str = Field("", max_length=INSTRUCTIONS_CHARACTERS_MAX)
    tools: list[str] = Field(default_factory=list, max_length=TOOLS_MAX)
    hooks: list[str] = Field(default_factory=list, max_length=HOOKS_MAX)
    limits: dict[str, Any] = Field(default_factory=dict)
    fallback: Annotated[
        _ModelTable | None, BeforeValidator(lambda value: {"model": value} if isinstance(value, str) else value)
    ] = None


class _File(_Table):
    agents: dict[str, dict[str, Any]] = Field(min_length=1, max_length=AGENTS_MAX)


_LIMIT_FIELDS: Final[dict[str, Any]] = {
    name: (int | None, Field(limit.default, ge=1, le=limit.maximum)) for name, limit in LIMITS.items()
}
_LimitsTable: Final = create_model("_LimitsTable", __base__=_Table, **_LIMIT_FIELDS)


def _tables(file: Path) -> dict[str, dict[str, Any]]:
    try:
        return _File.model_validate(tomllib.loads(file.read_text(encoding="utf-8"))).agents
    except OSError as error:
        raise AgentsInvalid(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise AgentsInvalid(f"{file} is not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise AgentsInvalid(f"{file}: {error}") from None
    except ValidationError as error:
        raise AgentsInvalid(f"{file}: {complaint(error)}") from None


def _agent(file: Path, name: str, value: Mapping[str, Any]) -> Agent:
    place, folder = f"agents.{name}", file.parent.resolve()
    try:
        check_id(name, "the name of an agent")
        table = _AgentTable.model_validate(dict(value))
        limits = limits_of(table.limits)
        tools = load_tools(table.tools, folder)
        hooks = load_hooks(table.hooks, folder)
        fallback = table.fallback
        return Agent(
            name=name,
            model=make_model(table.model, table.model_extra or {}, folder),
            fallback=make_model(fallback.model, fallback.model_extra or {}, folder) if fallback else None,
            instructions=table.instructions,
            tools=tools,
            limits=limits,
            hooks=hooks,
        )
    except ValidationError as error:
        raise AgentsInvalid(f"{file}: {complaint(error, place)}") from None
    except (BadId, Misconfigured) as error:
        raise AgentsInvalid(f"{file}: {place}: {error}") from error


def limits_of(value: Mapping[str, Any]) -> Limits:
    """The limits that a table sets, checked; the others have their defaults. Misconfigured if one cannot be."""
    try:
        return Limits(**_LimitsTable.model_validate(dict(value)).model_dump())
    except ValidationError as error:
        raise Misconfigured(f"{complaint(error, 'limits')} (limits: {', '.join(LIMITS)})") from None

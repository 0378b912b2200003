"""The models behind the `Model` port, and how a line of agents.toml becomes one.

    "openai:gpt-5-mini"  --KINDS["openai"]-->  options checked  --make-->  a Model
     kind    name

Rule 1: a kind has its own options; one that it does not know is refused with the list of those it knows.
Rule 2: everything that can be wrong with a model before its first call is said when the agents are loaded: an extra
        that is not installed, a key that is not in the environment, a script with a mistake.
Rule 3: an optional library is imported only when an agent asks for a model that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from mailslot_core.agent import Model
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models.echo import EchoModel
from mailslot_services.agent_worker.models.gate import FolderGates, Gates
from mailslot_services.agent_worker.models.option import (
    EchoOptions,
    LocalOptions,
    ModelOptions,
    ProviderOptions,
    complaint,
)
from mailslot_services.agent_worker.models.scripted import ScriptedModel

__all__ = ["KINDS", "EchoModel", "FolderGates", "Gates", "Kind", "ScriptedModel", "make_model"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of model: what may follow the colon, its options, and how it is made."""

    after_colon: str
    options: type[ModelOptions]
    make: Callable[[str, Any, Path], Model]


def _echo(name: str, options: EchoOptions, folder: Path) -> Model:
    return EchoModel(delay_ms=options.delay_ms, deltas=options.deltas)


def _scripted(name: str, options: ModelOptions, folder: Path) -> Model:
    return ScriptedModel.load(folder / name)


def _openai(name: str, options: ProviderOptions, folder: Path) -> Model:
    from mailslot_services.agent_worker.models.direct import openai_model  # noqa: PLC0415 - needs the extra `models`

    return openai_model(name, options)


def _anthropic(name: str, options: ProviderOptions, folder: Path) -> Model:
    from mailslot_services.agent_worker.models.direct import anthropic_model  # noqa: PLC0415 - needs the extra `models`

    return anthropic_model(name, options)


def _local(name: str, options: LocalOptions, folder: Path) -> Model:
    from mailslot_services.agent_worker.models.local import local_model  # noqa: PLC0415 - needs the extra `demo`

    return local_model(name, options)


KINDS: Final[Mapping[str, Kind]] = {
    "echo": Kind("", EchoOptions, _echo),
    "scripted": Kind("a file", ModelOptions, _scripted),
    "openai": Kind("a model's name", ProviderOptions, _openai),
    "anthropic": Kind("a model's name", ProviderOptions, _anthropic),
    "local": Kind("smollm2", LocalOptions, _local),
}


def make_model(spec: str, options: Mapping[str, Any], folder: Path) -> Model:
    """The model that `kind` or `kind:name` stands for; file names count from the folder. Misconfigured if none."""
    word, colon, name = spec.partition(":")
    kind = KINDS.get(word)
    if kind is None:
        raise Misconfigured(f"model {spec!r} is of no known kind; known are {', '.join(KINDS)}")
    if bool(name) != bool(kind.after_colon):
        wants = f"{word}:<{kind.after_colon}>" if kind.after_colon else word
        raise Misconfigured(f"model {spec!r} must be written {wants}")
    if colon and not name:
        raise Misconfigured(f"model {spec!r} has nothing after the colon")
    try:
        checked = kind.options.model_validate(dict(options))
    except ValidationError as error:
        known = ", ".join(kind.options.model_fields) or "none"
        raise Misconfigured(f"{complaint(error)} (options of model {word}: {known})") from None
    return kind.make(name, checked, folder)

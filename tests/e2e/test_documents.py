"""The documents say what is: README's examples are typed as they stand, the tables of the operations page are complete.

Rule 1: every block of `sh`, `python` or `ts` under README's "Use it" is run, in order, against one `mailslot up`. Only
        the addresses are replaced, because the default ports may be taken.
Rule 2: a block of `text` is what the block before it prints; `…` stands for anything.
Rule 3: the options of `docs/operations.md` are what the settings say; a stale table fails with the fresh one. The
        metrics there are exactly those that the services have.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from pydantic_settings import BaseSettings

from mailslot_core.settings import GoalSettings, IngestSettings, StoreSettings, WorkerSettings
from mailslot_services.agent_worker.metrics import WorkerMetrics
from mailslot_services.boot import env_name, flag_name
from mailslot_services.doctor import DoctorSettings
from mailslot_services.goal_continuation.metrics import GoalMetrics
from mailslot_services.ingest.metric import Metrics
from mailslot_services.up import UpSettings
from mailslot_services.verify.settings import VerifySettings
from tests.e2e.house import MAILSLOT
from tests.e2e.terminal import Up, up

pytestmark = pytest.mark.e2e

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = re.compile(r"^```(sh|python|ts|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TYPESCRIPT: Final = ROOT / "sdk" / "typescript"
BUILD_S_MAX: Final = 120.0
ADDRESS: Final = "http://127.0.0.1:8080"
STORE: Final = "redis://127.0.0.1:6379/0"


class Example(NamedTuple):
    """A block to type, and what it prints."""

    language: str
    text: str
    printed: str


def examples() -> list[Example]:
    """The blocks under "Use it"."""
    section = (ROOT / "README.md").read_text().partition("\n## Use it\n")[2].partition("\n## ")[0]
    blocks = BLOCK.findall(section)
    following = [*blocks[1:], ("", "")]
    return [
        Example(language, text, printed if kind == "text" else "…")
        for (language, text), (kind, printed) in zip(blocks, following, strict=True)
        if language != "text"
    ]


@pytest.fixture(scope="module")
def built() -> None:
    """The TypeScript package as it is published."""
    words = ["npm", "run", "--silent", "build"]
    done = subprocess.run(words, cwd=TYPESCRIPT, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun `make setup-test` first"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("reader"), "--ephemeral") as started:
        yield started


@pytest.mark.usefixtures("built")
def test_every_example_of_the_readme_works_as_it_stands(running: Up) -> None:
    assert {example.language for example in examples()} == {"sh", "python", "ts"}
    for program in ("curl", "redis-cli"):
        assert shutil.which(program), f"README uses {program}: install it"
    for example in examples():
        assert ADDRESS in example.text or STORE in example.text or "mailslot" in example.text
        text = example.text.replace(ADDRESS, running.url).replace(STORE, running.store_url)
        done = running.run(command(example.language, text, running.url))

        assert (done.returncode, done.stderr) == (0, ""), example.text
        assert matches(done.stdout, example.printed), f"{example.text}\nprints\n{done.stdout}\nnot\n{example.printed}"


def command(language: str, text: str, url: str) -> list[str]:
    if language == "python":
        return [sys.executable, "-c", text]
    if language == "ts":  # inside the package, which may import itself by its name
        program = TYPESCRIPT / ".readme" / "readme.mjs"
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        return ["node", str(program)]
    return [
        "bash",
        "-euo",
        "pipefail",
        "-c",
        f"export MAILSLOT_URL={url}\n{text.replace('.venv/bin/mailslot', str(MAILSLOT))}",
    ]


def matches(printed: str, expected: str) -> bool:
    """Whether it is what is expected, `…` standing for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.rstrip("\n").split("…"))
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


@pytest.mark.parametrize(("printed", "fits"), [("a 1 b", True), ("a  b", True), ("x a 1 b", False), ("a 1 c", False)])
def test_dots_stand_for_anything_and_nothing_else_does(printed: str, *, fits: bool) -> None:
    assert matches(printed, "a … b\n") is fits


# -- operations -----------------------------------------------------------------------------------------------

OPERATIONS: Final = ROOT / "docs" / "operations.md"
OPTIONS: Final = re.compile(r"<!-- options -->\n(.*?)<!-- /options -->\n", re.DOTALL)
SERVICES: Final[dict[str, type[StoreSettings]]] = {
    "every service": StoreSettings,
    "ingest": IngestSettings,
    "worker": WorkerSettings,
    "goals": GoalSettings,
    "up": UpSettings,
    "doctor": DoctorSettings,
    "verify": VerifySettings,
}


def option_tables() -> str:
    """Every option, once: those that all services have, then what each adds or has another default for."""
    tables = []
    for service, settings in SERVICES.items():
        rows = [option_row(settings, name) for name in settings.model_fields if is_own(settings, name)]
        tables += [f"| {service} | environment | default | |", "|---|---|---|---|", *rows, ""]
    return "\n".join(tables)


def is_own(settings: type[BaseSettings], name: str) -> bool:
    """It is not simply one that every service has."""
    field = settings.model_fields[name]
    common = StoreSettings.model_fields.get(name)
    return (
        settings is StoreSettings
        or common is None
        or (common.default, common.description) != (field.default, field.description)
    )


def option_row(settings: type[BaseSettings], name: str) -> str:
    field = settings.model_fields[name]
    default = (
        ""
        if field.default in {"", None}
        else f"`{str(field.default).lower() if field.annotation is bool else field.default}`"
    )
    return f"| `{flag_name(name)}` | `{env_name(settings, name)}` | {default} | {field.description} |"


def test_the_options_of_the_operations_page_are_those_of_the_settings() -> None:
    found = OPTIONS.search(OPERATIONS.read_text())
    assert found, f"{OPERATIONS.name} has no place for the options"
    assert found.group(1) == option_tables(), f"write this into {OPERATIONS.name}:\n{option_tables()}"


def metric_names(registry: CollectorRegistry) -> set[str]:
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}


def test_the_metrics_of_the_operations_page_are_those_that_are_counted() -> None:
    counted = set().union(*(metric_names(made.registry) for made in (Metrics(), WorkerMetrics(), GoalMetrics())))
    text = OPERATIONS.read_text()
    assert set(re.findall(r"^\| `(mailslot_[a-z_]+)` \|", text, re.MULTILINE)) == counted
    assert set(re.findall(r"\bmailslot_[a-z_]+", text)) == counted


# -- the map and the words --------------------------------------------------------------------------------------

MAP: Final = ROOT / "ARCHITECTURE.md"
PACKAGES: Final = (
    "contracts/mailslot_contracts",
    "core/mailslot_core",
    "sdk/python/mailslot",
    "services/mailslot_services",
)


def test_every_module_is_on_the_map() -> None:
    tree = MAP.read_text().partition("## The tree")[2].partition("\n## ")[0]
    told = set(re.findall(r"[a-z_]+", tree))
    modules = {file for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    missing = sorted(
        str(file.relative_to(ROOT)) for file in modules if file.stem.strip("_") not in {*told, "init", "main"}
    )
    assert not missing, f"say in the tree of {MAP.name} what these are: {missing}"


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/glossary.md", "docs/operations.md", "README.md"])
def test_every_path_that_a_document_names_is_there(document: str) -> None:
    named = set(re.findall(r"`((?:contracts|core|sdk|services|tests|docs)/[\w./-]+)`", (ROOT / document).read_text()))
    assert not [path for path in named if not (ROOT / path).exists()]

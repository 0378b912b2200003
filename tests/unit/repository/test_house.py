"""The house rules that no linter knows. A failure names what to write instead."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.repository.tree import PACKAGES, ROOT, files, name, product_modules, texts

FUNCTION_LINES_MAX: Final = 60
DOCSTRING_CHARACTERS_MIN: Final = 20

VAGUE_NAMES: Final = {
    "common": "the concept that is common",
    "helper": "what it helps to do",
    "helpers": "what they help to do",
    "manager": "what is managed, and how",
    "managers": "what is managed, and how",
    "misc": "one module per concept",
    "util": "the concept it is about",
    "utils": "the concepts they are about",
}

# Spliced, so that this file obeys its own rule.
MACHINE_PATHS: Final = re.compile("|".join(("/" + "work/", "/" + "root/", "/" + r"home/\w", "/" + r"Users/\w")))
REGISTRY_HOSTS: Final = re.compile(
    "|".join(("pypi" + r"\.org/simple", "python" + r"hosted\.org", "registry" + r"\.npmjs", "deb" + r"\.debian\.org"))
)
LOCK_FILES: Final = {"uv.lock", "pylock.toml", "poetry.lock", "package-lock.json"}
LINK: Final = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")

DECIDING_MODULES: Final = {"activity", "errors", "goal", "inbox", "invariants", "session", "turn"}
"""The modules of the core that decide, and therefore can do no I/O and read no clock."""

SDK_ALLOWED: Final = {"httpx2"}
"""What `import mailslot` may load beside the standard library (and what that itself needs)."""


def configuration() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def parts_of(path: Path) -> set[str]:
    relative = path.relative_to(ROOT)
    return {*relative.parts[:-1], relative.stem}


def test_modules_are_named_after_concepts() -> None:
    vague = {(name(p), word) for p in files() if p.suffix == ".py" for word in parts_of(p) & VAGUE_NAMES.keys()}
    assert not vague, [f"{path}: name it after {VAGUE_NAMES[word]}" for path, word in sorted(vague)]


def test_a_product_file_opens_by_saying_what_it_is() -> None:
    silent = [
        name(path)
        for path, text in product_modules()
        if len(ast.get_docstring(ast.parse(text)) or "") < DOCSTRING_CHARACTERS_MIN
    ]
    assert not silent, f"give these a docstring that says what they are: {silent}"


def test_functions_are_small() -> None:
    long = [
        f"{name(path)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, text in product_modules()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 >= FUNCTION_LINES_MAX
    ]
    assert not long, f"split these into functions with one job each (< {FUNCTION_LINES_MAX} lines): {long}"


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = [
        f"{name(path)}: {match.group()}"
        for path, text in texts()
        for pattern in (MACHINE_PATHS, REGISTRY_HOSTS)
        for match in pattern.finditer(text)
    ]
    assert not found, f"write relative paths, and leave registries to the reader's configuration: {found}"


def test_no_lock_file_is_kept() -> None:
    locks = [name(path) for path in files() if path.name in LOCK_FILES]
    assert not locks, f"lock files record the index they were made from; keep exported constraints instead: {locks}"


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{name(path)}: {link}"
        for path, text in texts()
        if path.suffix == ".md"
        for link in LINK.findall(text)
        if "://" not in link and not (path.parent / link).exists()
    ]
    assert not broken, broken


def sleeps(tree: ast.Module) -> Iterator[int]:
    """Lines that sleep. `asyncio.sleep(0)` lets others run and is no sleep."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"), args=[seconds, *_]):
                if not (isinstance(seconds, ast.Constant) and seconds.value == 0):
                    yield node.lineno
            case ast.ImportFrom(module="time" | "asyncio", names=names) if any(n.name == "sleep" for n in names):
                yield node.lineno


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    found = [
        f"{name(path)}:{line}"
        for path, text in texts("tests")
        if path.name.startswith("test_") and path.suffix == ".py"
        for line in sleeps(ast.parse(text))
    ]
    assert not found, f"wait with tests.waiting.wait_until, or steer the clock: {found}"


@pytest.mark.parametrize(
    "snippet", ["time.sleep(1)", "asyncio.sleep(delay)", "from asyncio import sleep", "from time import sleep"]
)
def test_a_sleep_is_found(snippet: str) -> None:
    assert list(sleeps(ast.parse(snippet)))


def test_each_top_folder_holds_the_package_of_its_name() -> None:
    wheel = configuration()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(entry).name: ROOT / Path(entry).parent for entry in wheel} == PACKAGES
    for package, folder in PACKAGES.items():
        held = {path.parent.name for path in folder.glob("*/__init__.py")}
        assert held == {package}, f"{name(folder)} holds {held}"
        assert (folder / package / "py.typed").exists(), f"{package} has no py.typed"


def test_every_package_is_under_the_layer_contracts() -> None:
    importlinter = configuration()["tool"]["importlinter"]
    assert set(importlinter["root_packages"]) == PACKAGES.keys()


def test_what_is_promised_and_decided_is_kept_pure() -> None:
    contracts = configuration()["tool"]["importlinter"]["contracts"]
    (pure,) = (contract for contract in contracts if contract["id"] == "pure")
    promised = {f"mailslot_contracts.{path.stem}" for path in (ROOT / "contracts/mailslot_contracts").glob("*.py")}
    decided = {f"mailslot_core.{module}" for module in DECIDING_MODULES}
    expected = (promised | decided) - {"mailslot_contracts.__init__", "mailslot_contracts.generate"}
    assert set(pure["source_modules"]) == expected, (
        "list new modules of contracts in the pure contract of pyproject.toml"
    )


def test_every_command_of_a_service_can_be_loaded() -> None:
    commands = entry_points(group="mailslot.commands")
    assert set(commands.names) == {"doctor", "goals", "ingest", "up", "verify", "worker"}
    for command in commands:
        assert callable(command.load()), command


def test_the_sdk_loads_nothing_but_its_http_client() -> None:
    program = """
import sys, importlib
importlib.import_module("httpx2")
before = set(sys.modules)
importlib.import_module("mailslot")
new = {module.partition(".")[0] for module in set(sys.modules) - before}
print(*sorted(new - sys.stdlib_module_names - {"mailslot"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= SDK_ALLOWED, "the SDK stands on the standard library and httpx2"


def test_every_make_target_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (help .*)$", text, re.MULTILINE)
    assert phony is not None
    explained = set(re.findall(r"^([a-z0-9-]+):.*## ", text, re.MULTILINE))
    assert set(phony.group(1).split()) == explained


def test_every_make_command_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = {
        f"{name(path)}: make {target}"
        for path, text in texts()
        if path.suffix == ".md"
        for target in re.findall(r"(?:`|^    )make ([a-z][a-z0-9-]*)", text, re.MULTILINE)
        if target not in targets
    }
    assert not unknown, sorted(unknown)

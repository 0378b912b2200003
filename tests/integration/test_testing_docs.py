"""docs/testing.md as a reader would use it: its programs run, its tests pass, are typed, and find a wrong backend."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import mailslot_services.testbed.engine  # noqa: F401 - once here, and not by each pytest within

pytestmark = pytest.mark.integration

PAGE: Final = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
BLOCKS: Final = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMED: Final = re.compile(r"# (\w+\.py)\n")
FILES: Final = {named.group(1): block for block in BLOCKS if (named := NAMED.match(block))}
PROGRAMS: Final = [block for block in BLOCKS if not NAMED.match(block)]
PATIENCE_S: Final = 120

pytest_plugins = ["pytester"]


@pytest.fixture
def page(pytester: pytest.Pytester) -> pytest.Pytester:
    """A pytest of its own on the files of the page, with nothing of this repository's configuration."""
    for name, text in FILES.items():
        (pytester.path / name).write_text(text)
    pytester.makeini("[pytest]\npythonpath = .\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


def test_there_are_examples() -> None:
    assert FILES.keys() == {"shop.py", "test_shop.py", "test_marked.py"}
    assert len(PROGRAMS) == 3


def test_every_program_works_as_it_stands(tmp_path: Path) -> None:
    separate = [f"exec({program!r}, {{'__name__': '__main__'}})" for program in PROGRAMS]
    command = [sys.executable, "-W", "error", "-c", "\n".join(separate)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("It is on its way.\nq['Where is my lamp?'] R T1 c[")


def test_the_tests_of_the_page_pass(page: pytest.Pytester) -> None:
    page.runpytest_inprocess().assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("right", "wrong", "test", "told"),
    [
        (', message_id=f"order-{number}"', "", "test_an_order_that_comes_twice", "was queued 2 times, not once"),
        (".steer(", ".prompt(", "test_what_is_added", "assert 2 == 1"),
        (".final_response", ".message.state", "test_the_clerk_answers", "admitted"),
    ],
)
def test_the_tests_of_the_page_find_a_wrong_backend(
    page: pytest.Pytester, right: str, wrong: str, test: str, told: str
) -> None:
    shop = FILES["shop.py"]
    assert right in shop
    (page.path / "shop.py").write_text(shop.replace(right, wrong))
    result = page.runpytest_inprocess("-k", test)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines([f"*{told}*"])


def test_the_examples_are_typed_as_strictly_as_can_be(page: pytest.Pytester) -> None:
    done = page.run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", page.path / "cache", *FILES)
    assert done.ret == 0, done.stdout.str()

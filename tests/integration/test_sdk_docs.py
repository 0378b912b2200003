"""The examples of docs/sdk.md, as a reader would paste them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sdk.product import Product

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PATIENCE_S = 60


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with Product().running() as running:
        yield running


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_works_as_it_stands(product: Product, number: int) -> None:
    code = EXAMPLES[number].replace("http://127.0.0.1:8080", product.url)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr

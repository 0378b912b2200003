"""The examples of docs/cli.md, typed into bash as they stand, against a real `mailslot up`; and every command is there.

Rule 1: a block of `sh` is run with `set -euo pipefail` by the environment's own `mailslot`.
Rule 2: a block of `text` after it is what it prints; `…` stands for anything.
Rule 3: what stands between `<!-- no workers` and `<!-- /no workers -->` is run where a turn was given up and
        nobody works.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from mailslot.cli.catalog import ROWS
from mailslot_core.memory import MemoryStore
from tests.e2e.house import MAILSLOT
from tests.e2e.terminal import COMMAND_S_MAX, up
from tests.unit.ingest.served import on_socket
from tests.unit.ingest.stages import give_up

pytestmark = pytest.mark.integration

PAGE: Final = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
QUIET: Final = re.compile(r"<!-- no workers.*?<!-- /no workers -->", re.DOTALL)
BLOCK: Final = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """What is typed, and what it prints."""

    typed: str
    printed: str


def examples(text: str) -> list[Example]:
    return [Example(*block) for block in BLOCK.findall(text)]


def check(example: Example, url: str) -> None:
    """Type it, and compare."""
    place = f"{MAILSLOT.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example.typed],
        env={**os.environ, "MAILSLOT_URL": url, "PATH": place},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{example.typed}\nsays\n{done.stderr}"
    pattern = ".*".join(re.escape(part) for part in example.printed.rstrip("\n").split("…"))
    assert re.fullmatch(pattern, done.stdout.rstrip("\n"), re.DOTALL), f"{example.typed}\nprints\n{done.stdout}"


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    found = examples(QUIET.sub("", PAGE))
    assert len(found) >= 12
    with up(tmp_path, "--ephemeral") as running:
        for example in found:
            check(example, running.url)


async def test_every_example_for_a_quiet_server_prints_what_the_page_says() -> None:
    found = examples("".join(QUIET.findall(PAGE)))
    assert len(found) == 2
    async with on_socket(MemoryStore()) as house:
        await house.prompt("s", messageId="m")
        await give_up(house.store)
        for example in found:
            await asyncio.to_thread(check, example, str(house.client.base_url))


@pytest.mark.parametrize("name", [name for name in ROWS if name != "rpc"])  # its page is that of the protocol
def test_every_command_is_in_an_example(name: str) -> None:
    assert re.search(rf"\bmailslot {name}\b", "".join(example.typed for example in examples(PAGE)))

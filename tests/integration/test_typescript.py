"""The TypeScript SDK: its own tests, against the product, and its package as it would be published.

    pytest ──> node: tsc, prettier, publint, vitest (unit)         nothing but the folder and the contracts
           └─> node: vitest (live) ──> the product in this process, directly and over a proxy that cuts
                                  └──> the rig: opens and closes the model's gate, counts the cuts

Rule 1: `make setup-test` installs its tools into `sdk/typescript/node_modules`. Without them these tests fail and
        say so.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.proxy import Proxy, proxy_to
from tests.unit.sdk.product import Product
from tests.waiting import pace

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "sdk" / "typescript"
PATIENCE_S: Final = 170.0
CUT_EVERY_S: Final = (0.1, 0.4)
"""At least and at most so long after one cut of all connections comes the next."""


def tool(*words: str) -> list[str]:
    """The command line of a tool that is installed in the folder, run by the node of `make setup-test`."""
    node = shutil.which("node", path=search_path())
    package = FOLDER / "node_modules" / words[0] / "package.json"
    assert node, "there is no node: make setup-test"
    assert package.exists(), f"{words[0]} is not installed: make setup-test"
    programs = json.loads(package.read_text())["bin"]
    program = programs if isinstance(programs, str) else programs[words[1]]
    return [node, str(package.parent / program), *words[2:]]


def search_path() -> str:
    """Where programs are looked for: among those of this Python, where `make` puts a node if PATH has no good one."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def environment(**more: str) -> dict[str, str]:
    """The environment of a tool."""
    return os.environ | {"PATH": search_path(), "NO_COLOR": "1", "CI": "1"} | more


def run(command: list[str], **more: str) -> str:
    """What a tool printed; fails with it when the tool fails."""
    ran = subprocess.run(
        command, cwd=FOLDER, env=environment(**more), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def built() -> Path:
    """The package, as it is published."""
    shutil.rmtree(FOLDER / "dist", ignore_errors=True)
    run(tool("typescript", "tsc", "--project", "tsconfig.build.json"))
    return FOLDER / "dist"


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with Product().running() as running:
        yield running


# -- as it stands -------------------------------------------------------------------------------------------------


def test_its_types_hold() -> None:
    run(tool("typescript", "tsc", "--noEmit"))


def test_it_is_in_the_house_format() -> None:
    run(tool("prettier", "prettier", "--check", "."))


def test_it_keeps_its_promises_without_a_server() -> None:
    run(tool("vitest", "vitest", "run", "--project", "unit"))


# -- against the product ------------------------------------------------------------------------------------------


@contextmanager
def rig(commands: Mapping[str, Callable[[], object]]) -> Iterator[str]:
    """A server by which another process gives these commands: `POST /<command>` answers what it returned."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            command = commands.get(self.path.strip("/"))
            body = b"unknown" if command is None else str(command()).encode()
            self.send_response(404 if command is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def cut_for_ever(proxy: Proxy, rng: random.Random) -> None:
    """Reset all connections a few times a second."""
    while True:
        await pace(rng.uniform(*CUT_EVERY_S))
        proxy.cut()


async def test_it_keeps_its_promises_against_the_product(product: Product, rng: random.Random) -> None:
    port = int(product.url.rpartition(":")[2])
    async with proxy_to(port) as proxy:
        commands: dict[str, Callable[[], object]] = {
            "reached": product.reached,
            "open": product.open,
            "close": product.close,
            "cuts": lambda: proxy.faults,
        }
        with rig(commands) as rig_url:
            cutting = asyncio.ensure_future(cut_for_ever(proxy, rng))
            try:
                await asyncio.to_thread(
                    run,
                    tool("vitest", "vitest", "run", "--project", "live"),
                    MAILSLOT_URL=product.url,
                    MAILSLOT_CUT_URL=proxy.http_url,
                    MAILSLOT_RIG_URL=rig_url,
                )
            finally:
                cutting.cancel()
        assert proxy.faults >= 10

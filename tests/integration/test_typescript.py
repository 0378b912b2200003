"""The TypeScript SDK: its own tests, against the product, and its package as it would be published.

    pytest ──> node: tsc, prettier, publint, vitest (unit)         nothing but the folder and the contracts
           ├─> node: vitest (live) ──> the product in this process, directly and over a proxy that cuts
           │                      └──> the rig: opens and closes the model's gate, counts the cuts
           └─> Chromium ─────────────> the same, from a page of another origin

Rule 1: `make setup-test` installs its tools into `sdk/typescript/node_modules`. Without them these tests fail and
        say so. Without a Chromium its test is skipped; not with EXAMPLES_BROWSER=required, as in `.ci/run`.
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
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import async_playwright

from tests.chaos.proxy import Proxy, proxy_to
from tests.unit.sdk.product import Product
from tests.waiting import pace

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "sdk" / "typescript"
PATIENCE_S: Final = 170.0
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
BROWSER_WORDS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
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


def test_its_package_can_be_published(built: Path) -> None:
    assert "All good!" in run(tool("publint", "publint", "--strict", "--pack", "false"))
    npm = shutil.which("npm", path=search_path())
    assert npm, "there is no npm: make setup-test"
    (packed,) = json.loads(run([npm, "pack", "--dry-run", "--json", "--ignore-scripts"]))
    held = {entry["path"] for entry in packed["files"]}
    modules = {path.stem for path in (FOLDER / "src").glob("*.ts")}
    made = {f"dist/{module}{ending}" for module in modules for ending in (".js", ".d.ts")}
    assert held == made | {"LICENSE", "README.md", "package.json"}
    assert (FOLDER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


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

    with serving(Handler) as url:
        yield url


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Where a server with this handler is, for the length of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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


async def test_it_keeps_its_promises_against_the_product(built: Path, product: Product, rng: random.Random) -> None:
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


# -- in a browser -------------------------------------------------------------------------------------------------

IN_A_PAGE: Final = """
async ({ direct, cut }) => {
  const { Client, Refused } = await import("/dist/index.js");
  const session = new Client({ baseUrl: direct }).session("page");
  const first = await session.run("hello from a page");
  const settings = { reconnectsMax: 200, backoffMaxMs: 20 };
  const reading = (async () => {
    const seqs = [];
    for await (const event of new Client({ baseUrl: cut, settings }).session("page").events()) {
      seqs.push(event.seq);
      if (event.type === "user/message" && event.data.content[0].text === "the last") {
        return seqs;
      }
    }
  })();
  for (let n = 0; n < 12 || (await cuts()) < 3; n++) {
    await session.run(`message ${n}`);
  }
  const again = new Client({ baseUrl: cut, settings: { attemptsMax: 200, ...settings } }).session("page");
  const last = await again.run("the last");
  const refused = await session.steer("too late", { ifIdle: "reject" }).catch((error) => error);
  return {
    said: [first.finalResponse, last.finalResponse],
    own: last.events.map((event) => event.seq),
    seqs: await reading,
    refused: refused instanceof Refused && refused.code,
  };
}
"""


def browser_program() -> str:
    """A Chromium of this machine."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        (pytest.fail if os.environ.get("EXAMPLES_BROWSER") == "required" else pytest.skip)("no Chromium on PATH")
    return found


@contextmanager
def pages(folder: Path) -> Iterator[str]:
    """The origin of a site that has the files of a folder."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with serving(partial(Handler, directory=str(folder))) as origin:
        yield origin


async def test_it_works_in_a_page_of_another_origin(built: Path, rng: random.Random) -> None:
    program = browser_program()
    with pages(FOLDER) as origin, Product(origins=origin).running() as product:
        async with proxy_to(int(product.url.rpartition(":")[2])) as proxy, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=list(BROWSER_WORDS))
            page = await browser.new_page()
            await page.expose_function("cuts", lambda: proxy.faults)
            await page.goto(f"{origin}/dist/")
            cutting = asyncio.ensure_future(cut_for_ever(proxy, rng))
            try:
                seen = await page.evaluate(IN_A_PAGE, {"direct": product.url, "cut": proxy.http_url})
            finally:
                cutting.cancel()
                await browser.close()
        ledger = product.ledger("page")
    assert seen["said"] == ["answer to hello from a page", "answer to the last"]
    assert seen["refused"] == "idle"
    assert seen["seqs"] == list(range(1, seen["seqs"][-1] + 1))
    assert seen["own"] == list(range(seen["own"][0], ledger[-1].seq + 1))

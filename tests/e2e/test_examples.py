"""The examples work as they stand: each is run against one real `mailslot up`, with the program that it is about.

Rule 1: an example is run as its header says; only addresses come from the environment, as they do for a reader.
Rule 2: what it prints is held to the ledger: places without gaps, from the receipt to the agent's rest.
Rule 3: a program that is missing fails the test and says how to get it. Only a browser, which is big, may be missing,
        and then its test is skipped; not with EXAMPLES_BROWSER=required, as in `.ci/run`.
Rule 4: every file of `examples/` is in its table of contents and has a test here.
"""

import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import redis
from playwright.sync_api import Page, Response, expect, sync_playwright

from mailslot_contracts import decode
from tests.e2e.house import MAILSLOT
from tests.e2e.terminal import Up, up
from tests.integration.test_documents import ASYNCAPI, NODE_MODULES, pointed_at
from tests.unit.repository.tree import ROOT, files

pytestmark = pytest.mark.e2e

EXAMPLES: Final = ROOT / "examples"
EXAMPLE_S_MAX: Final = 60.0
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
BROWSER_WORDS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
BACK_MS_MAX: Final = 60_000
"""A browser waits three seconds before it comes back, and `up` starts a service again after a delay."""


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    """The folder of the page, served as the page's header says; where it is."""
    handler = functools.partial(QuietHandler, directory=str(EXAMPLES / "browser"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Says nothing about each request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
        pass


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, pages: str) -> Iterator[Up]:
    """One `mailslot up --ephemeral`, whose doors the page may use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAILSLOT_ORIGINS", pages)
        with up(tmp_path_factory.mktemp("examples"), "--ephemeral") as started:
            yield started


def run(running: Up, *words: str | Path, folder: Path = EXAMPLES, more: Mapping[str, str] | None = None) -> list[str]:
    """What an example prints, line by line; it must end well and complain of nothing."""
    program = shutil.which(str(words[0]))
    if program is None:
        pytest.fail(f"{words[0]} is missing: run `make setup-test`", pytrace=False)
    where = {"MAILSLOT_URL": running.url, "MAILSLOT_REDIS_URL": running.store_url, "MAILSLOT": str(MAILSLOT)}
    done = subprocess.run(
        [program, *map(str, words[1:])],
        cwd=folder,
        env={**os.environ, **where, **(more or {})},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_S_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def events(printed: list[str]) -> list[tuple[int, str]]:
    """The lines `event <seq> <what>`."""
    found = [re.fullmatch(r"event (\d+) (.*)", line) for line in printed]
    return [(int(each.group(1)), each.group(2)) for each in found if each]


def receipts(printed: list[str], word: str = "receipt") -> list[dict[str, Any]]:
    """The lines `receipt <JSON>`."""
    return [json.loads(line.removeprefix(f"{word} ")) for line in printed if line.startswith(f"{word} {{")]


def ledger(running: Up, session: str) -> list[dict[str, Any]]:
    """Every event of a session, by a client of our own."""
    with httpx2.Client(base_url=running.url, trust_env=False) as client:
        page = client.get(f"/v1/sessions/{session}/events?limit=1000", headers={"Accept": "application/json"}).json()
    assert page["next"] is None
    found: list[dict[str, Any]] = page["events"]
    return found


def types(running: Up, session: str) -> list[tuple[int, str]]:
    return [(event["seq"], event["type"]) for event in ledger(running, session)]


# -- HTTP -----------------------------------------------------------------------------------------------------


def test_curl_reads_the_stream_and_goes_on_where_it_was(running: Up) -> None:
    printed = run(running, "bash", "curl_events.sh", "curl")

    (receipt,) = receipts(printed)
    assert receipt.keys() == {"messageId", "cursor", "duplicate", "durability"}
    shown = [json.loads(text) for _, text in events(printed)]
    assert shown == ledger(running, "curl")[receipt["cursor"] - 1 :]
    rests = [event["seq"] for event in shown if event["data"].get("status") == "idle"]
    assert len(rests) == 2
    assert f"going on after event {rests[0]}" in printed


def test_a_client_made_of_the_served_document_sends_looks_waits_and_reads(running: Up, tmp_path: Path) -> None:
    config = EXAMPLES / "generated_client" / "openapi-python-client.yaml"
    made = run(
        running, "openapi-python-client", "generate", "--url", f"{running.url}/openapi.json", "--meta", "none",
        "--output-path", "mailslot_generated", "--config", config, "--fail-on-warning", folder=tmp_path,
    )  # fmt: skip
    assert made == ["Generating mailslot_generated"], "the generator has something to say about our document"

    printed = run(
        running, sys.executable, EXAMPLES / "generated_client" / "talk.py", more={"PYTHONPATH": str(tmp_path)}
    )

    assert events(printed) == types(running, "generated")[:-1]  # the last is the withdrawal, which came after
    queued = [line for line in printed if line.startswith("queued ")]
    assert [line.split()[2:] for line in queued] == [["queued", "False"]]
    later = queued[0].split()[1]
    assert f"withdrawn {later} cancelled withdrawn" in printed
    assert printed[-1] == "refused 404 not-found"


def test_the_event_source_of_a_browser_comes_back_after_cuts_and_misses_nothing(running: Up, pages: str) -> None:
    asked: list[str | None] = []

    def answered(response: Response) -> None:
        if response.request.url.endswith("/events"):
            asked.append(response.request.all_headers().get("last-event-id"))

    with browsing() as page:
        page.on("response", answered)
        page.goto(f"{pages}/?session=browser&url={running.url}")
        page.get_by_role("button").click()
        seen = [wait_for_rest(running, page)]
        for cut, how in enumerate((signal.SIGKILL, signal.SIGTERM), start=2):
            os.kill(service_pid(running, "ingest"), how)
            expect(page.locator("#state")).not_to_contain_text("connected", timeout=BACK_MS_MAX)
            running.run([str(MAILSLOT), "send", "--url", running.url, "--session", "browser", f"before {cut}"])
            expect(page.locator("#state")).to_have_text(f"connected {cut}", timeout=BACK_MS_MAX)
            seen.append(wait_for_rest(running, page))

    assert asked == [None, str(seen[0][-1]), str(seen[1][-1])]
    assert seen == [list(range(1, last[-1] + 1)) for last in seen]


def browsing() -> "BrowserPage":
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = "no Chromium on PATH: `apt-get install chromium` (350 MB)"
        (pytest.fail if os.environ.get("EXAMPLES_BROWSER") == "required" else pytest.skip)(missing)
    return BrowserPage(found)


class BrowserPage:
    """A page of a browser of its own, for the length of the block."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._playwright = sync_playwright()

    def __enter__(self) -> Page:
        browser = self._playwright.start().chromium.launch(executable_path=self._program, args=BROWSER_WORDS)
        return browser.new_page()

    def __exit__(self, *_: object) -> None:
        self._playwright.__exit__()


def wait_for_rest(running: Up, page: Page) -> list[int]:
    """The places that the page shows, once it shows as many as the ledger has and the agent rests."""
    with httpx2.Client(base_url=running.url, trust_env=False) as client:
        idle = client.get("/v1/sessions/browser/idle").json()
    assert idle["status"] == "idle"
    expect(page.locator(f"#events li[data-seq='{idle['cursor']}']")).to_be_visible(timeout=BACK_MS_MAX)
    return [int(line.get_attribute("data-seq") or 0) for line in page.locator("#events li").all()]


def service_pid(running: Up, name: str) -> int:
    """The process of a service that `up` started: up, its watcher, the service."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if name.encode() in words and parent(parent(int(folder.name))) == running.process.pid:
                return int(folder.name)
        except (FileNotFoundError, ProcessLookupError):  # it ended while it was looked at
            continue
    raise AssertionError(f"no {name} under {running.process.pid}")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# -- Redis ----------------------------------------------------------------------------------------------------


def test_redis_cli_puts_a_prompt_in_and_is_told_its_id(running: Up) -> None:
    printed = run(running, "bash", "redis_cli_producer.sh", "redis-cli", "hello, mailslot")

    (reply,) = receipts(printed, "reply")
    assert reply.keys() == {"messageId"}
    (queued,) = [event for event in ledger(running, "redis-cli") if event["type"] == "inbox/queued"]
    assert queued["data"]["messageId"] == reply["messageId"]
    assert queued["data"]["content"] == [{"type": "text", "text": "hello, mailslot"}]


def test_redis_cli_is_told_why_a_prompt_was_refused(running: Up) -> None:
    (reply,) = receipts(run(running, "bash", "redis_cli_producer.sh", "redis-cli", ""), "reply")
    assert (reply["code"], reply["status"]) == ("bad-input", 400)


def test_a_faststream_app_sends_and_hears_everything_on_two_topics(running: Up) -> None:
    printed = run(running, sys.executable, "faststream_subscriber.py")

    assert printed[0].startswith("receipt {'messageId': ") or printed[-1].startswith("receipt {'messageId': ")
    told = {(seq, what) for seq, what in events(printed) if what not in {"running", "idle"}}
    assert told == {(seq, what) for seq, what in types(running, "faststream") if what != "agent/status"}
    assert [seq for seq, _ in events(printed)] == [seq for seq, _ in types(running, "faststream")]


# -- JSON-RPC -------------------------------------------------------------------------------------------------


def held_to_the_ledger(running: Up, printed: list[str], session: str) -> None:
    """A receipt with nothing but the id, and every event once and in order."""
    (receipt,) = receipts(printed)
    assert receipt.keys() == {"messageId"}
    assert events(printed) == types(running, session)


def test_ws_from_npm_speaks_json_rpc(running: Up, tmp_path: Path) -> None:
    assert (NODE_MODULES / "ws").exists(), "ws is missing: run `make setup-test`"
    shutil.copy(EXAMPLES / "rpc_websocket.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)

    printed = run(running, "node", "rpc_websocket.mjs", folder=tmp_path)

    held_to_the_ledger(running, printed, "ws")
    last = ledger(running, "ws")[-1]["seq"]
    assert printed[-3:] == [f"level idle {last}", "queued 0", "refused -32000 not-found"]


def test_jsonrpcclient_over_websockets_speaks_json_rpc(running: Up) -> None:
    held_to_the_ledger(running, run(running, sys.executable, "rpc_websocket.py"), "websocket")


def test_the_connection_of_agent_client_protocol_speaks_json_rpc_on_stdio(running: Up) -> None:
    printed = run(running, sys.executable, "rpc_stdio.py")
    held_to_the_ledger(running, printed, "stdio")
    assert printed[-2:] == ["refused -32000 not-found", "exit code 0"]


# -- what was said --------------------------------------------------------------------------------------------


def test_what_the_doors_say_is_valid_by_the_published_schemas(running: Up) -> None:
    """Every answer and event of this run, whoever caused it."""
    with httpx2.Client(base_url=running.url, trust_env=False) as client:
        receipt = client.post("/v1/sessions/judged/prompt", json={"content": "hello"}).json()
        batch = client.post("/v1/sessions/judged/prompts", json=[{"content": "a"}, {"content": "b"}]).json()
        idle = client.get("/v1/sessions/judged/idle", params={"after": receipt["cursor"]}).json()
        levels = client.get("/v1/sessions").json()
        dead = client.get("/v1/dead").json()
        problem = client.get("/v1/sessions/nobody").json()
        record = client.get(f"/v1/sessions/judged/messages/{receipt['messageId']}").json()
        queue = client.get("/v1/sessions/judged/messages").json()

    for name, said in {
        "Receipt": receipt, "IdleAnswer": idle, "LevelPage": levels, "DeadPage": dead, "Problem": problem,
        "MessageRecord": record, "QueuePage": queue,
    }.items():  # fmt: skip
        pointed_at(name).validate(said)
    for said in batch:
        pointed_at("PromptBatchItem").validate(said)
    for level in levels["sessions"]:
        for event in ledger(running, level["sessionId"]):
            pointed_at("Event").validate(event)


def test_what_the_topics_say_is_valid_by_the_asyncapi_document(running: Up) -> None:
    schemas = {name: {**ASYNCAPI, **schema} for name, schema in ASYNCAPI["components"]["schemas"].items()}
    judge = type(pointed_at("Event"))(schemas["Envelope"])
    with redis.Redis.from_url(running.store_url) as outside, outside.pubsub() as topics:
        topics.psubscribe("session.*")
        topics.get_message(timeout=EXAMPLE_S_MAX)
        run(running, "bash", "redis_cli_producer.sh", "topics")
        heard: list[Any] = []
        while not any(event["type"] == "agent/status" and event["data"]["status"] == "idle" for event in heard):
            notice = topics.get_message(timeout=EXAMPLE_S_MAX)
            assert notice, f"nothing more was said after {heard}"
            heard.append(decode(notice["data"]))

    assert [event["seq"] for event in heard] == [event["seq"] for event in ledger(running, "topics")]
    for event in heard:
        judge.validate(event)


# -- the folder -----------------------------------------------------------------------------------------------


def test_every_example_is_in_the_table_of_contents_and_has_a_test() -> None:
    held = {str(path.relative_to(EXAMPLES)) for path in files() if path.is_relative_to(EXAMPLES)} - {"README.md"}
    listed = set(re.findall(r"\]\(([\w/]+\.\w+)\)", (EXAMPLES / "README.md").read_text()))
    tested = Path(__file__).read_text()

    assert listed <= held
    assert held - listed == {"generated_client/openapi-python-client.yaml"}, "say in the table what these are"
    for name in held:
        assert Path(name).name in tested or name == "browser/index.html", f"{name} has no test"


def test_every_example_says_what_it_shows_and_how_to_run_it() -> None:
    for path in files():
        if path.is_relative_to(EXAMPLES) and path.suffix in {".py", ".sh", ".mjs", ".html"}:
            head = path.read_text()[:1500]
            assert "Shows:" in head, path.name
            assert "Run it" in head, path.name
            assert "mailslot up" in head, path.name

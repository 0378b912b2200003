"""What a newcomer does in the first minutes, as README says it: start, run, look around, stop.

Everything is a real process; what is typed is taken from the screen that `mailslot up` prints.
"""

import queue
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.e2e.house import MAILSLOT, is_alive
from tests.servers import free_port

pytestmark = [pytest.mark.e2e]

START_S_MAX: Final = 60.0
END_S_MAX: Final = 30.0
RUN_S_MAX: Final = 3.0
"""Aim: one second on a quiet machine; this bound leaves room for a busy one."""
WORD: Final = "Ctrl-C ends everything in order."
"""The last line of the screen."""

BROKEN: Final = """
[agents.default]
model = "scripted:broken.yaml"
"""
SCRIPT: Final = """
rules:
  - fail: {code: overloaded, message: the model is on fire, retryable: false}
"""


@dataclass
class Up:
    """A running `mailslot up`, and what it has printed."""

    process: subprocess.Popen[str]
    folder: Path
    port: int
    lines: list[str] = field(default_factory=list)
    _heard: queue.Queue[str | None] = field(default_factory=queue.Queue)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def screen(self) -> str:
        return "\n".join(self.lines)

    @property
    def hello(self) -> list[str]:
        """The command that the screen offers to copy."""
        found = re.search(r"^  (\S*mailslot run .*)$", self.screen, re.MULTILINE)
        assert found, self.screen
        return shlex.split(found.group(1))

    def listen(self) -> None:
        """Keep every line, in a thread of its own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._heard.put(line.rstrip("\n"))
        self._heard.put(None)

    def wait_for(self, words: str, timeout_s: float) -> None:
        """Return when a line with these words was printed."""
        deadline = time.monotonic() + timeout_s
        while not any(words in line for line in self.lines):
            line = self._heard.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"it ended before it said {words!r}:\n{self.screen}"
            self.lines.append(line)

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """A command in the second terminal, in the same folder."""
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)

    def end(self) -> int:
        """Ctrl-C, and its exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(END_S_MAX)
        while (line := self._heard.get(timeout=END_S_MAX)) is not None:
            self.lines.append(line)
        return code


@contextmanager
def up(folder: Path, *options: str) -> Iterator[Up]:
    """`mailslot up` in a folder, from its start until it is ended; its screen has been printed."""
    port = free_port()
    words = [str(MAILSLOT), "up", "--port", str(port), *options]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    running = Up(process, folder, port)
    listener = threading.Thread(target=running.listen, daemon=True)
    listener.start()
    try:
        running.wait_for(WORD, START_S_MAX)
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(END_S_MAX)
        listener.join()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One `mailslot up --ephemeral` for the tests that only look."""
    with up(tmp_path_factory.mktemp("newcomer"), "--ephemeral") as started:
        yield started


# -- up and run -----------------------------------------------------------------------------------------------


def test_the_screen_says_where_everything_is_and_what_a_receipt_promises(running: Up) -> None:
    for page in ("/v1/sessions", "/docs", "/asyncapi", "/metrics"):
        assert running.url + page in running.screen
    assert re.search(r"store +redis://127\.0\.0\.1:\d+", running.screen)
    assert re.search(r"durability +memory: a receipt means: in the store's memory", running.screen)


def test_the_command_on_the_screen_prints_an_answer_within_a_second_or_so(running: Up) -> None:
    began = time.monotonic()
    done = running.run(running.hello)
    seconds = time.monotonic() - began

    print(f'mailslot run "hello" took {seconds:.2f} s')
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert seconds < RUN_S_MAX


def test_every_page_on_the_screen_has_something_to_say(running: Up) -> None:
    running.run(running.hello)
    with httpx2.Client(base_url=running.url, trust_env=False) as client:
        docs, topics, metrics, api = (
            client.get(f"/{page}") for page in ("docs", "asyncapi", "metrics", "openapi.json")
        )
        assert {answer.status_code for answer in (docs, topics, metrics, api)} == {200}
        assert client.get("/").status_code == client.get("/healthz").status_code == 200
        assert client.get("/readyz").json() == {"status": "ready"}

    assert "/v1/sessions/{sid}/prompt" in docs.text
    assert "/v1/sessions/{sid}/prompt" in api.json()["paths"]
    assert "asyncapi: 3" in topics.text
    assert "mailslot:intake" in topics.text
    assert re.search(r'^mailslot_ingest_submits_total\{code="accepted",door="http"\} [1-9]', metrics.text, re.MULTILINE)
    assert re.search(r"^mailslot_ingest_conservation 0\.0$", metrics.text, re.MULTILINE)


def test_workers_and_goals_count_too(running: Up) -> None:
    running.run(running.hello)
    (line,) = [line for line in running.lines if line.startswith("  metrics")]
    pages = "".join(httpx2.get(url, trust_env=False).text for url in line.split()[1:])
    for name in (
        "mailslot_ingest_submits_total",
        'mailslot_worker_turns_total{kind="completed"}',
        "mailslot_goals_answers",
    ):
        assert name in pages


def test_ctrl_c_ends_everything_in_order_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral") as started:
        assert started.run(started.hello).returncode == 0
        family = descendants(started.process.pid)
        assert len(family) >= 8, "store, ingest, worker and goals, each under its watcher"

        code = started.end()

    assert code == 0, started.screen
    assert "ended" in started.lines
    assert [pid for pid in family if is_alive(pid)] == []
    assert list(tmp_path.iterdir()) == [], "nothing is kept"
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(started.url, trust_env=False)


def descendants(pid: int) -> list[int]:
    """The process ids of everything that a process started, and what that started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    found, fresh = [], {pid}
    while fresh := {child for child, parent in parents.items() if parent in fresh}:
        found += sorted(fresh)
    return found


# -- what the exit code of a run says -------------------------------------------------------------------------


def test_a_model_that_fails_is_told_by_exit_code_1_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text(BROKEN)
    (tmp_path / "broken.yaml").write_text(SCRIPT)
    with up(tmp_path, "--ephemeral") as started:
        done = started.run(started.hello)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "mailslot run: the last turn ended error: overloaded, the model is on fire\n"


def test_a_server_that_is_not_there_is_told_by_exit_code_5_and_what_to_do(tmp_path: Path) -> None:
    words = [str(MAILSLOT), "run", "--url", f"http://127.0.0.1:{free_port()}", "hello"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (5, "")
    assert "start one with `mailslot up`" in done.stderr


def test_a_port_that_is_taken_is_told_before_anything_is_started(running: Up, tmp_path: Path) -> None:
    words = [str(MAILSLOT), "up", "--port", str(running.port)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert f"port {running.port}" in done.stderr
    assert "--port" in done.stderr
    assert list(tmp_path.iterdir()) == []

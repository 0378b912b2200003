"""A first terminal in which `mailslot up` runs, and a second one in which something is typed."""

import queue
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.house import MAILSLOT
from tests.servers import free_port

START_S_MAX: Final = 60.0
END_S_MAX: Final = 30.0
COMMAND_S_MAX: Final = 60.0
LAST_LINE: Final = "Ctrl-C ends everything in order."
"""How the screen of `mailslot up` ends."""


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
    def store_url(self) -> str:
        """Where the screen says that the store is."""
        found = re.search(r"^  store +(redis://\S+)", self.screen, re.MULTILINE)
        assert found, self.screen
        return found.group(1)

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

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command in the second terminal, in the same folder."""
        return subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
        )

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
        running.wait_for(LAST_LINE, START_S_MAX)
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(END_S_MAX)
        listener.join()
        assert process.stdout is not None
        process.stdout.close()

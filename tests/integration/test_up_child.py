"""What `mailslot up` promises about the processes it runs, held against small scripts instead of services."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from mailslot_services import child
from mailslot_services.child import ABANDONED_S, ChildFailed, Crew, Service, cause, delay_s
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

SOON_S: Final = 15.0
"""Long enough for a Python process to start on a loaded machine."""

WAITS: Final = "import signal; print(flush=True); signal.pause()"
DRAINS: Final = """
import os, signal, sys, time
def drain(*_):
    with open(sys.argv[1], "a") as log:
        log.write(f"begin {sys.argv[2]}\\n"); log.flush()
        time.sleep(0.1)
        log.write(f"end {sys.argv[2]}\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, drain)
print(f"here {sys.argv[2]}", file=sys.stderr, flush=True)
while True: signal.pause()
"""
STUBBORN: Final = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", file=sys.stderr, flush=True)
while True: signal.pause()
"""
OWNER: Final = """
import asyncio, sys
from mailslot_services.child import Crew, Service
async def main():
    crew = Crew([Service("one", [sys.executable, "-c", sys.argv[1]], 1)], lambda *told: None)
    crew.start()
    while not (crew.child("one") and crew.child("one").pid):
        await asyncio.sleep(0.01)
    print(crew.child("one").pid, flush=True)
    await crew.failure()
asyncio.run(main())
"""


def service(name: str, script: str, *words: str, drain_s: float = SOON_S) -> Service:
    return Service(name, [sys.executable, "-c", script, *words], drain_s)


class Told:
    """Everything that was told, as `name: line`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append(f"{name}: {line}")

    def has(self, words: str) -> Callable[[], bool]:
        return lambda: any(words in line for line in self.lines)


@asynccontextmanager
async def crew_of(*services: Service, told: Told) -> AsyncIterator[Crew]:
    crew = Crew(services, told)
    crew.start()
    try:
        yield crew
    finally:
        await crew.kill()


async def pid_of(crew: Crew, name: str, other_than: int = 0) -> int:
    def look() -> int:
        found = crew.child(name)
        return found.pid if found is not None and found.pid != other_than else 0

    return await wait_until(look, SOON_S, f"a process of {name}")


def has_ended(pid: int) -> Callable[[], bool]:
    """Whether the process is gone, or only its entry waits to be collected."""

    def look() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return look


async def test_a_service_that_dies_is_reported_and_started_again() -> None:
    told = Told()
    async with crew_of(service("one", WAITS), told=told) as crew:
        first = await pid_of(crew, "one")
        crew.all_ready()
        os.kill(first, signal.SIGKILL)
        second = await pid_of(crew, "one", other_than=first)
        assert not has_ended(second)()
        assert told.lines == ["one: ended (killed by SIGKILL): it is started again in 0.25 s"]


async def test_a_service_that_cannot_start_fails_with_its_last_words() -> None:
    told = Told()
    script = "import sys; sys.exit('no such model')"
    async with crew_of(service("one", script), service("two", WAITS), told=told) as crew:
        with pytest.raises(ChildFailed, match=r"one could not be started \(exit code 1\): no such model"):
            await asyncio.wait_for(crew.failure(), SOON_S)
    assert told.lines == ["one: no such model"]


async def test_a_program_that_is_not_there_fails() -> None:
    async with crew_of(Service("one", ["/no/such/program"], 1), told=Told()) as crew:
        with pytest.raises(ChildFailed, match="one could not be started"):
            await asyncio.wait_for(crew.failure(), SOON_S)


async def test_a_service_that_keeps_dying_is_given_up_after_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "DELAY_S_FIRST", 0.001)
    monkeypatch.setattr(child, "DEATHS_MAX", 2)
    told = Told()
    crew = Crew([service("one", "import sys; sys.exit(7)")], told)
    crew.all_ready()
    crew.start()
    with pytest.raises(ChildFailed, match=r"one does not keep running \(exit code 7\): it said nothing"):
        await asyncio.wait_for(crew.failure(), SOON_S)
    assert len(told.lines) == 2
    await crew.kill()


async def test_services_are_drained_one_kind_after_the_other(tmp_path: Path) -> None:
    told, log = Told(), tmp_path / "log"
    names = ["ingest", "worker 1", "worker 2", "goals"]
    async with crew_of(*(service(name, DRAINS, str(log), name) for name in names), told=told) as crew:
        for name in names:
            await wait_until(told.has(f"here {name}"), SOON_S, f"{name} to be there")
        await crew.drain()
    lines = log.read_text().splitlines()
    assert lines[:2] == ["begin ingest", "end ingest"]
    assert sorted(lines[2:6]) == ["begin worker 1", "begin worker 2", "end worker 1", "end worker 2"]
    assert lines[6:] == ["begin goals", "end goals"]
    assert not [line for line in told.lines if "ended" in line]


async def test_a_service_that_does_not_end_in_its_time_is_killed() -> None:
    told = Told()
    async with crew_of(service("one", STUBBORN, drain_s=0.2), told=told) as crew:
        await wait_until(told.has("here"), SOON_S, "the service to be there")
        pid = await pid_of(crew, "one")
        await crew.drain()
        assert has_ended(pid)()
    assert told.lines[-1] == "one: did not end within 0.2 s: it is killed"


async def test_a_service_that_waits_for_its_next_start_is_drained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "DELAY_S_FIRST", 3600.0)
    monkeypatch.setattr(child, "DELAY_S_MAX", 3600.0)
    told = Told()
    crew = Crew([service("one", "pass")], told)
    crew.all_ready()
    crew.start()
    await wait_until(told.has("it is started again in"), SOON_S, "the service to have ended")
    await asyncio.wait_for(crew.drain(), 1.0)
    await crew.kill()


@pytest.mark.parametrize("state", ["running", "deaf to SIGTERM", "stopped"])
async def test_a_killed_owner_leaves_no_service_behind(state: str) -> None:
    script = STUBBORN if state == "deaf to SIGTERM" else WAITS
    with subprocess.Popen([sys.executable, "-c", OWNER, script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        if state == "stopped":
            os.kill(pid, signal.SIGSTOP)
        owner.kill()
        owner.wait()
    await wait_until(has_ended(pid), ABANDONED_S + SOON_S, "the service to end after its owner")


async def test_a_line_of_any_length_passes_and_is_cut() -> None:
    told = Told()
    script = "import sys; sys.stderr.write('x' * 300_000 + '\\nafter\\n'); sys.stderr.flush()\n" + WAITS
    async with crew_of(service("one", script), told=told):
        await wait_until(told.has("after"), SOON_S, "the line after the long one")
    long, after = told.lines
    assert len(long) <= child.LINE_BYTES_MAX + len("one: ")
    assert after == "one: after"


def test_the_delay_before_a_start_grows_to_a_bound() -> None:
    delays = [delay_s(deaths) for deaths in range(1, 12)]
    assert delays[:4] == [0.25, 0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == child.DELAY_S_MAX


def test_an_exit_status_is_told_in_words() -> None:
    assert cause(0) == "exit code 0"
    assert cause(3) == "exit code 3"
    assert cause(137) == "killed by SIGKILL"
    assert cause(255) == "exit code 255"

"""Tools in a process of their own: what comes back, and that nothing of them is left behind (semantics R2)."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mailslot.tools import tool as marked
from mailslot_core.agent import ToolError
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker import process, tools
from mailslot_services.agent_worker.process import ProcessCalls
from mailslot_services.agent_worker.tools import load_tools
from tests.waiting import wait_until

PATIENCE_S = 20.0

TOOLS = """
import os, signal, subprocess, sys, threading
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from mailslot.tools import tool
from mailslot_core.agent import ToolError

separate = tool(process=True)


@dataclass
class Point:
    x: int
    day: date


@separate
def where() -> str:
    return str(os.getpid())


@separate
def echo(day: date, many: list[int], effect_key: str) -> Point:
    return Point(sum(many), day)


@separate
def raises(kind: str) -> None:
    raise {"own": ToolError("out-of-stock", "none left"), "any": ValueError("\\ud800 no"), "exit": SystemExit(3)}[kind]


@separate
def dies() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@separate
def leaves() -> None:
    os._exit(7)


@separate
def unspeakable() -> object:
    return threading.Lock()


@separate
def long(size: int) -> str:
    return "x" * size


@separate
def prints() -> str:
    print("to nobody", flush=True)
    os.write(1, b"noise")
    return sys.stdin.read() + "clean"


@separate
def starts_more(where: str) -> str:
    helper = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    Path(where).write_text(str(helper.pid))
    return "done"


class Box:
    @staticmethod
    @separate
    def inside() -> str:
        return "found"
"""


# Without any import of ours, so that it is under way soon.
STUCK = """
import os, re, subprocess, sys
from pathlib import Path


def stuck(where: str) -> None:
    # Notes its pid and its child's; then a regular expression that never comes back and lets nobody else run.
    helper = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    Path(where + ".new").write_text(f"{os.getpid()} {helper.pid}")
    os.rename(where + ".new", where)
    re.match("(a+)+b", "a" * 64)


def stuck_for_long(where: str) -> None:
    stuck(where)


stuck.__mailslot_tool__ = {"process": True, "timeout_ms": 2500}
stuck_for_long.__mailslot_tool__ = {"process": True}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module, text in (("own_process_tools", TOOLS), ("own_stuck_tools", STUCK)):
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(text)
    return tmp_path


async def run(folder: Path, name: str, **arguments: object) -> str:
    module = "own_stuck_tools" if name.startswith("stuck") else "own_process_tools"
    [made] = load_tools([f"{module}:{name}"], folder).values()
    return await made.run(arguments, "the-key")


async def fails(folder: Path, name: str, **arguments: object) -> tuple[str, str]:
    with pytest.raises(ToolError) as failed:
        await run(folder, name, **arguments)
    return failed.value.code, str(failed.value)


def runs(pid: int) -> bool:
    """Whether the process is there and not just waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def pids(noted: Path) -> list[int]:
    await wait_until(noted.exists, PATIENCE_S, "the tool to note its process")
    return [int(pid) for pid in noted.read_text().split()]


async def gone(*noted: int) -> None:
    await wait_until(lambda: not any(map(runs, noted)), PATIENCE_S, f"processes {noted} to be gone")


# -- what comes back ----------------------------------------------------------------------------------------


async def test_each_call_has_a_process_of_its_own(folder: Path) -> None:
    first, second = await asyncio.gather(run(folder, "where"), run(folder, "where"))
    assert len({first, second, str(os.getpid())}) == 3
    await gone(int(first), int(second))


async def test_arguments_and_result_are_what_they_would_be_here(folder: Path) -> None:
    assert await run(folder, "echo", day="2026-02-03", many=[1, 2]) == '{"x":3,"day":"2026-02-03"}'
    assert await run(folder, "Box.inside") == "found"


async def test_what_a_function_raises_is_its_result(folder: Path) -> None:
    assert await fails(folder, "raises", kind="own") == ("out-of-stock", "none left")
    assert await fails(folder, "raises", kind="any") == ("tool-failed", "ValueError: \N{REPLACEMENT CHARACTER} no")
    assert await fails(folder, "raises", kind="exit") == ("tool-failed", "SystemExit: 3")


async def test_a_process_that_ends_without_a_word_is_a_failed_call(folder: Path) -> None:
    assert await fails(folder, "dies") == ("tool-failed", "the process of dies ended with signal 11")
    assert await fails(folder, "leaves") == ("tool-failed", "the process of leaves ended with exit code 7")


async def test_a_result_that_cannot_leave_its_process_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, why = await fails(folder, "unspeakable")
    assert (code, why[:52]) == ("bad-result", "a result of type lock cannot leave its process: cann")
    monkeypatch.setattr(process, "RESULT_FRAME_BYTES_MAX", 1_000)
    assert await fails(folder, "long", size=2_000) == ("bad-result", "the result has 2018 bytes; the limit is 1000")


async def test_a_long_result_comes_over_whole(folder: Path) -> None:
    assert await run(folder, "long", size=200_000) == "x" * 200_000


async def test_what_a_function_prints_and_reads_is_no_part_of_its_result(folder: Path) -> None:
    assert await run(folder, "prints") == "clean"


# -- what is left behind ------------------------------------------------------------------------------------


async def test_a_function_that_lets_nobody_run_is_killed_at_its_timeout_with_all_it_started(folder: Path) -> None:
    noted = folder / "pids"
    assert await fails(folder, "stuck", where=str(noted)) == ("tool-timeout", "stuck did not end within 2500 ms")
    await gone(*await pids(noted))


async def test_a_call_that_nobody_waits_for_any_more_is_killed(folder: Path) -> None:
    noted = folder / "pids"
    calling = asyncio.create_task(run(folder, "stuck_for_long", where=str(noted)))
    started = await pids(noted)
    assert all(map(runs, started))
    calling.cancel()
    await asyncio.wait({calling})
    assert calling.cancelled()
    await gone(*started)


async def test_what_a_function_started_ends_with_it(folder: Path) -> None:
    noted = folder / "pids"
    assert await run(folder, "starts_more", where=str(noted)) == "done"
    await gone(*await pids(noted))


# On the loop that services run on (`boot`).
PROGRAM = """
import asyncio, sys, uvloop
from pathlib import Path
from mailslot_services.agent_worker.tools import load_tools
name, folder, *arguments = sys.argv[1:]
[made] = load_tools([name], Path(folder)).values()
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    print(runner.run(made.run({"where": where for where in arguments}, "")))
"""


async def worker_that_calls(name: str, folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, name, str(folder), *arguments, stdout=asyncio.subprocess.PIPE
    )


async def test_a_call_comes_to_its_result_on_the_loop_of_a_service(folder: Path) -> None:
    worker = await worker_that_calls("own_process_tools:Box.inside", folder)
    said, _ = await worker.communicate()
    assert (worker.returncode, said) == (0, b"found\n")


async def test_a_worker_that_is_killed_takes_the_call_with_it(folder: Path) -> None:
    """The kernel sees to it: neither of the two can do anything any more."""
    noted = folder / "pids"
    worker = await worker_that_calls("own_stuck_tools:stuck_for_long", folder, str(noted))
    called, helper = await pids(noted)
    try:
        assert runs(called)
        worker.kill()
        await worker.wait()
        await gone(called)
    finally:
        if runs(helper):  # the kernel knows nothing of what the function itself started
            os.kill(helper, signal.SIGKILL)


async def test_more_calls_than_there_may_be_processes_are_told_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "process_calls", ProcessCalls(calls_max=1))
    noted = folder / "pids"
    calling = asyncio.create_task(run(folder, "stuck_for_long", where=str(noted)))
    await pids(noted)
    assert await fails(folder, "where") == ("tool-busy", "1 calls in processes are under way; try again later")
    calling.cancel()
    await asyncio.wait({calling})
    assert await run(folder, "Box.inside") == "found"


async def test_the_loop_goes_on_beside_a_function_that_holds_pythons_lock(folder: Path) -> None:
    """In a thread of this process the same function would stop everything."""
    noted = folder / "pids"
    calling = asyncio.create_task(run(folder, "stuck_for_long", where=str(noted)))
    called, _ = await pids(noted)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert runs(called)
    assert not calling.done()
    calling.cancel()
    await asyncio.wait({calling})


# -- what may have a process --------------------------------------------------------------------------------


def module_level() -> None: ...


async def awaits() -> None: ...


def named_otherwise() -> None: ...


named_otherwise.__qualname__ = "module_level"


def local() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (local(), "tool inner: a process finds it by module and name only, and .*local.<locals>.inner is something"),
        (named_otherwise, "tool named_otherwise: a process finds it by module and name only"),
        (awaits, "tool awaits: only a function that blocks can have a process of its own"),
    ],
)
def test_a_function_that_no_other_process_finds_says_so(function: Callable[..., object], complaint: str) -> None:
    with pytest.raises(Misconfigured, match=complaint):
        tools.tool(marked(process=True)(function))


def test_a_function_that_is_quick_needs_no_process() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        marked(process=True, blocking=False)
    assert tools.tool(marked(process=True)(module_level)).spec.name == "module_level"

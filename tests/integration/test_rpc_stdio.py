"""`mailslot rpc`: frames on stdin and stdout and nothing else, and an end within a second however it comes."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.echo_worker import EchoWorker
from tests.unit.ingest.served import House, on_socket
from tests.waiting import pace, wait_until

MAILSLOT: Final = str(Path(sys.executable).with_name("mailslot"))
PATIENCE_S: Final = 30.0
END_S_MAX: Final = 1.0
"""From the event that ends it to its exit (the issue's bound)."""
READER_GONE: Final = 141
BUSY_S: Final = 1.0
"""On top of that: this machine runs other things."""


class Program:
    """A program that started `mailslot rpc`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.notices: list[Any] = []
        self._number = 0

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        await self.process.stdin.drain()

    async def frame(self) -> Any:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        return json.loads(line) if line else None

    async def call(self, method: str, /, **params: Any) -> Any:
        self._number += 1
        call = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self.write(json.dumps(call, ensure_ascii=False).encode() + b"\n")
        while "method" in (found := await self.frame()):
            self.notices.append(found)
        assert found["id"] == self._number
        return found

    async def rest(self) -> list[Any]:
        """Everything that still comes on stdout."""
        assert self.process.stdout is not None
        data = await asyncio.wait_for(self.process.stdout.read(), PATIENCE_S)
        return [json.loads(line) for line in data.splitlines()]

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), PATIENCE_S)).decode()

    async def ended_s(self, began: float) -> float:
        """Seconds until it has ended."""
        await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        return time.monotonic() - began


@asynccontextmanager
async def program(url: str, *words: str, initialized: bool = True, **options: Any) -> AsyncIterator[Program]:
    command = [MAILSLOT, "rpc", "--url", url, *words]
    pipes: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, "limit": 64 * 1024 * 1024, **options}
    process = await asyncio.create_subprocess_exec(*command, **pipes)
    try:
        started = Program(process)
        if initialized:
            assert "result" in await started.call("initialize", protocolVersion=1)
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        if process.stdout is not None:  # asyncio waits for the end of the pipe as well
            stdout_of(process).resume_reading()
        await process.wait()


def stdout_of(process: Process) -> Any:
    """The transport of the pipe that a process writes to."""
    return process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with on_socket() as served:
        yield served


def url(house: House) -> str:
    return str(house.client.base_url)


async def test_a_program_prompts_and_follows_over_pipes(house: House) -> None:
    async with program(url(house)) as own:
        text = "line\u2028and\u2029and\x85 😀"
        sent = await own.call("session/prompt", sessionId="s", content=text, messageId="m")
        assert sent["result"] == {"messageId": "m"}
        await own.call("session/subscribe", sessionId="s")
        await EchoWorker(house.store).answer_all()
        newest = (await house.level("s"))["cursor"]
        while len(own.notices) <= newest:
            own.notices.append(await own.frame())
        params = [notice["params"] for notice in own.notices]
        assert [each["seq"] for each in params[1:]] == list(range(1, newest + 1))
        said = next(each["data"] for each in params[1:] if each["type"] == "user/message")
        assert said["content"] == [{"type": "text", "text": text}]


async def test_a_refusal_over_pipes_is_the_same_as_over_the_socket(house: House) -> None:
    await house.prompt("s", messageId="m")
    problem = (await house.client.get("/v1/sessions/s/messages/none")).json()
    async with program(url(house)) as own:
        error = (await own.call("session/message", sessionId="s", messageId="none"))["error"]
        assert error == {"code": -32000, "message": problem["detail"], "data": problem}
        assert (await own.call("session/prompt", sessionId="s", content=7))["error"]["code"] == -32602


async def test_every_wrong_frame_is_answered_on_its_line_and_the_next_one_is_read(house: House) -> None:
    async with program(url(house)) as own:
        for frame, code in [(b"{", -32700), (b"[]", -32600), (b"\xff", -32700), (b"x" * 9_000_000, -32600)]:
            await own.write(frame + b"\n")
            found = await own.frame()
            assert (found["id"], found["error"]["code"]) == (None, code)
        assert "result" in await own.call("session/new", sessionId="s")


async def test_what_was_read_before_the_end_of_stdin_is_answered_and_then_it_ends(house: House) -> None:
    async with program(url(house)) as own:
        frames = [
            {"jsonrpc": "2.0", "id": n, "method": "session/prompt", "params": {"sessionId": "s", "content": "x"}}
            for n in range(10)
        ]
        await own.write(b"\n".join(json.dumps(frame).encode() for frame in frames))  # the last one without its 0x0A
        assert own.process.stdin is not None
        own.process.stdin.close()
        began = time.monotonic()
        assert [found["id"] for found in await own.rest()] == list(range(10))
        assert await own.ended_s(began) < END_S_MAX + BUSY_S
        assert own.process.returncode == 0
        assert await own.errors() == ""
    assert (await house.level("s"))["pending"] == 10


async def test_a_file_on_stdin_is_a_program_too(house: House, tmp_path: Path) -> None:
    script = tmp_path / "calls"
    calls = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize"},
        {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"sessionId": "s"}},
    ]
    script.write_text("\n".join(map(json.dumps, calls)))
    with script.open("rb") as stdin:
        async with program(url(house), initialized=False, stdin=stdin) as own:
            assert [found["id"] for found in await own.rest()] == [1, 2]
            assert await own.process.wait() == 0


Ender = Callable[[Program], None]


def reader_leaves(own: Program) -> None:
    stdout_of(own.process).close()


ENDS: Final[dict[str, tuple[Ender, int]]] = {
    "stdin ends": (lambda own: own.process.stdin.close(), 0),  # type: ignore[union-attr]
    "nobody reads stdout": (reader_leaves, READER_GONE),
    "SIGTERM": (lambda own: own.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
    "SIGINT": (lambda own: own.process.send_signal(signal.SIGINT), 128 + signal.SIGINT),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("state", ["quiet", "following", "behind"])
async def test_it_ends_within_a_second(house: House, how: str, state: str) -> None:
    """Also while it follows a session, and while its own stdout is full because nobody takes what it says."""
    await house.prompt("s", "x")
    async with program(url(house)) as own:
        if state != "quiet":
            await own.call("session/subscribe", sessionId="s")
        if state == "behind":
            stdout_of(own.process).pause_reading()
            for _ in range(8):
                await house.prompt("s", "x" * 1_000_000)
        end, code = ENDS[how]
        began = time.monotonic()
        end(own)
        if state == "behind":
            await wait_until(lambda: not is_running(own.process.pid), PATIENCE_S, "it to end")
            assert time.monotonic() - began < END_S_MAX + BUSY_S
        else:
            assert await own.ended_s(began) < END_S_MAX + BUSY_S
            assert own.process.returncode == code


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("calls", [10, 200])
async def test_it_ends_within_a_second_with_calls_under_way(how: str, calls: int) -> None:
    """Of a server that takes every request and answers none; more of them than are carried out at once."""
    asked = asyncio.Event()
    server = await asyncio.start_server(lambda _reader, _writer: asked.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with program(f"http://127.0.0.1:{port}") as own:
            frames = [
                {
                    "jsonrpc": "2.0",
                    "id": n,
                    "method": "session/prompt",
                    "params": {"sessionId": f"s{n}", "content": "x"},
                }
                for n in range(calls)
            ]
            await own.write(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            end, code = ENDS[how]
            began = time.monotonic()
            end(own)
            answers = [] if code == READER_GONE else await own.rest()
            assert await own.ended_s(began) < END_S_MAX + BUSY_S
            assert own.process.returncode == code
            if answers:
                assert sorted(found["id"] for found in answers) == list(range(calls))
                assert {found["error"]["data"]["code"] for found in answers} <= {"outcome-unknown", "transport-lost"}
    finally:
        server.close()


async def test_it_ends_within_a_second_of_sigterm_while_frames_come_without_end(house: House) -> None:
    async with program(url(house)) as own:
        assert own.process.stdin is not None
        stdin, over = own.process.stdin, asyncio.Event()

        async def flood() -> None:
            with contextlib.suppress(ConnectionError):
                while not over.is_set():
                    stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"none"}\n' * 500)
                    await stdin.drain()

        flooding = asyncio.create_task(flood())
        reading = asyncio.create_task(own.rest())
        await pace(0.2)
        began = time.monotonic()
        own.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: not is_running(own.process.pid), PATIENCE_S, "it to end")
        assert time.monotonic() - began < END_S_MAX + BUSY_S
        over.set()
        await asyncio.gather(flooding, reading)


async def test_a_reader_that_leaves_a_socket_is_noticed_and_a_pipe_that_does_not_block_loses_nothing(
    house: House,
) -> None:
    """Some programs make their children's stdout a socket, or one that does not block."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    async with program(url(house), initialized=False, stdout=theirs.fileno()) as own:
        theirs.setblocking(False)
        number, received, loop = 300, b"", asyncio.get_running_loop()
        await own.write(b'{"jsonrpc":"2.0","id":0,"method":"initialize"}\n')
        for n in range(number):
            frame = {"jsonrpc": "2.0", "id": n, "method": "none", "params": {"text": "x"}}
            await own.write(json.dumps(frame).encode() + b"\n")
        while received.count(b"\n") < number + 1:
            received += await asyncio.wait_for(loop.sock_recv(ours, 65_536), PATIENCE_S)
        assert all(json.loads(line) for line in received.splitlines())
        began = time.monotonic()
        ours.close()
        theirs.close()
        assert await own.ended_s(began) < END_S_MAX + BUSY_S
        assert own.process.returncode == READER_GONE


async def test_it_ends_with_its_parent_though_its_pipes_stay_open(house: House, tmp_path: Path) -> None:
    """The parent is killed while somebody else holds the other ends of the pipes."""
    told = tmp_path / "pid"
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([{MAILSLOT!r}, 'rpc', '--url', {url(house)!r}])\n"
        f"open({str(told)!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE)
    own = Program(process)
    assert "result" in await own.call("initialize")
    child = int(told.read_text())
    process.kill()
    try:
        await wait_until(lambda: not is_running(child), END_S_MAX + BUSY_S, "the orphan to end")
    finally:
        if is_running(child):
            os.kill(child, signal.SIGKILL)
        await process.wait()


async def test_what_prints_by_accident_prints_to_stderr(house: House, tmp_path: Path) -> None:
    """A print anywhere in the process, by Python or past it, is no frame."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, sys\n"
        "def babble():\n"
        "    print('noise')\n"
        "    print('more', file=sys.__stdout__, flush=True)\n"
        "    os.write(1, b'raw\\n')\n"
        "atexit.register(babble)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    async with program(url(house), env=environment) as own:
        assert own.process.stdin is not None
        own.process.stdin.close()
        assert await own.rest() == []
        said = await own.errors()
        assert all(word in said for word in ("noise", "more", "raw"))


async def test_a_server_that_is_not_there_is_an_error_of_each_call_and_no_end() -> None:
    async with program("http://127.0.0.1:9") as own:
        error = (await own.call("session/status", sessionId="s"))["error"]
        assert error["code"] == -32000
        assert error["data"]["code"] == "transport-lost"
        assert error["data"]["retryable"]

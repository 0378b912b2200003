"""The command line against the product, as processes: what they print, what they return, how they are interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from mailslot_contracts.events import Envelope
from mailslot_contracts.results import RunResult as PromisedResult
from tests.unit.sdk.driving import frames, level_frame, level_json
from tests.unit.sdk.product import Product
from tests.unit.sdk.served import Reply, Rude, problem, said, served, stream
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

MAILSLOT = (sys.executable, "-c", "import sys; from mailslot.cli import main; sys.exit(main())")
PATIENCE_S = 30


@pytest.fixture
def product() -> Iterator[Product]:
    with Product().running() as running:
        yield running


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "MAILSLOT_URL": url, "PYTHONUNBUFFERED": "1"}


async def call(url: str, *argv: str, given: bytes | None = None) -> tuple[int, str, str]:
    """Run a command to its end: code, stdout, stderr."""
    async with started(url, *argv, stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL) as process:
        out, err = await asyncio.wait_for(process.communicate(given), PATIENCE_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def started(url: str, *argv: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running command, ended with the block."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = await asyncio.create_subprocess_exec(*MAILSLOT, *argv, env=environment(url), **pipes)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def lines(process: asyncio.subprocess.Process, count: int) -> list[str]:
    assert process.stdout is not None
    return [(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode() for _ in range(count)]


@contextmanager
def terminal() -> Iterator[tuple[Callable[[], str], int]]:
    """A terminal to give to a command: what it has shown so far, and the end to write to."""
    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    seen = bytearray()

    def shown() -> str:
        with suppress(BlockingIOError):
            while data := os.read(leader, 65_536):
                seen.extend(data)
        return seen.decode()

    try:
        yield shown, follower
    finally:
        os.close(follower)
        os.close(leader)


def kinds(product: Product, session_id: str) -> Sequence[str]:
    return [event.type for event in product.ledger(session_id)]


def standing(session_id: str, cursor: int) -> Reply:
    """What a server answers that is asked how an idle session stands."""
    return said(level_json(session_id, cursor))


# -- run ----------------------------------------------------------------------------------------------------------


async def test_run_prints_the_answer_and_nothing_else(product: Product) -> None:
    assert await call(product.url, "run", "say", "hello") == (0, "answer to say hello\n", "")


async def test_run_reads_its_task_from_stdin(product: Product) -> None:
    code, out, _ = await call(product.url, "run", "--stdin", given="héllo\u2028 🙂\n".encode())
    assert (code, out) == (0, "answer to héllo\u2028 🙂\n")


async def test_run_with_json_prints_each_event_and_then_the_result(product: Product) -> None:
    code, out, err = await call(product.url, "run", "--json", "--session", "s", "hello\u2028world")
    assert (code, err) == (0, "")
    *events, last = out.removesuffix("\n").split("\n")
    result = PromisedResult.model_validate(json.loads(last), by_alias=True, by_name=False)
    assert (result.session_id, result.finish_reason) == ("s", "completed")
    assert json.loads(last)["message"] == {"messageId": result.message_id, "state": "admitted", "turn": 1, "step": 1}
    assert result.final_response == "answer to hello\u2028world"
    seqs = [event.seq for event in result.events]
    assert seqs == list(range(result.from_seq, result.to_seq + 1))
    assert [json.loads(line) for line in events] == json.loads(last)["events"]


async def test_run_with_json_prints_events_while_they_come(product: Product) -> None:
    async with started(product.url, "run", "--json", "wait please") as process:
        await asyncio.to_thread(product.reached)
        first = [json.loads(line)["type"] for line in await lines(process, 3)]
        assert first == ["inbox/queued", "agent/status", "turn/start"]
        product.open()
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert json.loads(out.splitlines()[-1])["finalResponse"] == "answer to wait please"


async def test_run_prints_nothing_of_what_was_said_before(product: Product) -> None:
    await call(product.url, "run", "--session", "s", "yesterday")
    code, out, _ = await call(product.url, "run", "--session", "s", "nothing")
    assert (code, out) == (0, "")


async def test_run_waits_until_the_agent_is_idle_and_says_why_it_waits(product: Product) -> None:
    await call(product.url, "send", "--session", "s", "wait for the door")
    await asyncio.to_thread(product.reached)
    with terminal() as (shown, follower):
        async with started(product.url, "run", "--session", "s", "mine", stderr=follower) as process:
            await wait_until(lambda: "waiting for the agent to be idle: turn 1" in shown(), PATIENCE_S, "the reason")
            assert kinds(product, "s").count("inbox/queued") == 1
            product.open()
            out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert (process.returncode, out) == (0, b"answer to mine\n")
    own = [event.seq for event in product.ledger("s") if event.type == "inbox/queued"][1]
    idle = next(e.seq for e in product.ledger("s") if e.type == "agent/status" and e.data["status"] == "idle")
    assert own > idle


@pytest.mark.parametrize(
    ("task", "code", "out", "err"),
    [
        ("fail", 1, "", "mailslot run: the last turn ended error: broken, the model is broken\n"),
        ("long", 1, "answer to long\n", "mailslot run: the last turn ended max-tokens\n"),
    ],
)
async def test_run_is_no_success_when_the_last_turn_did_not_complete(
    product: Product, task: str, code: int, out: str, err: str
) -> None:
    assert await call(product.url, "run", task) == (code, out, err)


async def test_run_says_when_it_takes_too_long_and_leaves_the_agent_alone(product: Product) -> None:
    code, out, err = await call(product.url, "run", "--session", "s", "--timeout", "0.7", "wait please")
    assert (code, out) == (6, "")
    assert "session s was not idle in time" in err
    assert "cancel/requested" not in kinds(product, "s")


async def test_run_with_an_agent_makes_the_session_with_it(product: Product) -> None:
    code, _, err = await call(product.url, "run", "--session", "s", "--agent", "default", "hello")
    assert (code, err) == (0, "")
    code, out, err = await call(product.url, "run", "--session", "s", "--agent", "poet", "hello")
    assert (code, out) == (4, "")
    assert err.startswith("mailslot run: session s exists")


async def test_run_shows_what_goes_on_on_a_terminal_and_leaves_nothing_of_it(product: Product) -> None:
    with terminal() as (shown, follower):
        async with started(product.url, "run", "hello", stderr=follower) as process:
            out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert (process.returncode, out) == (0, b"answer to hello\n")
        await wait_until(lambda: shown().endswith("\r\x1b[2K"), PATIENCE_S, "the line to be gone")
        assert "turn 1, step 1 (" in shown()


async def test_run_shows_a_terminal_no_control_characters_of_the_model_and_a_pipe_all_of_them(product: Product) -> None:
    task = "\x1b[2J\x9bred \u2028 \x07end"
    with terminal() as (shown, follower):
        async with started(product.url, "run", task, stdout=follower) as process:
            _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert (process.returncode, err) == (0, b"")
        assert shown() == "answer to \ufffd[2J\ufffdred \u2028 \ufffdend\r\n"
    assert await call(product.url, "run", task) == (0, f"answer to {task}\n", "")


async def test_run_reads_a_dash_as_stdin_and_refuses_what_is_not_text(product: Product) -> None:
    assert await call(product.url, "run", "-", given=b"hello") == (0, "answer to hello\n", "")
    code, out, err = await call(product.url, "run", "-", given=b"\xff")
    assert (code, out, "stdin is not UTF-8" in err) == (2, "", True)


async def test_run_says_when_the_server_refuses() -> None:
    with served(lambda _call: problem(403, "forbidden")) as server:
        assert await call(server.url, "run", "hello") == (4, "", "mailslot run: it is forbidden\n")


# -- send ---------------------------------------------------------------------------------------------------------


async def test_send_prints_the_receipt_and_nothing_more(product: Product) -> None:
    argv = ("send", "--session", "s", "--message-id", "m-1", "hello", "there")
    code, out, err = await call(product.url, *argv)
    assert (code, err) == (0, "")
    assert json.loads(out) == {"messageId": "m-1", "cursor": 2, "duplicate": False, "durability": "memory"}
    again = json.loads((await call(product.url, *argv))[1])
    assert (again["duplicate"], again["cursor"]) == (True, 2)
    assert product.ledger("s")[1].data["content"] == [{"type": "text", "text": "hello there"}]


@pytest.mark.parametrize(
    ("delivery", "lane", "wake"),
    [("queue", "next-turn", True), ("steer", "next-step", True), ("inject", "next-step", False)],
)
async def test_send_puts_the_message_where_it_is_told(product: Product, delivery: str, lane: str, wake: bool) -> None:
    code, _, _ = await call(product.url, "send", "--session", "s", "--delivery", delivery, "--stdin", given=b"x")
    assert code == 0
    queued = product.ledger("s")[1].data
    assert (queued["lane"], queued["wake"]) == (lane, wake)


async def test_send_says_when_the_message_is_another_one(product: Product) -> None:
    await call(product.url, "send", "--session", "s", "--message-id", "m", "one")
    code, out, err = await call(product.url, "send", "--session", "s", "--message-id", "m", "two")
    assert (code, out) == (4, "")
    assert "another body" in err


# -- tail ---------------------------------------------------------------------------------------------------------


async def test_tail_prints_history_and_then_what_comes(product: Product) -> None:
    await call(product.url, "run", "--session", "s", "one")
    count = len(product.ledger("s"))
    async with started(product.url, "tail", "-f", "s", "--json") as process:
        history = await lines(process, count)
        await call(product.url, "send", "--session", "s", "--delivery", "inject", "two")
        history += await lines(process, 1)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 130
        assert process.stderr is not None
        assert await process.stderr.read() == b""
    found = [Envelope.model_validate(json.loads(line), by_alias=True, by_name=False) for line in history]
    assert [event.seq for event in found] == list(range(1, count + 2))


async def test_tail_is_readable_and_begins_where_it_is_told(product: Product) -> None:
    await call(product.url, "run", "--session", "s", "one")
    async with started(product.url, "tail", "-f", "--session", "s", "--after", "1") as process:
        first = (await lines(process, 1))[0]
    assert first.split()[0] == "2"
    assert "inbox/queued" in first
    assert '"one"' in first


async def test_tail_shows_text_while_it_is_said(product: Product) -> None:
    await call(product.url, "send", "--session", "s", "--delivery", "inject", "x")
    async with started(product.url, "tail", "-f", "s", "--deltas", "--json", "--after", "1") as process:
        await lines(process, 1)  # it is reading: deltas from here on are not lost
        await call(product.url, "run", "--session", "s", "in pieces")
        seen: list[Any] = []
        while not (seen and seen[-1].get("type") == "turn/end"):
            seen += [json.loads(line) for line in await lines(process, 1)]
    deltas = [one["data"]["text"] for one in seen if one["type"] == "assistant/delta"]
    assert "".join(deltas) == "answer to in pieces"


async def test_tail_of_an_unknown_session_is_refused(product: Product) -> None:
    code, out, err = await call(product.url, "tail", "nobody")
    assert (code, out) == (4, "")
    assert "nobody" in err


async def test_tail_is_quiet_when_its_reader_goes_away() -> None:
    endless = stream(level_frame("s", 0), *(frames([n]) for n in range(1, 20_000)), Rude.HANG)
    with served(lambda call: endless if call.path.endswith("events") else standing("s", 1)) as server:
        async with started(server.url, "tail", "-f", "s") as process:
            await lines(process, 3)
            assert process.stdout is not None
            process.stdout._transport.close()  # type: ignore[attr-defined]
            assert process.stderr is not None
            err = await asyncio.wait_for(process.stderr.read(), PATIENCE_S)
            assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 141
    assert err == b""

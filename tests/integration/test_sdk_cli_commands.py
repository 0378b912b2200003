"""Every other command against real doors: what it changes, what it prints in a pipe and on a terminal.

No worker is there but those that a test drives by hand, so that what waits stays where it is. Most commands are called
in this process, which is quicker by a start of Python each; as processes they all run in `test_sdk_cli_docs`.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

import pytest

from mailslot import cli
from mailslot_core.memory import MemoryStore
from mailslot_core.session import Event
from tests.echo_worker import EchoWorker
from tests.integration.test_sdk_cli import MAILSLOT, PATIENCE_S, environment, standing, started
from tests.unit.ingest.served import House, on_socket
from tests.unit.ingest.stages import LATER, begun, give_up
from tests.unit.sdk.driving import frames, level_frame, level_json
from tests.unit.sdk.served import Rude, said, served, stream
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

ESCAPE = "\x1b"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with on_socket(MemoryStore()) as found:
        yield found


def url(house: House) -> str:
    return str(house.client.base_url)


async def typed_in(address: str, *argv: str) -> tuple[int, str, str]:
    """Run a command in a thread of this process, its output in pipes: code, stdout, stderr."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = await asyncio.to_thread(cli.main, [*argv, "--url", address])
    out.seek(0)
    err.seek(0)
    return code, out.read(), err.read()


async def good(house: House, *argv: str) -> str:
    """What a command prints that succeeds and has nothing to say beside it."""
    code, out, err = await typed_in(url(house), *argv)
    assert (code, err) == (0, ""), err
    return out


async def refused(house: House, *argv: str) -> str:
    """What a command says that the server refuses."""
    code, out, err = await typed_in(url(house), *argv)
    assert (code, out) == (4, ""), (code, out, err)
    return err


def record(out: str) -> dict[str, str]:
    """What was printed of one thing in a pipe."""
    return dict(line.split("\t") for line in out.splitlines())


async def on_terminal(
    address: str, *argv: str, typed: bytes = b"", variables: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a command with everything on one terminal: its code, and what was shown. What is typed answers a question."""
    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    seen = bytearray()

    def shown() -> str:
        with suppress(BlockingIOError):
            while data := os.read(leader, 65_536):
                seen.extend(data)
        return seen.decode().replace("\r\n", "\n")

    given = environment(address) | {"COLUMNS": "80", "TERM": "xterm"} | dict(variables or {})
    process = await asyncio.create_subprocess_exec(
        *MAILSLOT, *argv, env=given, stdin=follower, stdout=follower, stderr=follower
    )
    try:
        if typed:
            await wait_until(lambda: "[y/N]" in shown(), PATIENCE_S, "the question")
            os.write(leader, typed)
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        return process.returncode, shown()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(follower)
        os.close(leader)


async def ledger(house: House, session_id: str = "s") -> list[Event]:
    return await house.store.events(session_id, after=0, limit=1_000)


# -- send: times and conditions -----------------------------------------------------------------------------------


async def test_send_says_when_a_message_is_due_and_when_it_is_not_wanted_any_more(house: House) -> None:
    before_ms = int(time.time() * 1000)
    await good(house, "send", "--session", "s", "--in", "2h", "--expires-in", "1d", "one")
    await good(house, "send", "--session", "s", "--not-before", str(LATER), "--expires-at", "2100-01-01T00:00Z", "two")
    first, second = (event.data for event in await ledger(house) if event.type == "inbox/queued")
    took_ms = int(time.time() * 1000) - before_ms
    assert 0 <= first["notBefore"] - before_ms - 7_200_000 <= took_ms
    assert 0 <= first["expiresAt"] - before_ms - 86_400_000 <= took_ms
    assert (second["notBefore"], second["expiresAt"]) == (LATER, 4_102_444_800_000)
    past = await refused(house, "send", "--session", "s", "--expires-at", "2001-01-01T00:00Z", "too late")
    assert "over before" in past or "expire" in past


async def test_send_can_be_refused_by_the_state_of_the_agent(house: House) -> None:
    steer = ("send", "--session", "s", "--delivery", "steer")
    assert "idle" in await refused(house, *steer, "--if-idle", "reject", "x")
    await house.prompt("s")
    assert "busy" in (await refused(house, "send", "--session", "s", "--if-busy", "reject", "x")).lower()
    await begun(house)
    assert "turn 7" in await refused(house, *steer, "--expect-turn", "7", "x")
    await good(house, *steer, "--expect-turn", "1", "x")


# -- the queue ----------------------------------------------------------------------------------------------------


async def test_what_waits_is_listed_replaced_moved_and_withdrawn(house: House) -> None:
    for name in ("a", "b", "c"):
        await house.prompt("s", f"text\t{name}\u2028{ESCAPE}[2J", messageId=name)
    await house.prompt("s", "later", messageId="d", notBefore=LATER)

    rows = [line.split("\t") for line in (await good(house, "queue", "s")).splitlines()]
    assert [row[:3] for row in rows] == [[name, "queued", "queue"] for name in "abcd"]
    assert [row[5] for row in rows] == ["text a  [2J", "text b  [2J", "text c  [2J", "later"]
    assert re.match(r"20\d\d-", rows[3][3])

    assert record(await good(house, "replace", "s", "a", "other", "words"))["state"] == "queued"
    assert record(await good(house, "withdraw", "s", "b")) == {
        "messageId": "b", "state": "cancelled", "cause": "withdrawn", "delivery": "queue", "cursor": "4",
    }  # fmt: skip
    assert record(await good(house, "move", "s", "c"))["delivery"] == "steer"
    left = [json.loads(line) for line in (await good(house, "queue", "--session", "s", "--json")).split("\n")[:-1]]
    assert [(message["messageId"], message["content"][0]["text"]) for message in left] == [
        ("c", f"text\tc\u2028{ESCAPE}[2J"), ("a", "other words"), ("d", "later"),
    ]  # fmt: skip
    assert json.loads(await good(house, "message", "s", "b", "--json"))["cause"] == "withdrawn"

    await EchoWorker(house.store).answer_all()
    assert record(await good(house, "message", "s", "a"))["state"] == "admitted"
    for argv in (("withdraw", "s", "a"), ("move", "s", "a"), ("replace", "s", "a", "x")):
        assert "already admitted" in await refused(house, *argv)
    assert "nobody" in await refused(house, "message", "s", "nobody")
    assert "unknown" in await refused(house, "queue", "unknown")


async def test_a_table_on_a_terminal_has_names_straight_columns_and_one_line_a_message(house: House) -> None:
    await house.prompt("s", "a long text " * 20, messageId="a-long-message-id")
    await house.prompt("s", f"two\nlines {ESCAPE}[31m\u202e", messageId="b")
    code, shown = await on_terminal(url(house), "queue", "s", variables={"COLUMNS": "90"})
    assert code == 0
    head, first, second = shown.splitlines()
    assert head.split() == ["MESSAGE", "STATE", "DELIVERY", "NOT", "BEFORE", "EXPIRES", "TEXT"]
    assert first.startswith("a-long-message-id  queued  queue     -           -        a long text")
    assert first.endswith("…")
    assert max(map(len, shown.splitlines())) == 90
    assert second.endswith("two lines  [31m")
    assert ESCAPE not in shown


# -- how it stands, and how it stops ------------------------------------------------------------------------------


async def test_status_and_sessions_say_how_agents_stand(house: House) -> None:
    await house.prompt("s", messageId="m")
    await begun(house)
    await house.client.post("/v1/sessions", json={"sessionId": "quiet"})
    shown = record(await good(house, "status", "s"))
    assert (shown["status"], shown["turn"], shown["reasons"], shown["conservation"]) == ("running", "1", "turn 1", "0")
    exact = json.loads(await good(house, "status", "s", "--json"))
    promised = (await house.client.get("/v1/sessions/s")).json()
    assert {name: exact[name] for name in ("sessionId", "status", "turn", "cursor", "pending")} == {
        name: promised[name] for name in ("sessionId", "status", "turn", "cursor", "pending")
    }
    rows = [line.split("\t") for line in (await good(house, "sessions")).splitlines()]
    assert sorted(row[:2] for row in rows) == [["quiet", "idle"], ["s", "running"]]
    idle = [json.loads(line) for line in (await good(house, "sessions", "--status", "idle", "--json")).split("\n")[:-1]]
    assert [level["sessionId"] for level in idle] == ["quiet"]
    assert "nobody" in await refused(house, "status", "nobody")


async def test_cancel_stops_a_turn_and_says_what_is_still_queued(house: House) -> None:
    await house.prompt("s", messageId="m")
    await begun(house)
    await house.prompt("s", messageId="n")
    assert "turn 9" in await refused(house, "cancel", "s", "--turn", "9")
    asked = record(await good(house, "cancel", "s", "--turn", "1"))
    assert asked == {"outcome": "requested", "stillQueued": "n", "turn": "1"}
    code, out, err = await typed_in(url(house), "cancel", "s", "--wait", "0.2")
    assert (code, record(out)["outcome"]) == (6, "requested")
    assert err == "mailslot cancel: session s has not stopped yet; it is asked to\n"


async def test_a_hold_is_released_and_a_queue_is_cleared(house: House) -> None:
    await house.prompt("s", messageId="m")
    assert record(await good(house, "cancel", "s", "--queue", "hold"))["stillQueued"] == "m"
    assert record(await good(house, "status", "s"))["held"] == "1"
    assert int(record(await good(house, "release", "s"))["cursor"]) == len(await ledger(house))
    assert "not on hold" in await refused(house, "release", "s")
    cleared = json.loads(await good(house, "cancel", "s", "--queue", "clear", "--json"))
    assert (cleared["outcome"], cleared["stillQueued"]) == ("requested", [])
    assert await good(house, "queue", "s") == ""
    assert record(await good(house, "cancel", "s"))["outcome"] == "nothing_to_cancel"


async def test_close_keeps_the_history_and_erase_does_not(house: House) -> None:
    await house.prompt("s", messageId="m")
    assert record(await good(house, "close", "s"))["closed"] == "true"
    assert "closed" in await refused(house, "send", "--session", "s", "more")
    assert "session/closed" in await good(house, "tail", "s")
    erased = json.loads(await good(house, "erase", "s", "--yes", "--json"))
    assert erased["erased"] is True
    assert "s" in await refused(house, "status", "s")
    assert "s" in await refused(house, "erase", "s", "--yes")


async def test_erase_asks_on_a_terminal_and_takes_nothing_but_a_yes(house: House) -> None:
    await house.prompt("s", messageId="m")
    for no in (b"\n", b"n\n", b"\x04", b"maybe\n"):
        code, shown = await on_terminal(url(house), "erase", "s", typed=no)
        assert (code, "nothing was erased" in shown) == (7, True), no
    assert (await house.client.get("/v1/sessions/s")).status_code == 200
    code, shown = await on_terminal(url(house), "erase", "s", typed=b"y\n")
    assert code == 0, shown
    assert "Erase session s and everything it holds? This cannot be undone. [y/N]" in shown
    assert (await house.client.get("/v1/sessions/s")).status_code == 404


async def test_dead_letters_are_listed_and_redriven_once(house: House) -> None:
    assert await good(house, "dead") == ""
    await house.prompt("s", messageId="m")
    await give_up(house.store)
    (row,) = [line.split("\t") for line in (await good(house, "dead")).splitlines()]
    (letter,) = [json.loads(line) for line in (await good(house, "dead", "--json")).split("\n")[:-1]]
    assert (row[0], row[1], row[2], row[5]) == (letter["letterId"], "s", "1", "m (dead)")
    assert (await good(house, "redrive", row[0])).split("\t")[::2] == ["m", "false"]
    assert "dead" in await refused(house, "redrive", row[0])
    assert record(await good(house, "message", "s", "m"))["state"] == "queued"


# -- goals --------------------------------------------------------------------------------------------------------


async def test_a_goal_is_set_changed_paused_resumed_and_cleared(house: House) -> None:
    assert "s" in await refused(house, "goal", "get", "s")
    budgets = ("--rounds", "3", "--model-calls", "9", "--cost", "1.5", "--wall-seconds", "2h")
    shown = record(await good(house, "goal", "set", "s", "write", "it", *budgets))
    assert (shown["objective"], shown["phase"]) == ("write it", "active")
    assert shown["budgets"] == "rounds 3, turns 250, modelCalls 9, tokens 5000000, cost 1.5, wallSeconds 7200"
    assert "which is active" in await refused(house, "goal", "set", "s", "another")

    paused = json.loads(await good(house, "goal", "pause", "s", "--revision", shown["revision"], "--json"))
    assert (paused["phase"], paused["budgets"]["modelCalls"]) == ("paused", 9)
    assert "revision" in await refused(house, "goal", "resume", "s", "--revision", shown["revision"])
    assert record(await good(house, "goal", "resume", "s"))["phase"] == "active"
    assert (
        record(await good(house, "goal", "edit", "s", "--objective", "do it", "--rounds", "5"))["objective"] == "do it"
    )
    blocked = record(await good(house, "goal", "block", "s", "--code", "no-access", "--message", "it is locked"))
    assert (blocked["phase"], blocked["reason"]) == ("blocked", "no-access it is locked")
    assert record(await good(house, "goal", "complete", "s"))["phase"] == "complete"
    assert await good(house, "goal", "clear", "s") == ""
    assert (await typed_in(url(house), "goal", "get", "s"))[2] == "mailslot goal get: session s has no goal\n"


# -- tail ---------------------------------------------------------------------------------------------------------


async def test_tail_ends_at_the_newest_event_and_shows_as_much_as_it_is_told(house: House) -> None:
    for n in range(3):
        await house.prompt("s", f"text {n}", messageId=f"m{n}")
        await EchoWorker(house.store).answer_all()
    events = [[str(event.seq), event.type] for event in await ledger(house)]

    async def shown(*argv: str) -> list[list[str]]:
        lines = (await good(house, "tail", "s", *argv)).splitlines()
        return [[line.split()[0], line.split()[2]] for line in lines]

    assert await shown() == events
    assert await shown("-n", "4") == events[-4:]
    assert await shown("-n", "0") == []
    assert await shown("--after", str(len(events))) == []
    assert await shown("--after", "2", "-n", "1000") == events[2:]
    ends = [event for event in events if event[1] in ("turn/end", "inbox/queued")]
    assert await shown("--types", "turn/end,inbox/q*") == ends
    assert await shown("--types", "turn/end,inbox/q*", "-n", "2") == ends[-2:]


async def test_tail_follows_after_the_last_so_many_of_a_type(house: House) -> None:
    await house.prompt("s", "one", messageId="m1")
    await EchoWorker(house.store).answer_all()
    async with started(url(house), "tail", "-f", "-n", "1", "--types", "user/message", "--json", "s") as process:
        assert process.stdout is not None
        first = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
        await house.prompt("s", "two", messageId="m2")
        await EchoWorker(house.store).answer_all()
        second = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
    assert [event["data"]["messageId"] for event in (first, second)] == ["m1", "m2"]


async def test_tail_is_coloured_on_a_terminal_and_nowhere_else(house: House) -> None:
    await house.prompt("s", f"hello {ESCAPE}]0;title\x07 \x9b2J", messageId="m")
    await EchoWorker(house.store).answer_all()
    code, shown = await on_terminal(url(house), "tail", "s")
    assert code == 0
    assert f"{ESCAPE}[32mturn/end          {ESCAPE}[0m" in shown
    plain = re.sub(ESCAPE + r"\[\d+m", "", shown)
    assert ESCAPE not in plain
    assert "\x9b" not in plain
    assert "\x07" not in plain
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert ESCAPE not in (await on_terminal(url(house), "tail", "s", variables=variables))[1]
    assert ESCAPE not in await good(house, "tail", "s")


async def test_tail_says_where_a_history_begins_that_is_not_kept_whole() -> None:
    """What was asked for by its seq is an error when it is gone; what was not is said."""
    gap = b'event: session.gap\ndata: {"oldest": 3, "newest": 4}\n\n'
    full, gone = stream(level_frame("s", 4), frames([3, 4]), Rude.HANG), stream(level_frame("s", 4), gap)

    def answer(asked: Any) -> Any:
        if not asked.path.endswith("events"):
            return standing("s", 4)
        return full if int(asked.query["after"]) >= 2 else gone

    with served(answer) as server:
        code, out, err = await typed_in(server.url, "tail", "s")
        assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["3", "4"])
        assert err == "mailslot tail: events before seq 3 are not kept any more\n"
        code, out, err = await typed_in(server.url, "tail", "s", "--after", "1")
        assert (code, out) == (5, "")
        assert "it keeps 3 to 4" in err


# -- pipes and terminals ------------------------------------------------------------------------------------------


async def test_what_others_named_cannot_steer_a_terminal_or_break_a_line() -> None:
    """A server that speaks less carefully than ours: a session's id with control characters and a lone surrogate."""
    page = {"sessions": [level_json(f"x{ESCAPE}[2J\ny\u2028\ud800", 1)], "next": None}
    with served(lambda _call: said(page)) as server:
        code, shown = await on_terminal(server.url, "sessions")
        assert (code, ESCAPE in shown) == (0, False)
        assert "x [2J y \\ud800" in shown
        code, out, _ = await typed_in(server.url, "sessions")
        assert (code, out.count("\n"), ESCAPE in out, "\u2028" in out) == (0, 1, False, False)
        exact = await typed_in(server.url, "sessions", "--json")
        assert json.loads(exact[1])["sessionId"] == page["sessions"][0]["sessionId"]  # type: ignore[index]


WRITERS = [("status", "s"), ("sessions",), ("tail", "s"), ("run", "--session", "s", "--json", "x")]


@pytest.mark.parametrize("argv", WRITERS)
async def test_output_that_cannot_be_written_is_one_sentence(argv: tuple[str, ...]) -> None:
    receipt = {"messageId": "m", "duplicate": False, "durability": "memory"}
    level = level_json("s", 2) | {"sessions": [level_json("s", 2)]} | receipt
    streams = {"events": stream(level_frame("s", 0), frames([1, 2, 3]), Rude.HANG)}
    with served(lambda call: streams.get(call.path.rpartition("/")[2], said(level))) as server:
        full = os.open("/dev/full", os.O_WRONLY)
        process = await asyncio.create_subprocess_exec(
            *MAILSLOT, *argv, env=environment(server.url), stdout=full, stderr=subprocess.PIPE
        )
        os.close(full)
        _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 141
    assert err.decode() == f"mailslot {argv[0]}: the output cannot be written: No space left on device\n"


async def test_nobody_at_stdout_is_no_reason_to_fail(house: House) -> None:
    closed = "import sys, os; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words = [MAILSLOT[0], "-c", closed, *MAILSLOT[1:], "send", "--session", "s", "hello"]
    process = await asyncio.create_subprocess_exec(*words, env=environment(url(house)), stderr=subprocess.PIPE)
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert (process.returncode, err) == (0, b"")
    assert [event.type for event in await ledger(house)][1] == "inbox/queued"

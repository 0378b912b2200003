"""`mailslot.testing` from the outside: what its server promises who tests with it, and that every fault is felt.

Clients are those of users, both of them; what happened is read in the ledger, and each ledger is held to every
invariant when its server ends.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mailslot import Budgets, Client, Delta, OutcomeUnknown, Refused, Settings, TransportLost
from mailslot.hooks import Batch, Rejection
from mailslot.testing import (
    Agent,
    NotInstalled,
    Server,
    assert_admitted,
    assert_not_queued,
    assert_queued,
    assert_state,
    call,
    events,
    fail,
    hang,
    history,
    port,
    wait_idle,
    wait_turn_open,
)
from mailslot_core import invariants
from mailslot_core.session import Event as CoreEvent
from tests.unit.sdk.twins import KINDS, Kind, twin

pytestmark = pytest.mark.integration

READY_S: Final = 1.0
"""Within what a server is up, once its modules are loaded."""

ONCE: Final = Settings(attempts_max=1, backoff_first_ms=5)
"""A client that tells its caller of the first thing that goes wrong."""


@contextmanager
def served(*arguments: Any, **options: Any) -> Iterator[Server]:
    """A server, whose ledgers are judged when it ends."""
    with Server(*arguments, **options) as server:
        yield server
        for session_id in server.sessions():
            ledger = [CoreEvent(e.seq, e.type, e.time, e.epoch, e.data) for e in server.events(session_id)]
            assert invariants.violations(ledger) == [], server.explain(session_id)


@pytest.fixture
def server() -> Iterator[Server]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


def post(server: Server, session_id: str, content: str, **fields: Any) -> httpx2.Response:
    """A prompt by a client that knows nothing of mailslot."""
    body = {"content": content, **fields}
    return httpx2.post(f"{server.url}/v1/sessions/{session_id}/prompt", json=body, timeout=10, trust_env=False)


def frames(server: Server, session_id: str) -> list[str]:
    """The ids of one event stream until it ends, by the same client; a cut is an end."""
    found: list[str] = []
    address = f"{server.url}/v1/sessions/{session_id}/events"
    with httpx2.stream("GET", address, timeout=10, trust_env=False) as response:
        try:
            for line in response.iter_lines():
                found += [line.removeprefix("id: ")] if line.startswith("id: ") else []
        except httpx2.RemoteProtocolError:
            found.append("cut")
    return found


# -- its life ---------------------------------------------------------------------------------------------------


def test_a_server_is_ready_at_once_and_leaves_nothing_behind() -> None:
    def left() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    with Server() as first:
        first.client().session("s").run("load everything")
    before = left()
    for _ in range(3):
        began = time.perf_counter()
        with Server() as server:
            took_s = time.perf_counter() - began
            client = server.client()
            session = client.session("s")
            assert session.run("hello").final_response == "hello"
            stream = session.events()
            next(stream)
            server.model.hold()
            session.prompt("never answered")
            server.model.wait_held()
        assert took_s < READY_S, took_s
        stream.close()
        with pytest.raises((httpx2.ConnectError, httpx2.ReadError)):
            httpx2.get(f"{server.url}/healthz", trust_env=False)
    threads, files = left()
    assert threads == before[0]
    assert files <= before[1], "others may have closed theirs meanwhile"


def test_several_servers_run_at_once_and_share_nothing() -> None:
    with Server() as left, Server(["from the right"]) as right:
        assert left.url != right.url
        assert left.client().session("s").run("echo").final_response == "echo"
        assert right.client().session("s").run("echo").final_response == "from the right"
        assert_queued(left, "echo")
        left.client().session("t").prompt("only left")
        assert_not_queued(right, "only left")


async def test_an_asynchronous_test_uses_it_on_its_own_loop() -> None:
    async with Server() as server, server.async_client() as client:
        session = client.session("s")
        with server.model.held():
            await session.prompt("A", message_id="A")
            assert await server.async_wait_turn_open(session) == 1
            await session.steer("B", message_id="B")
        idle = await server.async_wait_idle(session)
        assert history(session) == "q[A] R T1 c[A] S1 u[A] qs[B] a s1 c[B] S2 u[B] a s2 t1(completed) I"
        assert events(session)[-1].seq == idle
        assert_admitted(session, "B")


def test_nothing_of_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DURABILITY": "replicated", "PORT": "1", "LEASE_MS": "nonsense", "BODY_BYTES_MAX": "1"}.items():
        monkeypatch.setenv(f"MAILSLOT_{name}", value)
    with Server() as server:
        assert server.client().session("s").prompt("hello").durability == "memory"


def test_a_server_with_a_token_takes_its_own_clients_and_no_other() -> None:
    with served(token="s3cret") as server:
        assert server.client().session("s").run("hello").final_response == "hello"
        assert post(server, "s", "hello").status_code == 401


def test_a_server_that_does_not_run_says_so(server: Server) -> None:
    with pytest.raises(RuntimeError, match="use it in a `with`"):
        Server().url  # noqa: B018 - the property raises
    with Server() as over:
        session = over.client().session("s")
    with pytest.raises(RuntimeError, match="use it in a `with`"):
        over.events("s")
    with pytest.raises(LookupError, match=r"is no mailslot\.testing.Server that runs in this process"):
        events(session)
    with pytest.raises(RuntimeError, match="started once"):
        over.start()


def test_without_the_services_the_kit_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "entry_points", lambda group: EntryPoints())
    with pytest.raises(NotInstalled, match="the services of mailslot are not installed here"):
        Server()


# -- what the model says ----------------------------------------------------------------------------------------


def test_one_answer_is_given_every_time_and_the_newest_counts(server: Server, client: Client) -> None:
    session = client.session("s")
    assert session.run("echo").final_response == "echo"
    server.answers("hello")
    assert [session.run(text).final_response for text in "ab"] == ["hello", "hello"]
    server.answers("goodbye")
    assert session.run("c").final_response == "goodbye"


def test_several_answers_are_given_in_order_from_now_on_and_then_the_script_is_over(
    server: Server, client: Client
) -> None:
    session = client.session("s")
    session.run("an answer before")
    server.answers("one", "two")
    assert [session.run("x").final_response for _ in range(2)] == ["one", "two"]
    over = session.run("x")
    assert (over.final_response, over.finish_reason) == ("", "error")
    assert over.events[-2].data["reason"]["code"] == "script-ended"
    assert client.session("another").run("x").final_response == "one"
    server.answers("round", "and", loop=True)
    assert [session.run("x").final_response for _ in range(3)] == ["round", "and", "round"]


def test_an_answer_with_a_condition_comes_before_those_without(server: Server, client: Client) -> None:
    server.answers("sunny", when="weather")
    server.answers("whatever")
    session = client.session("s")
    assert session.run("the weather?").final_response == "sunny"
    assert session.run("the news?").final_response == "whatever"


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def polite(batch: Batch) -> Rejection | None:
    return Rejection("ask nicely") if "at once" in batch.text else None


def test_tools_and_hooks_are_functions_and_what_the_model_saw_can_be_seen() -> None:
    with served(tools=[weather], hooks=[polite]) as server:
        server.answers(call("weather", city="Berlin"), "It is {result}.", when="weather")
        session = server.client().session("s")
        assert session.run("the weather?").final_response == "It is sunny in Berlin."
        assert session.run("at once: the weather").final_response == ""
        assert assert_state(session, "at once: the weather", "rejected").reason == "ask nicely"
        first, second = server.model.calls
        assert (first.tools, first.text, first.step, second.step) == (("weather",), "the weather?", 1, 2)
        assert [entry["role"] for entry in second.transcript] == ["user", "assistant", "tool"]
        assert second.transcript[-1] == {"role": "tool", "name": "weather", "text": "sunny in Berlin"}


def test_agents_have_scripts_of_their_own_and_limits() -> None:
    helper = Agent(script=["I help."], instructions="Be brief.")
    with served(agents={"helper": helper, "short": Agent(limits={"steps_per_turn": 1}, tools=[weather])}) as server:
        client = server.client()
        assert client.session("h", agent="helper").run("?").final_response == "I help."
        assert server.model.calls[0].instructions == "Be brief."
        server.answers(call("weather", city="Rome"), agent="short")
        assert client.session("s", agent="short").run("?").events[-2].data["reason"]["code"] == "budget-steps"
        assert client.session("d").run("echo").final_response == "echo"
        with pytest.raises(ValueError, match=r"there is no agent nobody; there are default, helper, short"):
            server.answers("x", agent="nobody")


def test_an_agents_file_is_read_as_a_worker_reads_it(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('[agents.support]\nmodel = "echo"\ninstructions = "Be kind."\n')
    with served(agents=tmp_path / "agents.toml") as server:
        session = server.client().session("s", agent="support")
        assert session.run("hello").final_response == "hello"
        server.answers("scripted now", agent="support")
        assert session.run("hello").final_response == "scripted now"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Server([{"sya": "hello"}]), r"script of agent default: rule 1.*sya"),  # type: ignore[list-item]
        (lambda: Server(agents={"a": Agent(limits={"steps": 1})}), "limits.steps: is not known here"),
        (lambda: Server(tools=[weather, weather]), "two tools of agent default have one name"),
        (lambda: Server(["x"], agents="agents.toml"), "an agents.toml has all agents"),
    ],
)
def test_a_mistake_is_a_sentence_where_it_is_made(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_model_waits_at_a_gate_of_its_script_and_what_it_said_is_there(server: Server, client: Client) -> None:
    server.answers({"deltas": ["half ", {"wait": "go-on", "text": "an answer"}]})
    session = client.session("s")
    with session.stream("hello", deltas=True) as run:
        said = next(item for item in run if isinstance(item, Delta))
        server.model.wait_gate("go-on")
        assert (said.text, wait_turn_open(session)) == ("half ", 1)
        server.model.open_gate("go-on")
        list(run)
        assert run.result.final_response == "half an answer"


def test_a_model_that_hangs_or_is_held_can_be_cancelled_at_once() -> None:
    with served(lease_ms=600_000) as server:  # so that word of a cancel is what the worker hears first
        session = server.client().session("s")
        server.answers(hang(), when="hang")
        session.prompt("hang", message_id="A")
        wait_turn_open(session)
        assert session.cancel(wait=5).outcome == "settled"
        with server.model.held():
            session.prompt("B", message_id="B")
            server.model.wait_held()
            assert session.cancel(wait=5).outcome == "settled"
        assert server.history(session).count("(aborted user) I") == 2


def test_a_cancel_whose_word_is_lost_is_found_with_the_next_renewal() -> None:
    with served(lease_ms=2_000) as server, server.faults.lose_notices() as fault, server.model.held():
        session = server.client().session("s")
        session.prompt("A")
        server.model.wait_held()
        struck = fault.struck
        assert session.cancel(wait=10).outcome == "settled"
        assert fault.struck > struck


def test_a_failure_has_its_code_and_is_retried_as_it_says(server: Server, client: Client) -> None:
    session = client.session("s")
    server.answers(fail("overloaded", times=2, then="at last"), when="twice")
    server.answers(fail("bad-request", retryable=False), when="never")
    assert session.run("twice").final_response == "at last"
    assert [event.data["code"] for event in events(session) if event.type == "llm/retry"] == ["overloaded"] * 2
    assert session.run("never").events[-2].data["reason"] == {
        "kind": "error",
        "code": "bad-request",
        "message": "the script says so",
        "retryable": False,
    }


# -- assertions -------------------------------------------------------------------------------------------------


def test_an_assertion_reads_lane_wake_and_due_from_the_ledger(server: Server, client: Client) -> None:
    session = client.session("s")
    with server.model.held():
        session.prompt("A", metadata={"order": 7})
        session.steer("B")
        session.inject("C")
        session.prompt("D", not_before=server.clock.now_ms() + 60_000)
        assert assert_queued(session, "A", lane="next-turn", wake=True, due=True).data["metadata"] == {"order": 7}
        assert_queued(client, "B", lane="next-step", wake=True)
        assert_queued(server, "C", lane="next-step", wake=False)
        assert_queued(session, "D", due=False)
        assert_not_queued(client, "E")
        for wrong, sentence in [
            ({"lane": "next-step"}, "its lane is 'next-turn', not 'next-step'"),
            ({"wake": False}, "its wake is True, not False"),
            ({"due": False}, "its due is True, not False"),
            ({"times": 2}, "was queued once, not 2 times"),
        ]:
            with pytest.raises(AssertionError, match=sentence):
                assert_queued(session, "A", **wrong)  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="'E' was queued 0 times, not once"):
            assert_queued(client, "E")
        with pytest.raises(AssertionError, match="'A' was queued once"):
            assert_not_queued(server, "A")
        with pytest.raises(AssertionError, match="'D' is queued, not admitted"):
            assert_admitted(session, "D")


def test_a_failure_shows_the_ledger_as_people_read_it(server: Server, client: Client) -> None:
    session = client.session("s")
    session.prompt("hello", message_id="A")
    wait_idle(session)
    session.prompt("a text that is longer than what is shown of it")
    wait_idle(session)
    with pytest.raises(AssertionError) as failure:
        assert_queued(session, "goodbye")
    told = str(failure.value)
    assert "s: q[A] R T1 c[A]" in told
    assert "u['a text that is longer th'…] a s1" in told
    with pytest.raises(AssertionError, match=r"waited 0.01 s for a turn to be open\n  s: q\[A\]"):
        wait_turn_open(session, timeout=0.01)
    with pytest.raises(AssertionError, match="no such session"):
        server.wait_idle("nowhere", timeout=0.01)


def test_what_was_sent_twice_is_found_twice(server: Server, client: Client) -> None:
    session = client.session("s")
    for _ in range(2):
        session.prompt("again")
        session.prompt("once", message_id="m-1")
    assert_queued(session, "again", times=2)
    assert_queued(session, "m-1")
    with pytest.raises(AssertionError, match="queued 2 times: name one by its id"):
        assert_admitted(session, "again")


def test_a_wait_ends_when_the_ledger_says_so_and_not_before(server: Server, client: Client) -> None:
    session = client.session("s")

    def later() -> None:
        server.model.wait_held()
        session.steer("from elsewhere")
        server.model.let_go()

    server.model.hold()
    session.prompt("A")
    other = threading.Thread(target=later)
    other.start()
    assert server.wait_queued(session, "from elsewhere").data["lane"] == "next-step"
    assert server.wait_until(session, lambda found: [e for e in found if e.type == "step/end"], what="a step to end")
    wait_idle(session)
    other.join()


# -- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_receipt_is_lost_and_the_client_asks_again_for_the_same_message(server: Server, kind: Kind) -> None:
    async with twin(kind, server.url) as client:
        with server.faults.lose_receipts(1) as fault:
            receipt = await client.call("s", "prompt", "hello")
        assert (fault.struck, receipt.duplicate) == (1, True)
        server.assert_queued("s", "hello", times=1)


def test_a_lost_receipt_is_no_answer_at_all_and_the_message_is_kept(server: Server) -> None:
    with server.faults.lose_receipts(), pytest.raises(httpx2.RemoteProtocolError, match="without sending a response"):
        post(server, "s", "hello", messageId="A")
    assert_queued(server, "A")
    assert post(server, "s", "hello", messageId="A").json()["duplicate"]


def test_curl_sees_what_any_client_sees(server: Server) -> None:
    curl = shutil.which("curl")
    assert curl, "install curl"
    command = [curl, "-sS", "--noproxy", "*", f"{server.url}/v1/sessions/s/prompt", "-d", '{"content": "hello"}']
    command += ["-H", "content-type: application/json", "-w", " %{http_code}"]
    with server.faults.lose_receipts(1):
        lost = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (lost.returncode, "Empty reply" in lost.stderr) == (52, True), lost.stderr
    with server.faults.refuse_store():
        refused = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    body, _, status = refused.rpartition(" ")
    assert (status, json.loads(body)["code"]) == ("503", "store-refused")
    assert_queued(server, "hello", times=1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_that_refuses_keeps_nothing(server: Server, kind: Kind) -> None:
    async with twin(kind, server.url, settings=ONCE) as client:
        with server.faults.refuse_store() as fault:
            with pytest.raises(Refused) as refused:
                await client.call("s", "prompt", "hello")
            with pytest.raises(Refused):
                await client.call("s", "status")
        assert (refused.value.code, refused.value.status, fault.struck) == ("store-refused", 503, 2)
        server.assert_not_queued(None, "hello")
        await client.call("s", "prompt", "hello")
        server.assert_queued("s", "hello")


async def test_a_client_gets_through_once_the_store_takes_messages_again(server: Server, client: Client) -> None:
    with server.faults.refuse_store(1):
        assert not client.session("s").prompt("hello").duplicate


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_unknown_outcome_names_the_message_and_asking_again_is_safe(
    server: Server, kind: Kind, *, kept: bool
) -> None:
    async with twin(kind, server.url, settings=ONCE) as client:
        with server.faults.outcome_unknown(1, kept=kept), pytest.raises(OutcomeUnknown) as unknown:
            await client.call("s", "prompt", "hello", message_id="A")
        assert unknown.value.message_id == "A"
        assert bool(server.events("s")) is kept
        again = await client.call("s", "prompt", "hello", message_id="A")
        assert again.duplicate is kept
        server.assert_queued("s", "A", times=1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_full_queue_refuses_what_is_new_and_the_client_comes_back(server: Server, kind: Kind) -> None:
    async with twin(kind, server.url) as client:
        await client.call("s", "prompt", "before", message_id="A")
        with server.faults.full_queue() as fault:
            answer = post(server, "s", "new")
            assert (answer.status_code, answer.json()["code"]) == (429, "queue-full")
            assert answer.headers["retry-after"] == "1"
            assert (await client.call("s", "prompt", "before", message_id="A")).duplicate
        assert fault.struck == 1
        with server.faults.full_queue(2) as fault:
            assert not (await client.call("s", "prompt", "through")).duplicate
        assert fault.struck == 2
    server.assert_not_queued("s", "new")


def test_a_real_limit_can_be_set_as_well() -> None:
    with served(pending_max=1) as server, server.model.held():
        session = server.client(settings=ONCE).session("s")
        session.prompt("A")
        wait_turn_open(session)
        session.prompt("B")
        with pytest.raises(Refused, match="the limit is 1"):
            session.prompt("C")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_slow_answer_is_asked_for_again_and_nothing_comes_twice(server: Server, kind: Kind) -> None:
    impatient = Settings(request_timeout_s=0.2, backoff_first_ms=5)
    async with twin(kind, server.url, settings=impatient) as client:
        with server.faults.slow_answers(1, count=1) as fault:
            receipt = await client.call("s", "prompt", "hello")
        assert (fault.struck, receipt.duplicate) == (1, True)
    server.assert_queued("s", "hello", times=1)


@pytest.mark.parametrize("kind", KINDS)
async def test_streams_are_cut_and_a_run_still_sees_everything_once(server: Server, kind: Kind) -> None:
    async with twin(kind, server.url) as client:
        with server.faults.cut_streams(after_events=2) as fault:
            result = await client.call("s", "run", "hello")
        assert fault.struck >= 2
        assert [event.seq for event in result.events] == list(range(result.from_seq, result.to_seq + 1))
        assert result.final_response == "hello"


def test_a_cut_stream_ends_after_as_many_events_as_were_asked_for(server: Server, client: Client) -> None:
    client.session("s").run("hello")
    with server.faults.cut_streams(after_events=3, count=1):
        assert frames(server, "s") == ["1", "2", "3", "cut"]


async def test_streams_that_are_open_are_cut_now_and_resume(server: Server) -> None:
    async with server.async_client() as client:
        session = client.session("s")
        await session.prompt("A", message_id="A")
        await server.async_wait_idle(session)
        seen: list[int] = []
        async for event in session.events():
            seen.append(event.seq)
            if event.type == "agent/status" and event.data["status"] == "idle":
                if "B" in history(session):
                    break
                assert server.faults.cut_streams_now() == 1
                await session.prompt("B", message_id="B")
        assert seen == list(range(1, seen[-1] + 1))


def test_a_websocket_is_cut_like_a_stream(server: Server) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    with connect(f"{server.url.replace('http', 'ws')}/v1/rpc", proxy=None) as line:
        line.send(json.dumps(hello))
        assert json.loads(line.recv(timeout=10))["id"] == 1
        assert server.faults.cut_streams_now() == 1
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=10)
    assert server.faults.cut_streams_now() == 0


def test_a_worker_is_killed_in_the_middle_of_a_turn_and_another_goes_on(server: Server, client: Client) -> None:
    session = client.session("s")
    with server.model.held():
        session.prompt("A", message_id="A")
        server.model.wait_held()
        server.faults.kill_worker()
        server.model.wait_held()
    wait_idle(session)
    assert history(session) == "q[A] R T1 c[A] S1 u[A] recovered(1, attempt 2, crash) a s1 t1(completed) I"
    assert [asked.attempt for asked in server.model.calls] == [1, 1]


def test_a_script_that_crashes_kills_the_worker_and_at_last_the_turn(client: Client, server: Server) -> None:
    server.answers({"say": "never", "crash": True}, when={"turn": 1})
    server.answers("all is well")
    session = client.session("s")
    session.prompt("poison", message_id="A")
    session.prompt("B", message_id="B")
    server.wait_until(session, lambda found: history(session).endswith("t2(completed) I"), what="B to be worked on")
    assert history(session).count("recovered(1") == 2
    assert "t1(interrupted)" in history(session)
    assert_admitted(session, "B")
    (letter,) = client.dead()
    assert (letter.session_id, letter.turn, letter.attempts) == ("s", 1, 3)


def test_without_a_worker_messages_are_kept_and_nothing_moves(server: Server, client: Client) -> None:
    session = client.session("s")
    with server.faults.no_worker():
        session.prompt("A", message_id="A")
        assert history(session) == "q[A] R"
        assert_state(session, "A", "queued")
    wait_idle(session)
    assert_admitted(session, "A")


@pytest.mark.parametrize("act", ["restart", "kill"])
def test_nothing_brings_a_worker_while_there_is_to_be_none(server: Server, client: Client, act: str) -> None:
    session = client.session("s")
    with server.faults.no_worker():
        session.prompt("A", message_id="A")
        if act == "restart":
            server.restart()
        else:
            server.faults.kill_worker()
        server.clock.advance(60)
        assert history(session) == "q[A] R"
    wait_idle(session)
    assert_admitted(session, "A")


def test_a_restart_hands_the_turn_back_and_clients_come_back_to_the_same_address(server: Server) -> None:
    session = server.client().session("s")
    url = server.url
    with session.stream("A") as run, server.model.held():
        next(run)
        server.model.wait_held()
        server.restart()
        assert server.url == url
        server.model.let_go()
        list(run)
        assert run.result.final_response == "A"
        server.model.hold()
    assert "recovered(1, attempt 1, handback)" in history(session)


def test_lost_notices_lose_deltas_and_no_event(server: Server, client: Client) -> None:
    server.answers({"say": "in pieces", "pieces": 3})
    session = client.session("s")
    with server.faults.lose_notices() as fault, session.stream("hello", deltas=True) as run:
        items = list(run)
    assert fault.struck > 0
    assert not [item for item in items if isinstance(item, Delta)]
    assert run.result.final_response == "in pieces"
    with session.stream("hello", deltas=True) as run:
        assert [item.text for item in run if isinstance(item, Delta)] == ["in ", "pie", "ces"]


@pytest.mark.parametrize("lost", [True, False])
def test_a_goal_goes_on_whether_or_not_its_notices_are_lost(server: Server, client: Client, *, lost: bool) -> None:
    session = client.session("s")
    with server.faults.lose_notices() if lost else nullcontext():
        session.goal.set("count to two", Budgets(rounds=2))
        goal = server.wait_until(session, lambda _: _blocked(session.goal.get()), what="the goal to be blocked")
    assert goal.rounds == 2
    assert history(session).count("t2(completed) I") == 1


def _blocked(goal: Any) -> Any:
    return goal if goal is not None and goal.phase == "blocked" else None


def test_a_fault_that_is_on_is_not_turned_on_again_and_is_off_after_its_block(server: Server, client: Client) -> None:
    with server.faults.refuse_store(), pytest.raises(RuntimeError, match="on already"), server.faults.refuse_store():
        pass
    assert client.session("s").run("hello").final_response == "hello"
    with pytest.raises(ValueError, match="strikes once at least"), server.faults.lose_receipts(0):
        pass


def test_a_client_that_cannot_be_helped_says_so(server: Server) -> None:
    session = server.client(settings=Settings(attempts_max=2, backoff_first_ms=5)).session("s")
    with server.faults.lose_receipts(), pytest.raises(OutcomeUnknown) as unknown:
        session.prompt("hello")
    assert unknown.value.message_id
    server.assert_queued(session, unknown.value.message_id, times=1)
    hasty = server.client(settings=Settings(reconnects_max=1, settled_s=60, backoff_first_ms=5))
    with server.faults.refuse_store(), pytest.raises((TransportLost, Refused)):
        next(hasty.session("s").events())


# -- time -------------------------------------------------------------------------------------------------------


def test_time_passes_when_it_is_told_to(server: Server, client: Client) -> None:
    session, now = client.session("s"), server.clock.now_ms()
    session.prompt("for later", message_id="A", not_before=now + 3_600_000)
    assert_queued(session, "A", due=False)
    server.clock.advance(3_601)
    assert_queued(session, "A", due=True)
    wait_idle(session)
    assert_admitted(session, "A")
    with server.model.held():
        session.prompt("holds the others up")
        session.prompt("for soon", message_id="B", expires_at=now + 7_200_000)
        server.clock.advance(3_600)
        assert_state(session, "B", "expired")
    times = [event.time for event in events(session)]
    assert times == sorted(times)
    assert times[-1] >= now + 7_000_000
    with pytest.raises(ValueError, match="time does not go back"):
        server.clock.advance(-1)


def test_a_turn_stays_with_its_worker_while_time_passes(server: Server, client: Client) -> None:
    session = client.session("s")
    with server.model.held():
        session.prompt("A", message_id="A")
        server.model.wait_held()
        server.clock.advance(86_400)
    wait_idle(session)
    assert history(session) == "q[A] R T1 c[A] S1 u[A] a s1 t1(completed) I"


def test_a_wait_before_a_retry_is_over_when_its_time_has_passed(server: Server, client: Client) -> None:
    server.answers(fail("rate-limited", retry_after_ms=1_800_000, times=1, then="now"))
    session = client.session("s")
    session.prompt("hello")
    server.wait_until(session, lambda found: [e for e in found if e.type == "llm/retry"], what="the retry to wait")
    server.clock.advance(1_801)
    wait_idle(session)
    assert history(session).endswith("llm/retry a s1 t1(completed) I")


async def test_a_tool_on_the_loop_of_the_server_cannot_wait_for_the_server() -> None:
    servers: list[Server] = []

    async def looks(what: str) -> str:
        """Looks."""
        return servers[0].history("s")

    with served(tools=[looks]) as server:
        servers.append(server)
        server.answers(call("looks", what="x"), "{result}", when="look")
        session = server.client().session("s")
        await asyncio.to_thread(session.run, "look")
        (result,) = [event for event in server.events("s") if event.type == "tool/result"]
        assert "would wait for itself" in result.data["error"]["message"]

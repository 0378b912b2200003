"""The clients against a server that can be rude, over real connections. Each promise is held by both clients."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import time

import pytest

from mailslot import AsyncClient, AsyncRun, BadAnswer, Client, Delta, Event, RunTimeout, Settings, TransportLost
from tests.unit.sdk.driving import frame, frames, history, level_frame, level_json
from tests.unit.sdk.served import (
    NOTHING,
    Call,
    Handler,
    Reply,
    Rude,
    after,
    once_prompted,
    problem,
    said,
    served,
    stream,
)
from tests.unit.sdk.twins import KINDS, QUICK, Kind, twin
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

RECEIPT = {"messageId": "m", "cursor": 1, "duplicate": False, "durability": "memory"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def in_turn(*replies: Reply) -> Handler:
    """Each reply once, the last one for ever."""
    left = list(replies)
    return lambda _call: left.pop(0) if len(left) > 1 else left[0]


def started_run(message_id: str) -> bytes:
    """The first events of a run, with turn 1 open."""
    return b"".join(frame(value) for value in history(message_id, 1)[:5])


def whole_run(message_id: str) -> bytes:
    """All events of a run."""
    return b"".join(frame(value) for value in history(message_id, 1))


IN_TURN_1 = once_prompted(started_run)


def running(events: Reply) -> Handler:
    """A server with one idle session, whose stream is what a test says; it takes every prompt."""

    def answer(call: Call) -> Reply:
        if call.path.endswith("/events"):
            return events
        if call.path.endswith("/prompt"):
            return said(RECEIPT | {"messageId": call.json["messageId"]}, 202)
        if call.path.endswith("/cancel"):
            return said({"outcome": "requested", "turn": 1, "stillQueued": []}, 202)
        return said(level_json("s", 0))

    return answer


async def test_a_prompt_whose_answer_was_lost_is_sent_again_as_the_same_message(kind: Kind) -> None:
    with served(in_turn(NOTHING, said(RECEIPT | {"duplicate": True}, 202))) as server:
        async with twin(kind, server.url) as client:
            receipt = await client.call("s", "prompt", "hello")
    assert receipt.duplicate
    first, second = server.calls
    assert first.body == second.body
    assert first.json["messageId"]


async def test_a_server_that_comes_up_late_is_waited_for(kind: Kind) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with twin(kind, f"http://127.0.0.1:{port}", settings=Settings(attempts_max=50, backoff_max_ms=100)) as client:
        waiting = asyncio.ensure_future(client.call("s", "prompt", "hello"))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        with served(in_turn(said(RECEIPT, 202)), port):
            assert (await asyncio.wait_for(waiting, 10)).message_id == "m"


async def test_a_server_that_is_not_there_is_named_in_the_error(kind: Kind) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        async with twin(kind, url) as client:
            with pytest.raises(TransportLost, match=url) as caught:
                await client.call("s", "status")
    assert not caught.value.reached


async def test_a_stream_that_falls_silent_is_taken_up_again(kind: Kind) -> None:
    handler = in_turn(stream(level_frame("s", 2), frames([1, 2]), Rude.HANG), stream(frames([2, 3]), Rude.HANG))
    with served(handler) as server:
        async with twin(kind, server.url, settings=dataclasses.replace(QUICK, silence_timeout_s=0.2)) as client:
            events = await client.first_events("s", 3)
    assert [event.seq for event in events] == [1, 2, 3]
    assert [call.query["after"] for call in server.calls] == ["0", "2"]


async def test_a_stream_that_is_cut_or_ended_is_taken_up_again(kind: Kind) -> None:
    handler = in_turn(stream(frames([1]), Rude.CUT), stream(frames([2])), NOTHING, stream(frames([3]), Rude.HANG))
    with served(handler) as server:
        async with twin(kind, server.url) as client:
            events = await client.first_events("s", 3)
    assert [event.seq for event in events] == [1, 2, 3]
    assert [call.query["after"] for call in server.calls] == ["0", "1", "2", "2"]


async def test_leaving_a_stream_closes_its_connection(kind: Kind) -> None:
    with served(in_turn(stream(frames([1]), Rude.HANG))) as server:
        async with twin(kind, server.url) as client:
            await client.first_events("s", 1)
            assert await asyncio.to_thread(server.left.wait, 5)


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_run_ends_in_time_even_when_the_server_says_nothing(kind: Kind, cancels: bool) -> None:
    with served(running(stream(level_frame("s", 0), IN_TURN_1, Rude.HANG))) as server:
        async with twin(kind, server.url) as client:
            began = time.monotonic()
            with pytest.raises(RunTimeout) as caught:
                await client.call("s", "run", "hello", timeout=0.5, cancel_on_abort=cancels)
            took_s = time.monotonic() - began
    assert 0.5 <= took_s < 3
    assert caught.value.message_id == server.called("POST", "/prompt")[0].json["messageId"]
    assert [call.json for call in server.called("POST", "/cancel")] == (
        [{"queue": "keep", "turn": 1}] if cancels else []
    )


async def test_a_heartbeat_does_not_buy_a_run_more_time(kind: Kind) -> None:
    with served(running(stream(after(0.8, b": still here\n\n"), Rude.HANG))) as server:
        async with twin(kind, server.url) as client:
            began = time.monotonic()
            with pytest.raises(RunTimeout):
                await client.call("s", "run", "hello", timeout=1.0)
    assert 1.0 <= time.monotonic() - began < 1.6


async def test_waiting_for_idle_ends_in_time(kind: Kind) -> None:
    with served(in_turn(Reply(parts=[Rude.HANG]))) as server:
        async with twin(kind, server.url) as client:
            began = time.monotonic()
            with pytest.raises(RunTimeout):
                await client.call("s", "when_idle", timeout=0.3)
    assert time.monotonic() - began < 5
    assert float(server.calls[0].query["timeout"]) == pytest.approx(0.3, abs=0.1)


async def test_the_token_is_sent_and_is_in_no_error(kind: Kind) -> None:
    with served(in_turn(problem(401, "unauthorized"))) as server:
        async with twin(kind, server.url, "s3cret") as client:
            with pytest.raises(Exception, match="it is unauthorized") as caught:
                await client.call("s", "status")
    assert server.calls[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(caught.value) + repr(vars(caught.value))


async def test_open_streams_never_keep_a_message_from_being_sent() -> None:
    settings = dataclasses.replace(QUICK, connections_max=1, streams_max=3)
    with served(running(stream(level_frame("s", 1), frames([1]), Rude.HANG))) as server:
        async with AsyncClient(server.url, settings=settings) as client:
            readers = [client.session("s").events() for _ in range(3)]
            firsts = await asyncio.wait_for(asyncio.gather(*(anext(reader) for reader in readers)), 5)
            assert [event.seq for event in firsts] == [1, 1, 1]
            receipt = await asyncio.wait_for(client.session("s").prompt("hello"), 5)
            for reader in readers:
                await reader.aclose()
    assert receipt.cursor == 1


async def test_a_proxy_from_the_environment_is_not_asked_for_this_machine(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with served(in_turn(said(level_json("s", 4)))) as server:
        async with twin(kind, server.url) as client:
            assert (await client.call("s", "status")).cursor == 4


async def test_an_answer_without_end_is_refused(kind: Kind) -> None:
    settings = dataclasses.replace(QUICK, answer_bytes_max=1000)
    with served(in_turn(Reply(parts=[b"x" * 600] * 9))) as server:
        async with twin(kind, server.url, settings=settings) as client:
            with pytest.raises(BadAnswer, match="more than 1000 bytes"):
                await client.call("s", "status")
    assert len(server.calls) == 1


async def test_the_wrong_address_is_a_clear_error_and_not_an_endless_wait(kind: Kind) -> None:
    page = Reply(200, b"<html>", {"content-type": "text/html"})
    with served(in_turn(page)) as server:
        async with twin(kind, server.url) as client:
            with pytest.raises(BadAnswer, match="text/html"):
                await client.first_events("s", 1)
            with pytest.raises(BadAnswer, match="not JSON"):
                await client.call("s", "status")


async def test_an_id_with_a_slash_is_one_piece_of_the_path(kind: Kind) -> None:
    with served(in_turn(said(level_json("a/../b", 4)))) as server:
        async with twin(kind, server.url + "/base/") as client:
            await client.call("a/../b", "status")
    assert server.calls[0].path == "/base/v1/sessions/a%2F..%2Fb"


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_task_that_is_cancelled_cancels_the_agent_only_when_it_was_asked_to(cancels: bool) -> None:
    with served(running(stream(level_frame("s", 0), IN_TURN_1, Rude.HANG))) as server:
        async with AsyncClient(server.url, settings=QUICK) as client:
            seen: list[Event] = []
            reading = asyncio.ensure_future(_read(client.session("s").stream("hello", cancel_on_abort=cancels), seen))
            await wait_until(lambda: len(seen) == 5, 5, "the events of the open turn")
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        expected = [{"queue": "keep", "turn": 1}] if cancels else []
        assert [call.json for call in server.called("POST", "/cancel")] == expected


async def _read(run: AsyncRun[Event], seen: list[Event]) -> None:
    async with run:
        async for event in run:
            seen.append(event)  # noqa: PERF401 - seen is looked at while it grows


def test_leaving_a_run_early_in_a_with_abandons_it() -> None:
    with served(running(stream(IN_TURN_1, Rude.HANG))) as server:
        with Client(server.url, settings=QUICK) as client, client.session("s").stream("x", cancel_on_abort=True) as run:
            assert next(run).type == "inbox/queued"
            assert run.receipt is not None
            with pytest.raises(RuntimeError, match="no result yet"):
                _ = run.result
        assert server.left.wait(5)
        assert server.called("POST", "/cancel")[0].json == {"queue": "keep", "turn": 1}


def test_a_run_that_was_read_to_its_end_is_not_abandoned() -> None:
    with served(running(stream(once_prompted(whole_run), Rude.HANG))) as server:
        with Client(server.url, settings=QUICK) as client, client.session("s").stream("x", cancel_on_abort=True) as run:
            seqs = [event.seq for event in run]
        assert seqs == list(range(1, 11))
        assert run.result.final_response == "answer to hello"
        assert server.called("POST", "/cancel") == []


async def test_deltas_of_a_run_come_before_what_they_become() -> None:
    notice = {"v": 1, "sessionId": "s", "type": "assistant/delta", "data": {"turn": 1, "step": 1, "text": "ans"}}
    delta = f"event: session.delta\ndata: {json.dumps(notice)}\n\n".encode()
    with served(running(stream(delta, once_prompted(whole_run), Rude.HANG))) as server:
        async with (
            AsyncClient(server.url, settings=QUICK) as client,
            client.session("s").stream("x", deltas=True) as run,
        ):
            items = [item async for item in run]
    assert items[0] == Delta(1, 1, "ans")
    assert len(items) == 11
    assert server.called("GET", "/events")[0].query["deltas"] == "1"

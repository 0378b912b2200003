"""Streams and pages of events: the level first, then every seq once, in order, or a gap that is said (L7, S4, T15)."""

import asyncio
import random
from typing import Any

import pytest

from mailslot_contracts import parse_event
from mailslot_contracts.protocol import EventPage
from mailslot_core.clock import ManualClock
from mailslot_core.errors import CursorExpired
from mailslot_core.memory import MemoryStore
from tests.echo_worker import EchoWorker
from tests.unit.ingest.served import PATIENCE_S, Frame, House, in_process, on_socket, stream
from tests.waiting import wait_until

JSON = {"Accept": "application/json"}


def seqs(frames: list[Frame]) -> list[int | None]:
    return [frame.id for frame in frames]


async def newest(house: House, session_id: str = "s") -> int:
    return int((await house.level(session_id))["cursor"])


async def test_a_stream_begins_with_the_level_and_goes_on_with_every_event() -> None:
    async with on_socket() as house:
        await house.prompt("s")
        async with stream(house, "s") as events:
            (level,) = await events.take(1)
            assert (level.event, level.id) == ("session.status", None)
            assert level.data == await house.level("s")
            history = await events.take(3)
            assert [(frame.event, frame.id) for frame in history] == [
                ("session.event", 1),
                ("session.event", 2),
                ("session.status", 3),
            ]
            await EchoWorker(house.store).answer_all()
            live = await events.take(await newest(house) - 3)
            assert seqs(live) == list(range(4, await newest(house) + 1))
            assert live[-1].data["data"] == {"status": "idle"}


async def test_a_frame_holds_the_envelope_of_its_event() -> None:
    async with on_socket() as house:
        await house.prompt("s", "a\u2028b\r\nc")
        async with stream(house, "s", "?after=1") as events:
            await events.take(1)
            (frame,) = await events.take(1)
            event = parse_event(frame.data)
            assert (event.seq, event.session_id, event.type, event.v) == (2, "s", "inbox/queued", 1)
            assert frame.data["data"]["content"][0]["text"] == "a\u2028b\r\nc"


@pytest.mark.parametrize(("query", "headers"), [("?after=2", {}), ("", {"Last-Event-ID": "2"})])
async def test_a_stream_goes_on_after_its_cursor(query: str, headers: dict[str, str]) -> None:
    async with on_socket() as house:
        await house.prompt("s")
        async with stream(house, "s", query, headers) as events:
            assert seqs(await events.take(2)) == [None, 3]


async def test_the_last_event_id_of_a_reconnect_wins_over_the_address() -> None:
    async with on_socket() as house:
        for _ in range(4):
            await house.prompt("s")
        async with stream(house, "s", "?after=1", {"Last-Event-ID": "4"}) as events:
            assert seqs(await events.take(2)) == [None, 5]


async def test_a_filter_leaves_out_types_and_keeps_the_ids_of_the_others() -> None:
    async with on_socket() as house:
        await house.prompt("s")
        await EchoWorker(house.store).answer_all()
        async with stream(house, "s", "?types=turn/end,agent/status") as events:
            frames = (await events.take(4))[1:]
            assert [frame.data["type"] for frame in frames] == ["agent/status", "turn/end", "agent/status"]
            assert seqs(frames) == sorted(frame.data["seq"] for frame in frames)


async def test_deltas_come_without_id_and_only_to_who_asked() -> None:
    async with on_socket() as house:
        await house.prompt("s")
        async with stream(house, "s", "?deltas=1") as asked, stream(house, "s") as other:
            await asked.take(4)
            await other.take(4)
            await house.store.publish_delta("s", {"turn": 1, "step": 1, "text": "he"})
            (delta,) = await asked.take(1)
            assert (delta.event, delta.id, delta.data["data"]["text"]) == ("session.delta", None, "he")
            await house.prompt("s")
            assert seqs(await other.take(1)) == [4]
            assert seqs(await asked.take(1)) == [4]


async def test_a_delta_comes_after_the_events_that_were_noticed_before_it() -> None:
    async with on_socket(poll_ms=60_000) as house:
        await house.prompt("s")
        async with stream(house, "s", "?deltas=1") as events:
            await events.take(4)
            await asyncio.gather(
                house.store.publish_delta("s", {"turn": 1, "step": 1, "text": "a"}),
                EchoWorker(house.store).answer_one(),
                house.store.publish_delta("s", {"turn": 1, "step": 1, "text": "b"}),
            )
            frames = await events.take(2 + await newest(house) - 3)
            assert [frame.id for frame in frames if frame.id] == list(range(4, await newest(house) + 1))
            texts = {number: frame.data["data"]["text"] for number, frame in enumerate(frames) if frame.id is None}
            assert texts == {0: "a", len(frames) - 1: "b"}


class _Mute(MemoryStore):
    """A store whose notices are all lost."""

    def _notify(self, session_id: str, notice: dict[str, Any]) -> None:
        pass


async def test_a_stream_misses_nothing_when_every_notice_is_lost() -> None:
    async with on_socket(_Mute()) as house:
        await house.prompt("s")
        async with stream(house, "s") as events:
            await events.take(4)
            await EchoWorker(house.store).answer_all()
            last = await newest(house)
            assert seqs(await events.take(last - 3)) == list(range(4, last + 1))


async def test_streams_that_reconnect_at_any_point_while_events_are_appended_see_each_seq_once(
    rng: random.Random,
) -> None:
    total = 120
    async with on_socket() as house:
        await house.prompt("s", delivery="inject")

        async def write() -> None:
            for _ in range(total - 2):
                await house.prompt("s", delivery="inject")
                await asyncio.sleep(0)

        async def follow(cuts: list[int]) -> list[int]:
            seen: list[int] = []
            for cut in [*cuts, total]:
                headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
                async with stream(house, "s", headers=headers) as events:
                    await events.take(1)
                    while len(seen) < cut:
                        (frame,) = await events.take(1)
                        assert frame.id is not None
                        seen.append(frame.id)
            return seen

        followers = [follow(sorted(rng.sample(range(1, total), 5))) for _ in range(8)]
        *found, _ = await asyncio.gather(*followers, write())
        assert found == [list(range(1, total + 1))] * 8


class _Slow(MemoryStore):
    """A store whose ledgers can be read only while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def events(self, session_id: str, *, after: int, limit: int) -> Any:
        await self.gate.wait()
        return await super().events(session_id, after=after, limit=limit)


async def test_a_stream_that_is_ahead_of_the_shared_reader_sees_nothing_twice() -> None:
    store = _Slow()
    async with on_socket(store) as house:
        await house.prompt("s")
        async with stream(house, "s") as first:
            await first.take(4)
            store.gate.clear()
            for _ in range(3):
                await house.prompt("s")
            async with stream(house, "s", "?after=5") as second:
                await second.take(1)
                store.gate.set()
                assert seqs(await first.take(3)) == [4, 5, 6]
                await house.prompt("s")
                assert seqs(await second.take(2)) == [6, 7]


class _Trimmed(MemoryStore):
    """A store that no longer has the first events."""

    oldest = 1

    async def events(self, session_id: str, *, after: int, limit: int) -> Any:
        if after + 1 < self.oldest:
            newest = (await self.level(session_id)).cursor  # type: ignore[union-attr]
            raise CursorExpired(f"cursor {after} is no longer kept", oldest=self.oldest, newest=newest)
        return await super().events(session_id, after=after, limit=limit)


async def trimmed(house: House, oldest: int) -> None:
    for _ in range(10):
        await house.prompt("s", delivery="inject")
    assert isinstance(house.store, _Trimmed)
    house.store.oldest = oldest


async def test_a_trimmed_cursor_is_a_gap_and_the_stream_ends() -> None:
    async with on_socket(_Trimmed()) as house:
        await trimmed(house, 5)
        async with stream(house, "s", "?after=2") as events:
            level, gap = await events.rest()
            assert level.event == "session.status"
            assert (gap.event, gap.id) == ("session.gap", None)
            assert gap.data == {"sessionId": "s", "oldest": 5, "newest": 11}
        async with stream(house, "s", "?after=4") as events:
            assert seqs(await events.take(2)) == [None, 5]


async def test_a_ledger_trimmed_under_its_readers_is_a_gap_for_them() -> None:
    async with on_socket(_Trimmed()) as house:
        await trimmed(house, 1)
        async with stream(house, "s", "?after=10") as events:
            await events.take(2)
            house.store.oldest = 40  # type: ignore[attr-defined]
            assert [frame.event for frame in await events.rest()] == ["session.gap"]


async def test_a_cursor_beyond_the_ledger_is_a_gap() -> None:
    async with on_socket() as house:
        await house.prompt("s")
        async with stream(house, "s", "?after=9") as events:
            frames = await events.rest()
            assert [frame.event for frame in frames] == ["session.status", "session.gap"]
            assert frames[1].data == {"sessionId": "s", "oldest": 1, "newest": 3}


async def test_a_reader_that_falls_behind_is_closed_and_goes_on_where_it_was() -> None:
    async with on_socket(sse_buffer_events_max=16) as house:
        await house.prompt("s", delivery="inject")
        async with stream(house, "s") as events:
            await events.take(3)
            text = "x" * 400_000
            for _ in range(60):
                await house.prompt("s", text, delivery="inject")
            frames = await events.rest()
            seen = [frame.id for frame in frames if frame.id is not None]
        assert seen == list(range(3, 3 + len(seen)))
        assert len(seen) < 60
        assert events.comments[-1] == f"overflow; go on with Last-Event-ID {seen[-1]}"
        async with stream(house, "s", headers={"Last-Event-ID": str(seen[-1])}) as events:
            assert (await events.take(2))[1].id == seen[-1] + 1


async def test_a_slow_reader_does_not_hold_up_another() -> None:
    async with on_socket(sse_buffer_events_max=16) as house:
        await house.prompt("s", delivery="inject")
        async with stream(house, "s") as slow, stream(house, "s") as quick:
            await slow.take(3)
            await quick.take(3)
            for n in range(60):
                await house.prompt("s", "x" * 200_000, delivery="inject")
                assert seqs(await quick.take(1)) == [3 + n]


async def test_one_session_is_read_once_for_all_who_follow_it() -> None:
    async with on_socket(poll_ms=60_000) as house:
        await house.prompt("s")
        async with stream(house, "s") as first, stream(house, "s") as second, stream(house, "s", "?after=2") as third:
            for events, count in ((first, 4), (second, 4), (third, 2)):
                await events.take(count)
            assert house.metric("event_readers") == 1
            assert house.metric("event_streams") == 3
            before = house.metric("events_read_total")
            await house.prompt("s")
            for events in (first, second, third):
                assert seqs(await events.take(1)) == [4]
            assert house.metric("events_read_total") == before + 1
        await wait_until(lambda: house.metric("event_readers") == 0, PATIENCE_S, "the reader to stop")
        assert house.metric("event_streams") == 0


async def test_a_quiet_stream_is_kept_alive_by_comments() -> None:
    clock = ManualClock()
    async with on_socket(clock=clock, sse_heartbeat_ms=15_000, poll_ms=1_000) as house:
        await house.prompt("s")
        async with stream(house, "s") as events:
            await events.take(4)

            comment = asyncio.create_task(events.comment())

            async def heard_after_half_a_heartbeat() -> bool:
                await clock.advance(7_500)
                return comment.done()

            await wait_until(heard_after_half_a_heartbeat, PATIENCE_S, "a comment")
            assert await comment == "still here"


async def test_a_stream_that_is_quiet_for_eleven_minutes_is_still_there() -> None:
    """T15: no total cap (PostHog PR101104). Each heartbeat is heard, and then the next event."""
    clock = ManualClock()
    async with on_socket(clock=clock, sse_heartbeat_ms=15_000, poll_ms=1_000) as house:
        await house.prompt("s")
        async with stream(house, "s") as events:
            await events.take(4)
            until = clock.monotonic() + 11 * 60
            while clock.monotonic() < until:
                comment = asyncio.create_task(events.comment())

                async def heard(comment: asyncio.Task[str] = comment) -> bool:
                    await clock.advance(5_000)
                    return comment.done()

                await wait_until(heard, PATIENCE_S, "a comment")
            await house.prompt("s", messageId="late")
            taken = asyncio.create_task(events.take(1))

            async def came() -> bool:
                await clock.advance(1_000)
                return taken.done()

            await wait_until(came, PATIENCE_S, "the next event")
            assert "late" in str(await taken)


async def test_a_stream_whose_filter_leaves_everything_out_is_kept_alive_too() -> None:
    clock = ManualClock()
    async with on_socket(clock=clock) as house:
        await house.prompt("s")
        async with stream(house, "s", "?types=turn/end") as events:
            await events.take(1)
            comment = asyncio.create_task(events.comment())

            async def heard_after_half_a_heartbeat_with_events() -> bool:
                await clock.advance(7_000)
                before = house.metric("events_read_total")
                await house.prompt("s", delivery="inject")
                await wait_until(lambda: house.metric("events_read_total") > before, PATIENCE_S, "the event to be read")
                return comment.done()

            await wait_until(heard_after_half_a_heartbeat_with_events, PATIENCE_S, "a comment")
            assert await comment == "still here"


async def test_a_process_that_ends_ends_its_streams_with_their_cursors() -> None:
    async with on_socket() as house:
        await house.prompt("s")
        async with stream(house, "s") as events:
            await events.take(4)
            await house.app.state.door.fanout.close()
            assert await events.rest() == []
            assert events.comments[-1] == "closing; go on with Last-Event-ID 3"


# -- pages --------------------------------------------------------------------------------------------------


async def page(house: House, query: str = "") -> EventPage:
    response = await house.client.get(f"/v1/sessions/s/events{query}", headers=JSON)
    assert response.status_code == 200, response.json()
    assert response.headers["content-type"] == "application/json"
    return EventPage.model_validate(response.json())


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_show_every_event_once_in_order(limit: int) -> None:
    async with in_process() as house:
        await house.prompt("s")
        await EchoWorker(house.store).answer_all()
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            found = await page(house, f"?limit={limit}&after={after}")
            seen += [event.seq for event in found.events]
            after = found.next
        assert seen == list(range(1, await newest(house) + 1))


async def test_a_page_can_be_of_some_types_alone() -> None:
    async with in_process() as house:
        await house.prompt("s")
        found = await page(house, "?types=inbox/queued")
        assert [event.type for event in found.events] == ["inbox/queued"]


async def test_a_page_of_a_trimmed_cursor_is_gone_with_what_can_be_read() -> None:
    async with in_process(_Trimmed()) as house:
        await trimmed(house, 5)
        response = await house.client.get("/v1/sessions/s/events?after=1", headers=JSON)
        problem = response.json()
        assert (response.status_code, problem["code"]) == (410, "cursor-expired")
        assert (problem["oldest"], problem["newest"]) == (5, 11)


# -- idle ---------------------------------------------------------------------------------------------------


async def idle(house: House, query: str = "") -> dict[str, Any]:
    response = await house.client.get(f"/v1/sessions/s/idle{query}")
    assert response.status_code == 200, response.json()
    found: dict[str, Any] = response.json()
    return found


async def test_an_idle_agent_is_answered_at_once() -> None:
    async with in_process() as house:
        await house.client.post("/v1/sessions", json={"sessionId": "s"})
        assert await idle(house) == {"status": "idle", "cursor": 0}
        await house.prompt("s")
        await EchoWorker(house.store).answer_all()
        assert await idle(house) == {"status": "idle", "cursor": await newest(house)}


async def test_waiting_for_idle_ends_with_the_idle() -> None:
    async with in_process(poll_ms=60_000) as house:
        for query in ("", "?after={cursor}"):
            cursor = (await house.prompt("s")).json()["cursor"]
            waiting = asyncio.create_task(idle(house, query.format(cursor=cursor)))
            await wait_until(lambda: house.metric("event_readers"), PATIENCE_S, "somebody to wait")
            assert not waiting.done()
            await EchoWorker(house.store).answer_all()
            assert await asyncio.wait_for(waiting, PATIENCE_S) == {"status": "idle", "cursor": await newest(house)}


async def test_the_first_idle_after_the_cursor_is_answered_however_late_one_asks() -> None:
    async with in_process() as house:
        worker, cursors, idles = EchoWorker(house.store), [], []
        for _ in range(3):
            cursors.append((await house.prompt("s")).json()["cursor"])
            await worker.answer_all()
            idles.append(await newest(house))
        for cursor, expected in zip(cursors, idles, strict=True):
            assert await idle(house, f"?after={cursor}") == {"status": "idle", "cursor": expected}


async def test_at_the_timeout_the_agent_is_running_with_its_reasons() -> None:
    async with in_process() as house:
        await house.prompt("s")
        assert await idle(house, "?timeout=0.05") == {"status": "running", "cursor": 3, "reasons": ["1 queued"]}


async def test_an_idle_before_the_cursor_never_counts() -> None:
    async with in_process() as house:
        await house.prompt("s")
        await EchoWorker(house.store).answer_all()
        last = await newest(house)
        answer = await idle(house, f"?after={last}&timeout=0.05")
        assert (answer["status"], answer["reasons"]) == ("running", [])


async def test_the_timeout_is_the_clock_s() -> None:
    clock = ManualClock()
    async with in_process(clock=clock) as house:
        await house.prompt("s")
        waiting = asyncio.create_task(idle(house, "?timeout=60"))
        await wait_until(lambda: house.metric("event_readers"), PATIENCE_S, "somebody to wait")
        await clock.advance(59_000)
        assert not waiting.done()
        await clock.advance(1_000)
        assert (await asyncio.wait_for(waiting, PATIENCE_S))["status"] == "running"


async def test_a_cursor_that_is_not_kept_is_gone() -> None:
    async with in_process() as house:
        await house.prompt("s")
        assert (await house.client.get("/v1/sessions/s/idle?after=99")).status_code == 410

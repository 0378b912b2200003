"""Reading: the level and the indexes are what folding the ledger gives, pages have no gaps, a lost cursor is said."""

import pytest

from mailslot_core import invariants
from mailslot_core.errors import CursorExpired
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Event, Status, fold, indexes
from mailslot_core.store import PAGE_BYTES_MAX, Level, Load, Store
from tests.conformance.dialogue import BIRTH, CAREFUL, Slot, inject, ledger, next_round, prompt, set_goal, steer
from tests.conformance.worlds import RedisWorld, World

pytestmark = pytest.mark.conformance


async def test_nobody_has_no_level(store: Store) -> None:
    assert await store.level("s") is None
    assert await store.indexes("s") is None
    assert await store.events("s", after=0, limit=10) == []


async def test_a_level_tells_how_a_session_is_and_as_of_when(store: Store, slot: Slot) -> None:
    await store.create("s", {**BIRTH, "agent": "gardener"})
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await prompt(store, "s", "B")
    await steer(store, "s", "S")
    await inject(store, "s", "C")
    assert await store.level("s") == Level(
        session_id="s",
        agent="gardener",
        status=Status.RUNNING,
        cursor=8,
        idle_cursor=0,
        reasons=("turn 1", "2 queued"),
        turn=1,
        pending=4,
        held=0,
        conservation=0,
        goal=None,
        usage={"inputTokens": 0, "outputTokens": 0},
    )


async def test_a_level_of_a_held_session_tells_how_many_wait(store: Store, slot: Slot) -> None:
    await store.create("s", CAREFUL)
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await inject(store, "s", "C")
    await slot.settle(*slot.begin(), slot.end(), end="error")
    level = await store.level("s")
    assert level is not None
    assert (level.status, level.held, level.pending, level.reasons) == (Status.IDLE, 1, 2, ())
    assert level.idle_cursor == level.cursor


@pytest.mark.parametrize("then", ["answer", "end of the step", "crash", "the wait is over"])
async def test_the_level_says_when_a_model_is_called_again(world: World, slot: Slot, rival: Slot, then: str) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    wait_ms = 1 if then == "the wait is over" else 8_000
    granted = await slot.commit(*slot.begin(), slot.retry(delay_ms=wait_ms))
    if wait_ms > 1:
        await inject(store, "s", "C")
        assert (await reasons(store)) in [("turn 1", f"retry in {seconds} s") for seconds in range(1, 9)]
    match then:
        case "answer":
            await slot.commit(slot.says("well"))
        case "end of the step":
            await slot.commit(slot.end())
        case "crash":
            await store.renew([granted.lease], 1)
            await world.pass_ms(2)
            await store.sweep(partition_of("s", store.partitions), forget_after_ms=1_000_000)
            await rival.acquire("s")
        case _:
            await world.pass_ms(2)
    assert await reasons(store) == ("turn 1",)


async def reasons(store: Store) -> tuple[str, ...]:
    level = await store.level("s")
    assert level is not None
    return level.reasons


async def test_after_every_event_of_a_long_life_the_indexes_are_those_of_the_ledger(
    world: World, slot: Slot, rival: Slot
) -> None:
    store = world.store
    await live(world, slot, rival)
    events, found = await ledger(store, "s"), await store.indexes("s")
    assert found == indexes(fold("s", events))
    assert invariants.violations(events) == []


async def live(world: World, slot: Slot, rival: Slot) -> None:
    """Something of everything."""
    store = world.store
    await set_goal(store, "s")
    await store.goal_advance("s", await next_round(store, "s"))
    await slot.acquire("s", lease_ms=1)
    await slot.commit(*slot.begin(), slot.spends(3, 1, 0.5), slot.says("let me see", "c1", "c2"), slot.call("c1"))
    await world.pass_ms(3)
    for partition in range(store.partitions):
        await store.sweep(partition, forget_after_ms=1_000_000)
    await rival.acquire("s")
    await steer(store, "s", "S")
    await rival.commit(rival.result("c1"), rival.result("c2"), rival.end(), take=True)
    await rival.settle(*rival.begin(), rival.says("well"), rival.end())
    await prompt(store, "s", "A")
    await inject(store, "s", "C")
    await prompt(store, "s", "B")
    await rival.acquire("s")
    await store.cancel("s", cause="user")
    await rival.settle()
    await rival.settle(rival.rejects("B"), end="blocked")
    await prompt(store, "s", "D")


async def test_events_come_in_pages_without_gaps(store: Store, slot: Slot) -> None:
    for name in ("A", "B", "C"):
        await prompt(store, "s", name)
    await slot.run("s")
    whole, paged = await ledger(store, "s"), list[Event]()
    while page := await store.events("s", after=paged[-1].seq if paged else 0, limit=4):
        assert len(page) <= 4
        paged += page
    assert paged == whole
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))


async def test_after_the_newest_event_there_is_an_empty_page(store: Store) -> None:
    await prompt(store, "s", "A")
    assert await store.events("s", after=3, limit=10) == []


@pytest.mark.parametrize(("session_id", "after", "readable"), [("s", 4, (1, 3)), ("nobody's", 1, (0, 0))])
async def test_a_cursor_beyond_the_newest_event_is_no_cursor(
    store: Store, session_id: str, after: int, readable: tuple[int, int]
) -> None:
    await prompt(store, "s", "A")
    with pytest.raises(CursorExpired) as expired:
        await store.events(session_id, after=after, limit=10)
    assert (expired.value.oldest, expired.value.newest) == readable


@pytest.mark.parametrize(("oldest", "after"), [(4, 0), (4, 2), (99, 0), (99, 5)])
async def test_a_cursor_whose_next_event_was_trimmed_is_said_to_be_lost(
    redis: RedisWorld, oldest: int, after: int
) -> None:
    slot = Slot(redis.store)
    await prompt(redis.store, "s", "A")
    await slot.run("s")
    newest = len(await ledger(redis.store, "s"))
    redis.look.xtrim(redis.key("s", "ledger"), minid=f"{oldest}-0", approximate=False)
    with pytest.raises(CursorExpired) as expired:
        await redis.store.events("s", after=after, limit=10)
    assert (expired.value.oldest, expired.value.newest) == (min(oldest, newest + 1), newest)
    assert await redis.store.events("s", after=newest, limit=10) == []


async def test_a_cursor_just_before_what_was_trimmed_can_be_continued(redis: RedisWorld) -> None:
    await prompt(redis.store, "s", "A")
    redis.look.xtrim(redis.key("s", "ledger"), minid="2-0", approximate=False)
    assert [event.seq for event in await redis.store.events("s", after=1, limit=10)] == [2, 3]


async def test_sessions_come_in_pages_in_the_order_of_their_names(store: Store) -> None:
    names = ["a", "b", "b1", "c", "z", "é", "日", "\U0001f600"]
    for name in reversed(names):
        await store.create(name, BIRTH)
    assert await store.sessions(after="", limit=100) == names
    assert await store.sessions(after="", limit=3) == names[:3]
    assert await store.sessions(after="b", limit=3) == ["b1", "c", "z"]
    assert await store.sessions(after="\U0001f600", limit=3) == []


async def test_the_load_of_a_partition_counts_what_waits_and_what_runs(world: World, slot: Slot) -> None:
    store = world.store
    near = [name for name in (f"s{n}" for n in range(40)) if partition_of(name, store.partitions) == 0][:4]
    for name in near:
        await store.create(name, BIRTH)
    for name in near[:3]:
        await prompt(store, name, "A")
    await slot.acquire(near[0])
    await world.pass_ms(5)
    load = await store.load(0)
    assert load._replace(oldest_ready_ms=0) == Load(2, 0, active=3, leased=1, sessions=4, fenced=0)
    assert load.oldest_ready_ms >= 5
    assert await store.load(1) == Load(0, 0, 0, 0, 0, 0)


async def test_times_are_the_stores_and_never_go_back(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await world.pass_ms(3)
    await slot.run("s")
    times = [event.time for event in await ledger(store, "s")]
    assert times == sorted(times)
    assert times[-1] >= times[0] + 3


async def test_a_page_of_large_events_is_cut_and_says_so(store: Store) -> None:
    """Whoever reads a ledger holds a bounded part of it in memory, whatever is in it."""
    sent = [f"m{number}" for number in range(12)]
    for name in sent:
        await prompt(store, "s", name, "x" * 1_000_000)
    pages = [await store.events("s", after=0, limit=1_000)]
    while pages[-1].more:
        pages.append(await store.events("s", after=pages[-1][-1].seq, limit=1_000))
    sizes = [sum(len(str(event.data)) for event in page) for page in pages]
    assert max(sizes) < 1.5 * PAGE_BYTES_MAX
    assert len(pages) > 1
    events = [event for page in pages for event in page]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.data["messageId"] for event in events if event.type == "inbox/queued"] == sent


async def test_a_whole_page_says_whether_more_may_follow(store: Store) -> None:
    await prompt(store, "s", "A")
    newest = (await ledger(store, "s"))[-1].seq
    assert (await store.events("s", after=0, limit=newest - 1)).more
    assert not (await store.events("s", after=0, limit=newest + 1)).more

"""Leases: a write under any other than the session's present one is refused and counted; what lapses goes on elsewhere.

And numbered calls: a call that is made again because its answer was lost appends nothing and answers the same.
"""

from collections.abc import Awaitable, Callable
from itertools import takewhile
from typing import Any

import pytest

from mailslot_core.errors import Fenced, Refused
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Phase
from mailslot_core.store import Lease, Renewal, Store, Swept
from mailslot_core.turn import Outcome, Then
from tests.conformance.dialogue import LEASE_MS, Slot, ending, history, ledger, prompt, steer
from tests.conformance.worlds import PARTITIONS, RedisWorld, World

pytestmark = pytest.mark.conformance

NEVER_MS = 1_000_000_000


def numbered(store: Store, lease: Lease, call: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every numbered write under a lease."""
    options: dict[str, Any] = {"then": Then.TAKE, "hand_out": True, "lease_ms": LEASE_MS}
    return {
        "take": lambda: store.take(lease, call),
        "commit": lambda: store.commit(lease, call, []),
        "settle": lambda: store.settle(lease, call, [], ending("error"), **options),
        "handback": lambda: store.handback(lease, call),
    }


WRITES = ("take", "commit", "settle", "handback")


# -- fencing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("whose", ["an older epoch", "a later epoch", "another owner", "a session that is not there"])
async def test_a_write_under_a_lease_that_is_not_the_present_one_is_refused(
    world: World, slot: Slot, rival: Slot, write: str, whose: str
) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.handback()
    await rival.acquire("s")
    lease = {
        "an older epoch": rival.lease._replace(epoch=1),
        "a later epoch": rival.lease._replace(epoch=3),
        "another owner": rival.lease._replace(owner=slot.owner),
        "a session that is not there": rival.lease._replace(session_id="nobody's"),
    }[whose]
    before, counted = await world.everything("s"), await fenced(store, lease.session_id)
    with pytest.raises(Fenced):
        await numbered(store, lease, 100)[write]()
    assert await world.everything("s") == before
    assert await fenced(store, lease.session_id) == counted + 1


@pytest.mark.parametrize("write", WRITES)
async def test_a_worker_that_was_thought_dead_is_refused_from_the_sweep_on(
    world: World, slot: Slot, write: str
) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    await world.pass_ms(3)
    await sweep(store)
    before = await world.everything("s")
    with pytest.raises(Fenced):
        await numbered(store, slot.lease, 100)[write]()
    assert await world.everything("s") == before


async def test_a_worker_that_gave_its_session_back_is_refused(world: World, slot: Slot) -> None:
    await prompt(world.store, "s", "A")
    await slot.acquire("s")
    lease = slot.lease
    await slot.echo()
    before = await world.everything("s")
    with pytest.raises(Fenced):
        await world.store.commit(lease, 100, [])
    assert await world.everything("s") == before


# -- asking again -----------------------------------------------------------------------------------------------


async def test_an_acquire_that_is_asked_for_again_gives_the_same_session(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    first = await slot.acquire("s")
    before = await ledger(store, "s")
    again = await store.acquire(partition_of("s", store.partitions), slot.owner, slot.calls, LEASE_MS)
    assert again == first
    assert await ledger(store, "s") == before


async def test_an_acquire_that_found_nothing_may_be_asked_for_again(store: Store, slot: Slot) -> None:
    assert await slot.acquire("s") is None
    assert await store.acquire(partition_of("s", store.partitions), slot.owner, slot.calls, LEASE_MS) is None


async def test_an_acquire_asked_for_again_does_not_give_a_session_that_was_lost_since(
    world: World, slot: Slot, rival: Slot
) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    await world.pass_ms(3)
    await sweep(store)
    await rival.acquire("s")
    assert await store.acquire(partition_of("s", store.partitions), slot.owner, slot.calls, LEASE_MS) is None


@pytest.mark.parametrize("write", ["take", "commit"])
async def test_facts_that_are_sent_again_are_kept_once(store: Store, slot: Slot, write: str) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    drafts = [*slot.begin(), slot.says("well"), slot.end()]
    if write == "take":
        await slot.commit(*drafts)
        await steer(store, "s", "S")
        drafts = []
    lease, call = slot.lease, slot.next_call()
    first = await store.commit(lease, call, drafts, take=write == "take")
    before = await ledger(store, "s")
    assert await store.commit(lease, call, drafts, take=write == "take") == first
    assert await ledger(store, "s") == before


async def test_a_commit_asked_for_again_shows_the_session_as_it_is_now(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    lease, call, drafts = slot.lease, slot.next_call(), slot.begin()
    await store.commit(lease, call, drafts)
    await store.cancel("s", cause="user")
    assert (await store.commit(lease, call, drafts)).cancel == "user"


async def test_an_older_call_is_refused(world: World, slot: Slot) -> None:
    await prompt(world.store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    await slot.commit(slot.says("well"))
    before = await world.everything("s")
    for write in ("take", "commit", "settle"):
        with pytest.raises(Refused) as refused:
            await numbered(world.store, slot.lease, slot.calls - 1)[write]()
        assert refused.value.code == "stale-call"
    assert await world.everything("s") == before


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_a_settle_that_is_asked_for_again_answers_the_same(store: Store, slot: Slot, outcome: Outcome) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    drafts = [*slot.begin(), slot.says("well"), slot.end()]
    if outcome is Outcome.CONTINUE:
        await steer(store, "s", "S")
    elif outcome is not Outcome.IDLE:
        await prompt(store, "s", "B")
    then = Then.YIELD if outcome is Outcome.RELEASED else Then.TAKE
    arguments: tuple[Any, ...] = (slot.lease, slot.next_call(), drafts, ending("completed"))
    options: dict[str, Any] = {"then": then, "hand_out": True, "lease_ms": LEASE_MS}
    first = await store.settle(*arguments, **options)
    assert first.outcome is outcome
    assert (first.grant is None) == (outcome is Outcome.IDLE)
    before = await ledger(store, "s")
    assert await store.settle(*arguments, **options) == first
    assert await ledger(store, "s") == before


async def test_a_settle_without_a_step_that_is_asked_for_again_answers_the_same(store: Store, slot: Slot) -> None:
    """The turn goes on, though it has had no step yet: its whole batch was rejected while a steer came."""
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await steer(store, "s", "S")
    arguments: tuple[Any, ...] = (slot.lease, slot.next_call(), [slot.rejects("A")], ending("completed"))
    options: dict[str, Any] = {"then": Then.TAKE, "hand_out": False, "lease_ms": LEASE_MS}
    first = await store.settle(*arguments, **options)
    assert first.outcome is Outcome.CONTINUE
    assert await store.settle(*arguments, **options) == first


async def test_the_session_that_a_settle_hands_out_is_touched_before_anything_is_written(redis: RedisWorld) -> None:
    """So that on a Cluster whose slot is moving the act fails before its first write."""
    store, slot = redis.store, Slot(redis.store)
    here, there = [name for name in (f"s{n}" for n in range(20)) if partition_of(name, PARTITIONS) == 0][:2]
    for name in (here, there):
        await prompt(store, name, "A")
    await slot.acquire(here)
    with redis.server.client() as client, client.monitor() as monitor:
        await slot.echo(hand_out=True)
        assert slot.lease.session_id == there
        redis.look.echo("over")
        told = (entry["command"] for entry in monitor.listen())
        commands = list(takewhile(lambda command: command != "ECHO over", told))
    touched = next(n for n, command in enumerate(commands) if command.startswith(f"EXISTS {redis.key(there, 'state')}"))
    written = next(n for n, command in enumerate(commands) if command.split()[0] in {"XADD", "HSET", "ZADD", "ZREM"})
    assert touched < written


async def test_a_settle_asked_for_again_does_not_give_a_session_that_was_lost_since(
    world: World, slot: Slot, rival: Slot
) -> None:
    store = world.store
    near = [name for name in (f"s{n}" for n in range(20)) if partition_of(name, store.partitions) == 0][:2]
    for name in near:
        await prompt(store, name, "A")
        await world.pass_ms(2)
    await slot.acquire(near[0])
    arguments: tuple[Any, ...] = (slot.lease, slot.next_call(), [slot.rejects("A")], ending("blocked"))
    options: dict[str, Any] = {"then": Then.TAKE, "hand_out": True, "lease_ms": 1}
    first = await store.settle(*arguments, **options)
    assert first.grant is not None
    await world.pass_ms(3)
    await sweep(store)
    await rival.acquire(near[1])
    again = await store.settle(*arguments, **options)
    assert (again.outcome, again.grant) == (Outcome.IDLE, None)


async def test_a_handback_is_made_once(store: Store, slot: Slot, rival: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    lease, call = slot.lease, slot.next_call()
    await store.handback(lease, call)
    counted = await fenced(store, "s")
    await store.handback(lease, call)
    await rival.acquire("s")
    await store.handback(lease, call)
    assert await fenced(store, "s") == counted
    await rival.echo()


async def test_the_calls_of_two_slots_are_numbered_apart(store: Store, slot: Slot, rival: Slot) -> None:
    near = [name for name in (f"s{n}" for n in range(20)) if partition_of(name, store.partitions) == 0][:2]
    for name in near:
        await prompt(store, name, "A")
    first, second = await slot.acquire(near[0]), await rival.acquire(near[0])
    assert first is not None
    assert second is not None
    assert slot.calls == rival.calls
    assert {first.lease.session_id, second.lease.session_id} == set(near)


# -- renewing -----------------------------------------------------------------------------------------------------


async def test_a_lease_that_is_renewed_does_not_lapse(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    assert await store.renew([slot.lease], LEASE_MS) == [Renewal(True, None, 1)]
    await world.pass_ms(3)
    assert await sweep(store) == Swept()
    await slot.echo()


async def test_a_renewal_brings_word_of_a_cancel_and_of_the_turn_it_names(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await slot.echo()
    await store.cancel("s", cause="user")
    assert await store.renew([slot.lease], LEASE_MS) == [Renewal(True, "user", 2)]


async def test_a_lost_lease_is_not_renewed_and_the_others_are(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "t", "A")
    await slot.acquire("s")
    await rival.acquire("t")
    lost = rival.lease
    await rival.handback()
    ghost = Lease("nobody's", 1, slot.owner)
    renewals = await store.renew([lost, slot.lease, ghost, slot.lease._replace(owner="x/0")], LEASE_MS)
    assert [renewal.alive for renewal in renewals] == [False, True, False, False]


async def test_a_renewal_is_no_fact(store: Store, slot: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    before = await ledger(store, "s")
    await store.renew([slot.lease], LEASE_MS)
    assert await ledger(store, "s") == before


# -- handing back ---------------------------------------------------------------------------------------------------


async def test_a_session_that_is_handed_back_goes_on_where_it_was(store: Store, slot: Slot, rival: Slot) -> None:
    await prompt(store, "s", "A")
    await slot.acquire("s")
    await slot.commit(*slot.begin())
    before = await ledger(store, "s")
    await slot.handback()
    assert await ledger(store, "s") == before
    assert await store.wait_ready(1000) == partition_of("s", store.partitions)
    await rival.acquire("s")
    assert (rival.grant.phase, rival.grant.recovered, rival.grant.attempt) == (Phase.OPEN, "handback", 1)
    await rival.settle(rival.says("well"), rival.end())
    assert (await history(store, "s")).endswith("u[A] recovered(1, attempt 1, handback) a s1 t1(completed) I")


# -- sweeping -------------------------------------------------------------------------------------------------------


async def test_a_lapsed_lease_is_taken_away_and_the_bell_rings(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    while isinstance(world, RedisWorld) and await store.wait_ready(1) is not None:
        pass
    await world.pass_ms(3)
    before = await ledger(store, "s")
    assert await sweep(store) == Swept(lapsed=1)
    assert await ledger(store, "s") == before
    assert await store.wait_ready(1000) == partition_of("s", store.partitions)
    await rival.acquire("s")
    assert rival.grant.recovered == "crash"


async def test_a_healthy_partition_is_left_as_it_is(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "t", "A")
    await slot.acquire("s")
    before = await world.everything("s"), await world.everything("t")
    assert await sweep(store) == Swept()
    assert (await world.everything("s"), await world.everything("t")) == before


@pytest.mark.parametrize("open_turn", [False, True])
async def test_a_running_session_that_nobody_would_serve_is_found(
    world: World, slot: Slot, rival: Slot, open_turn: bool
) -> None:
    store = world.store
    await prompt(store, "s", "A")
    if open_turn:
        await slot.acquire("s")
        await slot.handback()
    assert await world.lose_ready("s")
    assert await rival.acquire("s") is None
    assert await sweep(store) == Swept(repaired=1)
    assert await rival.acquire("s") is not None
    assert await sweep(store) == Swept()


async def test_a_lease_that_no_list_knows_lapses_like_any_other(redis: RedisWorld) -> None:
    store, slot, rival = redis.store, Slot(redis.store), Slot(redis.store, "worker-2/0")
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=1)
    redis.look.zrem(redis.partition_key("s", "leases"), "s")
    await redis.pass_ms(3)
    assert await sweep(store) == Swept(repaired=1)
    await rival.acquire("s")
    assert rival.grant.recovered == "crash"


async def test_a_clock_that_went_back_lengthens_no_lease(world: World, slot: Slot, rival: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.acquire("s", lease_ms=5)
    await world.set_back("s", 3_600_000)
    assert await sweep(store) == Swept()
    await world.pass_ms(10)
    assert await sweep(store) == Swept(lapsed=1)
    assert await rival.acquire("s") is not None


async def test_a_clock_that_went_back_does_not_turn_the_ledgers_time_back(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await world.set_back("s", 3_600_000)
    before = await store.indexes("s")
    assert before is not None
    await slot.run("s")
    later = [event.time for event in await ledger(store, "s") if event.seq > before["seq"]]
    assert later
    assert set(later) == {before["time"]}


async def test_a_settled_message_is_remembered_for_its_window_and_no_longer(world: World, slot: Slot) -> None:
    store = world.store
    first = await prompt(store, "s", "A")
    await slot.run("s")
    await prompt(store, "s", "B")
    await world.pass_ms(3)
    assert await sweep(store, forget_after_ms=NEVER_MS) == Swept()
    assert (await prompt(store, "s", "A")).cursor == first.cursor
    assert await sweep(store, forget_after_ms=1) == Swept(forgotten=1)
    indexes = await store.indexes("s")
    assert indexes is not None
    assert list(indexes["messages"]) == ["B"]
    again = await prompt(store, "s", "A")
    assert not again.duplicate
    assert again.cursor > first.cursor


async def test_a_message_that_is_not_settled_is_never_forgotten(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await prompt(store, "s", "B")
    await slot.acquire("s")
    await world.pass_ms(3)
    assert await sweep(store, forget_after_ms=0) == Swept()
    assert (await prompt(store, "s", "A")).duplicate
    assert (await prompt(store, "s", "B")).duplicate


async def test_forgetting_changes_no_count(world: World, slot: Slot) -> None:
    store = world.store
    await prompt(store, "s", "A")
    await slot.run("s")
    await world.pass_ms(3)
    before = await store.level("s")
    await sweep(store, forget_after_ms=1)
    assert await store.level("s") == before


async def test_a_large_partition_is_swept_in_parts(redis: RedisWorld) -> None:
    store, many = redis.store, 450
    names = [name for name in (f"s{n}" for n in range(4 * many)) if partition_of(name, store.partitions) == 0][:many]
    for name in names:
        await prompt(store, name, "A")
    redis.look.delete(redis.partition_key(names[0], "ready"))
    assert (await store.sweep(0, forget_after_ms=NEVER_MS)).repaired == many
    assert (await store.load(0)).ready == many


async def sweep(store: Store, forget_after_ms: int = NEVER_MS) -> Swept:
    """Every partition once."""
    found = [await store.sweep(partition, forget_after_ms=forget_after_ms) for partition in range(store.partitions)]
    return Swept(*(sum(getattr(swept, name) for swept in found) for name in ("lapsed", "repaired", "forgotten")))


async def fenced(store: Store, session_id: str) -> int:
    return (await store.load(partition_of(session_id, store.partitions))).fenced

"""What somebody damaged costs its own session and no other: an act reads before it writes (functions.lua, rule 1)."""

from collections.abc import Awaitable, Callable

import pytest

from mailslot_core.errors import StoreFault
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import fold, indexes
from tests.conformance.dialogue import Slot, history, ledger, prompt, say, sweep
from tests.conformance.worlds import PARTITIONS, RedisWorld

pytestmark = pytest.mark.conformance

SOUND, BAD = (
    "s",
    next(f"bad-{n}" for n in range(100) if partition_of(f"bad-{n}", PARTITIONS) == partition_of("s", PARTITIONS)),
)
SOON_MS = 5


def ruin(world: RedisWorld, message_id: str, session_id: str = BAD) -> None:
    """The message's record is no record any more."""
    world.look.hset(world.key(session_id, "messages"), message_id, b"\xc1junk")


async def test_a_ruined_record_keeps_no_other_message_from_becoming_due(redis: RedisWorld) -> None:
    store, due = redis.store, redis.now_ms() + SOON_MS
    for session_id in (SOUND, BAD):
        await say(store, session_id, "A", not_before=due)
    ruin(redis, "A")
    await redis.pass_ms(2 * SOON_MS)
    assert (await sweep(store)).due == 1
    assert (await history(store, SOUND)).endswith("due[A] R")
    assert await store.indexes(SOUND) == indexes(fold(SOUND, await ledger(store, SOUND)))
    await prompt(store, SOUND, "B")
    await sweep(store)


@pytest.mark.parametrize("what", ["record", "state", "ledger"])
async def test_a_ruined_session_keeps_no_other_from_its_worker(redis: RedisWorld, slot: Slot, what: str) -> None:
    """It stands before the other in the ready queue, is set aside, and is counted."""
    store = redis.store
    worker = Slot(store)
    await prompt(store, BAD, "A")
    await redis.tick()
    await prompt(store, SOUND, "A")
    if what == "record":
        ruin(redis, "A")
    elif what == "state":
        redis.look.hset(redis.key(BAD, "state"), "claimed", b"\xc1")
    else:
        redis.look.delete(redis.key(BAD, "state"))
        redis.look.set(redis.key(BAD, "state"), "a string")
    await worker.acquire(SOUND)
    assert worker.grant.lease.session_id == SOUND
    await sweep(store)
    assert sum([(await store.load(number)).damaged for number in range(PARTITIONS)]) > 0


@pytest.mark.parametrize("act", ["clear", "close", "settle"])
async def test_an_act_that_meets_a_ruined_record_has_written_nothing(redis: RedisWorld, act: str) -> None:
    store = redis.store
    worker = Slot(store)
    await prompt(store, BAD, "A")
    await worker.acquire(BAD)
    drafts = (*worker.begin(), worker.says("hello"), worker.end())
    for name in ("B", "C"):
        await prompt(store, BAD, name)
    ruin(redis, "B")
    before = redis.look.xrange(redis.key(BAD, "ledger")), redis.look.hgetall(redis.key(BAD, "state"))
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "clear": lambda: store.cancel(BAD, cause="user", queue="clear"),
        "close": lambda: store.close_session(BAD),
        "settle": lambda: worker.settle(*drafts),
    }
    with pytest.raises(StoreFault):
        await acts[act]()
    assert (redis.look.xrange(redis.key(BAD, "ledger")), redis.look.hgetall(redis.key(BAD, "state"))) == before


async def test_a_damaged_session_that_is_to_be_erased_keeps_no_other_from_it(redis: RedisWorld) -> None:
    store = redis.store
    worker = Slot(store)
    for session_id in (BAD, SOUND):
        await prompt(store, session_id, "A")
        await worker.acquire(session_id)
        assert not (await store.close_session(session_id, erase=True)).closed
        await worker.settle(end={"kind": "aborted", "cause": "user"})
    redis.look.hset(redis.key(BAD, "state"), "claims", b"\xc1")
    assert (await sweep(store)).erased == 1
    assert await store.level(SOUND) is None

"""The queues of one partition, and what waits in them for longer than it should."""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis

from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import MessageState
from mailslot_core.store import DeadLetter, LetterId
from mailslot_services.doctor.finding import Finding, PartitionFacts, advice, reading, wrong
from mailslot_services.doctor.place import time_ms

WAIT_MS_MAX: Final = 60_000
"""What waits longer than this for a worker, or for the sweep of one, is worth a word."""
LETTERS: Final = 200
"""Dead letters that are read at a time."""
LETTERS_TOLD_MAX: Final = 20
"""Dead letters that get a line of their own."""


async def read_facts(client: Redis, store: RedisStore, partition: int, unserved: int, dead: int) -> PartitionFacts:
    """The sizes of a partition. `Unreadable` when its queues are."""
    with reading("queue"):
        load = await store.load(partition)
    names = {name: keys.partition_key(partition, name) for name in ("leases", "due", "erase")}
    now = time_ms(await client.time())
    return PartitionFacts(
        partition=partition,
        sessions=load.sessions,
        ready=load.ready,
        oldest_ready_ms=load.oldest_ready_ms,
        leased=load.leased,
        lapsed=int(await client.zcount(names["leases"], "-inf", now)),
        active=load.active,
        unserved=unserved,
        fenced_writes=load.fenced,
        waiting_for_time=int(await client.zcard(names["due"])),
        dead_letters=dead,
        to_erase=int(await client.zcard(names["erase"])),
    )


async def examine_queues(client: Redis, facts: PartitionFacts) -> list[Finding]:
    """What waits for too long. A sweep runs every second where a worker runs at all."""
    subject = f"partition {facts.partition}"
    found = []
    if facts.oldest_ready_ms > WAIT_MS_MAX:
        sentence = f"has a session that waits for a worker since {facts.oldest_ready_ms // 1000} s: is one running?"
        found.append(advice(subject, sentence))
    late = time_ms(await client.time()) - WAIT_MS_MAX
    for name, meaning in OVERDUE.items():
        count = int(await client.zcount(keys.partition_key(facts.partition, name), "-inf", late))
        if count:
            sentence = f"has {count} {meaning} and no sweep saw to it for {WAIT_MS_MAX // 1000} s: is a worker running?"
            found.append(advice(subject, sentence))
    damaged = await client.hget(keys.partition_key(facts.partition, "counts"), "damaged")
    if damaged:
        found.append(
            wrong(subject, f"has sessions that acts could not read, {int(damaged)} times: see the sessions above")
        )
    return found


OVERDUE: Final = {
    "leases": "leases that have ended",
    "due": "messages whose time has come",
    "erase": "sessions to erase",
}
"""Sets by time -> what their members are once that time is over."""


# -- dead letters ---------------------------------------------------------------------------------------------


async def read_dead(store: RedisStore) -> list[DeadLetter]:
    """Every dead letter that holds a message which is dead still."""
    found: list[DeadLetter] = []
    after = ""
    while True:
        with reading("dead letters"):
            page = await store.dead(after=after, limit=LETTERS)
        if not page:
            return found
        after = page[-1].letter_id
        found += [letter for letter in page if any(state is MessageState.DEAD for _, state in letter.messages)]


def partition_of(letter: DeadLetter) -> int:
    """Where the letter is kept."""
    return LetterId.read(letter.letter_id).partition


def dead_findings(letters: list[DeadLetter]) -> list[Finding]:
    """A line for each letter; for many, a line for the rest."""
    found = [advice(f"session {letter.session_id}", dead_sentence(letter)) for letter in letters[:LETTERS_TOLD_MAX]]
    if len(letters) > LETTERS_TOLD_MAX:
        found.append(
            advice("server", f"keeps {len(letters) - LETTERS_TOLD_MAX} more dead letters: GET /v1/dead lists them")
        )
    return found


def dead_sentence(letter: DeadLetter) -> str:
    """What died with which turn, and how to give it another life."""
    count = sum(state is MessageState.DEAD for _, state in letter.messages)
    return (
        f"turn {letter.turn} was given up after {letter.attempts} attempts ({letter.reason}) and {count} messages died "
        f"with it: POST /v1/dead/{letter.letter_id}/redrive queues them again, unless the session is closed or "
        "they are a goal's rounds (then resume the goal)"
    )

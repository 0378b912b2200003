"""The doctor finds what is damaged and names it, finds nothing on a sound store, and works while others write."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from mailslot_contracts.codec import encode, unpack
from mailslot_core.clock import ManualClock
from mailslot_core.goal import Change
from mailslot_core.inbox import Submission
from mailslot_core.redis import keys
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Lane
from mailslot_core.settings import StoreSettings
from mailslot_services import doctor
from mailslot_services.doctor import DoctorSettings, Report, Severity, diagnose
from mailslot_services.embedded import EmbeddedServer
from tests.echo_worker import CREATED, EchoWorker, prompt, submission
from tests.servers import Server, free_port, running
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PARTITIONS: Final = 4
RUN: Final = "import sys; from mailslot_services.doctor import command; sys.exit(command(sys.argv[1:]))"
HELD_OPEN: Final = "held-open"  # a session whose turn is left open
BUSY: Final = "busy"  # a session that was answered and has a message waiting


@pytest.fixture
async def store(clean_redis_url: str) -> AsyncIterator[RedisStore]:
    settings = StoreSettings(redis_url=clean_redis_url, durability="memory", partitions=PARTITIONS)
    async with RedisStore.connect(settings) as found:
        yield found


@pytest.fixture
async def filled(store: RedisStore) -> RedisStore:
    """Sessions in every state that this version knows: answered, waiting, running, pursuing a goal, cancelled."""
    worker = EchoWorker(store)
    for number in range(5):
        await prompt(store, f"s-{number}", f"m-{number}")
        await store.submit(f"s-{number}", submission(f"c-{number}", Lane.NEXT_STEP, wake=False), CREATED)
    await store.goal_change(
        "s-1", Change("create", goal_id="g", objective="keep the garden", budgets={"rounds": 3, "cost": 1.5}), CREATED
    )
    await worker.answer_all()
    await prompt(store, HELD_OPEN, "m-open")
    grant = await worker.acquire()
    assert grant is not None
    await store.cancel(HELD_OPEN, cause="user")
    await prompt(store, BUSY, "m-waiting")
    return store


async def diagnosis(url: str, **options: Any) -> Report:
    return await diagnose(DoctorSettings(redis_url=url, durability="memory", **options))


def wrongs(report: Report) -> list[str]:
    return [f"{f.subject}: {f.sentence}" for f in report.findings if f.severity is Severity.WRONG]


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def contents(look: redis.Redis) -> dict[bytes, object]:
    """Everything, byte for byte; but a hash has no order, and reading may change the one it happens to have."""
    names = list(look.scan_iter())
    return {name: look.hgetall(name) if look.type(name) == b"hash" else look.dump(name) for name in names}


def key(session_id: str, name: str) -> str:
    return keys.session_key(session_id, PARTITIONS, name)


def of_partition(session_id: str, name: str) -> str:
    return keys.partition_key(keys.partition_of(session_id, PARTITIONS), name)


def run(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAILSLOT_")} | extra
    ask = [sys.executable, "-c", RUN, *words]
    return subprocess.run(ask, check=False, capture_output=True, text=True, timeout=60, env=env)


# -- a sound store ------------------------------------------------------------------------------------------


async def test_nothing_is_wrong_with_a_sound_store(filled: RedisStore, clean_redis_url: str) -> None:
    report = await diagnosis(clean_redis_url)
    assert wrongs(report) == []
    assert report.healthy
    assert (report.sessions, report.conservation, report.differing) == (7, 0, 0)


async def test_every_session_is_examined_and_every_event_counted(filled: RedisStore, clean_redis_url: str) -> None:
    names = await filled.sessions(after="", limit=100)
    levels = [await filled.level(name) for name in names]
    report = await diagnosis(clean_redis_url)
    assert report.sessions == len(names)
    assert report.events == sum(level.cursor for level in levels if level)


async def test_examining_leaves_the_database_byte_for_byte_as_it_was(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as look:
        before = contents(look)
        await diagnosis(clean_redis_url)
        assert contents(look) == before


async def test_an_empty_database_stays_empty(clean_redis_url: str) -> None:
    report = await diagnosis(clean_redis_url)
    assert report.healthy
    assert report.sessions == 0
    with client(clean_redis_url) as look:
        assert look.dbsize() == 0


async def test_messages_that_the_sweep_has_forgotten_are_not_missed(filled: RedisStore, clean_redis_url: str) -> None:
    for partition in range(PARTITIONS):
        await filled.sweep(partition, forget_after_ms=0)
    kept = await filled.indexes("s-0")
    assert kept is not None
    assert kept["messages"] == {}
    assert wrongs(await diagnosis(clean_redis_url)) == []


async def test_a_ledger_longer_than_a_page_is_read_whole(
    store: RedisStore, clean_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.session, "PAGE_EVENTS", 7)
    monkeypatch.setattr(doctor.examination, "PAGE_SESSIONS", 2)
    for number in range(30):
        await prompt(store, f"s-{number % 5}", f"m-{number}")
    await EchoWorker(store).answer_all()
    report = await diagnosis(clean_redis_url)
    assert wrongs(report) == []
    assert report.sessions == 5


async def test_a_store_that_is_written_to_all_the_time_is_examined_rightly(
    store: RedisStore, clean_redis_url: str
) -> None:
    """Rule L2: `mailslot doctor` checks it on a live system."""
    ended = asyncio.Event()

    async def write(number: int) -> int:
        worker, count = EchoWorker(store, f"w-{number}"), 0
        while not ended.is_set():
            count += 1
            await prompt(store, f"s-{count % 3}", f"m-{number}-{count}")
            await worker.answer_one()
        return count

    writers = [asyncio.create_task(write(number)) for number in range(3)]
    try:
        reports = [await diagnosis(clean_redis_url) for _ in range(5)]
    finally:
        ended.set()
        counts = await asyncio.gather(*writers)
    assert [wrongs(report) for report in reports] == [[]] * 5
    assert min(counts) > 5
    assert reports[-1].events > reports[0].events


# -- planted damage -----------------------------------------------------------------------------------------


async def test_an_index_that_was_changed_by_hand_is_named(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hset(key("s-2", "state"), "turn", 9)
    report = await diagnosis(clean_redis_url)
    assert "session s-2: index turn is 9, the ledger gives 1" in wrongs(report)
    assert report.differing == 1


@pytest.mark.parametrize("seq", [1, 4, 9], ids=["the first", "one in the middle", "the last"])
async def test_a_deleted_event_is_named(filled: RedisStore, clean_redis_url: str, seq: int) -> None:
    level = await filled.level("s-0")
    assert level is not None
    place = level.cursor if seq == 9 else seq
    with client(clean_redis_url) as hand:
        assert hand.xdel(key("s-0", "ledger"), f"{place}-0") == 1
    (said,) = wrongs(await diagnosis(clean_redis_url))
    expected = {
        1: "session s-0: ledger has no event 1: it goes on at seq 2",
        4: "session s-0: ledger has no event 4: it goes on at seq 5",
        9: f"session s-0: ledger has no event {place}, the indexes stand at seq {place}",
    }
    assert said == expected[seq]


async def test_a_deleted_event_between_two_pages_is_named(
    filled: RedisStore, clean_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.session, "PAGE_EVENTS", 5)
    level = await filled.level("s-0")
    assert level is not None
    with client(clean_redis_url) as hand:
        hand.xdel(key("s-0", "ledger"), "6-0")
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said == f"session s-0: ledger has no event 6, the indexes stand at seq {level.cursor}"


async def test_a_counter_that_is_off_breaks_conservation(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hincrby(key("s-3", "state"), "queued", 2)
    report = await diagnosis(clean_redis_url)
    assert report.conservation == 2
    assert "session s-3: conservation is 2: queued messages were lost or counted twice" in wrongs(report)
    assert "session s-3: index queued is 4, the ledger gives 2" in wrongs(report)


async def test_a_lane_counter_that_is_off_is_named(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hincrby(key(BUSY, "state"), "followups", 1)
    found = wrongs(await diagnosis(clean_redis_url))
    assert f"session {BUSY}: 2 messages are counted as pending, the ledger gives 1" in found


async def test_a_message_lost_from_its_lane_is_named(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.zrem(key(BUSY, "turn"), "m-waiting")
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said.startswith(f"session {BUSY}: index lanes is")


async def test_a_record_of_a_waiting_message_that_is_gone_is_named(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hdel(key(BUSY, "messages"), "m-waiting")
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said == f"session {BUSY}: message m-waiting has no record, the ledger says it is queued"


async def test_a_changed_record_and_a_stray_record_are_named(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        record: Any = unpack(hand.hget(key("s-4", "messages"), "m-4"))
        record[7] = 6
        hand.hset(key("s-4", "messages"), "m-4", encode(record)[1:])
        hand.hset(key("s-4", "messages"), "stray", encode(record)[1:])
    found = wrongs(await diagnosis(clean_redis_url))
    assert "session s-4: message m-4: turn is 6, the ledger gives 1" in found
    assert "session s-4: message stray has a record, the ledger does not know it" in found


async def test_an_event_that_cannot_be_decoded_is_a_finding_not_a_traceback(
    filled: RedisStore, clean_redis_url: str
) -> None:
    level = await filled.level("s-1")
    assert level is not None
    fields: dict[Any, Any] = {"type": "inbox/claimed", "time": "1", "epoch": "0", "data": b"\xff\xff"}
    with client(clean_redis_url) as hand:
        hand.xadd(key("s-1", "ledger"), fields, id=f"{level.cursor + 1}-0")
        hand.hset(key("s-1", "state"), "seq", level.cursor + 1)
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said.startswith("session s-1: ledger has an event after seq 0 that cannot be read: unknown encoding version")


async def test_a_ledger_whose_events_make_no_sense_cannot_be_folded_and_is_named(
    filled: RedisStore, clean_redis_url: str
) -> None:
    level = await filled.level("s-0")
    assert level is not None
    seq = level.cursor + 1
    data = encode({"turn": 1, "messageIds": ["nobody"]})
    fields: dict[Any, Any] = {"type": "inbox/claimed", "time": "9999999999999", "epoch": "7", "data": data}
    with client(clean_redis_url) as hand:
        hand.xadd(key("s-0", "ledger"), fields, id=f"{seq}-0")
        hand.hset(key("s-0", "state"), "seq", seq)
    (said, *_) = wrongs(await diagnosis(clean_redis_url))
    assert said == "session s-0: ledger cannot be folded (KeyError: 'nobody')"


async def test_a_session_without_its_state_is_named(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.delete(key("s-0", "state"))
    assert "session s-0: is listed and has no state" in wrongs(await diagnosis(clean_redis_url))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("claimed", "garbage", "state cannot be read (ExtraData: unpack(b) received extra data.)"),
        ("goal", b"\xc1", "state cannot be read (FormatError)"),
        ("goal", b"\x05", "index goal is 5, the ledger gives None"),
        ("goal", b"\x81\xa5phase\xcb\x7f\xf0" + bytes(6), "index goal is {'phase': inf}, the ledger gives None"),
        ("seq", "abc", "state cannot be read (ValueError: invalid literal for int() with base 10: 'abc')"),
        ("status", "asleep", "state cannot be read (ValueError: 'asleep' is not a valid Status)"),
        ("phase", "x", "index phase is 'x', the ledger gives 'closed'"),
        ("agent", b"\xff", "state cannot be read (UnicodeDecodeError: "),
        ("claimed", b"\x05", "state cannot be read (TypeError: "),
        ("cost", "inf", "index usage is "),
    ],
)
async def test_a_damaged_field_of_a_state_is_a_finding(
    filled: RedisStore, clean_redis_url: str, name: str, value: Any, sentence: str
) -> None:
    with client(clean_redis_url) as hand:
        hand.hset(key("s-2", "state"), name, value)
    await held_to_rule_4(clean_redis_url, f"session s-2: {sentence}")


async def held_to_rule_4(url: str, expected: str, *, sessions: int = 7) -> None:
    """Damage is a finding that names its place, and everything else is examined as if it were not there."""
    with client(url) as hand:
        hand.hset(key("s-4", "state"), "turn", 9)
    report = await diagnosis(url)
    found = wrongs(report)
    assert any(said.startswith(expected) for said in found), found
    assert "session s-4: index turn is 9, the ledger gives 1" in found
    assert report.sessions == sessions
    assert "\n" not in "".join(found)


GARBAGE_EVENT: Final = {b"a": b"b"}
TIMELESS_EVENT: Final = {b"type": b"x", b"time": b"t", b"epoch": b"0", b"data": b"\x01\x80"}
NUMBER_EVENT: Final = {b"type": b"inbox/queued", b"time": b"1", b"epoch": b"0", b"data": b"\x01\x05"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (GARBAGE_EVENT, "ledger has an event after seq 0 that cannot be read: KeyError: b'data'"),
        (TIMELESS_EVENT, "ledger has an event after seq 0 that cannot be read: ValueError: invalid literal for int()"),
        (NUMBER_EVENT, "ledger cannot be folded ("),
    ],
)
async def test_events_that_are_no_events_are_a_finding(
    filled: RedisStore, clean_redis_url: str, fields: dict[Any, Any], sentence: str
) -> None:
    level = await filled.level("s-2")
    assert level is not None
    with client(clean_redis_url) as hand:
        hand.delete(key("s-2", "ledger"))
        for seq in range(1, level.cursor + 1):
            hand.xadd(key("s-2", "ledger"), fields, id=f"{seq}-0")
    await held_to_rule_4(clean_redis_url, f"session s-2: {sentence}")


@pytest.mark.parametrize(
    "record", [b"\xc1", b"\x91\x01", b"\x9b\xa1Z\xa1t\x01\x02\x02\x02\x00\x00\x00\xa0\xa0", b"\x05"]
)
async def test_a_damaged_record_of_a_message_is_a_finding(
    filled: RedisStore, clean_redis_url: str, record: bytes
) -> None:
    with client(clean_redis_url) as hand:
        hand.hset(key("s-2", "messages"), "m-2", record)
    await held_to_rule_4(clean_redis_url, "session s-2: lanes or messages cannot be read (")


async def test_a_lane_with_a_name_that_is_no_text_is_a_finding(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.zadd(key("s-2", "turn"), {b"\xff": 1})
    await held_to_rule_4(clean_redis_url, "session s-2: lanes or messages cannot be read (UnicodeDecodeError: ")


@pytest.mark.parametrize("name", keys.SESSION_KEYS)
async def test_a_key_of_a_session_that_is_of_another_type_is_a_finding(
    filled: RedisStore, clean_redis_url: str, name: str
) -> None:
    with client(clean_redis_url) as hand:
        hand.set(of := key("s-2", name), "x")
        used_as = {"state": "hash", "ledger": "stream", "messages": "hash"}.get(name, "zset")
        await held_to_rule_4(clean_redis_url, f"session s-2: {of} is a string, not a {used_as}")


@pytest.mark.parametrize("name", keys.PARTITION_KEYS)
async def test_a_key_of_a_partition_that_is_of_another_type_is_a_finding(
    filled: RedisStore, clean_redis_url: str, name: str
) -> None:
    partition = keys.partition_of("s-2", PARTITIONS)
    assert partition != keys.partition_of("s-4", PARTITIONS)
    names = await filled.sessions(after="", limit=100)
    lost = sum(keys.partition_of(other, PARTITIONS) == partition for other in names) if name == "sessions" else 0
    with client(clean_redis_url) as hand:
        hand.set(of := of_partition("s-2", name), "x")
    await held_to_rule_4(clean_redis_url, f"partition {partition}: {of} is a string, not a ", sessions=7 - lost)


@pytest.mark.parametrize(
    ("name", "planted"),
    [("counts", {"fenced": "abc"}), ("ready", {"a": float("-inf")})],
)
async def test_a_queue_that_cannot_be_read_is_a_finding(
    filled: RedisStore, clean_redis_url: str, name: str, planted: dict[str, Any]
) -> None:
    partition = keys.partition_of("s-2", PARTITIONS)
    with client(clean_redis_url) as hand:
        plant: Any = hand.zadd if name == "ready" else lambda of, mapping: hand.hset(of, mapping=mapping)
        plant(of_partition("s-2", name), planted)
    await held_to_rule_4(clean_redis_url, f"partition {partition}: queue cannot be read (")


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b""])
async def test_a_listed_session_that_can_be_none_is_a_finding(
    filled: RedisStore, clean_redis_url: str, name: bytes
) -> None:
    with client(clean_redis_url) as hand:
        hand.zadd(of_partition("s-2", "sessions"), {name: 0})
    partition = keys.partition_of("s-2", PARTITIONS)
    await held_to_rule_4(clean_redis_url, f"partition {partition}: lists {name!r}, which is no session's name (")


async def test_a_ledger_that_is_gone_is_named(filled: RedisStore, clean_redis_url: str) -> None:
    level = await filled.level("s-2")
    assert level is not None
    with client(clean_redis_url) as hand:
        hand.delete(key("s-2", "ledger"))
    assert wrongs(await diagnosis(clean_redis_url)) == [
        f"session s-2: ledger is empty, the indexes stand at seq {level.cursor}"
    ]


async def test_a_damaged_session_that_is_asked_for_alone_is_a_finding(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hset(key("s-2", "state"), "seq", "abc")
    ended = run("--redis-url", clean_redis_url, "--session", "s-2")
    assert ended.returncode == 1
    assert "\nwrong   session s-2: state cannot be read (" in ended.stdout
    assert ended.stderr == ""


# -- a configuration that is lost ---------------------------------------------------------------------------


async def test_sessions_without_the_number_of_partitions_are_a_finding(
    filled: RedisStore, clean_redis_url: str
) -> None:
    with client(clean_redis_url) as hand:
        hand.delete(keys.CONFIG)
    report = await diagnosis(clean_redis_url)
    (said,) = wrongs(report)
    assert said.startswith("server: keeps mailslot:{p")
    assert said.endswith(
        "and no number of partitions in mailslot:config: start a service with the --partitions that it had"
    )
    assert report.sessions == 0
    ended = run("--redis-url", clean_redis_url)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "no session was examined · 1 wrong"


async def test_with_the_number_of_partitions_sessions_are_examined_without_a_configuration(
    filled: RedisStore, clean_redis_url: str
) -> None:
    with client(clean_redis_url) as hand:
        hand.delete(keys.CONFIG)
    report = await diagnosis(clean_redis_url, partitions=PARTITIONS)
    assert len(wrongs(report)) == 1
    assert report.sessions == 7


async def test_letters_that_wait_for_the_first_service_need_no_configuration(clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.xadd("mailslot:intake", {"data": "{}"})
    assert wrongs(await diagnosis(clean_redis_url)) == []


async def test_letters_that_a_service_reads_need_a_configuration(clean_redis_url: str) -> None:
    """All that is left of an idle system whose database was emptied beneath it."""
    with client(clean_redis_url) as hand:
        hand.xgroup_create("mailslot:intake", "ingest", mkstream=True)
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said.startswith("server: keeps mailslot:intake and no number of partitions in mailslot:config: ")


@pytest.mark.parametrize("number", ["abc", "0", "-1", "1025", "9" * 5000, "", b"\xff"], ids=str)
async def test_a_number_of_partitions_that_can_be_none_is_a_finding(
    filled: RedisStore, clean_redis_url: str, number: Any
) -> None:
    with client(clean_redis_url) as hand:
        hand.hset(keys.CONFIG, "partitions", number)
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said.startswith("server: mailslot:config gives ")
    assert said.endswith(" partitions, not a number from 1 to 1024")


async def test_a_configuration_of_another_type_is_a_finding(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.set(keys.CONFIG, "x")
    assert wrongs(await diagnosis(clean_redis_url)) == ["server: mailslot:config is a string, not a hash"]


# -- places in the queues -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_id", "place", "sentence"),
    [
        (BUSY, "ready", "is running, and neither leased nor ready: nobody serves it (R1)"),
        (BUSY, "active", "is running and not in the active set, so no sweep looks at it (R1)"),
        (HELD_OPEN, "leases", "has an owner and no lease, so it would never be taken from it (R1)"),
        ("s-1", "goals", "has an active goal, and reconciling does not look at it (G8)"),
    ],
)
async def test_a_session_that_fell_out_of_a_queue_is_named(
    filled: RedisStore, clean_redis_url: str, session_id: str, place: str, sentence: str
) -> None:
    with client(clean_redis_url) as hand:
        remove = hand.srem if place == "goals" else hand.zrem
        assert remove(of_partition(session_id, place), session_id) == 1
    assert f"session {session_id}: {sentence}" in wrongs(await diagnosis(clean_redis_url))


async def test_an_unserved_session_and_a_lapsed_lease_are_counted_by_partition(
    filled: RedisStore, clean_redis_url: str
) -> None:
    with client(clean_redis_url) as hand:
        hand.zrem(of_partition(BUSY, "ready"), BUSY)
        hand.zadd(of_partition(HELD_OPEN, "leases"), {HELD_OPEN: 1})
    report = await diagnosis(clean_redis_url)
    facts = {place.partition: place for place in report.partitions}
    assert sum(place.unserved for place in report.partitions) == 1
    assert facts[keys.partition_of(BUSY, PARTITIONS)].unserved == 1
    assert facts[keys.partition_of(HELD_OPEN, PARTITIONS)].lapsed == 1


async def test_one_session_alone_can_be_examined(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hset(key("s-2", "state"), "turn", 9)
    assert wrongs(await diagnosis(clean_redis_url, session="s-3")) == []
    assert len(wrongs(await diagnosis(clean_redis_url, session="s-2"))) == 1
    assert wrongs(await diagnosis(clean_redis_url, session="nobody")) == ["session nobody: does not exist"]


# -- configuration ------------------------------------------------------------------------------------------


def sentences(report: Report, severity: Severity) -> str:
    return " | ".join(f.sentence for f in report.findings if f.subject == "server" and f.severity is severity)


async def test_a_server_that_may_evict_is_wrong(redis70: Server) -> None:
    with running("redis70", options=["--maxmemory-policy", "allkeys-lru"]) as server:
        report = await diagnosis(server.url)
    assert "may evict keys (maxmemory-policy allkeys-lru)" in sentences(report, Severity.WRONG)


async def test_a_durability_that_was_asked_for_and_cannot_be_given_is_wrong(clean_redis_url: str) -> None:
    asked = await diagnose(DoctorSettings(redis_url=clean_redis_url, durability="fsync"))
    assert "durability fsync needs an append-only file" in sentences(asked, Severity.WRONG)
    unasked = await diagnose(DoctorSettings(redis_url=clean_redis_url))
    assert unasked.healthy
    assert "durability fsync needs an append-only file" in sentences(unasked, Severity.ADVICE)


async def test_partitions_come_from_the_database_and_a_wrong_number_is_named(
    filled: RedisStore, clean_redis_url: str
) -> None:
    unasked = await diagnosis(clean_redis_url)
    assert unasked.healthy
    assert unasked.server["partitions"] == PARTITIONS
    asked = await diagnosis(clean_redis_url, partitions=8)
    assert "has 4 partitions, not 8: set --partitions 4" in sentences(asked, Severity.WRONG)
    assert asked.sessions == 7


async def test_settings_that_would_serve_better_are_advice(redis70: Server) -> None:
    with running("redis70", options=["--stream-node-max-bytes", "4096", "--maxmemory", "1gb"]) as server:
        told = sentences(await diagnosis(server.url), Severity.ADVICE)
    assert "set stream-node-max-bytes 1024" in told
    assert "no append-only file" in told
    assert "memory limit" not in told


async def test_functions_of_another_version_are_advice(filled: RedisStore, clean_redis_url: str) -> None:
    other = "#!lua name=mailslot_v1\nredis.register_function('create_v1', function() return 1 end)"
    with client(clean_redis_url) as hand:
        hand.function_load(other, replace=True)
    assert "functions of another version" in sentences(await diagnosis(clean_redis_url), Severity.ADVICE)


# -- the command --------------------------------------------------------------------------------------------


async def test_the_last_line_is_the_summary_and_a_sound_store_exits_0(filled: RedisStore, clean_redis_url: str) -> None:
    ended = run("--redis-url", clean_redis_url)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = await diagnosis(clean_redis_url)
    assert ended.stdout.splitlines()[-1] == f"conservation 0 · 7 sessions · {report.events} events · fold matches"
    assert ended.stderr == ""


async def test_something_wrong_is_one_line_and_exits_1(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hset(key("s-2", "state"), "turn", 9)
    ended = run("--redis-url", clean_redis_url, "--session", "s-2")
    assert ended.returncode == 1
    assert "wrong   session s-2: index turn is 9, the ledger gives 1" in ended.stdout.splitlines()
    assert ended.stdout.splitlines()[-1].endswith("fold differs in 1 · 1 wrong")


async def test_a_program_gets_one_json_document(filled: RedisStore, clean_redis_url: str) -> None:
    told = json.loads(run("--json", "--redis-url", clean_redis_url).stdout)
    assert (told["healthy"], told["conservation"], told["sessions"], told["foldDiffers"]) == (True, 0, 7, 0)
    assert len(told["partitions"]) == PARTITIONS
    assert sum(facts["leased"] for facts in told["partitions"]) == 1


async def test_the_environment_may_ask_for_json_and_a_flag_may_not_want_it(clean_redis_url: str) -> None:
    told = json.loads(run("--redis-url", clean_redis_url, MAILSLOT_JSON="true").stdout)
    assert told["sessions"] == 0
    ended = run("--no-json", "--redis-url", clean_redis_url, MAILSLOT_JSON="true")
    assert ended.stdout.endswith("no session was examined\n")
    refused = run("--redis-url", clean_redis_url, MAILSLOT_JSON="maybe")
    assert refused.returncode == 2
    assert refused.stderr.startswith("mailslot doctor: MAILSLOT_JSON: ")


def test_a_store_that_is_not_there_exits_3_with_one_sentence() -> None:
    ended = run("--redis-url", f"redis://127.0.0.1:{free_port()}/0")
    assert ended.returncode == 3
    assert ended.stderr.startswith("mailslot doctor: the store cannot be examined: ")
    assert len(ended.stderr.splitlines()) == 1


def test_a_wrong_option_exits_2() -> None:
    assert run("--sessions").returncode == 2
    assert run("--session", "a\nb").returncode == 2


def test_the_help_names_every_option() -> None:
    told = run("--help").stdout
    assert "--json" in told
    assert "--session" in told
    assert "--redis-url" in told
    assert "MAILSLOT_JSON," in told


# -- what is left of sessions that are gone -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["ready", "active", "leases", "goals", "erase", "forget", "due"])
async def test_an_index_that_names_a_session_which_is_gone_is_a_finding(
    filled: RedisStore, clean_redis_url: str, name: str
) -> None:
    member = {"forget": b"gone\0m", "due": b"0000000000000007\0gone\0m"}.get(name, b"gone")
    with client(clean_redis_url) as hand:
        where = keys.partition_key(1, name)
        added = hand.sadd(where, member) if name == "goals" else hand.zadd(where, {member: 9e15})
        assert added == 1
    (said,) = [said for said in wrongs(await diagnosis(clean_redis_url)) if "gone" in said]
    assert said.startswith("partition 1: has 1 entries in its ")
    assert "that name sessions which are gone (gone): " in said


async def test_many_entries_are_one_finding_that_names_a_few(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.zadd(keys.partition_key(2, "active"), {f"gone-{number:04}\n": number for number in range(3_000)})
    (said,) = [said for said in wrongs(await diagnosis(clean_redis_url)) if "gone" in said]
    assert said.startswith("partition 2: has 3000 entries in its active set that name sessions which are gone (")
    assert len(said) < 200


async def test_keys_of_a_session_without_state_are_a_finding(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.rpush("mailslot:not-ours", "x")
        hand.zadd(keys.session_key("a:b:c", PARTITIONS, "turn"), {"m": 1})
        hand.hset(keys.session_key("a:b:c", PARTITIONS, "messages"), "m", "x")
    assert wrongs(await diagnosis(clean_redis_url)) == [
        "session a:b:c: has turn, messages and no state, and is not listed: remove its keys by hand"
    ]


async def test_a_session_that_is_not_listed_is_a_finding(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        assert hand.zrem(of_partition("s-0", "sessions"), "s-0") == 1
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said.startswith("session s-0: has a state and is not listed in its partition, so nobody finds it")


async def test_sessions_that_are_erased_while_it_looks_are_no_finding(store: RedisStore, clean_redis_url: str) -> None:
    """What was listed a moment ago and is gone by now was erased, and that is right."""
    ended = asyncio.Event()

    async def come_and_go(number: int) -> int:
        count = 0
        while not ended.is_set():
            count += 1
            name = f"s-{number}-{count % 7}"
            await prompt(store, name, f"m-{count}")
            await store.close_session(name, erase=True)
            await store.sweep(keys.partition_of(name, PARTITIONS), forget_after_ms=60_000)
        return count

    goers = [asyncio.create_task(come_and_go(number)) for number in range(3)]
    try:
        reports = [await diagnosis(clean_redis_url) for _ in range(10)]
    finally:
        ended.set()
        counts = await asyncio.gather(*goers)
    assert [wrongs(report) for report in reports] == [[]] * 10
    assert min(counts) > 10


# -- leases, alarms, dead letters ---------------------------------------------------------------------------


async def test_a_lease_that_ends_too_late_is_a_finding(filled: RedisStore, clean_redis_url: str) -> None:
    """R1: a clock that went back leaves leases that nobody can take away for hours."""
    with client(clean_redis_url) as hand:
        hand.zincrby(of_partition(HELD_OPEN, "leases"), 3_600_000, HELD_OPEN)
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said.startswith(f"session {HELD_OPEN}: has a lease that ends later than it may")


def delayed(message_id: str, **times: int) -> Submission:
    plain = submission(message_id)
    return replace(plain, data={**plain.data, **times})


async def store_ms(url: str) -> int:
    with client(url) as look:
        seconds, micros = look.time()
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize(
    "times", [{"notBefore": 60_000}, {"expiresAt": 60_000}, {"notBefore": 1_000, "expiresAt": 2_000}]
)
async def test_a_delayed_message_without_its_alarm_is_a_finding(
    store: RedisStore, clean_redis_url: str, times: dict[str, int]
) -> None:
    now = await store_ms(clean_redis_url)
    await store.submit("s", delayed("m", **{name: now + 3_600_000 + time for name, time in times.items()}), CREATED)
    assert wrongs(await diagnosis(clean_redis_url)) == []
    at = now + 3_600_000 + min(times.values())
    with client(clean_redis_url) as hand:
        hand.zincrby(due := of_partition("s", "due"), 7, hand.zrange(due, 0, 0)[0])
        assert wrongs(await diagnosis(clean_redis_url)) == [
            f"session s: message m has its alarm at {at + 7}, it must be at {at}"
        ]
        hand.delete(due)
    assert wrongs(await diagnosis(clean_redis_url)) == [
        f"session s: message m has its alarm at no time, it must be at {at}"
    ]


async def test_a_delayed_message_lost_from_where_it_waits_is_named(store: RedisStore, clean_redis_url: str) -> None:
    await store.submit("s", delayed("m", notBefore=await store_ms(clean_redis_url) + 3_600_000), CREATED)
    with client(clean_redis_url) as hand:
        assert hand.delete(key("s", "later")) == 1
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said == "session s: index later is [], the ledger gives ['m']"


async def test_a_count_of_waiting_bytes_that_is_off_is_named(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.hincrby(key(BUSY, "state"), "waitingBytes", 5)
    (said,) = wrongs(await diagnosis(clean_redis_url))
    assert said.startswith(f"session {BUSY}: index waitingBytes is ")


async def test_a_dead_letter_that_waits_is_told_until_it_is_redriven(clean_redis_url: str) -> None:
    settings = StoreSettings(redis_url=clean_redis_url, durability="memory", partitions=PARTITIONS, crashes_max=1)
    async with RedisStore.connect(settings) as store:
        await prompt(store, "s", "m")
        partition = keys.partition_of("s", PARTITIONS)
        assert await store.acquire(partition, "w/0", 1, 1) is not None

        async def lapsed() -> bool:
            return (await store.sweep(partition, forget_after_ms=60_000)).lapsed == 1

        await wait_until(lapsed, 5, "the lease to end")
        await store.acquire(partition, "w/0", 2, 1_000)
        report = await diagnosis(clean_redis_url)
        (letter,) = await store.dead(after="", limit=10)
        assert report.dead_letters == 1
        assert [facts.dead_letters for facts in report.partitions].count(1) == 1
        (said,) = [finding for finding in report.findings if finding.subject == "session s"]
        assert said.severity is Severity.ADVICE
        assert said.sentence.startswith("turn 1 was given up after ")
        assert f"POST /v1/dead/{letter.letter_id}/redrive queues them again" in said.sentence
        assert report.healthy

        await store.redrive(letter.letter_id)
        assert (await diagnosis(clean_redis_url)).dead_letters == 0


async def test_letters_that_could_not_become_messages_are_told(filled: RedisStore, clean_redis_url: str) -> None:
    with client(clean_redis_url) as hand:
        hand.xadd("mailslot:intake:dead", {"reason": "no text"})
    assert advised(await diagnosis(clean_redis_url), "1 letters that could not become messages in mailslot:intake:dead")


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("leases", "leases that have ended"), ("due", "messages whose time has come"), ("erase", "sessions to erase")],
)
async def test_what_no_sweep_sees_to_is_told(filled: RedisStore, clean_redis_url: str, name: str, meaning: str) -> None:
    member: Any = b"0000000000000007\0s-0\0m" if name == "due" else "s-0"
    with client(clean_redis_url) as hand:
        hand.zadd(of_partition("s-0", name), {member: await store_ms(clean_redis_url) - 120_000})
    assert advised(await diagnosis(clean_redis_url), f"has 1 {meaning} and no sweep saw to it for 60 s")


def advised(report: Report, words: str) -> bool:
    return any(words in finding.sentence for finding in report.findings if finding.severity is Severity.ADVICE)


# -- the server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift_ms", "words"), [(3_600_000, "behind"), (-5_000, "ahead of"), (0, ""), (400, "")])
async def test_a_clock_that_differs_is_told(clean_redis_url: str, shift_ms: int, words: str) -> None:
    here = ManualClock(await store_ms(clean_redis_url) + shift_ms)
    report = await diagnose(DoctorSettings(redis_url=clean_redis_url, durability="memory"), clock=here)
    assert advised(report, f"s {words} this machine's") is bool(words)
    assert abs(report.server["clockSkewMs"] + shift_ms) < 1_000
    assert report.healthy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drain_ms": 30_000, "grace_ms": 30_000}, "may drain for 30000 ms and are killed after 30000 ms"),
        ({"drain_ms": 30_000, "grace_ms": 40_000}, ""),
        ({"drain_ms": 30_000}, ""),
        ({"lease_ms": 5_000}, "lose a lease after 5000 ms while one store call may take 5000 ms"),
        ({"lease_ms": 5_000, "call_timeout_ms": 1_000}, ""),
    ],
)
async def test_times_of_workers_that_do_not_fit_are_told(
    clean_redis_url: str, options: dict[str, int], words: str
) -> None:
    found = [f.sentence for f in (await diagnosis(clean_redis_url, **options)).findings if f.subject == "workers"]
    assert len(found) == bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize(
    ("setting", "words"),
    [("appendfsync", "syncs its append-only file whenever"), ("no-appendfsync-on-rewrite", "does not sync while")],
)
def test_a_file_that_is_not_synced_is_wrong_where_receipts_promise_it(setting: str, words: str) -> None:
    with running("valkey91", aof="always") as server, server.client() as hand:
        hand.config_set(setting, "no" if setting == "appendfsync" else "yes")
        promised = run("--redis-url", server.url, "--durability", "fsync")
        assert promised.returncode == 1
        assert f"wrong   server: {words}" in promised.stdout
        unpromised = run("--redis-url", server.url, "--durability", "memory")
        assert unpromised.returncode == 0
        assert f"advice  server: {words}" in unpromised.stdout


async def test_memory_that_is_held_and_not_used_is_told(clean_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty server holds several times what it uses; that is told of one where it matters, by the size."""
    words = "times the memory that it uses"
    assert not advised(await diagnosis(clean_redis_url), words)
    monkeypatch.setattr(doctor.server, "FRAGMENTED_BYTES_MAX", 1)
    monkeypatch.setattr(doctor.server, "FRAGMENTATION_MAX", 0.1)
    assert advised(await diagnosis(clean_redis_url), words)


async def test_what_a_session_costs_and_how_many_more_there_is_room_for_is_told() -> None:
    with running("redis70", options=["--maxmemory", "100mb"]) as server:
        settings = StoreSettings(redis_url=server.url, durability="memory", partitions=PARTITIONS)
        async with RedisStore.connect(settings) as store:
            for number in range(300):
                await prompt(store, f"s-{number}", "m")
        told = run("--redis-url", server.url, "--durability", "memory").stdout
        found = re.search(r"about ([\d.]+) KiB a session · room for (\d+) more", told)
        assert found, told
        assert 1 < float(found[1]) < 20
        assert 4_000 < int(found[2]) < 100_000


async def test_the_store_of_a_running_up_is_found(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / ".mailslot") as store:
        told = run("--state-dir", str(tmp_path / ".mailslot"), "--json", "--durability", "memory")
        assert told.returncode == 0, told.stderr
        async with RedisStore.connect(StoreSettings(redis_url=store.url, durability="memory")) as connected:
            await prompt(connected, "s", "m")
        told = run("--state-dir", str(tmp_path / ".mailslot"), "--json", "--durability", "memory")
    assert json.loads(told.stdout)["sessions"] == 1

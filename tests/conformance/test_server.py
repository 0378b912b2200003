"""What the server must be and give: a store starts on one that can, and says what to set on one that cannot (M2).

And what a server says when it will not: a sender hears that nothing was kept, while whoever must be able to go on
(leases, ends of turns, cancels, sweeps) goes on.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from mailslot_core.errors import Misconfigured, OutcomeUnknown, Refused, StoreUnavailable
from mailslot_core.goal import Change
from mailslot_core.redis.keys import partition_of
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Status
from tests.conformance.dialogue import BIRTH, LEASE_MS, Slot, history, inject, prompt, set_goal, steer
from tests.conformance.worlds import PARTITIONS, RedisWorld, loop_turns, redis_world, settings
from tests.servers import Server, free_port, running
from tests.waiting import wait_until

pytestmark = pytest.mark.conformance

SOON_S = 10.0
AT_ONCE = ["--repl-diskless-sync-delay", "0"]  # a primary waits 5 s for more replicas before it serves the first


@pytest.fixture
def own_server(server: Server) -> Iterator[Server]:
    """A server whose settings a test may change."""
    with running(server.kind) as found:
        yield found


def configure(server: Server, **options: str | int) -> None:
    with server.client() as client:
        for name, value in options.items():
            client.config_set(name.replace("_", "-"), value)


async def starts(server: Server, **options: Any) -> None:
    async with RedisStore.connect(settings(server, **options)) as store:
        assert store.durability == options.get("durability", "memory")
        assert not (await prompt(store, "s", "A")).duplicate


async def refuses(server: Server, **options: Any) -> str:
    with pytest.raises(Misconfigured) as refused:
        async with RedisStore.connect(settings(server, **options)):
            pass
    return str(refused.value)


# -- starting -------------------------------------------------------------------------------------------------


async def test_memory_needs_nothing(clean_server: Server) -> None:
    await starts(clean_server)


async def test_fsync_is_refused_without_an_append_only_file(clean_server: Server) -> None:
    said = await refuses(clean_server, durability="fsync")
    assert "appendonly yes" in said
    assert "--durability memory" in said


async def test_fsync_is_given_by_a_server_that_syncs_always(server: Server) -> None:
    with running(server.kind, aof="always") as own:
        await starts(own, durability="fsync")


async def test_fsync_is_given_by_a_server_that_can_be_asked_to_wait_for_it() -> None:
    with running("valkey91", aof="everysec") as own:
        await starts(own, durability="fsync")


async def test_fsync_is_refused_by_an_old_server_that_syncs_every_second() -> None:
    with running("redis70", aof="everysec") as own:
        assert "appendfsync always" in await refuses(own, durability="fsync")


async def test_replicated_is_refused_without_replicas(clean_server: Server) -> None:
    said = await refuses(clean_server, durability="replicated", replicas=2)
    assert "2 connected replicas" in said
    assert "has 0" in said


async def test_replicated_is_given_by_a_server_with_replicas(server: Server) -> None:
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(running(server.kind, options=AT_ONCE)) for _ in range(2))
        await follow(replica, primary)
        await starts(primary, durability="replicated")


async def test_another_number_of_partitions_is_refused(clean_server: Server) -> None:
    await starts(clean_server)
    said = await refuses(clean_server, partitions=PARTITIONS + 1)
    assert f"--partitions {PARTITIONS}" in said


async def test_a_server_that_may_evict_is_refused(own_server: Server) -> None:
    configure(own_server, maxmemory_policy="allkeys-lru")
    said = await refuses(own_server)
    assert "allkeys-lru" in said
    assert "noeviction" in said


async def test_a_url_that_is_none_is_refused(clean_server: Server) -> None:
    assert "redis://" in await refuses(clean_server, redis_url="http://127.0.0.1")


async def test_a_server_that_is_not_there_is_said_to_be_unavailable(clean_server: Server) -> None:
    url = f"redis://somebody:secret@127.0.0.1:{free_port()}/0"
    with pytest.raises(StoreUnavailable) as unavailable:
        async with RedisStore.connect(settings(clean_server, redis_url=url, call_timeout_ms=300)):
            pass
    assert "secret" not in str(unavailable.value)


async def test_a_read_only_server_is_said_to_be_unavailable(own_server: Server) -> None:
    read_only(own_server)
    with pytest.raises(StoreUnavailable, match="READONLY"):
        async with RedisStore.connect(settings(own_server)):
            pass


# -- the level is checked for each receipt ----------------------------------------------------------------------


async def test_a_receipt_whose_level_was_not_reached_is_unknown_and_asking_again_checks_again(server: Server) -> None:
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(running(server.kind, options=AT_ONCE)) for _ in range(2))
        await follow(replica, primary)
        options: dict[str, Any] = {"durability": "replicated", "durability_timeout_ms": 100}
        async with RedisStore.connect(settings(primary, **options)) as store:
            await store.create("s", BIRTH)
            replica.freeze()
            try:
                for _ in range(2):
                    with pytest.raises(OutcomeUnknown) as unknown:
                        await prompt(store, "s", "A")
                    assert unknown.value.message_id == "A"
                level = await store.level("s")
                assert level is not None
                assert level.pending == 1
            finally:
                replica.thaw()

            async def confirmed() -> bool:
                try:
                    return (await prompt(store, "s", "A")).duplicate
                except OutcomeUnknown:
                    return False

            await wait_until(confirmed, SOON_S, "the replica to have the message")


async def test_a_level_that_the_server_stops_giving_leaves_receipts_unknown() -> None:
    with running("valkey91", aof="everysec") as own:
        async with RedisStore.connect(settings(own, durability="fsync")) as store:
            await prompt(store, "s", "A")
            configure(own, appendonly="no")
            with pytest.raises(OutcomeUnknown):
                await prompt(store, "s", "B")
            configure(own, appendonly="yes")

            async def confirmed() -> bool:
                try:
                    return (await prompt(store, "s", "B")).duplicate
                except OutcomeUnknown:
                    return False

            await wait_until(confirmed, SOON_S, "the append-only file to be written again")


@pytest.mark.parametrize("setting", [{"appendonly": "no"}, {"appendfsync": "everysec"}])
async def test_a_level_that_an_old_server_stops_giving_is_not_promised_any_more(setting: dict[str, str]) -> None:
    with running("redis70", aof="always") as own:
        async with RedisStore.connect(settings(own, durability="fsync")) as store:
            await prompt(store, "s", "A")
            configure(own, **setting)

            async def refused() -> str:
                try:
                    await prompt(store, "s", "A")
                except OutcomeUnknown as unknown:
                    return str(unknown)
                return ""

            assert "appendfsync always" in await wait_until(refused, SOON_S, "the settings to be asked for again")
            with pytest.raises(StoreUnavailable, match="appendonly yes"):
                await prompt(store, "s", "B")
            with pytest.raises(StoreUnavailable, match="appendonly yes"):
                await store.create("new", BIRTH)
            assert await history(store, "s") == "q[A] R"
            await Slot(store).run("s")
            configure(own, appendonly="yes", appendfsync="always")
            assert not (await prompt(store, "s", "B")).duplicate


@pytest.mark.parametrize("setting", [{"appendonly": "no"}, {"appendfsync": "everysec"}])
async def test_a_server_that_can_be_asked_to_wait_is_asked_whatever_its_settings_are(setting: dict[str, str]) -> None:
    with running("valkey91", aof="always") as own:
        async with RedisStore.connect(settings(own, durability="fsync")) as store:
            await prompt(store, "s", "A")
            configure(own, **setting)
            if "appendfsync" in setting:
                assert not (await prompt(store, "s", "B")).duplicate
            else:
                with pytest.raises(OutcomeUnknown):
                    await prompt(store, "s", "B")


# -- a server that refuses --------------------------------------------------------------------------------------


async def test_a_full_server_keeps_nothing_new_and_lets_everything_else_go_on(own_server: Server) -> None:
    async with redis_world(own_server) as world:
        store, slot, rival = world.store, Slot(world.store), Slot(world.store, "worker-2/0")
        for name in ("s", "t"):
            await set_goal(store, name)
            await prompt(store, name, "A")
            await prompt(store, name, "B")
        configure(own_server, maxmemory=1)
        before = await world.everything("s")
        for say in (prompt, steer, inject):
            with pytest.raises(StoreUnavailable, match="OOM"):
                await say(store, "s", "C")
        with pytest.raises(StoreUnavailable, match="OOM"):
            await store.create("new", BIRTH)
        with pytest.raises(StoreUnavailable, match="OOM"):
            await set_goal(store, "new")
        assert await store.level("new") is None
        assert await world.everything("s") == before
        await goes_on(store, slot, rival)
        configure(own_server, maxmemory=0)
        assert not (await prompt(store, "s", "C")).duplicate


async def goes_on(store: Any, slot: Slot, rival: Slot) -> None:
    """Everything that must work on a full server does."""
    assert (await store.goal_change("t", Change("pause")))["phase"] == "paused"
    await slot.acquire("s")
    await slot.commit(*slot.begin(), slot.says("well", "c1"), slot.call("c1"))
    assert (await store.renew([slot.lease], LEASE_MS))[0].alive
    assert (await store.cancel("s", cause="user")).outcome == "requested"
    await slot.commit(slot.result("c1"), slot.end(), take=True)
    settled = await slot.settle()
    assert settled.grant is not None
    await slot.handback()
    await rival.acquire("s")
    assert (await rival.echo()).outcome == "idle"
    for partition in range(PARTITIONS):
        await store.sweep(partition, forget_after_ms=1_000_000)
    level = await store.level("s")
    assert level is not None
    assert (level.status, level.conservation) == (Status.IDLE, 0)


async def test_a_worker_starts_on_a_full_server(own_server: Server) -> None:
    async with redis_world(own_server) as world:
        await prompt(world.store, "s", "A")
        configure(own_server, maxmemory=1)
        async with RedisStore.connect(settings(own_server)) as store:
            slot = Slot(store)
            await slot.run("s")
            assert (await history(store, "s")).endswith("t1(completed) I")


@pytest.mark.parametrize("trouble", ["full", "a replica"])
async def test_a_message_that_was_kept_is_never_said_to_be_lost(own_server: Server, trouble: str) -> None:
    async with redis_world(own_server) as world:
        await prompt(world.store, "s", "A")
        before = await world.everything("s")
        if trouble == "full":
            configure(own_server, maxmemory=1)
        else:
            read_only(own_server)
        with pytest.raises(OutcomeUnknown, match="message A was kept") as unknown:
            await prompt(world.store, "s", "A")
        assert unknown.value.message_id == "A"
        with pytest.raises(Refused) as conflict:
            await prompt(world.store, "s", "A", "another body")
        assert conflict.value.code == "conflict"
        with pytest.raises(StoreUnavailable):
            await prompt(world.store, "s", "B")
        assert await world.everything("s") == before


async def test_a_server_that_became_a_replica_keeps_nothing(own_server: Server) -> None:
    async with redis_world(own_server) as world:
        await prompt(world.store, "s", "A")
        before = await world.everything("s")
        read_only(own_server)
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await prompt(world.store, "s", "B")
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await Slot(world.store).acquire("s")
        assert await world.everything("s") == before
        assert await world.store.level("s") is not None
        with own_server.client() as client:
            client.replicaof("NO", "ONE")
        assert not (await prompt(world.store, "s", "B")).duplicate


async def test_a_server_that_cannot_save_keeps_nothing(own_server: Server) -> None:
    async with redis_world(own_server) as world:
        await prompt(world.store, "s", "A")
        before = await world.everything("s")
        await fail_to_save(own_server)
        with pytest.raises(StoreUnavailable, match="MISCONF"):
            await prompt(world.store, "s", "B")
        assert await world.everything("s") == before
        configure(own_server, stop_writes_on_bgsave_error="no")
        assert not (await prompt(world.store, "s", "B")).duplicate
        configure(own_server, save="")  # or it would not let itself be stopped before it has saved


async def test_a_server_that_wants_a_password_keeps_nothing(own_server: Server) -> None:
    async with redis_world(own_server) as world:
        await prompt(world.store, "s", "A")
        configure(own_server, requirepass="secret")
        with Redis(port=own_server.port, password="secret") as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await loop_turns()
        with pytest.raises(StoreUnavailable):
            await prompt(world.store, "s", "B")


async def test_who_cannot_reach_the_store_is_not_told_where_it_is(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Sentences go to whoever asked, over HTTP too; the address is in the log."""
    async with redis_world(own_server) as world:
        own_server.kill()
        await loop_turns()
        for ask in (world.store.level("s"), world.store.indexes("s"), world.store.wait_ready(1)):
            with pytest.raises(StoreUnavailable) as unavailable:
                await ask
            assert str(own_server.port) not in str(unavailable.value)
        assert str(own_server.port) in caplog.text
        own_server.start()


# -- the functions --------------------------------------------------------------------------------------------------


async def test_functions_that_are_missing_are_loaded_and_the_call_is_made(redis: RedisWorld) -> None:
    await prompt(redis.store, "s", "A")
    redis.look.function_flush()
    assert not (await prompt(redis.store, "s", "B")).duplicate
    assert await history(redis.store, "s") == "q[A] R q[B]"


async def test_a_server_that_does_not_let_functions_be_loaded_is_said_to_be_unavailable(own_server: Server) -> None:
    async with redis_world(own_server) as world:
        await prompt(world.store, "s", "A")
        world.look.function_flush()
        configure(own_server, maxmemory=1)
        with pytest.raises(StoreUnavailable, match="OOM"):
            await prompt(world.store, "s", "B")


async def test_a_library_of_another_version_is_left_alone(redis: RedisWorld) -> None:
    other = "#!lua name=mailslot_v0\nredis.register_function('submit_v0', function() return 'old' end)"
    redis.look.function_load(other)
    await prompt(redis.store, "s", "A")
    redis.look.function_delete("mailslot_v1")
    await prompt(redis.store, "s", "B")
    assert redis.look.fcall("submit_v0", 0) == b"old"


async def test_all_keys_of_a_session_and_its_queues_lie_in_one_slot(redis: RedisWorld) -> None:
    store = redis.store
    for name in ("s", "t", "u"):
        await set_goal(store, name)
        await prompt(store, name, "A")
        slot = Slot(store)
        await slot.run(name)
    tags = {f"{{p{partition_of(name, PARTITIONS):02d}}}" for name in ("s", "t", "u")}
    names = [name.decode() for name in redis.look.scan_iter(count=1000) if isinstance(name, bytes)]
    assert all(any(tag in name for tag in tags) for name in names if name != "mailslot:config")


# -- vocabulary -----------------------------------------------------------------------------------------------------


def read_only(server: Server) -> None:
    """A replica of nobody: it serves what it has and takes no writes."""
    with server.client() as client:
        client.replicaof("127.0.0.1", free_port())


async def follow(replica: Server, primary: Server) -> None:
    with replica.client() as client:
        client.replicaof("127.0.0.1", primary.port)
    with primary.client() as client:

        def follows() -> bool:
            client.set("followed", 1)
            return bool(client.wait(1, 100))

        await wait_until(follows, SOON_S, "a replica that confirms what it has")
        client.delete("followed")


async def fail_to_save(server: Server) -> None:
    """The server's last attempt to save its data has failed, and it is to refuse writes since."""
    Path(server.folder, "dump.rdb").mkdir()  # where the file should go
    configure(server, save="3600 1", stop_writes_on_bgsave_error="yes")
    with server.client() as client:
        client.bgsave()
        await wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", SOON_S, "a failed save")

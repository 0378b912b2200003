"""Keys: one hash tag for all that an act touches, and a partition that every language computes alike."""

import pytest

from mailslot_core.redis import keys


@pytest.mark.parametrize(("session_id", "crc32"), [("123456789", 0xCBF43926), ("s", 453955339), ("é", 235179326)])
def test_a_partition_is_the_crc32_of_the_id(session_id: str, crc32: int) -> None:
    for partitions in (1, 2, 16, 1024):
        assert keys.partition_of(session_id, partitions) == crc32 % partitions


@pytest.mark.parametrize("session_id", ["s", "with:colons:state", "{braces}", "p00}", "日本"])
def test_all_keys_of_an_act_have_the_tag_of_their_partition(session_id: str) -> None:
    partition = keys.partition_of(session_id, 16)
    names = [*keys.act_keys(session_id, 16), keys.slot_key(partition, "worker-1/0")]
    tags = {name[name.index("{") + 1 : name.index("}")] for name in names}
    assert tags == {f"p{partition:02d}"}
    assert len(set(names)) == len(names)


def test_the_keys_of_an_act_come_in_the_order_that_the_functions_document() -> None:
    session, partition = keys.act_keys("s", 16)[:6], keys.act_keys("s", 16)[6:]
    assert [name.rpartition(":")[2] for name in session] == ["state", "ledger", "turn", "step", "messages", "later"]
    assert [name.rpartition(":")[2] for name in partition] == [
        *("ready", "active", "bell", "leases", "forget", "sessions", "idle", "goals", "counts"),
        *("due", "dead", "erase"),
    ]

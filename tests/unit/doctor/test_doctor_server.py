"""What the doctor makes of a server's INFO, where no server can be brought into that state on purpose."""

from typing import Any

import pytest

from mailslot_services.doctor.finding import Severity
from mailslot_services.doctor.server import SERVER_LOOKS, skew

SOUND: dict[str, Any] = {
    "role": "master",
    "maxmemory": 1_000_000_000,
    "used_memory": 1_000_000,
    "total_system_memory": 8_000_000_000,
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok",
    "rdb_last_bgsave_status": "ok",
    "aof_current_rewrite_time_sec": -1,
    "aof_delayed_fsync": 0,
    "mem_fragmentation_ratio": 5.2,
    "mem_fragmentation_bytes": 9_000_000,
}

STATES = [
    ({}, None, ""),
    ({"role": "slave", "master_host": "h"}, Severity.WRONG, "is a replica of h"),
    ({"maxmemory_policy": "allkeys-lru"}, Severity.WRONG, "may evict keys"),
    ({"maxmemory": 0}, Severity.ADVICE, "has no memory limit"),
    ({"used_memory": 900_000_000}, Severity.ADVICE, "uses 90 % of maxmemory"),
    ({"maxmemory": 0, "used_memory": 7_200_000_000}, Severity.WRONG, "uses 90 % of the machine's memory"),
    ({"mem_fragmentation_ratio": 1.9, "mem_fragmentation_bytes": 2**30}, Severity.ADVICE, "holds 1.9 times"),
    ({"mem_fragmentation_ratio": 1.2, "mem_fragmentation_bytes": 2**30}, None, ""),
    ({"aof_last_write_status": "err"}, Severity.WRONG, "cannot write its files (aof_last_write_status err)"),
    ({"aof_last_bgrewrite_status": "err"}, Severity.WRONG, "cannot write its files (aof_last_bgrewrite_status err)"),
    ({"rdb_last_bgsave_status": "err"}, Severity.WRONG, "cannot write its files (rdb_last_bgsave_status err)"),
    ({"aof_enabled": 0}, Severity.ADVICE, "keeps no append-only file"),
    ({"aof_delayed_fsync": 500}, Severity.ADVICE, "waited 500 times for its disk"),
    ({"aof_delayed_fsync": 2}, None, ""),
    ({"aof_current_rewrite_time_sec": 3_600}, Severity.ADVICE, "rewrites its append-only file since 3600 s"),
    ({"aof_current_rewrite_time_sec": 30}, None, ""),
]


@pytest.mark.parametrize(("state", "severity", "words"), STATES)
def test_a_server_in_this_state_is_told_so(state: dict[str, Any], severity: Severity | None, words: str) -> None:
    found = [finding for look in SERVER_LOOKS for finding in look(SOUND | state)]
    assert (severity is not None) is any(words in f.sentence and f.severity is severity for f in found)
    assert severity is not None or found == []


def test_a_server_that_says_nothing_is_no_traceback() -> None:
    assert all(finding.subject == "server" for look in SERVER_LOOKS for finding in look({}))


@pytest.mark.parametrize(
    ("skew_ms", "words"), [(0, ""), (1_000, ""), (1_500, "1.5 s ahead of"), (-7_200_000, "behind")]
)
def test_clocks_that_differ_by_more_than_a_second_are_told(skew_ms: int, words: str) -> None:
    found = skew(skew_ms)
    assert len(found) == bool(words)
    assert words in "".join(finding.sentence for finding in found)

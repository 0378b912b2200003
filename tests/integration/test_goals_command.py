"""`mailslot goals` as a process: it works until SIGTERM, and says in one line why it cannot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx2
import pytest

from mailslot_core.goal import Change
from mailslot_core.redis.store import RedisStore
from mailslot_core.settings import StoreSettings
from tests.echo_worker import CREATED
from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

SOON_S: Final = 30.0
ADVANCED: Final = 'mailslot_goals_answers_total{outcome="advanced"'


@contextmanager
def goals(*words: str) -> Iterator[subprocess.Popen[str]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAILSLOT_")}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "mailslot_services", "goals", "--durability", "memory", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def metric(port: int, begins: str) -> float:
    """The sum of the series that begin so, 0 while nobody answers."""
    try:
        text = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
    except httpx2.TransportError:
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(begins))


async def test_a_process_continues_goals_counts_them_and_ends_by_sigterm(clean_redis_url: str) -> None:
    port = free_port()
    store_settings = StoreSettings(redis_url=clean_redis_url, durability="memory")
    with goals("--redis-url", clean_redis_url, "--metrics-port", str(port)) as process:
        async with RedisStore.connect(store_settings) as store:
            wanted = Change("create", goal_id="g", objective="keep the garden", budgets={"rounds": 2})
            await store.goal_change("s", wanted, CREATED)

            async def queued() -> int:
                level = await store.level("s")
                return level.pending if level else 0

            await wait_until(queued, SOON_S, "the first round")
        await wait_until(lambda: metric(port, ADVANCED) == 1, SOON_S, "the round to be counted")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SOON_S)
        assert process.returncode == 0, err
        assert "Traceback" not in err


async def test_a_store_that_is_not_there_ends_it_with_one_sentence() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    with goals("--redis-url", url) as process:
        out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 1
    assert out == ""
    assert err.splitlines() == [err.strip()]
    assert err.startswith(f"mailslot: cannot reach the store at {url}")

"""The store goes away under load and comes back: what `docs/operations.md` says of a restart."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from mailslot import AsyncClient, AsyncSession
from tests.e2e.house import MAILSLOT, House, all_ready, running_house
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.slow]

AGENTS: Final = """
[agents.default]
model = "echo"
delay_ms = 200
"""
SESSIONS: Final = 6
MESSAGES: Final = 10
SOON_S: Final = 60.0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    agents = tmp_path / "agents.toml"
    agents.write_text(AGENTS)
    with running_house(tmp_path, agents) as running:
        yield running


async def test_a_store_that_is_killed_and_started_again_loses_nothing_it_gave_a_receipt_for(house: House) -> None:
    await all_ready(house)
    async with AsyncClient(house.url) as client:
        sessions = [client.session(f"session-{number}") for number in range(SESSIONS)]
        sending = [asyncio.create_task(send(session)) for session in sessions]
        await wait_until(lambda: admitted(house) > SESSIONS, SOON_S, "the agents to be at work")

        house.store.kill()
        await wait_until(lambda: is_unready(house), SOON_S, "ingest to say that the store is away")
        house.store.start()

        sent = await asyncio.wait_for(asyncio.gather(*sending), SOON_S)
        for session, messages in zip(sessions, sent, strict=True):
            await session.when_idle(timeout=SOON_S)
            assert await heard(house, session.id) == messages, "each once, in the order of sending"
    words = [str(MAILSLOT), "doctor", "--redis-url", house.store.url]
    doctor = subprocess.run(words, capture_output=True, text=True, check=False)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


async def send(session: AsyncSession) -> list[str]:
    """One message after the other; a store that is away is waited for by the client."""
    return [(await session.prompt(f"message {number}")).message_id for number in range(MESSAGES)]


def admitted(house: House) -> int:
    return sum(int(each.admitted or 0) for each in house.sessions())


async def is_unready(house: House) -> bool:
    """Whether ingest says that it is not ready."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{house.url}/readyz")).status_code == 503


async def heard(house: House, session: str) -> list[str]:
    """The messages that entered the transcript, in order."""
    async with httpx2.AsyncClient(base_url=house.url, trust_env=False) as client:
        page = (await client.get(f"/v1/sessions/{session}/events?limit=1000&types=user/message", headers=JSON)).json()
    return [event["data"]["messageId"] for event in page["events"]]


JSON: Final = {"Accept": "application/json"}

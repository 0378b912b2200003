"""Every illegal operation answers its own code and changes nothing (issue: bad input)."""

import pytest

from mailslot_contracts import Code
from mailslot_core.memory import MemoryStore
from tests.unit.ingest.served import in_process
from tests.unit.ingest.stages import ILLEGAL, Illegal, pages, queued, refused_and_unchanged


@pytest.mark.parametrize("illegal", ILLEGAL, ids=str)
async def test_an_illegal_operation_has_its_own_code_and_changes_nothing(illegal: Illegal) -> None:
    async with in_process() as house:
        await illegal.stage(house)
        await refused_and_unchanged(house, illegal)


def test_every_refusal_of_the_inbox_has_a_row() -> None:
    inbox = {
        "already-claimed", "already-settled", "not-open", "not-held", "not-dead", "busy", "idle", "turn-mismatch",
        "closed", "expired", "not-found", "bad-input", "too-large",
    }  # fmt: skip
    assert {illegal.code.value for illegal in ILLEGAL} == inbox


async def test_a_replace_that_would_burst_the_queue_is_refused_and_keeps_the_old_content() -> None:
    async with in_process(MemoryStore(pending_bytes_max=2_000)) as house:
        await queued(house)
        before = await pages(house)
        response = await house.client.patch("/v1/sessions/s/messages/m", json={"content": "x" * 2_000})
        assert (response.status_code, response.json()["code"]) == (429, Code.QUEUE_FULL)
        assert await pages(house) == before
        assert (await house.client.patch("/v1/sessions/s/messages/m", json={"content": "y"})).status_code == 200


async def test_a_queue_is_full_by_its_bytes_as_well_as_by_its_messages() -> None:
    async with in_process(MemoryStore(pending_bytes_max=4_000)) as house:
        for n in range(3):
            assert (await house.prompt("s", "x" * 1_000, messageId=f"m{n}")).status_code == 202
        before = await pages(house)
        refused = await house.prompt("s", "x" * 1_000, messageId="m3")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "queue-full", "1")
        assert "bytes" in refused.json()["detail"]
        assert await pages(house) == before

"""A receipt proves that a message is inside, and nothing more (semantics M1, M3)."""

import asyncio
from typing import Any

import pytest

from mailslot_contracts import Receipt
from mailslot_core.errors import StoreUnavailable
from mailslot_core.memory import MemoryStore
from mailslot_core.session import Lane
from tests.unit.ingest.served import House, in_process


async def queued(house: House, session_id: str) -> list[dict[str, Any]]:
    events = await house.store.events(session_id, after=0, limit=1000)
    return [dict(event.data) for event in events if event.type == "inbox/queued"]


async def test_a_receipt_names_the_message_and_where_it_stands_and_nothing_else() -> None:
    async with in_process() as house:
        response = await house.prompt("s")
        assert response.status_code == 202
        assert response.json().keys() == {"messageId", "cursor", "duplicate", "durability"}
        receipt = Receipt.model_validate(response.json())
        assert (receipt.cursor, receipt.duplicate, receipt.durability) == (2, False, "memory")
        assert (await queued(house, "s"))[0]["messageId"] == receipt.message_id


async def test_an_unknown_session_is_made_with_the_default_agent() -> None:
    async with in_process() as house:
        await house.prompt("s")
        created = (await house.store.events("s", after=0, limit=1))[0]
        assert created.type == "session/created"
        assert created.data == {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}}


async def test_what_was_sent_is_what_is_kept() -> None:
    async with in_process() as house:
        content = [
            {"type": "text", "text": "a\u2028b\u2029c\x00d \U0001f4ec"},
            {"type": "image", "mediaType": "image/png", "url": "https://example.org/a.png"},
        ]
        metadata = {"n": 2**63 - 1, "f": 0.1, "list": [None, True, {"x": ""}]}
        source = {"kind": "system"}
        await house.prompt("s", content, messageId="m", source=source, metadata=metadata)
        assert await queued(house, "s") == [
            {
                "messageId": "m",
                "lane": "next-turn",
                "wake": True,
                "content": content,
                "source": source,
                "metadata": metadata,
            }
        ]


async def test_without_metadata_none_is_kept() -> None:
    async with in_process() as house:
        await house.prompt("s", metadata={})
        assert "metadata" not in (await queued(house, "s"))[0]


@pytest.mark.parametrize(
    ("delivery", "lane", "wake"),
    [("queue", Lane.NEXT_TURN, True), ("steer", Lane.NEXT_STEP, True), ("inject", Lane.NEXT_STEP, False)],
)
async def test_delivery_decides_lane_and_wake(delivery: str, lane: Lane, wake: bool) -> None:
    async with in_process() as house:
        await house.prompt("s", delivery=delivery)
        (data,) = await queued(house, "s")
        assert (data["lane"], data["wake"]) == (lane, wake)
        assert (await house.level("s"))["status"] == ("running" if wake else "idle")


async def test_a_message_sent_twice_is_queued_once() -> None:
    async with in_process() as house:
        first = (await house.prompt("s", messageId="m")).json()
        again = await house.prompt("s", [{"type": "text", "text": "hello"}], messageId="m", source={"kind": "user"})
        assert again.status_code == 202
        assert again.json() == {**first, "duplicate": True}
        assert len(await queued(house, "s")) == 1


async def test_messages_without_an_id_are_different_messages() -> None:
    async with in_process() as house:
        first, second = (await house.prompt("s")).json(), (await house.prompt("s")).json()
        assert first["messageId"] != second["messageId"]


async def test_the_idempotency_key_is_the_message_id_when_the_body_has_none() -> None:
    async with in_process() as house:
        headers = {b"Idempotency-Key": "klíč".encode()}
        for _ in range(2):
            response = await house.client.post("/v1/sessions/s/prompt", json={"content": "a"}, headers=headers)
            assert response.json()["messageId"] == "klíč"
        body = {"content": "a", "messageId": "mine"}
        response = await house.client.post("/v1/sessions/s/prompt", json=body, headers=headers)
        assert response.json()["messageId"] == "mine"
        assert len(await queued(house, "s")) == 2


async def test_a_batch_is_queued_in_order_with_one_answer_an_item() -> None:
    async with in_process() as house:
        items = [{"content": f"{n}", "messageId": f"m{n}"} for n in range(50)]
        response = await house.client.post("/v1/sessions/s/prompts", json=items)
        assert response.status_code == 202
        receipts = [Receipt.model_validate(item) for item in response.json()]
        assert [receipt.message_id for receipt in receipts] == [f"m{n}" for n in range(50)]
        assert [data["messageId"] for data in await queued(house, "s")] == [f"m{n}" for n in range(50)]


async def test_one_bad_item_of_a_batch_does_not_spoil_the_others() -> None:
    async with in_process() as house:
        items = [{"content": "a"}, {"content": ""}, 7, {"content": "b", "messageId": "a\0"}, {"content": "c"}]
        answers = (await house.client.post("/v1/sessions/s/prompts", json=items)).json()
        assert [answer.get("code", "kept") for answer in answers] == [
            "kept",
            "bad-input",
            "bad-input",
            "bad-input",
            "kept",
        ]
        assert len(await queued(house, "s")) == 2


class _Fails(MemoryStore):
    """A store that fails for good at the given submit."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    async def submit(self, *args: Any) -> Any:
        self.left -= 1
        if self.left <= 0:
            raise StoreUnavailable("the store refused: out of memory")
        return await super().submit(*args)


async def test_a_batch_behind_a_store_that_fails_is_not_tried_one_by_one() -> None:
    store = _Fails(at=3)
    async with in_process(store) as house:
        items = [{"content": "a"} for _ in range(6)]
        answers = (await house.client.post("/v1/sessions/s/prompts", json=items)).json()
        assert [answer.get("code", "kept") for answer in answers] == ["kept"] * 2 + ["store-refused"] * 4
        assert store.left == 0


async def test_many_senders_at_once_get_their_own_receipts() -> None:
    async with in_process() as house:
        responses = await asyncio.gather(*(house.prompt(f"s{n % 7}", messageId=f"m{n}") for n in range(200)))
        assert [response.json()["messageId"] for response in responses] == [f"m{n}" for n in range(200)]
        for n in range(7):
            cursors = [response.json()["cursor"] for response in responses[n::7]]
            assert len(set(cursors)) == len(cursors)


async def test_each_outcome_is_counted_by_its_code() -> None:
    async with in_process() as house:
        await house.prompt("s", messageId="m")
        await house.prompt("s", messageId="m")
        await house.prompt("s", "other", messageId="m")
        for code in ("accepted", "duplicate", "conflict"):
            assert house.metric("submits_total", door="http", code=code) == 1

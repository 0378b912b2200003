"""Whether the process lives, whether it can serve, and what it counts."""

from dataclasses import replace
from typing import Any

from mailslot_core.errors import StoreUnavailable
from mailslot_core.memory import MemoryStore
from mailslot_core.store import Level, Load
from tests.echo_worker import EchoWorker
from tests.unit.ingest.served import in_process


class _Down(MemoryStore):
    """A store that does not answer."""

    async def load(self, partition: int) -> Load:
        raise StoreUnavailable("the store cannot be reached")


async def test_a_process_without_its_store_lives_and_is_not_ready() -> None:
    async with in_process(_Down()) as house:
        assert (await house.client.get("/healthz")).json() == {"status": "ok"}
        response = await house.client.get("/readyz")
        assert response.status_code == 503
        assert response.json()["reasons"] == ["the store does not answer: the store cannot be reached"]


async def test_a_process_is_ready_when_every_check_holds() -> None:
    async with in_process() as house:
        assert (await house.client.get("/readyz")).json() == {"status": "ready"}

        async def check() -> str | None:
            return "the intake stream is not being read"

        house.app.state.door.checks.append(check)
        assert (await house.client.get("/readyz")).json()["reasons"] == ["the intake stream is not being read"]


async def test_a_head_is_answered_like_a_get_without_a_body() -> None:
    async with in_process() as house:
        assert (await house.client.head("/healthz")).status_code == 200
        await house.prompt("s")
        head = await house.client.head("/v1/sessions/s/events")
        assert head.headers["content-type"].startswith("text/event-stream")


async def scraped(house: Any) -> str:
    response = await house.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return str(response.text)


async def test_partitions_are_told_as_they_are_when_somebody_scrapes() -> None:
    async with in_process(MemoryStore(partitions=1)) as house:
        for name in ("a", "b", "c"):
            await house.prompt(name)
        await EchoWorker(house.store).acquire()
        await scraped(house)
        for gauge, value in (("ready", 2), ("active", 3), ("leased", 1), ("sessions", 3), ("fenced_writes", 0)):
            assert house.metric(f"partition_{gauge}", partition="0") == value, gauge
        assert house.metric("store_up") == 1


async def test_a_scrape_succeeds_when_the_store_does_not() -> None:
    async with in_process(_Down()) as house:
        assert "mailslot_ingest_store_up 0.0" in await scraped(house)


async def test_requests_are_counted_by_route_and_never_by_id() -> None:
    async with in_process() as house:
        for name in ("a", "b"):
            await house.prompt(name)
        await house.client.request("BREW", "/v1/sessions/a/prompt")
        text = await scraped(house)
        route = "/v1/sessions/{sid}/prompt"
        assert house.metric("requests_total", route=route, method="POST", status="202") == 2
        assert house.metric("requests_total", route=route, method="other", status="405") == 1
        assert "BREW" not in text
        assert "/v1/sessions/a/" not in text


class _Leaky(MemoryStore):
    """A store in which some sessions have lost messages."""

    async def level(self, session_id: str) -> Level | None:
        level = await super().level(session_id)
        return replace(level, conservation=2) if level and session_id in ("s1", "s700") else level


async def test_conservation_is_summed_over_all_sessions_however_many_there_are() -> None:
    async with in_process(_Leaky()) as house:
        for n in range(1_200):
            await house.store.create(f"s{n}", {"agent": "default", "onFailure": "continue", "depth": 0, "metadata": {}})
        for _ in range(3):
            await scraped(house)
        assert house.metric("conservation") == 4
        assert house.metric("audited_sessions") == 1_200

"""Who may come in over HTTP: with a token only who shows it, from web pages only those that are listed."""

import pytest

from tests.unit.ingest.served import in_process

PAGE = "https://app.example"


@pytest.mark.parametrize(
    "shown", [None, "Bearer wrong", "Bearer ", "Basic secret", "secret", "Bearer secret2", "Bearer ü"]
)
async def test_without_the_right_token_nothing_under_v1_is_told_or_kept(shown: str | None) -> None:
    headers = {} if shown is None else {b"authorization": shown.encode("latin-1")}
    async with in_process(token="secret") as house:
        answer = await house.client.post("/v1/sessions/s/prompt", json={"content": "x"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "secret" not in answer.text
        assert await house.store.sessions(after="", limit=1) == []
        assert (await house.client.get("/v1/nothing", headers=headers)).status_code == 401


@pytest.mark.parametrize("shown", ["Bearer secret", "bearer secret"])
async def test_with_the_token_everything_is_as_without(shown: str) -> None:
    async with in_process(token="secret") as house:
        answer = await house.client.post("/v1/sessions", json={"sessionId": "s"}, headers={"authorization": shown})
        assert answer.status_code == 201


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/"])
async def test_pages_about_the_service_need_no_token(path: str) -> None:
    async with in_process(token="secret") as house:
        assert (await house.client.get(path)).status_code == 200


async def test_a_listed_page_may_ask_from_a_browser_and_another_may_not() -> None:
    asks = {"access-control-request-method": "PATCH", "access-control-request-headers": "authorization,if-match"}
    async with in_process(origins=f"{PAGE}, https://other.example", token="secret") as house:
        allowed = await house.client.options("/v1/sessions/s/goal", headers={"origin": PAGE, **asks})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == PAGE
        refused = await house.client.options("/v1/sessions/s/goal", headers={"origin": "https://evil.example", **asks})
        assert "access-control-allow-origin" not in refused.headers
        turned_away = await house.client.get("/v1/sessions", headers={"origin": PAGE})
        assert turned_away.status_code == 401
        assert turned_away.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://h"])
async def test_a_page_that_is_not_listed_changes_nothing_though_its_browser_does_not_ask_first(origin: str) -> None:
    headers = {"origin": origin, "content-type": "text/plain"}
    async with in_process(origins=PAGE) as house:
        answer = await house.client.post("/v1/sessions/s/prompt", content=b'{"content": "hi"}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert await house.store.sessions(after="", limit=1) == []
        assert (await house.client.get("/v1/sessions", headers=headers)).status_code == 200


@pytest.mark.parametrize("origins", [PAGE, f"https://other.example,{PAGE}", "*"])
async def test_a_listed_page_may_change_things(origins: str) -> None:
    async with in_process(origins=origins) as house:
        answer = await house.client.post("/v1/sessions", json={"sessionId": "s"}, headers={"origin": PAGE})
        assert answer.status_code == 201


async def test_without_listed_pages_no_page_is_told_that_it_may() -> None:
    async with in_process() as house:
        answer = await house.client.get("/v1/sessions", headers={"origin": PAGE})
        assert "access-control-allow-origin" not in answer.headers

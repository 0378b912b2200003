"""The documents say what the doors do: checked in, fresh, complete, and readable without a network."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from mailslot_contracts import CODES, INTAKE, INTAKE_DEAD, STATUS_CHANNEL
from mailslot_services import generate
from mailslot_services.ingest import asyncapi, openapi
from mailslot_services.ingest.route import resources
from tests.unit.ingest.served import in_process

PAGES: Final = ("/", "/docs", "/asyncapi")
BROWSER: Final = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class _Reader(HTMLParser):
    """Collects what a page loads and links to, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")
            elif name in ("src", "href", "action"):
                self.loads.append(f"{tag} {value}")
        if tag in ("script", "iframe", "object", "form"):
            self.loads.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


async def read(address: str) -> _Reader:
    async with in_process() as house:
        response = await house.client.get(address, headers=BROWSER)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    reader = _Reader()
    reader.feed(response.text)
    assert "@import" not in response.text
    assert "url(" not in response.text
    return reader


@pytest.mark.parametrize("name", generate.texts())
def test_a_checked_in_document_is_fresh(name: str) -> None:
    assert (generate.CONTRACTS / name).read_text(encoding="utf-8") == generate.texts()[name], (
        "run python -m mailslot_services.generate"
    )


def test_a_stale_document_is_found(tmp_path: Path) -> None:
    assert generate.stale(tmp_path, {"a.json": "1"}) == ["a.json"]
    (tmp_path / "a.json").write_text("2")
    assert generate.stale(tmp_path, {"a.json": "1"}) == ["a.json"]
    (tmp_path / "a.json").write_text("1")
    assert generate.stale(tmp_path, {"a.json": "1"}) == []


async def test_the_documents_that_are_served_are_the_checked_in_ones() -> None:
    async with in_process() as house:
        assert (await house.client.get("/openapi.json")).text == generate.texts()["openapi.json"]
        assert (await house.client.get("/asyncapi")).text == generate.texts()["asyncapi.yaml"]


def test_openapi_names_every_address_and_method_that_is_served() -> None:
    document = openapi.document(resources())
    served = {(each.path, method.lower()) for each in resources() for method in each.methods}
    named = {(path, method) for path, item in document["paths"].items() for method in item if method != "parameters"}
    assert named == served


def refs(value: Any) -> set[str]:
    """Every reference in a document."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(refs, value.values()))
    return set().union(*map(refs, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("document", [openapi.document(resources()), asyncapi.document()], ids=["openapi", "asyncapi"])
def test_every_reference_of_a_document_leads_somewhere(document: dict[str, Any]) -> None:
    for ref in refs(document):
        place: Any = document
        for step in ref.removeprefix("#/").split("/"):
            place = place[step.replace("~1", "/")]


def test_every_operation_says_which_problems_it_has() -> None:
    for path, item in openapi.document(resources())["paths"].items():
        for method, operation in item.items():
            if method != "parameters" and path.startswith("/v1/"):
                statuses = {int(status) for status in operation["responses"]}
                assert {400, 500} <= statuses, (path, method)
                assert statuses <= {200, 201, 202} | {row.status for row in CODES.values()}


def test_no_document_knows_a_finished_session_or_the_result_of_a_message() -> None:
    for text in generate.texts().values():
        assert "session.finished" not in text
        assert "RunResult" not in text
    receipt = openapi.document(resources())["components"]["schemas"]["Receipt"]
    assert receipt["properties"].keys() == {"messageId", "cursor", "duplicate", "durability"}


def test_asyncapi_names_every_stream_and_topic() -> None:
    document = yaml.safe_load(generate.texts()["asyncapi.yaml"])
    assert document["asyncapi"] == "3.0.0"
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses == {
        INTAKE,
        INTAKE_DEAD,
        STATUS_CHANNEL,
        "session.event.{sessionId}",
        "mailslot:control:{worker}",
        "{replyTo}",
    }
    for channel in document["channels"].values():
        assert set(re.findall(r"{(\w+)}", channel["address"])) == set(channel.get("parameters", {}))


@pytest.mark.parametrize("address", PAGES)
async def test_a_page_loads_nothing_from_anywhere(address: str) -> None:
    assert (await read(address)).loads == []


@pytest.mark.parametrize("address", ["/docs", "/asyncapi"])
async def test_every_link_of_a_page_leads_to_a_place_on_it(address: str) -> None:
    page = await read(address)
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= page.ids


async def test_the_links_of_the_landing_page_answer() -> None:
    links = (await read("/")).links
    async with in_process() as house:
        for link in links:
            assert (await house.client.get(link)).status_code == 200


async def test_docs_show_every_operation_and_schema() -> None:
    document = json.loads(generate.texts()["openapi.json"])
    page = await read("/docs")
    assert document["components"]["schemas"].keys() <= page.ids
    for item in document["paths"].values():
        for method, operation in item.items():
            if method != "parameters":
                assert operation["operationId"] in page.ids
                assert operation["summary"].replace("`", "") in page.text

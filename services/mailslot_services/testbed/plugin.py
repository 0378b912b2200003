"""The pytest plugin `mailslot`: a server for a test that asks for one.

    def test_it(mailslot_server, mailslot_client): ...

    @pytest.mark.mailslot(script=["hello"])          the arguments of `mailslot.testing.Server`
    mailslot_agents = agents.toml                    in pytest's configuration: the agents of every such server

Rule 1: it is loaded by every pytest that runs where mailslot is installed. So it imports nothing of the product until
        a test asks for a server, and stands outside of the package `mailslot`, whose import takes time.
Rule 2: everything it adds has `mailslot` in its name. `-p no:mailslot` leaves it out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mailslot import Client
    from mailslot.testing import Server

MARKER = "mailslot"
AGENTS = "mailslot_agents"
FIXTURE = "mailslot_server"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The ini option."""
    parser.addini(AGENTS, "agents.toml with the agents of mailslot_server; the path counts from pytest's root")


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line("markers", f"{MARKER}(script, *, agents, tools, hooks, ...): how mailslot_server is made")


@pytest.fixture
def mailslot_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A mailslot server of the test's own, in this process (`mailslot.testing.Server`)."""
    from mailslot.testing import Server  # noqa: PLC0415 - rule 1

    marker = request.node.get_closest_marker(MARKER)
    arguments: tuple[Any, ...] = marker.args if marker else ()
    options: dict[str, Any] = dict(marker.kwargs) if marker else {}
    agents = request.config.getini(AGENTS)
    if agents and not (arguments or options):
        options["agents"] = request.config.rootpath / agents
    with Server(*arguments, **options) as server:
        yield server


@pytest.fixture
def mailslot_client(mailslot_server: Server) -> Iterator[Client]:
    """A client of the test's server."""
    with mailslot_server.client() as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the ledgers of its server."""
    report = yield
    server = getattr(item, "funcargs", {}).get(FIXTURE)
    if server is not None and report.when == "call" and report.failed:
        report.sections.append(("mailslot ledgers", server.explain()))
    return report

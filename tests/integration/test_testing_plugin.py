"""The pytest plugin in a pytest of its own: fixtures, marker, option, and what a failure shows."""

from __future__ import annotations

import pytest

import mailslot_services.testbed.engine  # noqa: F401 - once here, and not by each pytest within

pytestmark = pytest.mark.integration

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, test: str, ini: str = "", *arguments: str) -> pytest.RunResult:
    """What pytest says of a test."""
    pytester.makeini(
        f"[pytest]\naddopts = --strict-markers --strict-config\nasyncio_default_fixture_loop_scope = function\n{ini}"
    )
    pytester.makepyfile(test_it=test)
    return pytester.runpytest_inprocess(*arguments)


def test_each_test_has_a_server_of_its_own_made_as_its_marker_says(pytester: pytest.Pytester) -> None:
    said = run(
        pytester,
        """
import pytest
seen = set()

def test_one(mailslot_server, mailslot_client):
    mailslot_client.session("s").run("hello")
    assert mailslot_server.sessions() == ["s"]
    seen.add(mailslot_server.url)

@pytest.mark.mailslot(script=["marked"], pending_max=5)
def test_two(mailslot_server, mailslot_client):
    assert not mailslot_server.sessions()
    assert mailslot_client.session("s").run("hello").final_response == "marked"
    seen.add(mailslot_server.url)

@pytest.fixture
def agent(mailslot_server):
    mailslot_server.answers("from a fixture")

@pytest.mark.usefixtures("agent")
async def test_three(mailslot_server):
    async with mailslot_server.async_client() as client:
        assert (await client.session("s").run("hello")).final_response == "from a fixture"
""",
        "asyncio_mode = auto\n",
    )
    said.assert_outcomes(passed=3)


def test_the_agents_of_a_file_are_those_of_every_server(pytester: pytest.Pytester) -> None:
    (pytester.path / "agents.toml").write_text('[agents.only]\nmodel = "echo"\n')
    said = run(
        pytester,
        """
def test_it(mailslot_server):
    mailslot_server.answers("hi", agent="only")
    assert mailslot_server.client().session("s", agent="only").run("x").final_response == "hi"
""",
        "mailslot_agents = agents.toml\n",
    )
    said.assert_outcomes(passed=1)


def test_a_failure_shows_the_ledgers_of_the_server(pytester: pytest.Pytester) -> None:
    said = run(
        pytester,
        """
def test_it(mailslot_client):
    session = mailslot_client.session("s")
    session.prompt("hello", message_id="A")
    session.when_idle()
    assert session.status().pending == 1
""",
    )
    said.assert_outcomes(failed=1)
    said.stdout.fnmatch_lines(["*mailslot ledgers*", "*s: q[[]A] R T1 c[[]A] S1 u[[]A] a s1 t1(completed) I*"])


def test_the_plugin_can_be_left_out(pytester: pytest.Pytester) -> None:
    said = run(pytester, "def test_it(mailslot_server): pass", "", "-p", "no:mailslot")
    said.stdout.fnmatch_lines(["*fixture 'mailslot_server' not found*"])

"""What every test can ask for: real servers, a seed that is printed, nothing else.

    fixture            scope     gives
    redis70            session   a running `Server`, Redis 7.0
    valkey91           session   a running `Server`, Valkey 9.1
    redis_url          session   the URL of any one server: $REDIS_URL, else PATH, else embedded, else a container
    clean_redis_url    test      the same, emptied before the test
    server             session   the running `Server`, once for each of redis70 and valkey91
    server_url         session   its URL
    clean_server       test      the same `Server`, emptied before the test
    clean_server_url   test      its URL
    seed               session   the number that every random choice of this run comes from
    rng                test      a `random.Random` from the seed and the test's own name

A test that stops, kills or fills up a server starts one of its own: `tests.servers.running`.

`make test` runs on some processes at once (pytest-xdist): a file's tests stay together, and so do those that measure or
show the whole product, as they would take each other's machine, and the scenarios of `tests/chaos`, which share one.
"""

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from xdist.scheduler import LoadScopeScheduling

from tests.servers import Server, ServerMissing, any_server_url, running

SEED: Final = int(os.environ.get("MAILSLOT_TEST_SEED") or random.SystemRandom().randrange(2**32))
os.environ["MAILSLOT_TEST_SEED"] = str(SEED)  # for the processes that a run is spread over

TOGETHER: Final = {"chaos": "chaos", "bench": "product", "e2e": "product"}
"""Folders whose tests run one after the other, wherever else tests run."""

BUILDER: Final = "test_typescript.py"
"""Builds what an example of README uses."""

SECTIONS: Final = pytest.StashKey[dict[str, list[str]]]()
"""What a test run has to say at its end, by heading."""


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one file, or of one of these folders, run on one process, in order."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        _, folder, *_ = Path(file).parts
        return "product" if file.endswith(BUILDER) else TOGETHER.get(folder, file)


def pytest_configure() -> None:
    """Programs that this environment brings are found by name: node, from a wheel, where the machine has none."""
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background inherits that Ctrl-C is ignored, and so would everything that it starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"mailslot: MAILSLOT_TEST_SEED={SEED}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Together(config, log)


def sections(config: pytest.Config) -> dict[str, list[str]]:
    """Lines to be printed at the end of the run, by heading."""
    return config.stash.setdefault(SECTIONS, {})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["sections"] = sections(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    sections(node.config).update(getattr(node, "workeroutput", {}).get("sections", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for heading, lines in sections(config).items():
        terminalreporter.section(heading)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture(scope="session")
def redis70() -> Iterator[Server]:
    try:
        with running("redis70") as server:
            yield server
    except ServerMissing as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def valkey91() -> Iterator[Server]:
    try:
        with running("valkey91") as server:
            yield server
    except ServerMissing as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    try:
        with any_server_url() as url:
            yield url
    except ServerMissing as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def clean_redis_url(redis_url: str) -> str:
    empty(redis_url)
    return redis_url


@pytest.fixture(scope="session", params=["redis70", "valkey91"])
def server(request: pytest.FixtureRequest) -> Server:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Server)
    return found


@pytest.fixture(scope="session")
def server_url(server: Server) -> str:
    return server.url


@pytest.fixture
def clean_server(server: Server) -> Server:
    empty(server.url)
    return server


@pytest.fixture
def clean_server_url(clean_server: Server) -> str:
    return clean_server.url


def empty(url: str) -> None:
    """Remove every key and every function library, so that a test meets a server as it was first started."""
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        client.function_flush()

"""What scenarios share: their figures, which are printed as a table at the end, and the network they may break."""

import os
from collections.abc import Iterator
from typing import Final, NoReturn

import pytest

from tests.chaos import namespace as networks
from tests.chaos.figure import Figure, table
from tests.chaos.namespace import REQUIRED, Namespace
from tests.chaos.stand import Stand, stand

FIGURES: Final = pytest.StashKey[list[Figure]]()


def unavailable(why: str) -> NoReturn:
    """What a scenario needs cannot be had on this machine: it is skipped, or fails where everything has to run."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Iterator[Figure]:
    """The figures of this test. Its scenario is what its docstring begins with: `T8 (report): …`."""
    words = (request.function.__doc__ or "").split()
    assert words, "a scenario's docstring begins with its number"
    assert words[0].startswith("T"), "a scenario's docstring begins with its number"
    own = Figure(words[0].rstrip(":,"))
    yield own
    request.config.stash.setdefault(FIGURES, []).append(own)


@pytest.fixture(scope="session")
def calm_stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("calm")) as own:
        own.ingest()
        own.worker()
        own.worker()
        own.goals()
        yield own


@pytest.fixture
async def calm(calm_stand: Stand) -> Stand:
    """A stand on which no process is hurt, for scenarios that hurt connections or only come at a bad moment. Each uses
    sessions whose names begin with its own number, and leaves them at rest."""
    await calm_stand.revived()
    return calm_stand


@pytest.fixture(scope="session")
def rough_stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("rough")) as own:
        own.ingest()
        for _ in range(3):
            own.worker()
        yield own


@pytest.fixture
async def rough(rough_stand: Stand) -> Stand:
    """An ingest and three workers, for scenarios that hurt workers. All of them run again when the next one begins;
    each uses sessions whose names begin with its own number, and leaves them at rest."""
    await rough_stand.revived()
    return rough_stand


@pytest.fixture(scope="session")
def network_trouble() -> str | None:
    return networks.unable()


@pytest.fixture
def network(network_trouble: str | None) -> Iterator[Namespace]:
    """A network of its own for a process."""
    if network_trouble is not None:
        unavailable(network_trouble)
    with networks.namespace() as own:
        yield own


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("chaos")
        for line in table(figures):
            terminalreporter.write_line(line)

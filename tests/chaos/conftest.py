"""What scenarios share: their figures, which are printed as a table at the end, and the network they may break."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.chaos import namespace as networks
from tests.chaos.figure import Figure, table
from tests.chaos.namespace import REQUIRED, Namespace
from tests.chaos.stand import Stand, stand
from tests.conftest import sections
from tests.servers import Aof

FIGURES: Final = pytest.StashKey[list[Figure]]()
SHARED: Final = pytest.StashKey[dict[str, tuple[Stand, AbstractContextManager[Stand]]]]()


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


@pytest.fixture
async def calm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stand:
    """A stand on which no process is hurt, for scenarios that hurt connections or only come at a bad moment. Each uses
    sessions whose names begin with its own number, and leaves them at rest."""
    return await shared(request, tmp_path_factory, "calm", ("ingest", "worker", "worker", "goals"))


@pytest.fixture
async def rough(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stand:
    """An ingest and three workers, for scenarios that hurt workers. All of them run again when the next one begins;
    each uses sessions whose names begin with its own number, and leaves them at rest."""
    return await shared(request, tmp_path_factory, "rough", ("ingest", "worker", "worker", "worker"))


@pytest.fixture
async def durable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stand:
    """An ingest and a worker on a store that writes everything down at once, for scenarios that hurt the store."""
    return await shared(request, tmp_path_factory, "durable", ("ingest", "worker"), aof="always")


async def shared(
    request: pytest.FixtureRequest,
    folders: pytest.TempPathFactory,
    name: str,
    kinds: Sequence[str],
    *,
    aof: Aof = "no",
) -> Stand:
    """The stand of that name, started if it is not there, with everything on it alive."""
    stands = request.config.stash.setdefault(SHARED, {})
    if name not in stands:
        keeping = stand(folders.mktemp(name), aof=aof)
        own = keeping.__enter__()
        stands[name] = own, keeping
        for kind in kinds:
            getattr(own, kind)()
    own, _ = stands[name]
    await own.revived()
    return own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scenarios that share a stand come one after the other, so that it is started once and ends with the last of
    them: idle workers look around all the time, which others would have to share the machine with."""
    places = [place for place, item in enumerate(items) if is_scenario(item)]
    ordered = sorted((items[place] for place in places), key=lambda item: (wanted(item), item.path.name))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    stands = item.config.stash.get(SHARED, {})
    for name in [name for name in stands if nextitem is None or name not in wanted(nextitem)]:
        _, keeping = stands.pop(name)
        keeping.__exit__(None, None, None)


def is_scenario(item: pytest.Item) -> bool:
    return item.path.parent == Path(__file__).parent


def wanted(item: pytest.Item) -> list[str]:
    """The shared stands that a test uses."""
    return [name for name in ("calm", "durable", "rough") if name in getattr(item, "fixturenames", ())]


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    figures = session.config.stash.get(FIGURES, [])
    if figures:
        sections(session.config)["chaos"] = list(table(figures))

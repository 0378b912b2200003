"""The suite sees: every planted bug is caught, by a seed that passes without it."""

import pytest

from tests.simulation.campaign import Trial, trial
from tests.simulation.planted import BUGS, Bug
from tests.simulation.test_simulation import SEEDS

SEEDS_PER_BUG = 1_000
"""Seeds in which a bug must show; most show in the first few."""


def first_failure(bug: Bug) -> Trial | None:
    with bug.plant():
        return next((tried for tried in map(trial, range(SEEDS_PER_BUG)) if tried.failure), None)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    caught = first_failure(bug)
    assert caught is not None, f"{SEEDS_PER_BUG} seeds do not show that {bug.breaks}"
    print(f"{bug.breaks}: seed {caught.seed}, {caught.failure.splitlines()[1].strip()}")
    assert trial(caught.seed).failure == "", "the seed fails without the bug too"


def test_seeds_that_show_bugs_are_among_those_that_pass_without_them() -> None:
    assert SEEDS >= SEEDS_PER_BUG


def test_no_two_bugs_have_a_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 15

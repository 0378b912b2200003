"""`make simulation`: one seed with everything it did, or many seeds and what went wrong.

make simulation                    1,000 seeds from 0 on
make simulation SEED=17            seed 17, with its ledgers and its last acts
make simulation SEED=5000 SEEDS=2000
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from tests.simulation.campaign import campaign, report
from tests.simulation.judge import verdict
from tests.simulation.world import run

SEEDS: Final = 1_000
"""How many seeds are run without a word."""

ACTS_SHOWN: Final = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="run this seed alone, or begin with it")
    parser.add_argument("--seeds", type=int, help="how many to run")
    parser.add_argument("--jobs", type=int, help="processes; a few by default")
    given = parser.parse_args()
    if given.seed is not None and given.seeds is None:
        world = run(given.seed)
        wrong = verdict(world)
        print(report(world, wrong, ACTS_SHOWN), f"fingerprint {world.fingerprint()}", sep="\n")
        return 1 if wrong else 0
    first = given.seed or 0
    done = campaign(range(first, first + (given.seeds or SEEDS)), jobs=given.jobs)
    for failed in done.failures:
        print(failed.failure, end="\n\n")
    print(done)
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())

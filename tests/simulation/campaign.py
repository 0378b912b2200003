"""Many seeds, on all cores, and a report of whatever went wrong that lets a person go through it again.

    seeds --> trial --> trial --> ...  --> Campaign(seeds, seconds, failures)
                          |
                          +-- Failure: what is wrong, the command that replays it, the ledgers, the last acts

Rule 1: a failure says everything in text: it may come from another process, or from a build of yesterday.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mailslot_contracts import render
from tests.simulation.judge import verdict
from tests.simulation.world import World, run

ACTS_SHOWN: Final = 60
"""How many of the last acts a failure shows."""

SENTENCES_SHOWN: Final = 12
"""How many of the broken promises."""

CHUNK: Final = 8
"""Seeds that a process takes at once."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One seed's run. `failure` is the whole report, empty when every promise was kept."""

    seed: int
    failure: str
    events: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Campaign:
    """Many runs."""

    trials: int
    events: int
    seconds: float
    failures: tuple[Trial, ...]

    def __str__(self) -> str:
        rate = self.trials / self.seconds if self.seconds else 0.0
        return (
            f"simulation: {self.trials} seeds, {self.events} events, {self.seconds:.1f} s, "
            f"{rate:.1f} seeds/s, {len(self.failures)} failed"
        )


def trial(seed: int) -> Trial:
    """Run one seed and judge it."""
    world = run(seed)
    wrong = verdict(world)
    events = sum(map(len, world.witness.ledgers.values()))
    return Trial(seed, report(world, wrong) if wrong else "", events, world.fingerprint())


def report(world: World, wrong: Iterable[str], acts: int = ACTS_SHOWN) -> str:
    """A run for people: what is wrong, how to see it again, what was said, and what was done last."""
    sentences = list(wrong)
    lines = [f"seed {world.seed} breaks {len(sentences)} promises; replay it with: make simulation SEED={world.seed}"]
    lines += [f"  {sentence}" for sentence in sentences[:SENTENCES_SHOWN]]
    lines.append(f"drawn: {world.plan}")
    for session_id, ledger in world.witness.ledgers.items():
        lines.append(f"{session_id}: {' '.join(render(ledger))}")
    lines.append(f"the last {acts} acts:")
    for at_s, who, name, arguments, said in world.log[-acts:]:
        lines.append(f"{at_s:9.4f} {who:10} {name}{arguments!r:.200} -> {said}" if name else f"{at_s:9.4f} {who}")
    return "\n".join(lines)


def campaign(seeds: Iterable[int], *, jobs: int | None = None, failures_max: int = 5) -> Campaign:
    """Run seeds, on several processes if there is more than one core; stop after a few failures."""
    began, done, events = time.monotonic(), 0, 0
    failed: list[Trial] = []
    jobs = jobs or min(4, os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap_unordered(trial, seeds, chunksize=CHUNK):
            done, events = done + 1, events + found.events
            if found.failure:
                failed.append(found)
                if len(failed) >= failures_max:
                    break
    return Campaign(done, events, time.monotonic() - began, tuple(sorted(failed, key=lambda found: found.seed)))

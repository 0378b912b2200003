"""`make bench`: every figure in one run, beside what others do on the same machine in the same minutes.

    python -m tests.bench [--repeat 3] [--only NAME ...] [--json FILE] [--quick]

Scenarios take turns, round after round, so that a busy minute of the machine hits all of them. Servers and services are
started here, listen on loopback alone, and end with this process. docs/benchmarks.md says what is measured, and how.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import uvloop

from tests.bench import bare_call, doors, end_to_end, first_import, latency, machine, storm, streams, weight
from tests.bench.figure import Round, as_json, check_names, summaries, table
from tests.bench.poster import poster
from tests.bench.process import fresh_server
from tests.bench.scale import FULL, QUICK, Scale

RESULTS: Final = Path("bench-results")
ROUNDS: Final = 3
ROUNDS_MAX: Final = 20

SCENARIOS: Final[Mapping[str, Callable[[Scale, Path], Awaitable[dict[str, float]]]]] = {
    "doors": doors.measure,
    "end-to-end": end_to_end.measure,
    "latency": latency.measure,
    "calls": bare_call.measure,
    "memory": weight.measure,
    "import": first_import.measure,
    "streams": streams.measure,
    "storm": storm.measure,
}


def options(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure mailslot on this machine.")
    parser.add_argument("--repeat", type=int, default=0, help=f"rounds [default: {ROUNDS}, 1 with --quick]")
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS), help="some scenarios")
    parser.add_argument("--json", type=Path, help=f"file for the result [default: {RESULTS}/<time>.json]")
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that everything runs, means nothing")
    given = parser.parse_args(words)
    given.repeat = given.repeat or (1 if given.quick else ROUNDS)
    if not 1 <= given.repeat <= ROUNDS_MAX:
        parser.error(f"--repeat must be from 1 to {ROUNDS_MAX}")
    return given


async def measure(scale: Scale, names: list[str], rounds: int) -> tuple[list[Round], dict[str, float]]:
    """The rounds; and how many cores others used meanwhile, by scenario."""
    done: list[Round] = []
    others: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        found: dict[str, float] = {}
        for name in names:
            watch = machine.Watch()
            with tempfile.TemporaryDirectory(prefix="mailslot-bench-") as folder:
                found |= await SCENARIOS[name](scale, Path(folder))
            others[name].append(watch.others_cores())
            sys.stderr.write(f"round {number} of {rounds}: {name}, {watch.passed_s():.1f} s\n")
        check_names(found)
        done.append(found)
    return done, {name: round(statistics.median(found), 2) for name, found in others.items()}


def main(words: list[str]) -> None:
    """Measure, print, write."""
    given = options(words)
    with fresh_server() as server:
        facts: dict[str, Any] = {**machine.facts(server), "poster": poster(), "quick": given.quick}
    began = time.monotonic()
    rounds, facts["others_cores"] = uvloop.run(measure(QUICK if given.quick else FULL, given.only, given.repeat))
    facts["seconds"] = round(time.monotonic() - began, 1)
    groups = summaries(rounds)
    file = given.json or RESULTS / f"{facts['time'].replace(':', '')}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(as_json(facts, groups, rounds))
    print(f"{machine.sentence(facts)}; HTTP posted by {facts['poster']}")
    shares = ", ".join(f"{name} {cores:g}" for name, cores in facts["others_cores"].items())
    print(f"cores that others used meanwhile: {shares}")
    print(f"{given.repeat} rounds in {facts['seconds']:.0f} s; medians, then least .. most")
    print(table(groups))
    print(f"\n{file}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Every promise is kept in a thousand worlds in which processes die, freeze and are cut off, and clocks jump.

A seed that fails is printed with the command that replays it. MAILSLOT_SIMULATION_SEEDS=20000 looks further.
"""

import os
import subprocess
import sys
from typing import Final

import pytest

from tests.simulation.campaign import campaign, trial

SEEDS: Final = int(os.environ.get("MAILSLOT_SIMULATION_SEEDS") or 1_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_promise_is_kept_in_a_thousand_worlds() -> None:
    done = campaign(range(SEEDS))
    print(done)
    if done.failures:
        pytest.fail("\n\n".join(failed.failure for failed in done.failures), pytrace=False)
    assert done.trials == SEEDS


@pytest.mark.parametrize("seed", [3, 17, 42])
def test_a_seed_gives_the_same_ledgers_byte_for_byte(seed: int) -> None:
    assert trial(seed).fingerprint == trial(seed).fingerprint


@pytest.mark.slow
def test_a_seed_gives_the_same_ledgers_whatever_python_hashes_text_to() -> None:
    program = "from tests.simulation.campaign import trial; print(*(trial(seed).fingerprint for seed in range(20)))"
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("0", "1", "4711")
    }
    assert len(said) == 1

"""A stranger reads `/openapi.json` of a running `mailslot up`, and sends whatever that allows and what it does not."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import SEED
from tests.e2e.terminal import up

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SCHEMATHESIS: Final = Path(sys.executable).with_name("schemathesis")
STRANGER_S: Final = 15
"""How long requests are made."""
PATIENCE_S: Final = 120.0
WAITING: Final = ("waitIdle", "eraseSession")
"""Operations that may answer only when their own time is over, which a made-up request sets."""


def test_no_request_of_a_stranger_is_answered_with_a_defect(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral") as started:
        words = [str(SCHEMATHESIS), "run", f"{started.url}/openapi.json", "--max-time", str(STRANGER_S)]
        words += ["--phases", "coverage,fuzzing,stateful", "--checks", "not_a_server_error", "--seed", str(SEED)]
        words += ["--header", "Accept: application/json"]  # a page of events: a stream has no end
        for name in WAITING:
            words += ["--exclude-operation-id", name]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        print(done.stdout[-2_000:])
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert started.run(started.hello).stdout == "hello\n"
        assert [line for line in started.lines if "error" in line.lower()] == []

"""The plugin costs nothing where nobody asks for a server."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Final

IMPORT_S_MAX: Final = 0.02
"""Of processor time; pytest itself takes ten times as long."""

RUNS: Final = 3

PROBE: Final = """
import json, sys, time
import pytest
before = set(sys.modules)
began = time.process_time()
import mailslot_services.testbed.plugin
took_s = time.process_time() - began
print(json.dumps({"took_s": took_s, "loaded": sorted(set(sys.modules) - before)}))
"""


def test_the_plugin_loads_nothing_of_the_product() -> None:
    done = [subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=True).stdout for _ in range(RUNS)]
    found = [json.loads(each) for each in done]
    package = "mailslot_services"
    assert found[0]["loaded"] == [package, f"{package}.testbed", f"{package}.testbed.plugin"]
    assert min(each["took_s"] for each in found) < IMPORT_S_MAX, found


def test_every_pytest_is_offered_it() -> None:
    assert [point.value for point in entry_points(group="pytest11", name="mailslot")] == [
        "mailslot_services.testbed.plugin"
    ]

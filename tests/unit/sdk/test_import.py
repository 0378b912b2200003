"""What it costs to import the package: little time, and nothing but the standard library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

IMPORT_S_MAX = 0.2
"""Of processor time: the clock on the wall also tells how busy the machine is."""

RUNS = 5
"""The fastest counts: the first compiles, what an installer does for its user."""

PROBE = """
import json, sys, time
before = set(sys.modules)
began = time.process_time()
import mailslot
took_s = time.process_time() - began
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({"took_s": took_s, "foreign": sorted(loaded - set(sys.stdlib_module_names) - {"mailslot"})}))
"""


def probe(code: str = PROBE, **variables: str) -> Any:
    command = [sys.executable, "-c", code]
    environment = {**os.environ, **variables}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    return json.loads(answer.stdout)


def test_importing_mailslot_is_quick(tmp_path: Path) -> None:
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    times = [probe(**compiled)["took_s"] for _ in range(RUNS)]
    assert min(times) < IMPORT_S_MAX, times


def test_importing_mailslot_loads_nothing_but_the_standard_library() -> None:
    assert probe()["foreign"] == []


def test_the_command_line_loads_no_service_and_no_http_before_it_needs_them() -> None:
    code = PROBE.replace("import mailslot\n", "import mailslot.cli\n")
    assert probe(code)["foreign"] == []


def test_marking_a_tool_loads_no_client() -> None:
    code = PROBE.replace("import mailslot\n", "import mailslot.tools\n")
    assert probe(code)["foreign"] == []

"""What `import mailslot` costs a program: processor time in a fresh interpreter, compiled as an installer does it.

The least of some runs counts: the first one compiles, and what is beyond the least is the machine's.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.bench.scale import PATIENCE_S, Scale

PROBE: Final = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"


async def measure(scale: Scale, folder: Path) -> dict[str, float]:
    """The package, and beside it the one library that it stands on, which it loads on first use."""
    return {"import_ms": least_ms("mailslot", scale, folder), "import_http_ms": least_ms("httpx2", scale, folder)}


def least_ms(name: str, scale: Scale, folder: Path) -> float:
    """Milliseconds."""
    command = [sys.executable, "-c", PROBE.format(name)]
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    took = []
    for _ in range(scale.imports):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=compiled)
        took.append(float(done.stdout))
    return min(took) * 1000

"""What the figures were measured on: without it they mean nothing."""

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from tests.servers import Server

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE_COLUMNS = (3, 4)  # idle and waiting for a disk; all other columns of /proc/stat are time that somebody used


class Watch:
    """How much of the machine others used while we measured: figures of a machine that was shared say less."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), busy_s(), own_s()

    def passed_s(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._began

    def others_cores(self) -> float:
        """Cores in use by what is neither us nor was started by us, on average. What we started must have ended."""
        return max(0.0, (busy_s() - self._busy) - (own_s() - self._own)) / self.passed_s()


def busy_s() -> float:
    """Seconds that all cores together were not idle, what the host took away included."""
    columns = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(columns) - sum(columns[place] for place in IDLE_COLUMNS)) / TICKS_PER_S


def own_s() -> float:
    """Seconds that this process and all that it started and waited for have used."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def facts(server: Server) -> dict[str, Any]:
    """The machine, the interpreter, the server and how it is set up."""
    with server.client() as client:
        info = client.info()
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cores": os.cpu_count(),
        "processor": processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "redis_py": redis.__version__,
        "server": f"{info.get('server_name', 'redis')} {info['redis_version']}",
        "server_options": {
            "appendonly": "yes" if server.aof != "no" else "no",
            "appendfsync": server.aof,
            "stream-node-max-bytes": 1024,
        },
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def sentence(found: dict[str, Any]) -> str:
    """The same on one line."""
    options = found["server_options"]
    return (
        f"{found['cores']} cores ({found['processor']}), Python {found['python']}, {found['server']}, "
        f"appendfsync {options['appendfsync']}, load before {found['load_before']}"
    )

"""What the figures were measured on: without it they mean nothing."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from tests.servers import Server


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

"""Posts prompts over keep-alive connections, from a process of its own, as fast as they are taken.

    python -m tests.bench.poster URL CONNECTIONS SECONDS --> {"per_s": ..., "p50": ..., "p99": ..., "refused": {...}}

`wrk` does the same where it is on PATH, and takes less of the machine for it; the figures say who posted.
"""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools
import uvloop

from tests.bench.figure import percentile
from tests.bench.scale import IN_FLIGHT, SESSIONS, TEXT
from tests.bench.traffic import session_of

ACCEPTED: Final = 202
WRK_SCRIPT: Final = Path(__file__).parent / "poster.lua"
IN_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def request(host: str, session_id: str, body: dict[str, Any]) -> bytes:
    """One POST as it goes over the connection."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/sessions/{session_id}/prompt HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Some of an answer."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """All of an answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._parser.get_status_code())

    def connection_lost(self, error: Exception | None) -> None:
        """The server hung up."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the connection was closed"))

    async def post(self, sent: bytes) -> int:
        """The status that the server answered with."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(sent)
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


async def connect(host: str, port: int) -> Connection:
    """A connection to the server."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return connection


async def post_for(host: str, port: int, connections: int, seconds: float) -> dict[str, Any]:
    """Post on all connections at once for so long."""
    took: list[float] = []
    statuses: Counter[int] = Counter()
    lines = [await connect(host, port) for _ in range(connections)]
    begin = time.monotonic()
    until = begin + seconds

    async def caller(first: int, line: Connection) -> None:
        mine = [request(host, session_of(n), {"content": TEXT}) for n in range(first, SESSIONS, connections)]
        number = 0
        while (sent := time.monotonic()) < until:
            statuses[await line.post(mine[number % len(mine)])] += 1
            took.append(time.monotonic() - sent)
            number += 1

    await asyncio.gather(*(caller(n, line) for n, line in enumerate(lines)))
    lasted = time.monotonic() - begin
    for line in lines:
        line.close()
    refused = {str(status): count for status, count in statuses.items() if status != ACCEPTED}
    return {
        "per_s": statuses[ACCEPTED] / lasted,
        "count": statuses[ACCEPTED],
        "p50": percentile(took, 0.5) * 1000,
        "p99": percentile(took, 0.99) * 1000,
        "refused": refused,
    }


def post_by_wrk(wrk: str, url: str, seconds: float) -> dict[str, Any]:
    """The same by `wrk`."""
    command = [wrk, "-t1", f"-c{IN_FLIGHT}", f"-d{max(1, round(seconds))}s", "--latency", "-s", str(WRK_SCRIPT), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 30).stdout
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    count, per_s = re.search(r"(\d+) requests in", said), re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert count is not None, said
    assert per_s is not None, said
    return {
        "per_s": float(per_s.group(1)),
        "count": int(count.group(1)),
        "p50": _wrk_ms(said, "50%"),
        "p99": _wrk_ms(said, "99%"),
        "refused": {"not 202": int(refused.group(1))} if refused else {},
    }


def _wrk_ms(said: str, share: str) -> float:
    found = re.search(rf"{share}\s+([\d.]+)(us|ms|s)\b", said)
    assert found is not None, said
    return float(found.group(1)) * IN_MS[found.group(2)]


def poster() -> str:
    """Who posts on this machine."""
    return "wrk" if shutil.which("wrk") else "our client"


def post_as_fast_as_taken(port: int, seconds: float) -> dict[str, Any]:
    """Rate, count, percentiles in ms, and what was refused, posted by another process."""
    url = f"http://127.0.0.1:{port}"
    wrk = shutil.which("wrk")
    if wrk:
        return post_by_wrk(wrk, url, seconds)
    command = [sys.executable, "-m", "tests.bench.poster", url, str(IN_FLIGHT), str(seconds)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 30).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def main(words: list[str]) -> None:
    """The process of its own."""
    url, connections, seconds = urlsplit(words[0]), int(words[1]), float(words[2])
    assert url.hostname is not None
    assert url.port is not None
    print(json.dumps(uvloop.run(post_for(url.hostname, url.port, connections, seconds))))


if __name__ == "__main__":
    main(sys.argv[1:])

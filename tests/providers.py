"""Providers of models to test against: one that others wrote (aimock), and a bare one that says what it is told to.

    fixture     scope     gives
    aimock      session   a running `Provider`
    provider    test      the same, with nothing to say and nothing in its journal

Rule 1: aimock is a real process on a loopback port; `make setup-test` installs it under `.cache/node`. It speaks
        OpenAI's and Anthropic's interfaces and is the judge of what our adapters send.
Rule 2: it dies with the test process, however that ends: it runs under the product's own watcher.
Rule 3: if it is missing the test fails and says how to get it; nothing is skipped.
Rule 4: `bare_provider` is for what aimock refuses to do: send what is no JSON, show the keys it got, notice that its
        caller hung up.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from mailslot_services import embedded_watcher
from tests.servers import free_port

PROGRAM: Final = Path(__file__).parent.parent / ".cache/node/node_modules/@copilotkit/aimock/dist/cli.js"
START_S_MAX: Final = 20.0
GRACE_S: Final = 2.0
POLL_S: Final = 0.01


class ProviderMissing(Exception):
    """The provider is not on this machine; the sentence says how to get it."""


@dataclass(frozen=True)
class Provider:
    """A running aimock: what it is to answer, and what it was asked."""

    url: str

    @property
    def openai_url(self) -> str:
        """The `base_url` of an OpenAI-compatible model."""
        return f"{self.url}/v1"

    def reset(self) -> None:
        """Forget what to answer and what was asked."""
        self._control("POST", "/reset")

    def on(self, match: Mapping[str, Any], response: Mapping[str, Any], **options: Any) -> None:
        """Answer requests that match (aimock's own terms) so; whatever was told first wins."""
        self._control("POST", "/fixtures", {"fixtures": [{"match": match, "response": response, **options}]})

    def fail(self, status: int, message: str = "no", **error: Any) -> None:
        """Answer every request with a status."""
        after = {"retryAfter": error.pop("retry_after_s")} if "retry_after_s" in error else {}
        self.on({}, {"error": {"message": message, **error}, "status": status, **after})

    def asked(self) -> list[dict[str, Any]]:
        """Every request so far: `headers`, and `body` as aimock understood it (in OpenAI's terms)."""
        journal: list[dict[str, Any]] = self._control("GET", "/journal")
        return journal

    def _control(self, method: str, path: str, body: object = None) -> Any:
        with httpx2.Client(trust_env=False) as client:
            answer = client.request(method, f"{self.url}/__aimock{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def running_provider() -> Iterator[Provider]:
    """An aimock for the length of the block."""
    node = shutil.which("node")
    if node is None or not PROGRAM.exists():
        raise ProviderMissing("the test provider is missing: run `make setup-test` (it needs Node 20 and npm)")
    with tempfile.TemporaryDirectory(prefix="mailslot-test-aimock-") as folder:
        port = free_port()
        options = ["--port", str(port), "--host", "127.0.0.1", "--fixtures", folder, "--log-level", "silent"]
        watcher = [sys.executable, "-I", embedded_watcher.__file__, str(os.getpid()), str(GRACE_S), "", "-1", "--"]
        with (Path(folder) / "provider.log").open("wb") as log:
            process = subprocess.Popen(
                [*watcher, node, str(PROGRAM), *options], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log
            )
        assert process.stdin is not None
        try:
            provider = Provider(f"http://127.0.0.1:{port}")
            wait_ready(provider, process)
            yield provider
        finally:
            process.stdin.close()
            process.wait()


def wait_ready(provider: Provider, process: subprocess.Popen[bytes]) -> None:
    """Return when it answers."""
    deadline = time.monotonic() + START_S_MAX
    with httpx2.Client(trust_env=False) as client:
        while True:
            assert process.poll() is None, "the test provider ended at its start"
            assert time.monotonic() < deadline, f"the test provider did not answer within {START_S_MAX} s"
            try:
                if client.get(f"{provider.url}/__aimock/health").status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(POLL_S)


@pytest.fixture(scope="session")
def aimock() -> Iterator[Provider]:
    """A running provider."""
    try:
        with running_provider() as provider:
            yield provider
    except ProviderMissing as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def provider(aimock: Provider) -> Provider:
    """The running provider, emptied."""
    aimock.reset()
    return aimock


@dataclass
class Bare:
    """A provider that sends these chunks of an event stream to whoever asks, then keeps the line open or closes it."""

    chunks: Sequence[bytes]
    stays_open: bool = False
    url: str = ""
    heads: list[str] = field(default_factory=list)  # of the requests, in lower case
    bodies: list[Any] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            self.heads.append(head)
            length = next(line for line in head.splitlines() if line.startswith("content-length:"))
            self.bodies.append(json.loads(await reader.readexactly(int(length.split(":")[1]))))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for chunk in self.chunks:
                writer.write(chunk)
                await writer.drain()
            if self.stays_open and await reader.read() == b"":
                self.hung_up.set()
        writer.close()


@asynccontextmanager
async def bare_provider(chunks: Sequence[bytes], *, stays_open: bool = False) -> AsyncIterator[Bare]:
    """A bare provider for the length of the block."""
    bare = Bare(chunks, stays_open)
    server = await asyncio.start_server(bare.serve, "127.0.0.1", 0)
    bare.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield bare
    finally:
        server.close()


def openai_chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
    """One chunk of a chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


OPENAI_DONE: Final = b"data: [DONE]\n\n"

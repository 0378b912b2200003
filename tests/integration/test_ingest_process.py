"""`mailslot ingest` as a process: it starts or says why not, and ends in order (issue: bad input; R6)."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import pytest

from tests.servers import Server, free_port, running

pytestmark = pytest.mark.integration

PATIENCE_S: Final = 30.0
COMMAND: Final = "import sys; from mailslot_services.ingest import command; sys.exit(command(sys.argv[1:]))"


@asynccontextmanager
async def ingest(*argv: str, **env: str) -> AsyncIterator[Process]:
    """The process, ended when the block is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, *argv, stdout=PIPE, stderr=PIPE, env={**os.environ, **env}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def refusal(*argv: str, **env: str) -> tuple[int, str]:
    """How a process that cannot start ends, and what it says."""
    async with ingest(*argv, **env) as process:
        _, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode is not None
        return process.returncode, said.decode()


async def url_of(process: Process) -> str:
    """Where it serves, once it says so."""
    assert process.stderr
    async with asyncio.timeout(PATIENCE_S):
        async for line in process.stderr:
            words = line.decode().split()
            if "serving" in words:
                return words[-1].removeprefix("url=")
    raise AssertionError("it ended before it served")


async def test_it_serves_and_ends_in_order_with_a_stream_open(clean_redis_url: str) -> None:
    async with ingest("--redis-url", clean_redis_url, "--port", "0", "--durability", "memory") as process:
        url = await url_of(process)
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            receipt = await client.post("/v1/sessions/s/prompt", json={"content": "hello"})
            assert (receipt.status_code, receipt.json()["durability"]) == (202, "memory")
            assert (await client.get("/readyz")).json() == {"status": "ready"}
            async with client.stream("GET", "/v1/sessions/s/events") as response:
                lines = response.aiter_lines()
                assert await anext(lines) == "event: session.status"
                waiting = asyncio.create_task(client.get("/v1/sessions/s/idle?timeout=60"))
                async with asyncio.timeout(PATIENCE_S):
                    while "id: 3" not in await anext(lines):
                        pass
                    process.send_signal(signal.SIGTERM)
                    rest = [line async for line in lines]
                assert ": closing; go on with Last-Event-ID 3" in rest
                assert (await waiting).json()["status"] == "running"
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_two_processes_serve_one_store(clean_redis_url: str) -> None:
    argv = ("--redis-url", clean_redis_url, "--port", "0", "--durability", "memory")
    async with ingest(*argv) as first, ingest(*argv) as second:
        one, two = await url_of(first), await url_of(second)
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            body = {"content": "hello", "messageId": "m"}
            assert (await client.post(f"{one}v1/sessions/s/prompt", json=body)).json()["duplicate"] is False
            assert (await client.post(f"{two}v1/sessions/s/prompt", json=body)).json()["duplicate"] is True


async def test_a_taken_port_is_said_in_one_line(clean_redis_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = await refusal("--redis-url", clean_redis_url, "--port", str(port), "--durability", "memory")
    assert code == 1
    assert said == f"mailslot: cannot listen on 127.0.0.1 port {port}: Address already in use: set --port\n"


async def test_a_store_that_is_not_there_is_said_in_one_line_without_its_password() -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    code, said = await refusal("--redis-url", url, "--port", "0")
    assert code == 1
    assert said.startswith("mailslot: ")
    assert said.count("\n") == 1
    assert "secret" not in said


async def test_a_scheme_that_is_not_spoken_is_said_in_one_line() -> None:
    code, said = await refusal("--redis-url", "redis+cluster://127.0.0.1:1/0", "--port", "0")
    assert (code, said.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--maxmemory-policy", "allkeys-lru"], "maxmemory-policy noeviction"),
        ([], "appendonly yes"),
    ],
)
async def test_a_server_that_cannot_give_what_is_configured_is_refused_with_what_to_set(
    options: list[str], words: str
) -> None:
    with running("redis70", options=options) as server:
        code, said = await refusal("--redis-url", server.url, "--port", "0", "--durability", "fsync")
    assert (code, said.count("\n")) == (1, 1)
    assert words in said


async def test_another_number_of_partitions_is_refused_with_the_number_to_set(clean_server: Server) -> None:
    argv = ("--redis-url", clean_server.url, "--port", "0", "--durability", "memory")
    async with ingest(*argv) as process:
        await url_of(process)
    code, said = await refusal(*argv, "--partitions", "5")
    assert (code, said.count("\n")) == (1, 1)
    assert "--partitions 16" in said

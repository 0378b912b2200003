"""A small HTTP server on a real socket that answers as a test tells it to, and can be rude.

It runs on an event loop of its own, in a thread, so that blocking clients can be tested against it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import parse_qsl


class Rude(Enum):
    """What may stand among the parts of an answer instead of bytes."""

    HANG = "send nothing more, until the client leaves"
    CUT = "reset the connection"


Part: TypeAlias = "bytes | Rude | Callable[[Served], Awaitable[bytes]]"
"""Bytes, rudeness, or bytes that are not there yet."""


@dataclass(frozen=True)
class Call:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """An answer: in one piece, or as a stream of parts."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    parts: Sequence[Part] | None = None


NOTHING = Reply(parts=[Rude.CUT], status=0)
"""The request was read, and the connection reset."""

Handler: TypeAlias = Callable[[Call], Reply]


def said(value: Mapping[str, Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())


def problem(status: int, code: str, **more: Any) -> Reply:
    body = json.dumps({"code": code, "detail": f"it is {code}", "status": status, **more}).encode()
    return Reply(status, body, {"content-type": "application/problem+json"})


def stream(*parts: Part) -> Reply:
    return Reply(headers={"content-type": "text/event-stream"}, parts=parts)


def once_prompted(events: Callable[[str], bytes]) -> Part:
    """What the server sends once it got a prompt, given the id of its message."""

    async def wait(server: Served) -> bytes:
        await server.heard(lambda: bool(server.called("POST", "/prompt")))
        return events(server.called("POST", "/prompt")[0].json["messageId"])

    return wait


class Served:
    """The running server: where it is, and what it was asked."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self.calls: list[Call] = []
        self.left = threading.Event()
        """A client left an answer that was hanging."""
        self._hearing = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def called(self, method: str, end: str) -> list[Call]:
        """The calls of a method to a path with that end."""
        return [call for call in self.calls if call.method == method and call.path.endswith(end)]

    async def heard(self, what: Callable[[], bool]) -> None:
        """Wait, on the server's loop, for a call."""
        async with self._hearing:
            await self._hearing.wait_for(what)

    async def _start(self, port: int) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self._port = server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        call = await _read(reader)
        async with self._hearing:
            self.calls.append(call)
            self._hearing.notify_all()
        reply = self._handler(call)
        if reply.parts is None:
            writer.write(_head(reply, {"content-length": str(len(reply.body))}) + reply.body)
            await writer.drain()
            return True
        if reply.status:
            writer.write(_head(reply, {"transfer-encoding": "chunked"}))
        for part in reply.parts:
            if part is Rude.CUT:
                writer.transport.abort()
                return False
            if part is Rude.HANG:
                await reader.read()
                self.left.set()
                return False
            data = part if isinstance(part, bytes) else await part(self)
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def run(self, port: int) -> threading.Thread:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self._start(port), self._loop).result(5)
        return thread

    def stop(self, thread: threading.Thread) -> None:
        def halt() -> None:
            for task in self._tasks:
                task.cancel()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(halt)
        thread.join(5)


@contextmanager
def served(handler: Handler, port: int = 0) -> Iterator[Served]:
    """A server for as long as the test needs it."""
    server = Served(handler)
    thread = server.run(port)
    try:
        yield server
    finally:
        server.stop(thread)


def after(seconds: float, data: bytes) -> Part:
    """Bytes that the server takes its time for."""

    async def wait(_server: Served) -> bytes:
        await asyncio.sleep(seconds)
        return data

    return wait


def _head(reply: Reply, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in {**reply.headers, **headers}.items())]
    return "\r\n".join([*lines, "", ""]).encode()


async def _read(reader: asyncio.StreamReader) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    path, _, query = target.partition("?")
    return Call(method, path, dict(parse_qsl(query)), headers, body)

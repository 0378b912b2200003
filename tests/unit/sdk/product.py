"""The product in this process, for clients to be tested against: real doors, a real worker, a store in memory.

It runs on an event loop of its own, in a thread, so that blocking clients can use it. The model does what the text
that it gets says: wait at a gate, fail, be cut off, come in pieces; and answers `answer to <text>`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from mailslot_core.agent import Answer, Finish, ModelError, OnDelta, Request
from mailslot_core.memory import MemoryStore
from mailslot_core.session import Event
from mailslot_core.settings import IngestSettings
from mailslot_services.agent_worker.models.gate import Gates
from mailslot_services.agent_worker.transcript import newest_user_text
from mailslot_services.ingest import bound, create_app, serve_app, url_of
from tests.crew import agent, crew

T = TypeVar("T")
START_S = 20.0


class Moods:
    """A model that does what it is told."""

    name = "moods"
    instant = False

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        text = newest_user_text(request.transcript).rpartition("\n")[2]
        if "pieces" in text:
            for piece in ("answer ", "to ", text):
                await on_delta(piece)
        if "wait" in text:
            await self._gates.wait("door")
        if "fail" in text:
            raise ModelError("broken", "the model is broken", retryable=False)
        if "nothing" in text:
            return Answer(text="", model=self.name)
        finish = Finish.LENGTH if "long" in text else Finish.STOP
        return Answer(text=f"answer to {text}", finish=finish, model=self.name)


class Product:
    """Where it is, and what is in it."""

    def __init__(self, origins: str = "") -> None:
        self.origins = origins
        self.store = MemoryStore()
        self.gates = Gates()
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the product's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    def ledger(self, session_id: str) -> list[Event]:
        """What the session's ledger holds, seen past every door."""
        return self.do(self.store.events(session_id, after=0, limit=1_000_000))

    def reached(self) -> None:
        """Wait until the model waits at its gate."""
        self.do(asyncio.wait_for(self.gates.reached("door"), START_S))

    def open(self) -> None:
        """Let the model go on."""
        self._loop.call_soon_threadsafe(self.gates.open, "door")

    def close(self) -> None:
        """Stop the model at its gate again, from the next call on."""
        self._loop.call_soon_threadsafe(self.gates.close, "door")

    async def _serve(self) -> None:
        def started(url: str) -> None:
            self.url = url.rstrip("/")
            self._ready.set()

        settings = IngestSettings(
            durability="memory", port=0, poll_ms=50, sse_heartbeat_ms=200, intake=False, origins=self.origins
        )
        with bound("127.0.0.1", 0) as listener:
            assert url_of(listener)
            async with crew(self.store, agent(Moods(self.gates)), concurrency=64, lease_ms=3_000):
                await serve_app(create_app(self.store, settings), listener, self._stop, started)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the start is told
            self._failure = error
        finally:
            self._ready.set()

    @contextmanager
    def running(self) -> Iterator[Product]:
        """Serve while the block is open."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        assert self._ready.wait(START_S)
        if self._failure is not None:
            raise self._failure
        try:
            yield self
        finally:
            self.open()
            self._loop.call_soon_threadsafe(self._stop.set)
            thread.join(START_S)
            assert not thread.is_alive()
            if self._failure is not None:
                raise self._failure


class CuttingProxy:
    """Passes bytes on to a server and resets each connection after as many bytes from it as `patience` says."""

    def __init__(self, port: int, patience: Callable[[], int]) -> None:
        self._upstream = port
        self._patience = patience
        self._links: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        """Pass on while the block is open."""
        server = await asyncio.start_server(self._linked, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)

    async def _linked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        asking = asyncio.ensure_future(self._pass(reader, up_writer, None))
        try:
            await self._pass(up_reader, writer, self._patience())
        finally:
            self._links.discard(task)
            asking.cancel()
            writer.transport.abort()
            up_writer.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: int | None) -> None:
        try:
            while data := await source.read(4096):
                if left is not None:
                    data, left = data[:left], left - len(data)
                sink.write(data)
                await sink.drain()
                if left is not None and left <= 0:
                    self.cuts += 1
                    return
        except ConnectionError:
            return

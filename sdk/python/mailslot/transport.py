"""What carries operations out: HTTP over httpx2, synchronous and asynchronous.

The two halves of this file differ in `await` and in how a deadline ends a read that is under way: the event loop
cancels it; a blocked thread is woken by shutting the connection down under it.

Rule 1: everything is decided in operations (see `step`). Here a step is carried out, once.
Rule 2: an error of the connection becomes a `Fault`; it is never raised from here. Only an answer without end is.
Rule 3: event streams have a pool of their own: however many are open, there is a connection left to send on.
Rule 4: httpx2 and asyncio are imported when they are needed, not with this package: most of its import time is theirs.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from mailslot.errors import BadAnswer, MailslotError
from mailslot.settings import Settings
from mailslot.step import (
    Abandoned,
    Answer,
    Exchange,
    Fault,
    Give,
    Open,
    Opened,
    Operation,
    Pause,
    Read,
    Request,
    Response,
    Shut,
    Step,
    Terms,
)

if TYPE_CHECKING:
    import ssl

    import httpx2

T = TypeVar("T")

ENDED = Fault("the server ended the stream")
OUT_OF_TIME = Fault("the time for it is over")

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TOKEN = re.compile(r"[!-~]+", re.ASCII)


class _Line:
    """Where a server is, and how to speak to it: what both halves share."""

    def __init__(self, url: str, token: str | None, settings: Settings | None) -> None:
        self.url = checked_url(url)
        self.settings = settings or Settings()
        self.terms = Terms(self.settings)
        self._certificates: ssl.SSLContext | None = None
        self._headers = {"user-agent": "mailslot-python", "accept": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {checked_token(token)}"

    def options(self, *, connections_max: int) -> dict[str, Any]:
        """The arguments of an httpx2 client."""
        import httpx2

        return {
            "headers": self._headers,
            "limits": httpx2.Limits(
                max_connections=connections_max,
                max_keepalive_connections=connections_max,
                keepalive_expiry=self.settings.keep_alive_s,
            ),
            # A proxy cannot reach this machine's own addresses, so one from the environment is not asked for them.
            "trust_env": urlsplit(self.url).hostname not in _LOOPBACK,
            "verify": self._trusted(),
        }

    def _trusted(self) -> ssl.SSLContext | bool:
        """The certificates to trust, read once: that takes longer than many a run, and http needs none."""
        if self._certificates is None and self.url.startswith("https:"):
            import httpx2

            self._certificates = httpx2.create_ssl_context()
        return self._certificates or False

    def build(self, client: httpx2.Client | httpx2.AsyncClient, request: Request, timeout_s: float) -> httpx2.Request:
        """The request as httpx2 sends it."""
        import httpx2

        settings = self.settings
        headers = dict(request.headers)
        if request.body is not None:
            headers["content-type"] = "application/json"
        return client.build_request(
            request.method,
            self.url + request.path,
            params=dict(request.query),
            content=request.body,
            headers=headers,
            timeout=httpx2.Timeout(timeout_s, connect=min(settings.connect_timeout_s, timeout_s)),
        )

    def fault(self, error: httpx2.RequestError) -> Fault:
        """What went wrong with a request, and whether the server may have got it."""
        import httpx2

        unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
        if isinstance(error, unsent):
            return Fault(f"cannot reach {self.url}: {_reason(error)}", sent=False)
        return Fault(f"the connection to {self.url} was cut: {_reason(error)}")

    def stream_timeout_s(self, deadline: float | None) -> float:
        """Seconds of silence after which a stream counts as cut."""
        silence_s = self.settings.silence_timeout_s
        return silence_s if deadline is None else max(0.0, min(silence_s, deadline - self.terms.clock()))

    def bound(self, body: bytearray) -> None:
        """Refuse an answer that is over the limit."""
        if len(body) > self.settings.answer_bytes_max:
            raise BadAnswer(f"the answer of {self.url} has more than {self.settings.answer_bytes_max} bytes")


def checked_url(url: str) -> str:
    """The address without a slash at its end; ValueError with a sentence when it is none of a server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"the url must look like http://127.0.0.1:8080, got {url!r}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the url must not hold a user or a password; give a token instead")
    if parts.query or parts.fragment:
        raise ValueError(f"the url must end with its path, got {url!r}")
    return url.rstrip("/")


def checked_token(token: str) -> str:
    """The token; ValueError when no header could hold it. The token is not in the sentence."""
    if _TOKEN.fullmatch(token) is None:
        raise ValueError("the token must be printable ASCII without spaces")
    return token


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _advanced(operation: Operation[Any], answer: Answer) -> Step | None:
    """The next step of an operation; None when it has no more."""
    try:
        return operation.send(answer)
    except StopIteration:
        return None


# -- synchronous ------------------------------------------------------------------------------------------------


class Transport:
    """Carries operations out in the calling thread. Threads may share one."""

    def __init__(self, url: str, token: str | None = None, settings: Settings | None = None) -> None:
        import httpx2

        self.line = _Line(url, token, settings)
        self._requests = httpx2.Client(**self.line.options(connections_max=self.line.settings.connections_max))
        self._streams = httpx2.Client(**self.line.options(connections_max=self.line.settings.streams_max))

    @property
    def terms(self) -> Terms:
        """The terms of an operation without a deadline."""
        return self.line.terms

    def perform(self, operation: Operation[T]) -> T:
        """Carry an operation out; what it gives on its way is dropped."""
        answer: Answer = None
        with contextlib.closing(_Talk(self.line, self._requests, self._streams)) as talk:
            while True:
                try:
                    step = operation.send(answer)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                answer = talk.answer(step)

    def follow(self, operation: Operation[None]) -> Generator[Any, None, None]:
        """Carry an operation out and yield what it gives. Leaving early abandons it."""
        answer: Answer = None
        with contextlib.closing(_Talk(self.line, self._requests, self._streams)) as talk:
            try:
                while (step := _advanced(operation, answer)) is not None:
                    answer = None
                    if isinstance(step, Give):
                        yield step.item
                    else:
                        answer = talk.answer(step)
            except BaseException:
                talk.abandon(operation)
                raise

    def close(self) -> None:
        """Close every connection."""
        self._requests.close()
        self._streams.close()


class _Talk:
    """One operation's side of the conversation: the stream it has open, if any."""

    def __init__(self, line: _Line, requests: httpx2.Client, streams: httpx2.Client) -> None:
        self._line = line
        self._requests = requests
        self._streams = streams
        self._response: httpx2.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._watchdog: threading.Timer | None = None

    def answer(self, step: Step) -> Answer:
        """Carry out one step."""
        match step:
            case Exchange(request, timeout_s):
                return self._exchange(request, timeout_s)
            case Open(request, deadline):
                return self._open(request, deadline)
            case Read():
                return self._read()
            case Pause(seconds):
                time.sleep(seconds)
            case Shut():
                self.close()
            case Give():
                pass
        return None

    def abandon(self, operation: Operation[Any]) -> None:
        """Tell the operation that its caller left, and carry out its last steps."""
        with contextlib.suppress(StopIteration, Abandoned, MailslotError):
            step = operation.throw(Abandoned())
            while True:
                step = operation.send(self.answer(step))

    def close(self) -> None:
        """Shut the open stream."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._response is not None:
            self._response.close()
            self._response = None

    def _exchange(self, request: Request, timeout_s: float) -> Response | Fault:
        import httpx2

        try:
            response = self._requests.send(self._line.build(self._requests, request, timeout_s), stream=True)
            with contextlib.closing(response):
                return self._whole(response)
        except httpx2.RequestError as error:
            return self._line.fault(error)

    def _whole(self, response: httpx2.Response) -> Response:
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            self._line.bound(body)
        return Response(response.status_code, dict(response.headers), bytes(body))

    def _open(self, request: Request, deadline: float | None) -> Opened | Response | Fault:
        import httpx2

        self.close()
        silence_s = self._line.stream_timeout_s(deadline)
        try:
            response = self._streams.send(self._line.build(self._streams, request, silence_s), stream=True)
            if response.status_code != 200:
                with contextlib.closing(response):
                    return self._whole(response)
        except httpx2.RequestError as error:
            return self._line.fault(error)
        self._response, self._chunks = response, response.iter_raw()
        if deadline is not None:
            self._watch(response, deadline)
        return Opened(response.headers.get("content-type", ""))

    def _read(self) -> bytes | Fault:
        import httpx2

        try:
            chunk = next(self._chunks, None)
        except httpx2.RequestError as error:
            self.close()
            return self._line.fault(error)
        if chunk is None:
            self.close()
            return ENDED
        return chunk

    def _watch(self, response: httpx2.Response, deadline: float) -> None:
        """Have the connection shut down at the deadline, which wakes a thread that is blocked in reading it."""
        stream = response.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if not isinstance(connection, socket.socket):
            return
        self._watchdog = threading.Timer(max(0.0, deadline - self._line.terms.clock()), _sever, [connection])
        self._watchdog.daemon = True
        self._watchdog.start()


def _sever(connection: socket.socket) -> None:
    # Through a second descriptor: shutting a TLS socket down through itself pulls its state from under the reader.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


# -- asynchronous -----------------------------------------------------------------------------------------------


class AsyncTransport:
    """Carries operations out on the running event loop."""

    def __init__(self, url: str, token: str | None = None, settings: Settings | None = None) -> None:
        import httpx2

        self.line = _Line(url, token, settings)
        self._requests = httpx2.AsyncClient(**self.line.options(connections_max=self.line.settings.connections_max))
        self._streams = httpx2.AsyncClient(**self.line.options(connections_max=self.line.settings.streams_max))

    @property
    def terms(self) -> Terms:
        """The terms of an operation without a deadline."""
        return self.line.terms

    async def perform(self, operation: Operation[T]) -> T:
        """Carry an operation out; what it gives on its way is dropped."""
        answer: Answer = None
        async with contextlib.aclosing(_AsyncTalk(self.line, self._requests, self._streams)) as talk:
            while True:
                try:
                    step = operation.send(answer)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                answer = await talk.answer(step)

    async def follow(self, operation: Operation[None]) -> AsyncGenerator[Any, None]:
        """Carry an operation out and yield what it gives. Leaving early abandons it."""
        answer: Answer = None
        async with contextlib.aclosing(_AsyncTalk(self.line, self._requests, self._streams)) as talk:
            try:
                while (step := _advanced(operation, answer)) is not None:
                    answer = None
                    if isinstance(step, Give):
                        yield step.item
                    else:
                        answer = await talk.answer(step)
            except BaseException:
                await talk.abandon(operation)
                raise

    async def aclose(self) -> None:
        """Close every connection."""
        await self._requests.aclose()
        await self._streams.aclose()


class _AsyncTalk:
    """One operation's side of the conversation: the stream it has open, if any."""

    def __init__(self, line: _Line, requests: httpx2.AsyncClient, streams: httpx2.AsyncClient) -> None:
        self._line = line
        self._requests = requests
        self._streams = streams
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def answer(self, step: Step) -> Answer:
        """Carry out one step."""
        match step:
            case Exchange(request, timeout_s):
                return await self._exchange(request, timeout_s)
            case Open(request, deadline):
                return await self._open(request, deadline)
            case Read(deadline):
                return await self._read(deadline)
            case Pause(seconds):
                import asyncio

                await asyncio.sleep(seconds)
            case Shut():
                await self.aclose()
            case Give():
                pass
        return None

    async def abandon(self, operation: Operation[Any]) -> None:
        """Tell the operation that its caller left, and carry out its last steps."""
        with contextlib.suppress(StopIteration, Abandoned, MailslotError):
            step = operation.throw(Abandoned())
            while True:
                step = operation.send(await self.answer(step))

    async def aclose(self) -> None:
        """Shut the open stream."""
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            await response.aclose()

    async def _exchange(self, request: Request, timeout_s: float) -> Response | Fault:
        import httpx2

        try:
            response = await self._requests.send(self._line.build(self._requests, request, timeout_s), stream=True)
            async with contextlib.aclosing(response):
                return await self._whole(response)
        except httpx2.RequestError as error:
            return self._line.fault(error)

    async def _whole(self, response: httpx2.Response) -> Response:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            self._line.bound(body)
        return Response(response.status_code, dict(response.headers), bytes(body))

    async def _open(self, request: Request, deadline: float | None) -> Opened | Response | Fault:
        import httpx2

        await self.aclose()
        silence_s = self._line.stream_timeout_s(deadline)
        try:
            response = await self._streams.send(self._line.build(self._streams, request, silence_s), stream=True)
            if response.status_code != 200:
                async with contextlib.aclosing(response):
                    return await self._whole(response)
        except httpx2.RequestError as error:
            return self._line.fault(error)
        self._response, self._chunks = response, response.aiter_raw()
        return Opened(response.headers.get("content-type", ""))

    async def _read(self, deadline: float | None) -> bytes | Fault:
        import asyncio

        import httpx2

        left_s = None if deadline is None else deadline - self._line.terms.clock()
        assert self._chunks is not None
        try:
            async with asyncio.timeout(left_s):
                chunk = await anext(self._chunks, None)
        except TimeoutError:
            await self.aclose()
            return OUT_OF_TIME
        except httpx2.RequestError as error:
            await self.aclose()
            return self._line.fault(error)
        if chunk is None:
            await self.aclose()
            return ENDED
        return chunk

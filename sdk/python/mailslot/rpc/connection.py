"""One JSON-RPC connection: its calls in order, its subscriptions, its limits, its end.

    line ──frames──> Connection ──calls, a lane for each session──> carrier ──> dispatcher
      ^                  │                                             │
      └──── answers ─────┴──── notifications <──── subscriptions <─────┘

Rule 1: calls about one session are carried out in the order in which they came; others do not wait for them. Answers
        come when they are there. A batch is answered as a whole.
Rule 2: the answer to `session/subscribe` comes before the first notification of it, the level first, and after the
        answer to `session/unsubscribe` there is none.
Rule 3: nothing is read while `frames_max` frames wait to be carried out or to be answered; nothing is fetched for a
        subscription while its notifications are not taken. A line that takes nothing for `send_s` is given up.
Rule 4: the end of what comes in is no end of what was read: those calls are carried out, for `end_s` at most; then what
        is under way is answered as an unknown outcome, and what was not begun as not done.
Rule 5: a subscription ends with a gap, or with the connection; never in silence. Every call has an answer, whatever
        goes wrong in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mailslot.errors import CursorExpired, MailslotError, OutcomeUnknown, Refused, TransportLost
from mailslot.rpc import frame
from mailslot.rpc.failure import of_error, of_problem, problem
from mailslot.rpc.frame import (
    FRAME_BYTES_MAX,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Batch,
    Call,
    Failure,
    Invalid,
    RpcError,
)
from mailslot.rpc.method import METHODS, NOTIFICATIONS, OWN, PROTOCOL_VERSION, RestCall, refused, rest_call, session_of
from mailslot.step import Response


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """Bytes of one frame that comes in."""

    frames_max: int = 64
    """Frames that wait to be carried out or answered; nothing more is read while there are as many."""

    calls_max: int = 64
    """Calls carried out at once; a batch may hold more."""

    subscriptions_max: int = 1_000
    """Sessions subscribed to at once."""

    send_s: float = 30.0
    """Seconds that a frame may wait to be taken by whoever reads."""

    end_s: float = 0.6
    """Seconds for the calls that were read when nothing more comes in."""

    last_words_s: float = 0.2
    """Seconds for the answers to those that were cut off then: an end takes less than one second in all."""


SEQ_MAX = 2**63 - 1
"""The greatest cursor (protocol section 4)."""


log = logging.getLogger("mailslot.rpc")


class LineLost(Exception):
    """Nobody takes what is sent any more."""


@dataclass(slots=True, eq=False)
class Told:
    """The answer to one call; None when it wants none."""

    data: bytes | None = None
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    """It has been handed to the line, or there was none."""
    begun: bool = False
    message_id: str | None = None
    """Of the message that the call puts into the inbox: it makes repeating safe."""


class Line(Protocol):
    """What frames come and go on."""

    ended: asyncio.Event
    """Nothing more comes in than what was read; `frames` may not have given all of that yet."""

    def frames(self) -> AsyncGenerator[bytes | str | Invalid, None]:
        """What comes in, until nothing more does."""

    async def send(self, data: bytes) -> None:
        """Send one frame, without the byte that ends it. Raises LineLost."""


class Notice(NamedTuple):
    """A notification: its method, and its params as JSON."""

    method: str
    params: bytes


class Carrier(Protocol):
    """The way to the dispatcher."""

    async def ask(self, call: RestCall) -> Response:
        """The answer to a REST call, also when it is a refusal. Raises MailslotError when there is none."""

    def follow(self, session_id: str, after: int, *, deltas: bool) -> AsyncGenerator[Notice, None]:
        """Notifications of what comes after a cursor, in order of seq and without a gap, until nobody asks for more.
        Raises MailslotError: CursorExpired for a gap, Refused when there is no such session any more."""


class Connection:
    """One client, from its first frame to its last."""

    def __init__(self, line: Line, carrier: Carrier, *, server: str, limits: Limits | None = None) -> None:
        self.why = ""
        """Why it ended before its client asked for that; empty when it did not."""
        self._line = line
        self._carrier = carrier
        self._server = server
        self._limits = limits or Limits()
        self._frames_room = asyncio.Semaphore(self._limits.frames_max)
        self._calls_room = asyncio.Semaphore(self._limits.calls_max)
        self._sending = asyncio.Lock()
        self._calls: dict[asyncio.Task[Told], Told] = {}  # in the order in which they were read
        self._lanes: dict[str, asyncio.Task[Told]] = {}
        self._tellings: set[asyncio.Task[None]] = set()
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._initialized = False
        self._leaving = False
        self._shutting: asyncio.Task[Any] | None = None
        self._lost = asyncio.Event()
        self._cut = False
        """The time for the calls that were read is over (rule 4)."""

    async def serve(self) -> None:
        """Answer everything that comes in, until nothing does or the client says `shutdown`."""
        reading = asyncio.create_task(self._read())
        signs = [asyncio.create_task(sign.wait()) for sign in (self._lost, self._line.ended)]
        try:
            await asyncio.wait({reading, *signs}, return_when=asyncio.FIRST_COMPLETED)
            if not self._lost.is_set():
                await self._answer_the_rest(reading)
        finally:
            for task in (rest := [reading, *signs, *self._subscriptions.values(), *self._tellings, *self._calls]):
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        if not reading.cancelled() and (failure := reading.exception()):
            raise failure

    # -- in -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        async with contextlib.aclosing(self._line.frames()) as frames:
            async for found in frames:
                await self._frames_room.acquire()
                said = found if isinstance(found, Invalid) else frame.read(found)
                together = isinstance(said, Batch)
                calls = [await self._begun(item) for item in (said.items if isinstance(said, Batch) else (said,))]
                telling = asyncio.create_task(self._tell(calls, together=together))
                self._tellings.add(telling)
                telling.add_done_callback(self._told)
                if self._leaving:
                    return

    def _told(self, telling: asyncio.Task[None]) -> None:
        self._tellings.discard(telling)
        self._frames_room.release()

    async def _begun(self, item: Call | Invalid) -> asyncio.Task[Told]:
        """Have a call carried out behind the one before it in its lane (rule 1)."""
        await self._calls_room.acquire()
        item = self._judged(item)
        lane = session_of(item.params) if isinstance(item, Call) else ""
        told = Told()
        call = asyncio.create_task(self._carry_out(item, self._lanes.get(lane) if lane else None, told))
        self._calls[call] = told
        if lane:
            self._lanes[lane] = call
        call.add_done_callback(lambda done: self._ended(lane, done))
        return call

    def _ended(self, lane: str, call: asyncio.Task[Told]) -> None:
        del self._calls[call]
        self._calls_room.release()
        if self._lanes.get(lane) is call:
            del self._lanes[lane]

    def _judged(self, item: Call | Invalid) -> Call | Invalid:
        """What depends on the frames before is decided when a call is read, not when it is carried out."""
        if isinstance(item, Invalid):
            return item
        if item.method == "initialize":
            if self._initialized:
                return Invalid(item.id, Failure(INVALID_REQUEST, "this connection is initialized already"))
            self._initialized = _speaks(item.params)
        elif not self._initialized:
            return Invalid(item.id, Failure(INVALID_REQUEST, f"{item.method[:80]}: send initialize first"))
        self._leaving = self._leaving or item.method == "shutdown"
        return item

    # -- calls ----------------------------------------------------------------------------------------------------

    async def _carry_out(self, item: Call | Invalid, before: asyncio.Task[Told] | None, told: Told) -> Told:
        """Do what a call says, after the one before it."""
        if isinstance(item, Invalid):
            told.data = frame.error(item.id, item.failure)
            return told
        try:
            if before is not None:
                await asyncio.wait({before})
            answer = frame.result(item.id, await self._result(item, told))
        except RpcError as error:
            answer = frame.error(item.id, error.failure)
        except MailslotError as error:
            answer = frame.error(item.id, of_error(error))
        except asyncio.CancelledError:
            answer = frame.error(item.id, of_error(_cut_off(item.method, told)))
        except Exception as error:  # a defect has an answer too (rule 5)
            log.exception("a call failed", extra={"method": item.method, "cause": f"{type(error).__name__}: {error}"})
            answer = frame.error(item.id, of_problem(problem("internal", "this failed; the log says how", 500)))
        told.data = answer if item.answered else None
        return told

    async def _result(self, call: Call, told: Told) -> object:
        if self._cut:
            raise _cut_off(call.method, told)
        told.begun = True
        match call.method:
            case "initialize":
                return self._introduced(call.params)
            case "shutdown":
                await self._shut_down()
                return None
            case "session/subscribe":
                return await self._subscribe(call.params, told.sent)
            case "session/unsubscribe":
                return await self._unsubscribe(call.params)
        method = METHODS.get(call.method)
        if method is None:
            raise RpcError(Failure(METHOD_NOT_FOUND, f"there is no method {call.method[:80]!r}"))
        asking = rest_call(method, call.params)
        told.message_id = asking.message_id
        return await self._asked(asking)

    async def _asked(self, call: RestCall) -> Mapping[str, Any]:
        response = await self._carrier.ask(call)
        answer = _object(response.body)
        if response.status >= 400:
            raise RpcError(of_problem(answer))
        return call.result(answer)

    def _introduced(self, params: Mapping[str, Any]) -> dict[str, object]:
        """What else a client says of itself is its own affair."""
        if not _speaks(params):
            raise refused("protocolVersion: must be a whole number from 1")
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "server": {"name": "mailslot", "version": self._server},
            "methods": sorted([*METHODS, *OWN]),
            "notifications": list(NOTIFICATIONS),
            "limits": {
                "frameBytesMax": self._limits.frame_bytes_max,
                "batchCountMax": frame.BATCH_COUNT_MAX,
                "subscriptionsMax": self._limits.subscriptions_max,
            },
        }

    async def _shut_down(self) -> None:
        """Return when every call before it has come to its end, which rule 4 bounds."""
        self._shutting = asyncio.current_task()
        others = [call for call in self._calls if call is not self._shutting]
        if others:
            await asyncio.wait(others)

    # -- subscriptions --------------------------------------------------------------------------------------------

    async def _subscribe(self, params: Mapping[str, Any], answered: asyncio.Event) -> dict[str, object]:
        session_id, after, deltas = _subscription(params)
        self._check_room(session_id)
        level = await self._asked(rest_call(METHODS["session/status"], {"sessionId": session_id}))
        await self._unsubscribe({"sessionId": session_id})
        self._check_room(session_id)  # once more: others may have come meanwhile
        self._subscriptions[session_id] = asyncio.create_task(
            self._follow(session_id, after, level, answered, deltas=deltas)
        )
        return {"sessionId": session_id, "cursor": level["cursor"]}

    def _check_room(self, session_id: str) -> None:
        if session_id not in self._subscriptions and len(self._subscriptions) >= self._limits.subscriptions_max:
            sentence = f"this connection has {len(self._subscriptions)} subscriptions, which is the limit"
            raise RpcError(of_problem(problem("rate-limited", sentence, 429)))

    async def _unsubscribe(self, params: Mapping[str, Any]) -> dict[str, object]:
        session_id = _known(params, "sessionId")["sessionId"]
        following = self._subscriptions.pop(session_id, None)
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        return {"sessionId": session_id}

    async def _follow(
        self, session_id: str, after: int, level: Mapping[str, Any], answered: asyncio.Event, *, deltas: bool
    ) -> None:
        try:
            await answered.wait()
            await self._send(frame.notification("session.status", frame.encode(level)))
            async with contextlib.aclosing(self._carrier.follow(session_id, after, deltas=deltas)) as notices:
                async for notice in notices:
                    await self._send(frame.notification(notice.method, notice.params))
        except CursorExpired as gap:
            await self._tell_gap(session_id, gap.oldest, gap.newest)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for what does not come (rule 5)
            if isinstance(error, Refused) and error.code == "not-found":
                await self._tell_gap(session_id, 0, 0)  # the session is gone: nothing is kept of it
            else:
                self._lose(f"session {session_id} cannot be followed: {str(error) or type(error).__name__}")
        finally:
            if self._subscriptions.get(session_id) is asyncio.current_task():
                del self._subscriptions[session_id]

    async def _tell_gap(self, session_id: str, oldest: int | None, newest: int | None) -> None:
        """What comes next cannot be had; these are the seqs that can."""
        with contextlib.suppress(LineLost):
            notice = {"sessionId": session_id, "oldest": oldest or 0, "newest": newest or 0}
            await self._send(frame.notification("session.gap", frame.encode(notice)))

    # -- out ------------------------------------------------------------------------------------------------------

    async def _tell(self, calls: list[asyncio.Task[Told]], *, together: bool) -> None:
        """Send what came of a frame, once all of it is there."""
        told = [await call for call in calls]
        answers = [each.data for each in told if each.data is not None]
        with contextlib.suppress(LineLost):
            if answers:
                await self._send(frame.batch(answers) if together else answers[0])
        for each in told:
            each.sent.set()

    async def _send(self, data: bytes) -> None:
        try:
            async with self._sending, asyncio.timeout(self._limits.send_s):
                await self._line.send(data)
        except TimeoutError:
            self._lose(f"nobody took a frame for {self._limits.send_s:g} s")
            raise LineLost from None
        except LineLost:
            self._lose("whoever read this is gone")
            raise

    def _lose(self, why: str) -> None:
        self.why = self.why or why
        self._lost.set()

    async def _answer_the_rest(self, reading: asyncio.Task[None]) -> None:
        """Rule 4."""
        await self._answered(reading, self._limits.end_s)
        self._cut = True
        for call, told in self._calls.items():
            if told.begun and call is not self._shutting:  # the others find out by themselves
                call.cancel()
        await self._answered(reading, self._limits.last_words_s)

    async def _answered(self, reading: asyncio.Task[None], within_s: float) -> None:
        """Return when everything is read and answered, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.wait({reading})
                while self._tellings:
                    await asyncio.wait(self._tellings)


def _cut_off(method: str, told: Told) -> MailslotError:
    if told.begun and (method not in METHODS or not METHODS[method].reads):
        sentence = f"{method[:80]}: the connection ended before its outcome was known"
        return OutcomeUnknown(sentence, message_id=told.message_id)
    return TransportLost(f"{method[:80]}: the connection ended before it was carried out")


def _speaks(params: Mapping[str, Any]) -> bool:
    """Whether a client says a version that there can be."""
    version = params.get("protocolVersion", PROTOCOL_VERSION)
    return isinstance(version, int) and not isinstance(version, bool) and version >= 1


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RpcError(Failure(INTERNAL_ERROR, "the dispatcher gave no answer that can be read"))
    return found


def _known(params: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    unknown = sorted(set(params) - set(names))
    if unknown:
        raise refused(f"{unknown[0][:80]}: is not a param this method knows")
    if not isinstance(params.get("sessionId"), str):
        raise refused("sessionId: must be text" if "sessionId" in params else "sessionId: is missing")
    return params


def _subscription(params: Mapping[str, Any]) -> tuple[str, int, bool]:
    known = _known(params, "sessionId", "after", "deltas")
    after, deltas = known.get("after", 0), known.get("deltas", False)
    if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after <= SEQ_MAX:
        raise refused("after: must be a whole number from 0")
    if not isinstance(deltas, bool):
        raise refused("deltas: must be true or false")
    return known["sessionId"], after, deltas

"""States of session `s` that the tests of the inbox begin in, and the operations that are illegal there.

The table ILLEGAL is held over the store in memory (`test_illegal.py`) and over real servers
(`tests/integration/test_ingest_inbox.py`): each row answers its own code, and the ledger is byte for byte what it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from mailslot_contracts import CODES, Code, Problem
from mailslot_core.store import Grant, Store
from tests.echo_worker import EchoWorker
from tests.unit.ingest.served import PATIENCE_S, House
from tests.waiting import wait_until

LATER: Final = 4_000_000_000_000
"""A time that no test will see, ms."""


# -- states -------------------------------------------------------------------------------------------------


async def nothing(_house: House) -> None:
    """No session."""


async def resting(house: House) -> None:
    """The session is idle; `m` was admitted in turn 1."""
    await queued(house)
    await EchoWorker(house.store).answer_all()


async def queued(house: House) -> None:
    """`m` is queued, and no worker is there."""
    await house.prompt("s", messageId="m")


async def delayed(house: House) -> None:
    """`m` is not due for a long time; the agent is idle."""
    await house.prompt("s", messageId="m", notBefore=LATER)


async def claimed(house: House) -> None:
    """Turn 1 is open and has claimed `m`; `n` is queued."""
    await queued(house)
    await EchoWorker(house.store).acquire()
    await house.prompt("s", messageId="n")


async def admitted(house: House) -> None:
    """Turn 1 is open and `m` is in its first step; `n` is queued."""
    await queued(house)
    await begun(house)
    await house.prompt("s", messageId="n")


async def begun(house: House) -> tuple[EchoWorker, Grant]:
    """A worker that has begun the step which admits what was ready."""
    worker = EchoWorker(house.store)
    grant = await worker.acquire()
    assert grant is not None
    return worker, await worker.begin_step(grant)


async def withdrawn(house: House) -> None:
    """`m` was taken back."""
    await queued(house)
    await house.client.delete("/v1/sessions/s/messages/m")


async def held(house: House) -> None:
    """`m` waits behind a hold; the agent is idle."""
    await queued(house)
    await house.client.post("/v1/sessions/s/cancel", json={"queue": "hold"})


async def released(house: House) -> None:
    """There was a hold, and it is over."""
    await held(house)
    await house.client.post("/v1/sessions/s/release")


async def closed(house: House) -> None:
    """The session is closed; `m` was cancelled by that."""
    await queued(house)
    await house.client.post("/v1/sessions/s/close")


async def closing(house: House) -> None:
    """Turn 1 is open and the session is to be closed after it."""
    await admitted(house)
    await house.client.post("/v1/sessions/s/close")


async def dead(house: House) -> None:
    """`m` died with a turn that was given up."""
    await queued(house)
    await give_up(house.store)


async def redriven(house: House) -> None:
    """`m` was dead and is queued again."""
    await dead(house)
    assert (await house.client.post(f"/v1/dead/{await letter(house)}/redrive")).status_code == 202


async def give_up(store: Store, count: int = 1) -> None:
    """Let every turn crash until so many are given up."""
    worker = EchoWorker(store, "crashing")

    async def died() -> bool:
        for partition in range(store.partitions):
            await store.acquire(partition, worker.owner, worker.call(), 1)
            await store.sweep(partition, forget_after_ms=86_400_000)
        return len(await store.dead(after="", limit=count)) >= count

    await wait_until(died, PATIENCE_S, "a turn to be given up")


async def letter(house: House) -> str:
    """The id of the first dead letter."""
    found: str = (await house.client.get("/v1/dead")).json()["letters"][0]["letterId"]
    return found


# -- what is illegal in them --------------------------------------------------------------------------------

Stage = Callable[[House], Awaitable[Any]]


@dataclass(frozen=True)
class Illegal:
    """One operation in one state. `{letter}` in the address stands for the dead letter's id."""

    stage: Stage
    method: str
    address: str
    code: Code
    body: Any = None

    def __str__(self) -> str:
        return f"{self.stage.__name__}: {self.method} {self.address} {self.body or ''} -> {self.code.value}"


S: Final = "/v1/sessions/s"
M: Final = f"{S}/messages/m"
REPLACE: Final = {"content": "other"}
STEER: Final = {"delivery": "steer"}
NO_TIMES: Final[list[Any]] = ["tomorrow", "4000000000000", 4e12, 1.5, True, -1, [1], {}]


def said(**fields: Any) -> dict[str, Any]:
    return {"messageId": "x", "content": "hello", **fields}


def steered(**fields: Any) -> dict[str, Any]:
    return said(delivery="steer", **fields)


def _changes(stage: Stage, code: Code) -> list[Illegal]:
    """Every way to change `m`."""
    return [
        Illegal(stage, "DELETE", M, code),
        Illegal(stage, "PATCH", M, code, REPLACE),
        Illegal(stage, "PATCH", M, code, STEER),
    ]


ILLEGAL: Final = [
    # What is no longer queued cannot be changed.
    *_changes(claimed, Code.ALREADY_CLAIMED),
    *_changes(admitted, Code.ALREADY_SETTLED),
    *_changes(resting, Code.ALREADY_SETTLED),
    *_changes(withdrawn, Code.ALREADY_SETTLED),
    *_changes(closed, Code.ALREADY_SETTLED),
    *_changes(dead, Code.ALREADY_SETTLED),
    # What is not there cannot be changed or read.
    *[
        Illegal(queued, method, f"{S}/messages/nobody", Code.NOT_FOUND, body)
        for method, body in (("GET", None), ("DELETE", None), ("PATCH", REPLACE), ("PATCH", STEER))
    ],
    *[
        Illegal(nothing, method, f"{S}{tail}", Code.NOT_FOUND, body)
        for method, tail, body in (
            ("GET", "/messages", None),
            ("GET", "/messages/m", None),
            ("DELETE", "/messages/m", None),
            ("PATCH", "/messages/m", REPLACE),
            ("PATCH", "/messages/m", STEER),
            ("POST", "/release", None),
            ("POST", "/close", None),
            ("DELETE", "", None),
        )
    ],
    # A change that is none.
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {}),
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {"content": ""}),
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {"content": []}),
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {"content": None}),
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {**REPLACE, **STEER}),
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {"delivery": "queue"}),
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {"delivery": "inject"}),
    Illegal(queued, "PATCH", M, Code.BAD_INPUT, {"notBefore": LATER}),
    Illegal(queued, "PATCH", M, Code.TOO_LARGE, {"content": "x" * (1024 * 1024 + 1)}),
    # Turns that are not open, holds that are not in force.
    Illegal(queued, "POST", f"{S}/cancel", Code.NOT_OPEN, {"turn": 1}),
    Illegal(resting, "POST", f"{S}/cancel", Code.NOT_OPEN, {"turn": 1}),
    Illegal(claimed, "POST", f"{S}/cancel", Code.NOT_OPEN, {"turn": 2, "queue": "clear"}),
    Illegal(queued, "POST", f"{S}/release", Code.NOT_HELD),
    Illegal(released, "POST", f"{S}/release", Code.NOT_HELD),
    Illegal(closed, "POST", f"{S}/release", Code.CLOSED),
    Illegal(closing, "POST", f"{S}/release", Code.CLOSED),
    # Times.
    Illegal(queued, "POST", f"{S}/prompt", Code.EXPIRED, said(expiresAt=1)),
    Illegal(queued, "POST", f"{S}/prompt", Code.EXPIRED, said(notBefore=1, expiresAt=2)),
    Illegal(nothing, "POST", f"{S}/prompt", Code.EXPIRED, said(expiresAt=0)),
    Illegal(queued, "POST", f"{S}/prompt", Code.BAD_INPUT, said(notBefore=LATER, expiresAt=LATER)),
    *[
        Illegal(queued, "POST", f"{S}/prompt", Code.BAD_INPUT, said(**{name: time}))
        for name in ("notBefore", "expiresAt")
        for time in NO_TIMES
    ],
    # Conditions.
    Illegal(queued, "POST", f"{S}/prompt", Code.BUSY, said(ifBusy="reject")),
    Illegal(claimed, "POST", f"{S}/prompt", Code.BUSY, said(ifBusy="reject")),
    Illegal(held, "POST", f"{S}/prompt", Code.BUSY, said(ifBusy="reject")),
    Illegal(admitted, "POST", f"{S}/prompt", Code.BUSY, said(ifBusy="reject", delivery="inject")),
    Illegal(resting, "POST", f"{S}/prompt", Code.IDLE, steered(ifIdle="reject")),
    Illegal(held, "POST", f"{S}/prompt", Code.IDLE, steered(ifIdle="reject")),
    Illegal(nothing, "POST", f"{S}/prompt", Code.IDLE, steered(ifIdle="reject")),
    Illegal(resting, "POST", f"{S}/prompt", Code.TURN_MISMATCH, steered(expectTurn=1)),
    Illegal(claimed, "POST", f"{S}/prompt", Code.TURN_MISMATCH, steered(expectTurn=2)),
    Illegal(nothing, "POST", f"{S}/prompt", Code.TURN_MISMATCH, steered(expectTurn=1)),
    Illegal(queued, "POST", f"{S}/prompt", Code.BAD_INPUT, said(ifIdle="reject")),
    Illegal(queued, "POST", f"{S}/prompt", Code.BAD_INPUT, said(expectTurn=1)),
    Illegal(queued, "POST", f"{S}/prompt", Code.BAD_INPUT, said(ifBusy="wait")),
    # The end of a session.
    Illegal(closed, "POST", f"{S}/prompt", Code.CLOSED, said()),
    Illegal(closing, "POST", f"{S}/prompt", Code.CLOSED, said()),
    Illegal(closing, "POST", f"{S}/prompt", Code.CLOSED, steered(expectTurn=1)),
    Illegal(closed, "PUT", f"{S}/goal", Code.CLOSED, {"objective": "tidy"}),
    Illegal(closing, "PUT", f"{S}/goal", Code.CLOSED, {"objective": "tidy"}),
    # Dead letters.
    Illegal(dead, "POST", "/v1/dead/1-1-0/redrive", Code.NOT_FOUND),
    Illegal(dead, "POST", "/v1/dead/nonsense/redrive", Code.NOT_FOUND),
    Illegal(redriven, "POST", "/v1/dead/{letter}/redrive", Code.NOT_DEAD),
    Illegal(queued, "GET", "/v1/dead?after=nonsense", Code.BAD_INPUT),
    Illegal(queued, "GET", f"{S}/messages?after=nonsense", Code.BAD_INPUT),
    Illegal(queued, "GET", f"{S}/messages?state=admitted", Code.BAD_INPUT),
    Illegal(queued, "GET", f"{S}/messages?limit=0", Code.BAD_INPUT),
    Illegal(queued, "GET", f"{S}/messages/a%00b", Code.BAD_INPUT),
    Illegal(queued, "DELETE", f"{S}/messages/%FF", Code.BAD_INPUT),
    Illegal(queued, "POST", "/v1/dead/%FF/redrive", Code.BAD_INPUT),
]


async def pages(house: House) -> bytes:
    """Everything that can be seen of the session: its events, its level, its queue, and what is dead, as sent."""
    seen = [
        await house.client.get("/v1/sessions/s/events?limit=1000", headers={"Accept": "application/json"}),
        await house.client.get("/v1/sessions/s"),
        await house.client.get("/v1/sessions/s/messages"),
        await house.client.get("/v1/dead"),
        await house.client.get("/v1/sessions"),
    ]
    return b"\n".join(response.content for response in seen)


STAGES: Final = {
    illegal.stage.__name__: [other for other in ILLEGAL if other.stage is illegal.stage] for illegal in ILLEGAL
}
"""The rows of each state."""


async def refused_and_unchanged(house: House, illegal: Illegal) -> None:
    """The operation answers its own code, and everything is byte for byte what it was."""
    address = illegal.address
    if "{letter}" in address:
        address = address.replace("{letter}", await letter(house))
    before = await pages(house)
    response = await house.client.request(illegal.method, address, json=illegal.body)
    problem = Problem.model_validate(response.json())
    assert (problem.code, response.status_code) == (illegal.code, CODES[illegal.code].status), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert await pages(house) == before

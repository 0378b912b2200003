"""What a scripted model answers, as plain data: the script language of agents.toml (docs/agents.md), typed.

    "hello"                                                    says hello
    {"say": "hello", "delay_ms": 50, "pieces": 5}              any key of an answer
    call("weather", city="Berlin")                             asks for a tool
    fail("overloaded", times=2, then="hello")                  fails twice, then says hello
    hang()                                                     never ends; somebody has to cancel it

Rule 1: there is one language. These types name its keys and check nothing; the server reads scripts with the same
        code as a worker does, and refuses what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict


class Call(TypedDict, total=False):
    """A tool call. Without an `id` it gets one that is the same whenever the step is answered again."""

    name: Required[str]
    arguments: Mapping[str, Any]
    id: str


class Failure(TypedDict, total=False):
    """A failed attempt. With `times`, that many attempts fail and the next one answers."""

    code: str
    message: str
    retryable: bool
    retry_after_ms: int
    times: int


class Tokens(TypedDict, total=False):
    """What an answer says it used."""

    input: int
    output: int


class Delta(TypedDict, total=False):
    """A piece of a streamed answer: waits so long, then at the gate, then says the text."""

    ms: int
    wait: str
    text: str


class Answer(TypedDict, total=False):
    """One answer. In this order: `delay_ms`, `wait`, what is streamed, then `hang`, `crash`, `fail` or what is said.

    `crash` kills the server's worker, as it would kill the process of a real one.
    """

    say: str
    calls: Sequence[Call]
    finish: Literal["stop", "length", "calls"]
    usage: Tokens
    delay_ms: int
    wait: str
    deltas: Sequence[str | Delta]
    pieces: int
    delta_ms: int
    fail: Failure
    hang: bool
    crash: bool


class When(TypedDict, total=False):
    """What a request must be for a rule to apply; all that is given must hold."""

    text: str
    regex: str
    result: str
    session: str
    turn: int
    step: int
    attempt: int


class Rule(Answer, total=False):
    """When, and what then: one answer every time (its keys stand beside `when`), or several in order."""

    when: str | When
    answers: Sequence[str | Answer]
    per: Literal["message", "session"]
    loop: bool


def call(name: str, /, **arguments: Any) -> Answer:
    """An answer that asks for a tool."""
    return {"calls": [{"name": name, "arguments": arguments}]}


def fail(
    code: str = "overloaded",
    message: str = "the script says so",
    *,
    retryable: bool = True,
    retry_after_ms: int | None = None,
    times: int | None = None,
    then: str = "",
) -> Answer:
    """An answer that fails: every attempt, or so many `times` before it says `then`."""
    failure: Failure = {"code": code, "message": message, "retryable": retryable}
    if retry_after_ms is not None:
        failure["retry_after_ms"] = retry_after_ms
    if times is not None:
        failure["times"] = times
    return {"say": then, "fail": failure}


def hang() -> Answer:
    """An answer that never ends."""
    return {"hang": True}

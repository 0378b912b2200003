"""The one place where a test waits for something to become true outside of it.

A test that sleeps is either slow or wrong. A test that waits names what it waits for, gives up after a bound, and says
what it last saw. Everything else in `tests/` that needs to wait comes here.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, overload

POLL_S: Final = 0.005
"""How often a condition is looked at."""

T = TypeVar("T")


@overload
async def wait_until(condition: Callable[[], Coroutine[Any, Any, T]], timeout_s: float, what: str) -> T: ...
@overload
async def wait_until(condition: Callable[[], T], timeout_s: float, what: str) -> T: ...
async def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Look at the condition until it is truthy and return what it gave; fail with `what` after `timeout_s`.

    The condition is a plain or an async function without arguments. An exception it raises ends the wait: a condition
    that is not true yet says so by what it returns.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        seen = condition()
        value = await seen if inspect.isawaitable(seen) else seen
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; last seen: {value!r}")
        await asyncio.sleep(POLL_S)


async def pace(seconds: float) -> None:
    """The moment at which a load sends again, or a fault strikes. It is part of the scenario: whoever waits for
    something to become true waits with `wait_until`."""
    await asyncio.sleep(seconds)

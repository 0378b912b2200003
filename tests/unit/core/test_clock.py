"""Clocks: the manual one stands still until it is moved; who sleeps on it wakes when it was moved far enough."""

import asyncio

from mailslot_core.clock import ManualClock, SystemClock


async def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(1000)
    assert [clock.now_ms(), clock.monotonic()] == [1000, 0.0]
    await asyncio.sleep(0)
    assert [clock.now_ms(), clock.monotonic()] == [1000, 0.0]


async def test_who_sleeps_wakes_when_the_clock_was_moved_far_enough() -> None:
    clock = ManualClock()
    sleeping = asyncio.create_task(clock.sleep(0.5))
    await asyncio.sleep(0)
    await clock.advance(499)
    assert not sleeping.done()
    await clock.advance(1)
    await asyncio.wait_for(sleeping, 1)
    assert clock.monotonic() == 0.5


async def test_sleeping_no_time_needs_no_moving() -> None:
    await asyncio.wait_for(ManualClock().sleep(0), 1)


async def test_a_clock_can_be_set_back() -> None:
    clock = ManualClock(10_000)
    await clock.advance(-4_000)
    assert clock.now_ms() == 6_000


def test_the_machines_clock_goes_on() -> None:
    clock = SystemClock()
    first, second = clock.monotonic(), clock.monotonic()
    assert second >= first
    assert clock.now_ms() > 1_600_000_000_000

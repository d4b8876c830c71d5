"""Laws of calls that nothing can stop: whoever waits may leave, and what was left takes nothing with it."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from server_world import wait_until

from edge_spec.server.leavable import LeavableCalls


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What calls wait for that do not end."""
    event = threading.Event()
    yield event
    event.set()


async def left(calls: LeavableCalls, work: Callable[[], object]) -> None:
    """Begin a call, and leave it once it is made."""
    begun = threading.Event()
    waiting = asyncio.ensure_future(calls.call(lambda: (begun.set(), work())))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_call_returns_and_raises_what_its_work_does() -> None:
    async def calling() -> None:
        calls = LeavableCalls()
        assert await calls.call(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await calls.call(lambda: 1 // 0)
        await calls.close()

    asyncio.run(calling())


def test_calls_are_made_one_after_the_other_as_they_came() -> None:
    made: list[str] = []

    async def calling() -> None:
        calls = LeavableCalls()
        steps = [lambda n=n: made.extend((f"begin {n}", f"end {n}")) for n in range(8)]
        await asyncio.gather(*map(calls.call, steps))

    asyncio.run(calling())
    assert made == [f"{step} {n}" for n in range(8) for step in ("begin", "end")]


def test_who_does_not_want_it_any_more_leaves_and_others_go_on(gate: threading.Event) -> None:
    """Of calls that are left two may go on; then the next one waits for the end of one of them."""

    async def calling() -> None:
        calls = LeavableCalls()
        await left(calls, gate.wait)
        assert await calls.call(lambda: "free") == "free"
        await left(calls, gate.wait)
        waiting = asyncio.ensure_future(calls.call(lambda: gate.is_set()))
        await asyncio.sleep(0)
        gate.set()
        assert await waiting

    asyncio.run(calling())


def test_its_threads_end_with_it_and_hold_nothing(gate: threading.Event) -> None:
    class Held:
        pass

    before = set(threading.enumerate())

    async def calling() -> weakref.ref[Held]:
        calls, held = LeavableCalls(), Held()
        await left(calls, lambda: (held, gate.wait()))
        return weakref.ref(held)

    dropped = asyncio.run(calling())
    gate.set()
    wait_until(lambda: set(threading.enumerate()) <= before and dropped() is None)


def test_what_failed_holds_nothing_that_it_worked_on() -> None:
    """Nor until somebody collects garbage: the memory that was claimed for it is given back at once."""

    class Held:
        def fail(self) -> None:
            raise ZeroDivisionError

    async def calling() -> weakref.ref[Held]:
        calls, held = LeavableCalls(), Held()
        with pytest.raises(ZeroDivisionError):
            await calls.call(held.fail)
        return weakref.ref(held)

    gc.disable()
    try:
        dropped = asyncio.run(calling())
        wait_until(lambda: dropped() is None)
    finally:
        gc.enable()


def test_a_call_that_takes_long_loses_its_turn_and_is_still_waited_for(gate: threading.Event) -> None:
    async def calling() -> None:
        calls = LeavableCalls()
        slow = asyncio.ensure_future(calls.call(lambda: gate.wait() and "slow"))
        assert await calls.call(lambda: "next") == "next"
        slower = asyncio.ensure_future(calls.call(lambda: gate.wait() and "slower"))
        waiting = asyncio.ensure_future(calls.call(gate.is_set))
        await asyncio.sleep(0)
        assert not (slow.done() or slower.done() or waiting.done())
        gate.set()
        assert await asyncio.gather(slow, slower, waiting) == ["slow", "slower", True]
        await calls.close()

    asyncio.run(calling())


def test_closing_waits_for_a_call_that_lost_its_turn(gate: threading.Event) -> None:
    async def calling() -> None:
        calls = LeavableCalls()
        slow = asyncio.ensure_future(calls.call(lambda: gate.wait()))
        assert await calls.call(lambda: 1) == 1
        closing = asyncio.ensure_future(calls.close())
        await asyncio.sleep(0)
        assert not closing.done()
        gate.set()
        await closing
        assert slow.done()

    asyncio.run(calling())

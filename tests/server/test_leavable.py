"""Laws of calls that nothing can stop: whoever waits may leave, and what was left takes nothing with it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest
from server_world import wait_until

from edge_spec.errors import Cancelled
from edge_spec.server.leavable import LeavableCalls


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What calls wait for that do not end."""
    event = threading.Event()
    yield event
    event.set()


def always() -> bool:
    return True


def never() -> bool:
    return False


def test_a_call_returns_and_raises_what_its_work_does() -> None:
    calls = LeavableCalls()
    threads = {calls.call(threading.get_ident, never) for _ in range(20)}
    assert len(threads) == 1 and threading.get_ident() not in threads
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0, never)
    # It need not be wanted any more if it is there.
    assert calls.call(lambda: 7, always) == 7
    calls.close()


def test_calls_from_several_threads_do_not_wait_for_each_other() -> None:
    calls, both = LeavableCalls(), threading.Barrier(2)
    other = threading.Thread(target=calls.call, args=(both.wait, never))
    other.start()
    calls.call(both.wait, never)
    other.join()


def test_who_does_not_want_it_any_more_leaves_and_others_go_on(gate: threading.Event) -> None:
    calls = LeavableCalls()
    for n in (1, 2):
        assert calls.has_room
        with pytest.raises(Cancelled):
            calls.call(gate.wait, always)
        assert (calls.n_left, calls.call(lambda: "free", never)) == (n, "free")
    assert not calls.has_room
    gate.set()
    wait_until(lambda: calls.n_left == 0)
    assert calls.has_room


def test_its_threads_end_with_it(gate: threading.Event) -> None:
    before = set(threading.enumerate())
    calls = LeavableCalls()
    calls.call(lambda: None, never)
    with pytest.raises(Cancelled):
        calls.call(gate.wait, always)
    gate.set()
    dropped = weakref.ref(calls)
    wait_until(lambda: (found := dropped()) is not None and found.n_left == 0)
    del calls
    assert dropped() is None
    wait_until(lambda: set(threading.enumerate()) <= before)

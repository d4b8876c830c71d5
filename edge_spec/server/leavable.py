"""Calls that nothing can stop: whoever waits for one may leave it.

Such a call runs in a thread of its own. What was left ends by itself, as late as it likes, at the lowest priority;
meanwhile everybody else goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from edge_spec.errors import Cancelled

__all__ = ["LeavableCalls"]

T = TypeVar("T")

_RECHECK_S = 0.05
"""Whoever waits checks so often whether they still want to."""

_MAX_LEFT = 2
"""Each one that was left keeps a processor busy, and what it works on in memory."""

_LOWEST = 19


class LeavableCalls:
    """Makes calls for which nobody has to wait. Usable from any thread."""

    def __init__(self) -> None:
        self._idle: list[_Caller] = []
        self._lock = threading.Lock()
        self._n_left = 0

    @property
    def n_left(self) -> int:
        """How many calls were left and have not ended."""
        return self._n_left

    @property
    def has_room(self) -> bool:
        """Whether so few of the calls that were left go on that another one may be left as well."""
        return self._n_left < _MAX_LEFT

    def call(self, work: Callable[[], T], is_over: Callable[[], bool]) -> T:
        """Return what ``work`` returns.

        Args:
            is_over: says whether nobody wants it any more. ``work`` may ask it too, and raise ``Cancelled``.

        Raises:
            Cancelled: nobody wanted it any more before it was there. What it needs must stay usable for it.
        """
        try:
            caller = self._idle.pop()
        except IndexError:
            caller = _Caller()
        caller.asked.put(work)
        try:
            while True:
                try:
                    found, error = caller.answers.get(timeout=_RECHECK_S)
                    break
                except Empty:
                    if is_over():
                        raise Cancelled from None
        except BaseException:
            self._leave(caller)
            raise
        self._idle.append(caller)
        if error is None:
            return found  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            # It holds this call, and must not be held by it.
            del error

    def close(self) -> None:
        """End the threads that wait for calls. Safe to call twice."""
        while self._idle:
            self._idle.pop().asked.put(None)

    def _leave(self, caller: _Caller) -> None:
        with self._lock:
            self._n_left += 1
        caller.asked.put(self._has_ended)
        caller.asked.put(None)
        if sys.platform == "linux" and caller.native_id is not None:
            # Elsewhere it would be the priority of a process.
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, caller.native_id, _LOWEST)

    def _has_ended(self) -> None:
        with self._lock:
            self._n_left -= 1

    def __del__(self) -> None:
        self.close()


class _Caller:
    """A thread that makes one call after the other, until it is asked for ``None``.

    Attributes:
        asked: the calls.
        answers: what each returned and raised.
    """

    def __init__(self) -> None:
        self.asked: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        # It must not hold this object: nobody would end it.
        thread = threading.Thread(target=_make_calls, args=(self.asked, self.answers), daemon=True)
        thread.start()
        self.native_id = thread.native_id


def _make_calls(
    asked: SimpleQueue[Callable[[], Any] | None], answers: SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    while (work := asked.get()) is not None:
        try:
            answers.put((work(), None))
        except BaseException as error:
            answers.put((None, error))
        # What the call worked on goes with it.
        del work

"""Calls that cannot be interrupted, but abandoned by their callers.

Such a call runs in a thread of its own. An abandoned one ends by itself, at any time, at the lowest priority, and
what takes long loses its turn; meanwhile everybody else goes on.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["LeavableCalls"]

T = TypeVar("T")

_RECHECK_S = 0.05
"""While too many calls go on beside the turns, the next one looks so often whether one has ended."""

_MOST_BESIDE = 2
"""Each one that has lost its turn, or was left, keeps a processor busy, and what it works on in memory."""

_LOWEST = 19


_PATIENCE_S = 0.25
"""A call has its turn for so long; then the next one begins beside it."""


class LeavableCalls:
    """Makes calls in turn, each in a thread; callers may abandon them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._turns = asyncio.Lock()
        self._beside: set[Future[Any]] = set()
        self._n_wanted = 0

    async def call(self, work: Callable[[], T], after: Callable[[], object] = lambda: None) -> T:
        """Return what ``work`` returns. A cancelled task leaves it running, and the next call begins.

        Args:
            after: called once when ``work`` has ended, in its thread, or will never begin.
        """
        self._n_wanted += 1
        has_begun = False
        try:
            async with self._turns:
                while len(self._beside) >= _MOST_BESIDE:
                    await asyncio.sleep(_RECHECK_S)
                outcome: Future[T] = Future()
                # From here on the call cannot be cancelled, only abandoned.
                outcome.set_running_or_notify_cancel()
                outcome.add_done_callback(lambda _: after())
                has_begun = True
                thread = threading.Thread(target=_make, args=(work, outcome), name="edge-spec-preparer", daemon=True)
                thread.start()
                returned = asyncio.wrap_future(outcome)
                try:
                    await asyncio.wait({returned}, timeout=_PATIENCE_S)
                    if not outcome.done():
                        self._go_on_beside(outcome)
                except asyncio.CancelledError:
                    returned.cancel()
                    self._go_on_beside(outcome)
                    _at_lowest_priority(thread)
                    raise
            try:
                return await returned
            except asyncio.CancelledError:
                _at_lowest_priority(thread)
                raise
            finally:
                # An error holds this call, and must not be held by it.
                del outcome, returned
        finally:
            self._n_wanted -= 1
            if not has_begun:
                after()

    def _go_on_beside(self, outcome: Future[Any]) -> None:
        self._beside.add(outcome)
        outcome.add_done_callback(self._beside.discard)

    async def close(self) -> None:
        """Wait until every call that has a caller has ended."""
        while self._n_wanted:
            await asyncio.sleep(_RECHECK_S)


def _at_lowest_priority(thread: threading.Thread) -> None:
    if sys.platform == "linux" and thread.native_id is not None:
        # Elsewhere it would be the priority of a process.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread.native_id, _LOWEST)


def _make(work: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        # An error holds this call, and must not be held by it, nor hold what it worked on.
        del work, outcome

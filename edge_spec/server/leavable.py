"""Calls that nothing can stop: whoever waits for one may leave it.

Such a call runs in a thread of its own. What was left ends by itself, as late as it likes, at the lowest priority;
meanwhile everybody else goes on.
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
"""While too many calls that were left go on, the next one looks so often whether one has ended."""

_MOST_LEFT = 2
"""Each one that was left keeps a processor busy, and what it works on in memory."""

_LOWEST = 19


class LeavableCalls:
    """Makes calls one after the other, each in a thread; who asked may leave. Belongs to one event loop."""

    def __init__(self) -> None:
        self._turns = asyncio.Lock()
        self._left: set[Future[Any]] = set()

    async def call(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns. A cancelled task leaves it running, and the next call begins."""
        async with self._turns:
            while len(self._left) >= _MOST_LEFT:
                await asyncio.sleep(_RECHECK_S)
            outcome: Future[T] = Future()
            # From here on it cannot be cancelled, only left.
            outcome.set_running_or_notify_cancel()
            thread = threading.Thread(target=_make, args=(work, outcome), name="edge-spec-preparer", daemon=True)
            thread.start()
            try:
                return await asyncio.wrap_future(outcome)
            except asyncio.CancelledError:
                self._left.add(outcome)
                outcome.add_done_callback(self._left.discard)
                if sys.platform == "linux" and thread.native_id is not None:
                    # Elsewhere it would be the priority of a process.
                    with suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, thread.native_id, _LOWEST)
                raise
            finally:
                # An error holds this call, and must not be held by it.
                del outcome

    async def close(self) -> None:
        """Wait until no call is made that somebody waits for."""
        async with self._turns:
            pass


def _make(work: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        # An error holds this call, and must not be held by it, nor hold what it worked on.
        del work, outcome

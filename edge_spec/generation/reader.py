"""Who reads a reply: a thread, or a task of an event loop."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from asyncio import Task

__all__ = ["Reader", "in_a_thread"]

T = TypeVar("T")


class Reader:
    """A thread, and the task that runs in it if there is one.

    Args:
        awaits: it awaits the reply, so that other tasks of its thread continue meanwhile.
    """

    __slots__ = ("_awaits", "_task", "_thread")

    def __init__(self, thread: Thread, task: Task[Any] | None, *, awaits: bool) -> None:
        # Numbers of threads are used again.
        self._thread = thread
        # Weak: a task holds its replies.
        self._task = weakref.ref(task) if task is not None else None
        self._awaits = awaits

    @classmethod
    def here(cls, *, awaits: bool = False) -> Self:
        """Return the caller."""
        # Without an event loop it may not be imported.
        asyncio = sys.modules.get("asyncio")
        running = getattr(asyncio, "_get_running_loop", lambda: None)()
        return cls(current_thread(), asyncio.current_task() if asyncio and running else None, awaits=awaits)

    @property
    def is_this_thread(self) -> bool:
        """Whether it is the calling thread itself, and no task that awaits."""
        return self._thread is current_thread() and not self._awaits

    def blocks(self, other: Reader) -> bool:
        """Return whether ``other`` cannot read on while this one waits for it.

        A thread that waits stops everything that runs in it. A task that awaits stops only itself; but in its thread a
        task that has ended, or what ran before the event loop, never reads on either.
        """
        if self._thread is not other._thread:
            return False
        if not self._awaits:
            return True
        task = other._task() if other._task is not None else None
        return task is None or task.done() or (self._task is not None and task is self._task())


async def in_a_thread(work: Callable[[], T]) -> T:
    """Await what some work returns that is done in a thread of its own."""
    from asyncio import get_running_loop

    thread = ThreadPoolExecutor(1, "edge-spec")
    try:
        return await get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)

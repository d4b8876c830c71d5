"""Who reads a reply, a thread or a task of an event loop, and how a task awaits it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from asyncio import Task

__all__ = ["AwaitedPieces", "Reader", "in_a_thread"]

Piece = TypeVar("Piece")
Piece_co = TypeVar("Piece_co", covariant=True)
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


class AwaitableReply(Protocol[Piece_co]):
    """What is needed of a reply, or of several."""

    def next_piece(self, reader: Reader) -> Piece_co | None:
        """Write the next piece for a reader; None at the end."""

    def ask_to_stop(self) -> None:
        """Let whoever writes a piece of it stop soon."""

    def close(self) -> None:
        """Stop, and wait until it has stopped."""


class AwaitedPieces(AsyncIterator[Piece], Generic[Piece]):
    """The pieces of a reply, awaited one by one."""

    def __init__(self, reply: AwaitableReply[Piece]) -> None:
        self._reply = reply
        # A thread of its own: those of a pool may all be waiting for the end of this very reply.
        self._thread = ThreadPoolExecutor(1, "edge-spec")

    async def __anext__(self) -> Piece:
        from asyncio import CancelledError, get_running_loop

        loop = get_running_loop()
        try:
            # The thread must not hold a reply that nobody awaits any more.
            reply = weakref.ref(self._reply)
            piece = await loop.run_in_executor(self._thread, _next_of, reply, Reader.here(awaits=True))
        except CancelledError:
            # It ends in that thread: ending it may wait for a turn at the model, and the event loop must go on.
            self._reply.ask_to_stop()
            await loop.run_in_executor(self._thread, self._reply.close)
            raise
        if piece is None:
            self._thread.shutdown(wait=False)
            raise StopAsyncIteration
        return piece


def _next_of(reference: weakref.ref[AwaitableReply[Piece]], reader: Reader) -> Piece | None:
    reply = reference()
    return reply.next_piece(reader) if reply is not None else None


async def in_a_thread(work: Callable[[], T]) -> T:
    """Await what some work returns that is done in a thread of its own."""
    from asyncio import get_running_loop

    thread = ThreadPoolExecutor(1, "edge-spec")
    try:
        return await get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)

"""Replies in event loops: their pieces are written in threads and awaited."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from edge_spec.generation.reader import Reader

__all__ = ["AwaitedPieces", "in_a_thread"]


class AwaitableReply(Protocol):
    """What is needed of a reply."""

    def next_piece(self, reader: Reader) -> str | None:
        """Write the next piece for a reader; None at the end."""

    def cancel(self) -> None:
        """Stop soon."""

    def close(self) -> None:
        """Stop, and wait until it has stopped."""


class AwaitedPieces(AsyncIterator[str]):
    """The pieces of a reply, awaited one by one."""

    def __init__(self, reply: AwaitableReply) -> None:
        self._reply = reply
        # A thread of its own: those of a pool may all be waiting for the end of this very reply.
        self._thread = ThreadPoolExecutor(1, "edge-spec")

    async def __anext__(self) -> str:
        from asyncio import CancelledError, get_running_loop

        loop = get_running_loop()
        try:
            # The thread must not hold a reply that nobody awaits any more.
            reply = weakref.ref(self._reply)
            piece = await loop.run_in_executor(self._thread, _next_of, reply, Reader.here(awaits=True))
        except CancelledError:
            self._reply.cancel()
            await loop.run_in_executor(self._thread, self._reply.close)
            raise
        if piece is None:
            self._thread.shutdown(wait=False)
            raise StopAsyncIteration
        return piece


def _next_of(reference: weakref.ref[AwaitableReply], reader: Reader) -> str | None:
    reply = reference()
    return reply.next_piece(reader) if reply is not None else None


async def in_a_thread(work: Callable[[], None]) -> None:
    """Await work that is done in a thread of its own."""
    from asyncio import get_running_loop

    thread = ThreadPoolExecutor(1, "edge-spec")
    try:
        await get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)

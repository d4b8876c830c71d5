"""Replies of a model for an event loop: written in one thread of their own, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from edge_spec.errors import Cancelled
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.reply import Reply
from edge_spec.server.work_queue import Ticket, WorkQueue

__all__ = ["Work", "WritingThread", "Written"]

T = TypeVar("T")


class Written(AsyncIterator[list[TokenEvent]]):
    """A reply as it is being written: iterate over it for its events, in batches.

    Writing does not wait for whoever reads: a slow client keeps nobody from the model.

    Attributes:
        reply: what is being written; it has ended when the iteration has.
        error: why it could not be written to its end.
    """

    def __init__(self, start: Callable[[], Reply]) -> None:
        self.reply: Reply | None = None
        self.error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._start = start
        self._batches: asyncio.Queue[list[TokenEvent] | None] = asyncio.Queue()
        self._cancelled = False

    async def __anext__(self) -> list[TokenEvent]:
        batch = await self._batches.get()
        if batch is not None:
            return batch
        if self.error is not None:
            raise self.error
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Stop soon."""
        self._cancelled = True
        reply = self.reply
        if reply is not None:
            reply.cancel()

    def write(self) -> None:
        """Write it, in the thread for that."""
        try:
            with self._start() as self.reply:
                if self._cancelled:
                    self.reply.cancel()
                for batch in self.reply.event_batches():
                    self._hand_over(batch)
        except BaseException as error:
            self.error = error
        self._hand_over(None)

    def fail(self, error: BaseException) -> None:
        """It will not be written."""
        self.error = error
        self._batches.put_nowait(None)

    def _hand_over(self, batch: list[TokenEvent] | None) -> None:
        self._loop.call_soon_threadsafe(self._batches.put_nowait, batch)


class Work:
    """The replies to one request, written in one turn. As a context it stops when the context ends.

    Attributes:
        replies: all of them, in the order in which they are written.
        task: ends when the model is free again.
    """

    def __init__(self, ticket: Ticket, writer: ThreadPoolExecutor, starts: Sequence[Callable[[], Reply]]) -> None:
        self.replies = [Written(start) for start in starts]
        self._writer = writer
        self._now: Written | None = None
        self._stopped = False
        self._left = [*self.replies]
        self._ticket = ticket
        self.task = asyncio.ensure_future(self._write())
        self.task.add_done_callback(self._over)

    async def _write(self) -> None:
        async with self._ticket:
            while self._left and not self._stopped:
                self._now = self._left.pop(0)
                # The turn ends only after this: whoever comes next needs a model that has stopped.
                await asyncio.get_running_loop().run_in_executor(self._writer, self._now.write)
                if self._now.error is not None:
                    return

    def _over(self, task: asyncio.Task[None]) -> None:
        # It may have been cancelled before it took its first step.
        self._ticket.give_up()
        error = task.exception() if not task.cancelled() else None
        for written in self._left:
            written.fail(error or Cancelled())

    def stop(self) -> None:
        """Stop soon; nobody needs to wait for it."""
        self._stopped = True
        if self._now is not None:
            self._now.cancel()
        else:
            self.task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()


class WritingThread:
    """The thread in which a model writes, and another one in which requests are prepared."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._writer = ThreadPoolExecutor(1, "edge-spec-writer")
        self._preparer = ThreadPoolExecutor(1, "edge-spec-preparer")
        self._works: set[Work] = set()

    async def prepare(self, work: Callable[[], T]) -> T:
        """Do something that takes a while, beside the writing."""
        return await asyncio.get_running_loop().run_in_executor(self._preparer, work)

    def begin(self, starts: Sequence[Callable[[], Reply]]) -> Work:
        """Let replies be written when it is their turn.

        Raises:
            ApiError: the queue is full, or the server is stopping.
        """
        work = Work(self._queue.join(), self._writer, starts)
        self._works.add(work)
        work.task.add_done_callback(lambda _: self._works.discard(work))
        return work

    def stop(self) -> None:
        """Stop everything that is written or waits."""
        self._queue.close()
        for work in tuple(self._works):
            work.stop()

    async def close(self) -> None:
        """Stop everything, wait until the model is free, and end the threads."""
        self.stop()
        if self._works:
            await asyncio.wait([work.task for work in self._works])
        self._writer.shutdown()
        self._preparer.shutdown()

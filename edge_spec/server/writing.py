"""Replies of a model for an event loop: each request is read in a thread, and a round advances all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from edge_spec.errors import Cancelled
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.replies import Replies
from edge_spec.generation.reply import Reply
from edge_spec.memory import Loan
from edge_spec.server.errors import ApiError
from edge_spec.server.leavable import LeavableCalls
from edge_spec.server.work_queue import Ticket, WorkQueue

__all__ = ["Work", "WritingThreads"]

T = TypeVar("T")

_RECHECK_S = 0.05
"""What waits for room checks for it so often."""

_MOST_BEHIND_BYTES = 4 << 20
"""A client that leaves more than this waiting gets no more."""

_MOST_HELD = 32
"""So many pieces are handed over at a time to who wants no single ones."""

_EVENT_BYTES, _TOP_BYTES = 256, 112
"""Bytes of an event, and of each of the likeliest tokens in it."""

Batch = tuple[int, list[TokenEvent]]
"""The number of a reply, and events of some of its tokens."""


class Work(AsyncIterator[Batch]):
    """The replies to one request, written in one turn: iterate for the number of a reply and its next events, without
    events where it has ended. As a context it stops when the context ends.

    Writing does not wait for whoever reads: a slow client keeps nobody from the model. One that falls too far behind
    is given up.

    Args:
        kept: where the memory of what has been written and not read is claimed; it ends with the context.
        in_pieces: whether the reader wants each piece as it comes; else some at a time, which costs less.

    Attributes:
        kept: the same, for what the reader keeps of it.
        replies: what is being written; None before it is its turn. They have ended when the iteration has.
        task: ends when the model is free again.
        given_up: set where the reader has fallen too far behind; what waited for it is gone.
    """

    def __init__(
        self,
        ticket: Ticket,
        writer: ThreadPoolExecutor,
        start: Callable[[], Replies],
        kept: Loan,
        *,
        in_pieces: bool,
    ) -> None:
        self.replies: Replies | None = None
        self.kept = kept
        self.given_up = asyncio.Event()
        self._start = start
        self._most_held = 1 if in_pieces else _MOST_HELD
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._error: BaseException | None = None
        self._begun = self._stopped = False
        self._behind = 0
        self._ticket = ticket
        ticket.is_used = True
        self.task = asyncio.ensure_future(self._write())
        self.task.add_done_callback(self._over)

    @property
    def answers(self) -> Sequence[Reply]:
        """What has been written, by number; empty before it is its turn."""
        return self.replies.answers if self.replies is not None else ()

    async def __anext__(self) -> Batch:
        batch = await self._batches.get()
        if batch is not None:
            self._behind -= _bytes_of(batch)
            self.kept.shrink(_bytes_of(batch))
            return batch
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def _write(self) -> None:
        async with self._ticket:
            self._begun = True
            # The turn ends only after this: whoever comes next needs a model that has stopped.
            await self._loop.run_in_executor(self._writer, self._write_here)

    def _write_here(self) -> None:
        """Write them, in the thread for that."""
        held: list[Batch | None] = []
        try:
            with self._start() as self.replies:
                if self._stopped:
                    self.replies.cancel()
                for batch in self.replies.event_batches():
                    self.kept.grow(_bytes_of(batch))
                    held.append(batch)
                    if len(held) >= self._most_held:
                        # Waking the event loop for each token of each text would keep the decodes waiting.
                        self._loop.call_soon_threadsafe(self._hand_over, held)
                        held = []
        except BaseException as error:
            self._error = error
        self._loop.call_soon_threadsafe(self._hand_over, [*held, None])

    def _hand_over(self, batches: Sequence[Batch | None]) -> None:
        for batch in batches:
            if not self.given_up.is_set():
                self._behind += _bytes_of(batch) if batch is not None else 0
                self._batches.put_nowait(batch)
                if self._behind > _MOST_BEHIND_BYTES:
                    self._give_up()

    def _give_up(self) -> None:
        self.given_up.set()
        self.stop()
        self._error = _too_slow()
        self._batches = asyncio.Queue()
        self._batches.put_nowait(None)

    def _over(self, task: asyncio.Task[None]) -> None:
        # It may have been cancelled before it took its first step.
        self._ticket.give_up()
        if not self._begun:
            self._error = (task.exception() if not task.cancelled() else None) or Cancelled()
            self._batches.put_nowait(None)

    def stop(self) -> None:
        """Stop soon; nobody needs to wait for it."""
        self._stopped = True
        replies = self.replies
        if replies is not None:
            replies.cancel()
        elif not self._begun:
            self.task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and forget what nobody has read. Safe to call twice."""
        self.stop()
        self._batches = asyncio.Queue()
        self.kept.end()


def _bytes_of(batch: Batch) -> int:
    return sum(_EVENT_BYTES + _TOP_BYTES * len(event.top) for event in batch[1])


def _too_slow() -> ApiError:
    return ApiError(
        408,
        f"more than {_MOST_BEHIND_BYTES >> 20} MiB of the answer wait for this client; read it faster",
        code="slow_client",
    )


class WritingThreads:
    """The threads that read what a model writes, and another one in which requests are prepared.

    Args:
        at_once: how many requests are answered at a time.
    """

    def __init__(self, queue: WorkQueue, at_once: int) -> None:
        self._queue = queue
        self._writer = ThreadPoolExecutor(at_once, "edge-spec-writer")
        self._preparer = ThreadPoolExecutor(1, "edge-spec-preparer")
        self._preparing = LeavableCalls()
        self._works: set[Work] = set()

    async def prepare(self, work: Callable[[], T]) -> T:
        """Do something that takes a while, in parallel with the writing. If nobody waits for it any more, the next one
        need not wait for it either."""
        while not self._preparing.has_room:
            await asyncio.sleep(_RECHECK_S)
        is_over = threading.Event()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._preparer, self._preparing.call, work, is_over.is_set)
        finally:
            is_over.set()

    def begin(self, ticket: Ticket, start: Callable[[], Replies], kept: Loan, *, in_pieces: bool) -> Work:
        """Let replies be written when it is their turn, see ``Work``."""
        work = Work(ticket, self._writer, start, kept, in_pieces=in_pieces)
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
        self._preparing.close()

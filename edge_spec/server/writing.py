"""Replies of a model for requests: written in the order of their tickets, and buffered for slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from edge_spec.errors import Cancelled
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.replies import Replies
from edge_spec.generation.reply import Reply
from edge_spec.memory import Loan
from edge_spec.server.errors import ApiError
from edge_spec.server.work_queue import Ticket

__all__ = ["Work"]

_MOST_BEHIND_BYTES = 4 << 20
"""The most unread bytes of an answer before its client is given up."""

_STEPS_AT_ONCE = 32
"""Who wants no single pieces gets what so many steps have brought at a time."""

_EVENT_BYTES, _TOP_BYTES = 256, 112
"""Bytes of an event, and of each of the likeliest tokens in it."""

Batch = tuple[int, list[TokenEvent]]
"""The number of a reply, and events of some of its tokens."""


class Work(AsyncIterator[Batch]):
    """The replies to one request, written in one turn: iterate for the number of a reply and its next events, without
    events where it has ended.

    Writing does not wait for the reader, so a slow client delays no other. One that falls too far behind
    is given up.

    Args:
        ticket: its place in the queue.
        start: makes the replies when it is its turn.
        kept: where the memory of what has been written and not read is claimed, until it is closed.
        in_pieces: whether the reader wants each piece as it comes; else some at a time, which costs less.

    Attributes:
        kept: the same, for what the reader keeps of it.
        replies: the replies; None before its turn. They have ended when the iteration has.
        task: ends when the model is free again.
        given_up: set if the reader has fallen too far behind; its unread batches are dropped.
    """

    def __init__(self, ticket: Ticket, start: Callable[[], Replies], kept: Loan, *, in_pieces: bool) -> None:
        self.replies: Replies | None = None
        self.kept = kept
        self.given_up = asyncio.Event()
        self._start = start
        self._at_least = 1 if in_pieces else _STEPS_AT_ONCE
        self._batches: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._error: BaseException | None = None
        self._stopped = False
        self._behind = 0
        self._ticket = ticket
        ticket.is_used = True
        self.task = asyncio.ensure_future(self._write())
        self.task.add_done_callback(self._over)

    @property
    def answers(self) -> Sequence[Reply]:
        """The replies by number; empty before its turn."""
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
            self.replies = replies = self._start()
            try:
                if self._stopped:
                    replies.ask_to_stop()
                async for batch in replies.event_batches_async(self._at_least):
                    self.kept.grow(_bytes_of(batch))
                    self._keep(batch)
            finally:
                # The turn ends only after this: whoever comes next needs a model that has stopped.
                if not replies.is_complete:
                    await replies.aclose()

    def _keep(self, batch: Batch) -> None:
        if not self.given_up.is_set():
            self._behind += _bytes_of(batch)
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
        self._error = self._error or (Cancelled() if task.cancelled() else task.exception())
        self._batches.put_nowait(None)

    def stop(self) -> None:
        """Request a stop without waiting for it."""
        self._stopped = True
        if self.replies is not None:
            # Its task ends them: ending them here may wait for a step.
            self.replies.ask_to_stop()
        else:
            self.task.cancel()

    def close(self) -> None:
        """Stop, and drop unread batches. Safe to call twice."""
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

"""Replies of a model for requests: written in the order of their arrival, and buffered for slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from edge_spec.errors import Cancelled
from edge_spec.generation.events import TokenEvent
from edge_spec.generation.replies import Replies
from edge_spec.generation.reply import Reply
from edge_spec.memory import Loan
from edge_spec.model import TextModel
from edge_spec.server.errors import ApiError
from edge_spec.server.jobs import Job
from edge_spec.server.work_queue import WorkQueue

__all__ = ["CHARACTER_BYTES", "Work"]

CHARACTER_BYTES = 8
"""Bytes that are kept of a text for each of its own, while it grows and when it is sent."""

_MOST_BEHIND_BYTES = 4 << 20
"""The most unread bytes of an answer before its client is given up."""

_STEPS_AT_ONCE = 32
"""Who wants no single pieces gets what so many steps have brought at a time."""

_EVENT_BYTES, _TOP_BYTES = 256, 112
"""Bytes of an event, and of each of the likeliest tokens in it."""

Batch = tuple[int, list[TokenEvent], Reply | None]
"""The number of a reply, and events of some of its tokens; none at its end, and the reply instead."""


class Work(AsyncIterator[Batch]):
    """The replies to one request, written in one turn: iterate for their batches.

    Writing does not wait for the reader, so a slow client delays no other. One that falls too far behind
    is given up.

    Args:
        job: what is asked for.
        queue: that it has joined; left with the end of the writing.
        kept: where the memory of what has been written and not read is claimed, until it is closed.
        places: limits how many requests a model answers at a time; the queue's own if None.
        given_up: see below; an event of its own if None.

    Attributes:
        kept: the same, for what the reader keeps of it.
        replies: the replies; None before its turn. They have ended when the iteration has.
        task: ends when the model is free again.
        given_up: set if the reader has fallen too far behind; its unread batches are dropped.
    """

    def __init__(
        self,
        job: Job,
        model: TextModel,
        queue: WorkQueue,
        kept: Loan,
        *,
        places: asyncio.Semaphore | None = None,
        given_up: asyncio.Event | None = None,
    ) -> None:
        self.replies: Replies | None = None
        self.kept = kept
        self.given_up = given_up or asyncio.Event()
        self._places = places
        self._job = job
        self._model = model
        self._queue = queue
        self._batches: asyncio.Queue[tuple[int, list[TokenEvent]] | None] = asyncio.Queue()
        self._error: BaseException | None = None
        self._is_waiting = True
        self._behind = 0
        self.task = asyncio.ensure_future(self._write())
        self.task.add_done_callback(self._over)

    @property
    def answers(self) -> Sequence[Reply]:
        """The replies by number; empty before its turn."""
        return self.replies.answers if self.replies is not None else ()

    @property
    def notices(self) -> Sequence[str]:
        """What the sender of the request should be told of the replies."""
        return self.replies.notices if self.replies is not None else ()

    async def __anext__(self) -> Batch:
        batch = await self._batches.get()
        if batch is None:
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        number, events = batch
        self._behind -= _bytes_of(events)
        self.kept.shrink(_bytes_of(events))
        return number, events, None if events else _ended(self.answers[number])

    async def _write(self) -> None:
        async with self._queue.turn(self._places):
            self._is_waiting = False
            self._queue.refuse_if_closed()
            self.replies = replies = self._job.replies(self._model)
            try:
                async for number, events in replies.event_batches_async(1 if self._job.is_stream else _STEPS_AT_ONCE):
                    self.kept.grow(_bytes_of(events))
                    self._keep(number, events)
            finally:
                # The turn ends only after this: whoever comes next needs a model that has stopped.
                if not replies.is_complete:
                    await replies.aclose()

    def _keep(self, number: int, events: list[TokenEvent]) -> None:
        if not self.given_up.is_set():
            self._behind += _bytes_of(events)
            self._batches.put_nowait((number, events))
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
        if self._is_waiting:
            self._queue.leave()
        self._error = self._error or (Cancelled() if task.cancelled() else task.exception())
        self._batches.put_nowait(None)

    def stop(self) -> None:
        """Request a stop without waiting for it."""
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


def _ended(answer: Reply) -> Reply:
    if answer.error is not None:
        raise answer.error
    if answer.finish_reason == "cancelled":
        raise Cancelled
    return answer


def _bytes_of(events: list[TokenEvent]) -> int:
    return sum(_EVENT_BYTES + _TOP_BYTES * len(event.top) for event in events)


def _too_slow() -> ApiError:
    return ApiError(
        408,
        f"more than {_MOST_BEHIND_BYTES >> 20} MiB of the answer wait for this client; read it faster",
        code="slow_client",
    )

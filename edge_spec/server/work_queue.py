"""Queue of requests: some are answered at a time, in the order of their arrival."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Self

from edge_spec.server.errors import ApiError

__all__ = ["Ticket", "WorkQueue"]

_MAX_RETRY_S = 60
_MEAN_OVER = 5
"""Number of requests over which the mean duration is taken."""


class WorkQueue:
    """Requests that wait for the model. Belongs to one event loop.

    Args:
        max_waiting: how many may wait; further ones are refused.
        at_once: how many are answered at a time.

    Attributes:
        n_waiting: how many wait now.
        n_answered: how many are being answered now.
    """

    def __init__(self, max_waiting: int, at_once: int) -> None:
        self.n_waiting = self.n_answered = 0
        self._max_waiting = max_waiting
        self._at_once = at_once
        # asyncio.Semaphore serves waiters in order.
        self._places = asyncio.Semaphore(at_once)
        self._mean_s = 1.0
        self._closed = False

    def join(self) -> Ticket:
        """Join the queue. The ticket has to be used, or given up.

        Raises:
            ApiError: 429 with ``Retry-After`` if the queue is full, 503 if the server is stopping.
        """
        self.refuse_if_closed()
        # Waiting requests for which a place is free already do not count: they are about to begin.
        if self.n_waiting >= self._max_waiting + self._at_once - self.n_answered:
            seconds = min(_MAX_RETRY_S, max(1, round(self._mean_s * self.n_waiting / self._at_once)))
            raise ApiError(
                429,
                f"the queue is full ({self.n_waiting} waiting, {self.n_answered} being answered); "
                f"ask again in {seconds} s",
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        self.n_waiting += 1
        return Ticket(self)

    def refuse_if_closed(self) -> None:
        """Raises 503 if the server is stopping."""
        if self._closed:
            raise ApiError(503, "the server is stopping; ask again later", kind="server_error", code="stopping")

    def close(self) -> None:
        """Refuse all requests from now on, also waiting ones."""
        self._closed = True

    async def begin(self) -> float:
        """Wait for the model and return the time; called by a ticket."""
        await self._places.acquire()
        self.n_answered += 1
        return asyncio.get_running_loop().time()

    def end(self, began: float) -> None:
        """Release the model to the next request."""
        took = asyncio.get_running_loop().time() - began
        self._mean_s += (took - self._mean_s) / _MEAN_OVER
        self.n_answered -= 1
        self._places.release()


class Ticket(AbstractAsyncContextManager[None]):
    """A request's entry in the queue.

    As an asynchronous context it waits for the model, and has it while the context lasts. As a plain one it is given
    up at the end, unless it is in use by then.

    Attributes:
        is_used: whether its user gives it up.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._began = 0.0
        self._waits = True
        self.is_used = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self.is_used:
            self.give_up()

    def give_up(self) -> None:
        """Stop waiting. Safe to call twice, and when the wait is over."""
        self._queue.n_waiting -= self._waits
        self._waits = False

    async def __aenter__(self) -> None:
        try:
            self._began = await self._queue.begin()
        finally:
            self.give_up()
        try:
            self._queue.refuse_if_closed()
        except ApiError:
            self._queue.end(self._began)
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._queue.end(self._began)

"""Queue of requests: some are answered at a time, in the order of their arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from edge_spec.server.errors import ApiError

__all__ = ["WorkQueue"]

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

    def join(self) -> None:
        """Join the queue, until ``leave`` or ``turn``.

        Raises:
            ApiError: 429 with ``Retry-After`` if the queue is full, 503 if the server is stopping.
        """
        self.refuse_if_closed()
        # Waiting requests for which a place is free already do not count: they are about to begin.
        if self.n_waiting >= self._max_waiting + max(0, self._at_once - self.n_answered):
            seconds = min(_MAX_RETRY_S, max(1, round(self._mean_s * self.n_waiting / self._at_once)))
            raise ApiError(
                429,
                f"the queue is full ({self.n_waiting} waiting, {self.n_answered} being answered); "
                f"ask again in {seconds} s",
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        self.n_waiting += 1

    def leave(self) -> None:
        """Leave the queue without a turn."""
        self.n_waiting -= 1

    def refuse_if_closed(self) -> None:
        """Raises 503 if the server is stopping."""
        if self._closed:
            raise ApiError(503, "the server is stopping; ask again later", code="stopping")

    def close(self) -> None:
        """Refuse all requests from now on, also waiting ones."""
        self._closed = True

    @asynccontextmanager
    async def turn(self, places: asyncio.Semaphore | None = None) -> AsyncIterator[None]:
        """Wait for the model, leave the queue, and have the model while the context lasts.

        Args:
            places: of one model among several; the queue's own if None.
        """
        places = places or self._places
        await places.acquire()
        self.n_waiting -= 1
        self.n_answered += 1
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            took = asyncio.get_running_loop().time() - began
            self._mean_s += (took - self._mean_s) / _MEAN_OVER
            self.n_answered -= 1
            places.release()

"""The generation lock: one thread at a time uses the models, for a round."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edge_spec.errors import Cancelled, Closed, UnfinishedReply

__all__ = ["GenerationLock"]

_RECHECK_S = 0.05
"""Whoever waits checks so often whether they still want to."""


def _never() -> bool:
    return False


class GenerationLock:
    """Gives turns at the models, in the order in which they were asked for. A turn lasts a round, or a call."""

    def __init__(self) -> None:
        # Reentrant: a reply that nobody refers to any more ends whenever Python finds it.
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._holder: int | None = None
        self._later: deque[Callable[[], object]] = deque()
        self._closed = self._is_over = False

    @property
    def closed(self) -> bool:
        """Whether there are no more turns."""
        return self._closed

    @contextmanager
    def turn(self, gives_up: Callable[[], bool] = _never) -> Iterator[None]:
        """Wait for a turn, which lasts as long as the context.

        Args:
            gives_up: asked while it waits whether it need not wait any more.

        Raises:
            UnfinishedReply: this thread has the turn already. Closed: there are no more turns.
            Cancelled: it gave up.
        """
        here, ticket = threading.get_ident(), object()
        if self._holder == here:
            raise UnfinishedReply("a round of this model")
        try:
            with self._changed:
                self._waiting.append(ticket)
                try:
                    while not self._closed and (self._holder is not None or self._waiting[0] is not ticket):
                        if gives_up():
                            raise Cancelled
                        self._changed.wait(_RECHECK_S)
                    if self._closed:
                        raise Closed("the model")
                    self._holder = here
                finally:
                    self._waiting.remove(ticket)
                    self._changed.notify_all()
            self._catch_up()
            yield
        finally:
            if self._holder == here:
                self._end_turn()

    def soon(self, work: Callable[[], object]) -> None:
        """Do something in a turn: at once if that is free, else at the end of the one that is taken. Never waits."""
        self._later.append(work)
        if self._changed.acquire(blocking=False):
            try:
                if self._holder is not None:
                    return
                self._holder = threading.get_ident()
            finally:
                self._changed.release()
            self._end_turn()

    def wait(self) -> None:
        """Wait a moment, or until somebody's turn has ended."""
        with self._changed:
            self._changed.wait(_RECHECK_S)

    @contextmanager
    def free_turn(self) -> Iterator[bool]:
        """A turn if it can be had at once; whether it can."""
        with self._changed:
            taken = self._holder is not None or bool(self._waiting) or self._closed
            if not taken:
                self._holder = threading.get_ident()
        try:
            yield not taken
        finally:
            if not taken:
                self._end_turn()

    def close(self, then: Callable[[], object]) -> None:
        """Grant no more turns, wait for the end of the one that is taken, and call ``then``, once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._holder is None)
            was_over, self._is_over = self._is_over, True
            self._holder = threading.get_ident()
        try:
            self._catch_up()
            if not was_over:
                then()
        finally:
            self._end_turn()

    def _catch_up(self) -> None:
        while self._later:
            self._later.popleft()()

    def _end_turn(self) -> None:
        try:
            self._catch_up()
        finally:
            with self._changed:
                self._holder = None
                self._changed.notify_all()

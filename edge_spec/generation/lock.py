"""The generation lock: one thread at a time uses the models, for a round."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[threading.Condition] = deque()
        self._holder: int | None = None
        self._later: deque[Callable[[], object]] = deque()
        self._closed = self._is_over = False

    @property
    def closed(self) -> bool:
        """Whether there are no more turns."""
        return self._closed

    def turn(self, gives_up: Callable[[], bool] = _never) -> AbstractContextManager[None]:
        """Wait for a turn, which lasts as long as the context.

        Args:
            gives_up: asked while it waits whether it need not wait any more.

        Raises:
            UnfinishedReply: this thread has the turn already. Closed: there are no more turns.
            Cancelled: it gave up.
        """
        return _Turn(self, gives_up)

    def begin_turn(self, gives_up: Callable[[], bool]) -> None:
        """See ``turn``; ``end_turn`` comes next."""
        here = threading.get_ident()
        if self._holder == here:
            raise UnfinishedReply("a round of this model")
        try:
            with self._lock:
                if self._closed or self._waiting or self._holder is not None:
                    self._wait_for_turn(gives_up)
                self._holder = here
            self._catch_up()
        except BaseException:
            if self._holder == here:
                self.end_turn()
            raise

    def _wait_for_turn(self, gives_up: Callable[[], bool]) -> None:
        is_next, called = False, threading.Condition(self._lock)
        self._waiting.append(called)
        try:
            while not (self._closed or is_next):
                if gives_up():
                    raise Cancelled
                called.wait(_RECHECK_S)
                is_next = self._holder is None and self._waiting[0] is called
            if self._closed:
                raise Closed("the model")
        finally:
            self._waiting.remove(called)
            if not is_next:
                self._call_next()

    def _call_next(self) -> None:
        """Wake who has the next turn: waking all for each turn would take longer."""
        if self._waiting:
            self._waiting[0].notify()

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
            self.end_turn()

    def wait(self) -> None:
        """Wait a moment, or until somebody's turn has ended."""
        with self._lock:
            self._changed.wait(_RECHECK_S)

    @contextmanager
    def free_turn(self) -> Iterator[bool]:
        """A turn if it can be had at once; whether it can."""
        with self._lock:
            taken = self._holder is not None or bool(self._waiting) or self._closed
            if not taken:
                self._holder = threading.get_ident()
        try:
            yield not taken
        finally:
            if not taken:
                self.end_turn()

    def close(self, then: Callable[[], object]) -> None:
        """Grant no more turns, wait for the end of the one that is taken, and call ``then``, once."""
        with self._lock:
            self._closed = True
            for called in self._waiting:
                called.notify()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._holder is None)
            was_over, self._is_over = self._is_over, True
            self._holder = threading.get_ident()
        try:
            self._catch_up()
            if not was_over:
                then()
        finally:
            self.end_turn()

    def _catch_up(self) -> None:
        while self._later:
            self._later.popleft()()

    def end_turn(self) -> None:
        """Let others have a turn."""
        try:
            self._catch_up()
        finally:
            with self._lock:
                self._holder = None
                self._call_next()
                self._changed.notify_all()


class _Turn:
    """A turn as a context; a round of a small model notices what a generator would take."""

    __slots__ = ("_gives_up", "_lock")

    def __init__(self, lock: GenerationLock, gives_up: Callable[[], bool]) -> None:
        self._lock, self._gives_up = lock, gives_up

    def __enter__(self) -> None:
        self._lock.begin_turn(self._gives_up)

    def __exit__(self, *error: object) -> None:
        self._lock.end_turn()

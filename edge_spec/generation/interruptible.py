"""What is written piece by piece, by one thread at a time, and can be stopped from any other."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from edge_spec.errors import Cancelled
from edge_spec.generation.closing import Closing
from edge_spec.generation.reader import AwaitedPieces, Reader
from edge_spec.generation.request import Deadline

__all__ = ["Interruptible"]

Piece = TypeVar("Piece")


class Interruptible(Closing, Iterator[Piece]):
    """One reply or several: iterate over it for its pieces. A context manager that ends with ``close``.

    If a loop is left, the next one goes on where it stopped; after the end, another loop gives all of it again.

    Attributes:
        reader: who reads it.

    Args:
        timeout: seconds after the first piece is asked for after which it ends; None for no limit.
    """

    def __init__(self, timeout: float | None) -> None:
        self.reader = Reader.here()
        self._deadline = Deadline(timeout)
        self._cancelled = threading.Event()
        # Held while a piece is written; whoever closes waits for it.
        self._advancing = threading.RLock()
        self._advances_in: int | None = None
        self._unread_since = monotonic()

    @property
    def is_cancelled(self) -> bool:
        """Whether it has to stop: it was asked to, or its time is up."""
        return self._cancelled.is_set() or self._deadline.is_over

    @property
    def is_advancing_here(self) -> bool:
        """Whether this thread is writing a piece of it now."""
        return self._advances_in == threading.get_ident()

    @property
    def unread_s(self) -> float:
        """For how many seconds nobody has asked for a piece of it; 0 while one is written."""
        return 0.0 if self._advances_in is not None else monotonic() - self._unread_since

    def cancel(self) -> None:
        """Stop soon, from any thread; if nobody is reading it now, it ends at once. What was written stays."""
        self.ask_to_stop()
        self.end_unread()

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Let whoever writes a piece of it stop soon."""

    def end_unread(self) -> None:
        """End it if it has to stop and nobody writes a piece of it: there may never be another one."""
        if self.is_cancelled and not self.is_advancing_here and self._advancing.acquire(blocking=False):
            try:
                self._end_cancelled()
            finally:
                self._advancing.release()

    @abstractmethod
    def _end(self, reason: str) -> None:
        """End what has not ended, for a reason; see ``Reply.finish_reason``."""

    def close(self) -> None:
        """Stop, from any thread, and wait until it has stopped. What was read to its end stays as it is.

        Called from inside one of its rounds (a notice was handed out), it returns at once; the round is finished first.
        """
        self.cancel()
        if not self.is_advancing_here:
            with self._advancing:
                self._end("cancelled")

    @abstractmethod
    def _pieces_again(self) -> Iterator[Piece] | None:
        """All pieces, if they have been read to their end."""

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces_again() or self

    def __next__(self) -> Piece:
        piece = self.next_piece(self.reader if self.reader.is_this_thread else Reader.here())
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> AsyncIterator[Piece]:
        """Return the pieces for ``async for``; they are written in a thread. A cancelled task cancels what it reads."""
        again = self._pieces_again()
        return AwaitedPieces(self) if again is None else _awaited(again)

    def next_piece(self, reader: Reader) -> Piece | None:
        """Write the next piece for a reader, once nobody else writes one; None at the end."""
        # Not in a context of a generator: Ctrl-C at its entry would leave it suspended, and this locked.
        try:
            with self._advancing:
                try:
                    self._begin_reading(reader)
                    return self._next_piece()
                finally:
                    self._unread_since, self._advances_in = monotonic(), None
        finally:
            # Whoever cancelled it meanwhile could not end it.
            if self._cancelled.is_set():
                self.end_unread()

    @contextmanager
    def being_read(self, reader: Reader) -> Iterator[None]:
        """A context in which a reader has it, once nobody else has."""
        try:
            with self._advancing:
                try:
                    self._begin_reading(reader)
                    yield
                finally:
                    self._unread_since, self._advances_in = monotonic(), None
        finally:
            if self._cancelled.is_set():
                self.end_unread()

    def _begin_reading(self, reader: Reader) -> None:
        self.reader = reader
        self._advances_in = threading.get_ident()
        self._deadline.start()

    @abstractmethod
    def _next_piece(self) -> Piece | None:
        """Write the next piece for ``reader``; None at the end."""

    def _check_cancelled(self) -> None:
        if self.is_cancelled:
            raise Cancelled

    def _end_cancelled(self) -> None:
        self._end("cancelled" if self._cancelled.is_set() else "timeout")


async def _awaited(pieces: Iterator[Piece]) -> AsyncIterator[Piece]:
    for piece in pieces:
        yield piece

"""Iterates over replies, in threads and in event loops, while the worker writes them."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Sequences
from functools import partial
from typing import TypeVar

from edge_spec.errors import Closed
from edge_spec.generation.closing import Closing
from edge_spec.generation.reader import Reader, in_a_thread
from edge_spec.generation.scheduler import Scheduler
from edge_spec.generation.sequence import Claim, Sequence

__all__ = ["Readable"]

_STEPS_AT_ONCE = 8
"""Whoever reads to the end waits for so many steps: fewer wake-ups cost less."""

Piece = TypeVar("Piece")


class Readable(Closing, Iterator[Piece], AsyncIterator[Piece]):
    """One reply or several: iterate over it for its pieces. A context manager that ends with ``close``.

    If a loop is left, the next one goes on where it stopped; after the end, another loop gives all of it again.

    Attributes:
        claim: until when it is wanted, and who reads it.
    """

    def __init__(self, scheduler: Scheduler, claim: Claim) -> None:
        self.claim = claim
        self._scheduler = scheduler
        # Held while a piece is waited for: one thread reads it at a time.
        self._reading = threading.RLock()

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether all of it has been handed out."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Whether anything has been read or written for it."""

    @abstractmethod
    def sequences(self) -> Sequences[Sequence]:
        """Return what is waited for."""

    @abstractmethod
    def ready_piece(self) -> Piece | None:
        """Return the next piece, if it is there without waiting."""

    @abstractmethod
    def _pieces_again(self) -> Iterator[Piece] | None:
        """All pieces, if they have been read to their end."""

    # --- reading it

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces_again() or self

    def __next__(self) -> Piece:
        piece = self._next()
        if piece is None:
            raise StopIteration
        return piece

    def _read_on(self) -> None:
        """Read to the end, for somebody who sees no piece before."""
        self.claim.takes_all = True
        try:
            while self._next(_STEPS_AT_ONCE) is not None:
                pass
        finally:
            self._has_read()

    def _next(self, at_least: int = 1) -> Piece | None:
        """Return the next piece, and wait for it, or for so many steps; None at the end."""
        claim = self.claim
        # Not in a context of a generator: Ctrl-C at its entry would leave it suspended, and this locked.
        try:
            with self._reading:
                try:
                    claim.begin_reading(claim.reader if claim.reader.is_this_thread else Reader.here())
                    while (piece := self.ready_piece()) is None and not self.is_complete:
                        sequences = self.sequences()
                        self._scheduler.worker.wait(sequences, claim.reader, _steps(sequences, at_least))
                    return piece
                except BaseException as error:
                    self._end_by(error)
                    raise
                finally:
                    claim.end_reading()
        finally:
            # Whoever cancelled it meanwhile could not end it.
            if claim.is_cancelled:
                self.end_unread()

    def __aiter__(self) -> AsyncIterator[Piece]:
        """Return the pieces for ``async for``. A cancelled task cancels what it reads."""
        again = self._pieces_again()
        return self if again is None else _awaited(again)

    async def __anext__(self) -> Piece:
        piece = await self._next_async()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _read_on_async(self) -> None:
        self.claim.takes_all = True
        try:
            while await self._next_async(_STEPS_AT_ONCE) is not None:
                pass
        finally:
            self._has_read()

    def _has_read(self) -> None:
        self.claim.takes_all = False
        # Where it was interrupted, nobody has handed out what was written last.
        for sequence in self.sequences():
            sequence.hand_out()

    async def _next_async(self, at_least: int = 1) -> Piece | None:
        try:
            while (piece := self.ready_piece()) is None and not self.is_complete:
                await self.wait_async(at_least)
        except Exception as error:
            # Ending it may wait for a step, and the event loop must go on.
            await in_a_thread(partial(self._end_by, error))
            raise
        return piece

    async def wait_async(self, at_least: int = 1) -> None:
        """Wait until there are so many steps of one of the sequences, or its end; single ones while there is no token.

        A cancelled task cancels them.
        """
        from asyncio import CancelledError

        claim = self.claim
        claim.begin_reading(Reader.here(awaits=True))
        sequences = self.sequences()
        try:
            await self._scheduler.worker.wait_async(sequences, claim.reader, _steps(sequences, at_least))
        except CancelledError:
            # Ending it may wait for a step, and the event loop must go on.
            await self.aclose()
            raise
        finally:
            claim.end_reading()

    def _end_by(self, error: BaseException) -> None:
        """End what an error has struck; before it has begun, it can still begin later."""
        if not self.has_begun or isinstance(error, Closed):
            return
        if isinstance(error, Exception):
            self.end("error", error)
        else:
            # Such as Ctrl-C.
            self.ask_to_stop()
            self.end("cancelled")

    # --- ending it

    @property
    def reader(self) -> Reader:
        """Who reads it."""
        return self.claim.reader

    @property
    def is_cancelled(self) -> bool:
        """Whether it has to stop: it was asked to, or its time is up."""
        return self.claim.has_to_stop

    def cancel(self) -> None:
        """Stop soon, from any thread; if nobody is reading it now, it ends at once. What was written stays."""
        self.ask_to_stop()
        self.end_unread()

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Let whoever waits for a piece of it have its end soon."""

    def end_unread(self) -> None:
        """End it if it has to stop and nobody waits for a piece of it: there may never be another one."""
        if self.claim.has_to_stop and not self.claim.is_read:
            self.end(self.claim.reason)

    @abstractmethod
    def end(self, reason: str, error: BaseException | None = None) -> None:
        """End what has not ended, where its reader is; see ``Reply.finish_reason``."""

    def _end_all(self, sequences: Sequences[Sequence], reason: str, error: BaseException | None) -> None:
        left = [sequence for sequence in sequences if not sequence.is_recorded]
        scheduler, drop = self._scheduler, partial(self._scheduler.drop, left, reason, error)
        if left and scheduler.worker.is_here:
            scheduler.worker.soon(drop)
        elif left:
            try:
                scheduler.worker.do(drop)
            except Closed:
                # Nobody writes them any more.
                for sequence in left:
                    sequence.end(reason, error)
                    sequence.record()

    def close(self) -> None:
        """Stop, from any thread, and wait until it has stopped. What was read to its end stays as it is."""
        self.ask_to_stop()
        self.end("cancelled")


def _steps(sequences: Sequences[Sequence], at_least: int) -> int:
    """Return how many steps to wait for: while a prompt is read, its reader is told of each."""
    return at_least if all(sequence.has_tokens for sequence in sequences) else 1


async def _awaited(pieces: Iterator[Piece]) -> AsyncIterator[Piece]:
    for piece in pieces:
        yield piece

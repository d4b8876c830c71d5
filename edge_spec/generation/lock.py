"""The generation lock: models write one reply at a time."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from typing import Protocol

from edge_spec.errors import Cancelled, Closed, UnfinishedReply
from edge_spec.generation.reader import Reader

__all__ = ["GenerationLock", "TurnHolder"]

_RECHECK_S = 0.5
"""While something waits it checks so often that its wait can still end."""

_PATIENCE_S = 2.0

_WAITS = (
    "waiting for another reply of this model, which nobody is reading; "
    "read it to its end, or `cancel()` or `close()` it"
)


class TurnHolder(Protocol):
    """What holds a turn for longer than a call: a reply."""

    @property
    def reader(self) -> Reader:
        """Who reads it."""

    @property
    def is_cancelled(self) -> bool:
        """Whether it need not wait any more."""

    @property
    def is_advancing_here(self) -> bool:
        """Whether this thread is inside one of its rounds."""

    @property
    def unread_s(self) -> float:
        """For how many seconds nobody has asked for more of it; 0 while it is written."""

    def end_unread(self) -> None:
        """End it if it is cancelled and nobody reads it now."""

    def notice(self, sentence: str) -> None:
        """Tell its reader something."""

    def close(self) -> None:
        """End it. If ``is_advancing_here``, it ends after its round."""


class GenerationLock:
    """Lets one reply after the other use the models.

    Another thread waits for its turn, and another task of the same event loop as well. A wait that could never end is
    an error. A reply that is cancelled and that nobody is reading gives its turn back. Whoever waits for one that
    somebody else has left half read is told: by a notice, and in the log.

    Attributes:
        patience_s: for how long somebody waits, and a reply is not read on, before that is told.
    """

    def __init__(self) -> None:
        self.patience_s = _PATIENCE_S
        # Reentrant: a reply that nobody refers to any more ends its turn whenever Python finds it.
        self._changed = threading.Condition()
        self._is_taken = False
        # Weak: what nobody reads any more has to go, and to end its turn.
        self._holder: weakref.ref[TurnHolder] | None = None
        self._closed = self._is_over = False
        self._on_over: Callable[[], object] | None = None

    @property
    def closed(self) -> bool:
        """Whether there are no more turns."""
        return self._closed

    def turn(self, holder: TurnHolder | None = None) -> ExitStack:
        """Wait for a turn: the right to use the models. A context manager; closing it twice is the same as once.

        Raises:
            UnfinishedReply: the wait would never end: the turn belongs to a reply that the waiting thread or task would
                have to read on. Closed: there are no more turns. Cancelled: the holder was cancelled while it waited.
        """
        reader = holder.reader if holder is not None else Reader.here()
        started, is_told = monotonic(), False
        while True:
            self._end_unread_holder()
            with self._changed:
                if self._closed:
                    raise Closed("the model")
                if not self._is_taken:
                    self._is_taken = True
                    self._holder = weakref.ref(holder) if holder is not None else None
                    return self._turn()
                self._refuse_endless_wait(reader)
                if holder is not None and holder.is_cancelled:
                    raise Cancelled
                self._changed.wait(_RECHECK_S)
            if not is_told and monotonic() - started >= self.patience_s and self._is_held_unread():
                is_told = True
                logging.getLogger(__name__).warning(_WAITS)
                if holder is not None:
                    holder.notice(_WAITS)

    def free_turn(self) -> ExitStack | None:
        """Return a turn if it can be had at once."""
        with self._changed:
            if self._is_taken or self._closed:
                return None
            self._is_taken = True
            return self._turn()

    def wake(self) -> None:
        """Let those that wait check again whether they still have to."""
        with self._changed:
            self._changed.notify_all()

    def close(self, then: Callable[[], object] = lambda: None) -> None:
        """Cancel the reply that is being written, wait for it to stop, grant no more turns, and call ``then`` once.

        Called from inside a round (a notice was handed out), it returns at once, since it would deadlock, and the end
        of that turn does the rest.
        """
        self._closed = True
        self.wake()
        holder = self._held_by()
        if holder is not None:
            holder.close()
            if holder.is_advancing_here:
                self._on_over = then
                return
        del holder
        with self._changed:
            self._changed.wait_for(lambda: not self._is_taken)
            was_over, self._is_over = self._is_over, True
        if not was_over:
            then()

    def _turn(self) -> ExitStack:
        turn = ExitStack()
        turn.callback(self._end_turn)
        return turn

    def _held_by(self) -> TurnHolder | None:
        return self._holder() if self._holder is not None else None

    def _end_unread_holder(self) -> None:
        """End the reply that has the turn if it was cancelled and nobody reads it."""
        holder = self._held_by()
        if holder is not None:
            holder.end_unread()

    def _is_held_unread(self) -> bool:
        """Return whether the turn belongs to a reply that nobody has read on for a while."""
        holder = self._held_by()
        return holder is not None and holder.unread_s >= self.patience_s

    def _refuse_endless_wait(self, reader: Reader) -> None:
        holder = self._held_by()
        if holder is not None and (holder.is_advancing_here or reader.blocks(holder.reader)):
            raise UnfinishedReply("another reply of this model")

    def _end_turn(self) -> None:
        with self._changed:
            self._is_taken = False
            self._holder = None
            self._changed.notify_all()
            then, self._on_over = self._on_over, None
        if then is not None:
            self.close(then)

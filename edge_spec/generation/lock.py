"""The generation lock: models write one reply at a time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from edge_spec.errors import Cancelled, Closed, SettingsError
from edge_spec.generation.reader import Reader

__all__ = ["GenerationLock", "TurnHolder"]

_RECHECK_S = 0.5
"""While something waits it checks so often that its wait can still end."""


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

    def close(self) -> None:
        """End it. If ``is_advancing_here``, it ends after its round."""


class GenerationLock:
    """Lets one reply after the other use the models.

    Another thread waits for its turn, and another task of the same event loop as well. A wait that could never end is
    an error.
    """

    def __init__(self) -> None:
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
            SettingsError: the wait would never end: the turn belongs to a reply that the waiting thread or task would
                have to read on. Closed: there are no more turns. Cancelled: the holder was cancelled while it waited.
        """
        reader = holder.reader if holder is not None else Reader.here()
        with self._changed:
            while self._is_taken and not self._closed:
                self._refuse_endless_wait(reader)
                if holder is not None and holder.is_cancelled:
                    raise Cancelled
                self._changed.wait(_RECHECK_S)
            if self._closed:
                raise Closed("the model")
            self._is_taken = True
            self._holder = weakref.ref(holder) if holder is not None else None
            return self._turn()

    def free_turn(self) -> ExitStack | None:
        """A turn if it can be had at once."""
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

    def _refuse_endless_wait(self, reader: Reader) -> None:
        holder = self._held_by()
        if holder is not None and (holder.is_advancing_here or reader.blocks(holder.reader)):
            raise SettingsError(
                "another reply of this model is not finished", hint="read it to the end or `close()` it first"
            )

    def _end_turn(self) -> None:
        with self._changed:
            self._is_taken = False
            self._holder = None
            self._changed.notify_all()
            then, self._on_over = self._on_over, None
        if then is not None:
            self.close(then)

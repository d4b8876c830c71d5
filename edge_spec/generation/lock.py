"""Who uses the models: one reply at a time, and one conversation in the caches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from edge_spec.errors import BudgetExceeded, Cancelled, Closed, EdgeSpecError, SettingsError, StateError
from edge_spec.generation.reply import Reply
from edge_spec.generation.session_cache import Caches, Holder, Shelf
from edge_spec.speculation.loop import Speculator

__all__ = ["TurnTaking", "Turns"]

_PLACE_BYTES = 64
"""What an engine writes down of a token beside its keys and values, and more."""


class Turns:
    """Gives the models to one reply after the other.

    A second thread waits for its turn, the same thread gets an error, since it would wait for itself. Between two
    replies of one conversation the caches stay; when another one comes in between, they are laid aside.

    Args:
        shelf: where conversations are laid aside.
    """

    def __init__(self, speculator: Speculator, shelf: Shelf) -> None:
        self._speculator = speculator
        self._shelf = shelf
        # Free, or somebody's; who waits is woken when that changes, and when it need not wait any more.
        self._turn = threading.Condition()
        self._taken = False
        # The conversation whose text the models have in their caches, if it is one.
        self._holder: Holder | None = None
        # Weak: a reply that nobody reads any more must go, and give its turn back.
        self._writer: tuple[int, weakref.ref[TurnTaking]] | None = None
        self._closed = self._is_over = False
        self._closing: Callable[[], object] | None = None

    @property
    def closed(self) -> bool:
        """Whether no reply gets a turn any more."""
        return self._closed

    @property
    def max_cached_bytes(self) -> int:
        """The most that caches of conversations laid aside may take."""
        return self._shelf.limit_bytes

    def close(self, then: Callable[[], object] = lambda: None) -> None:
        """Cancel the reply that is being written, wait for it to stop, let none follow, and call ``then``, once.

        Called by something that the reply told of in the midst of a round, it returns at once, and the end of the
        turn does the rest: the round would wait for itself.
        """
        self._closed = True
        self.wake()
        writer = self._writer
        reply = writer[1]() if writer is not None else None
        if reply is not None:
            reply.close()
            if reply.is_in_a_round_of_this_thread:
                self._closing = then
                return
        del reply
        with self._turn:
            self._turn.wait_for(lambda: not self._taken)
            self._holder = None
            was_over, self._is_over = self._is_over, True
        if not was_over:
            then()

    def wake(self) -> None:
        """Let those that wait for a turn see whether they still have to."""
        with self._turn:
            self._turn.notify_all()

    def enter(self, reply: TurnTaking | None) -> None:
        """Wait for a turn.

        Raises:
            SettingsError: it is this thread that would have to end its turn. Closed: there are no more turns.
            Cancelled: the reply was cancelled while it waited.
        """
        with self._turn:
            awaited_in = reply.awaited_in if reply is not None else None
            # Whoever awaits its turn lets others go on meanwhile.
            if self._writer is not None and self._writer[0] == threading.get_ident() and awaited_in is None:
                raise SettingsError(
                    "another reply of this model is not finished yet", hint="read it to the end or close() it first"
                )
            self._turn.wait_for(lambda: not self._taken or self._closed or (reply is not None and reply.is_cancelled))
            if self._closed:
                raise Closed("the model")
            if self._taken:
                raise Cancelled
            self._taken = True
            if reply is not None:
                self._writer = (awaited_in or threading.get_ident(), weakref.ref(reply))

    def enter_if_free(self) -> bool:
        """Take a turn if nobody has one; False, at once, if somebody does, or there are no more turns."""
        with self._turn:
            if self._taken or self._closed:
                return False
            self._taken = True
            return True

    def leave(self) -> None:
        """End the turn."""
        with self._turn:
            self._writer = None
            self._taken = False
            self._turn.notify_all()
            closing, self._closing = self._closing, None
        if closing is not None:
            self.close(closing)

    @contextmanager
    def between(self) -> Iterator[Speculator]:
        """The models, while no reply is being written."""
        self.enter(None)
        try:
            yield self._speculator
        finally:
            self.leave()

    def hand_over(self, holder: Holder | None) -> bool:
        """In one's turn: go over to a conversation, or to none. Whether the caches are this conversation's."""
        previous, self._holder = self._holder, holder
        if previous is None or previous is holder:
            return previous is not None
        # What cannot be laid aside is read again later.
        with suppress(EdgeSpecError, MemoryError):
            with self._copied() as caches:
                pass
            self._shelf.lay(previous, caches)
        return False

    @contextmanager
    def lent_caches(self, holder: Holder) -> Iterator[Caches | None]:
        """What is kept of a conversation, in the models' caches or on the shelf, as long as the context lasts.

        It stays there. None if nothing is.

        Raises:
            BudgetExceeded: the memory has no room for copies.
        """
        with ExitStack() as copies:
            with self.between():
                if self._holder is holder:
                    caches: Caches | None = copies.enter_context(self._copied())
                else:
                    caches = copies.enter_context(self._shelf.borrowed(holder))
            yield caches

    def lay(self, holder: Holder, caches: Caches) -> None:
        """Lay a conversation aside that has not been here yet."""
        with self.between():
            self._shelf.lay(holder, caches)

    def bring_back(self, holder: Holder) -> bool:
        """In one's turn: fill the caches with what the shelf has of a conversation, and has no longer then.

        False if it has nothing, there is no memory for it, or the models do not take it, and are empty now.
        """
        try:
            with self._shelf.borrowed(holder) as caches:
                if caches is not None:
                    self._speculator.restore(caches.states, caches.text)
                return caches is not None
        except (BudgetExceeded, StateError):
            return False
        finally:
            self._shelf.drop(holder)

    def release(self, holder: Holder) -> None:
        """A conversation has ended, or goes on with another text: nothing need be kept of it."""
        if self._holder is holder:
            self._holder = None
        self._shelf.drop(holder)

    @contextmanager
    def _copied(self) -> Iterator[Caches]:
        """What the models have in their caches; room for the copies is claimed for as long as the context lasts."""
        speculator, ledger = self._speculator, self._shelf.ledger
        share = min(1.0, (len(speculator.text) + 1) / speculator.model.n_ctx)
        cells = [int(share * line.predicted_bytes) for line in ledger if line.name == "KV cache"]
        places = _PLACE_BYTES * len(speculator.text) * len(cells)
        # All together, and the largest once or twice more on its way out of its engine.
        wanted = sum(cells) + 2 * max(cells, default=0) + places
        with ledger.lend("sessions", "copies to save", wanted) as took:
            states = speculator.save()
            sizes = [len(state) for state in states.values()]
            took(sum(sizes) + max(sizes, default=0))
            yield Caches(states=states, text=tuple(speculator.text))


class TurnTaking(Reply):
    """A generation that holds its turn from its first piece to its end.

    Attributes:
        holder: the conversation that it belongs to, if any.
        owns_caches: the models have this conversation in their caches still.
    """

    holder: Holder | None = None
    owns_caches = False

    def __init__(self, turns: Turns, *args: Any, **kwargs: Any) -> None:
        self._turns = turns
        self._holds_turn = False
        super().__init__(*args, **kwargs)

    @property
    def is_in_a_round_of_this_thread(self) -> bool:
        """Whether it is this thread that writes a piece of it now."""
        return self._advances_in == threading.get_ident()

    def _begin(self) -> None:
        self._turns.enter(self)
        self._holds_turn = True
        try:
            self.owns_caches = self._turns.hand_over(self.holder)
        except BaseException:
            self._leave()
            raise
        super()._begin()

    def cancel(self) -> None:
        super().cancel()
        self._turns.wake()

    def _end(self, reason: str) -> None:
        with ExitStack() as always:
            # Whatever fails at its end, the next reply gets its turn.
            always.callback(self._leave)
            always.callback(self._take_down)
            super()._end(reason)

    def _take_down(self) -> None:
        """It has ended and has its turn still."""

    def _leave(self) -> None:
        if self._holds_turn:
            self._holds_turn = False
            self._turns.leave()

    def __del__(self) -> None:
        # A reply that nobody reads to its end must not keep the model from the next one.
        self._leave()

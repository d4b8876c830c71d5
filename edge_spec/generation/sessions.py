"""Conversations that share the models' caches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from edge_spec.errors import BudgetExceeded, EdgeSpecError, StateError
from edge_spec.generation.lock import GenerationLock
from edge_spec.generation.session_cache import SessionCache
from edge_spec.generation.suspension import SuspendedCaches
from edge_spec.speculation.loop import Speculator

__all__ = ["Sessions"]


class Sessions:
    """Suspends one conversation's caches and resumes another's.

    Between two replies of one conversation its text stays in the models' caches; when another reply comes in between,
    they are copied into the session cache.

    Attributes:
        cache: caches of the suspended conversations.
    """

    def __init__(self, speculator: Speculator, lock: GenerationLock, cache: SessionCache) -> None:
        self.cache = cache
        self._speculator = speculator
        self._lock = lock
        # The conversation whose text is in the models' caches, if it is one's.
        self._current: object | None = None

    def resume(self, session: object | None) -> bool:
        """Suspend the current conversation and resume another one, or none. Needs the generation lock.

        Returns:
            Whether the models have the text of this conversation in their caches now.
        """
        previous, self._current = self._current, session
        has_text = bool(self._speculator.text)
        if previous is session and has_text:
            return session is not None
        if previous is not None and has_text:
            # What cannot be suspended is read again later.
            with suppress(EdgeSpecError, MemoryError):
                with self.cache.suspension.suspended(self._speculator) as caches:
                    pass
                self.cache.put(previous, caches)
        return session is not None and self._restored(session)

    @contextmanager
    def copied(self, session: object) -> Iterator[SuspendedCaches | None]:
        """The caches of a conversation, wherever they are, while the context lasts; None if there are none.

        Raises:
            BudgetExceeded: the memory has no room for copies.
        """
        with ExitStack() as copies:
            with self._lock.turn():
                if self._current is session:
                    caches: SuspendedCaches | None = copies.enter_context(
                        self.cache.suspension.suspended(self._speculator)
                    )
                else:
                    caches = copies.enter_context(self.cache.borrowed(session))
            yield caches

    def suspend(self, session: object, caches: SuspendedCaches) -> None:
        """Let a conversation that comes from elsewhere wait with its caches."""
        with self._lock.turn():
            self.cache.put(session, caches)

    def release(self, session: object) -> None:
        """A conversation has ended, or continues with another text: nothing need be kept of it."""
        if self._current is session:
            self._current = None
        self.cache.drop(session)

    def _restored(self, session: object) -> bool:
        """Move a conversation's caches into the models; False if there are none, or the models cannot take them."""
        try:
            with self.cache.borrowed(session) as caches:
                if caches is not None:
                    self._speculator.restore(caches.states, caches.text)
                return caches is not None
        except (BudgetExceeded, StateError):
            return False
        finally:
            self.cache.drop(session)

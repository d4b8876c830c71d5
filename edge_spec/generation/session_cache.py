"""The session cache: caches of suspended conversations."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from edge_spec.errors import BudgetExceeded
from edge_spec.generation.suspension import CachesOnDisk, SuspendedCaches, Suspension
from edge_spec.memory import Ledger

__all__ = ["SessionCache"]


class SessionCache:
    """Keeps the caches of conversations that are suspended. The oldest are evicted when they get too large.

    Usable from any thread. What nobody refers to any more is dropped.

    Args:
        ledger: where they are entered; what it does not allow is not kept.
        limit_bytes: the most memory that all of them may take together.
        folder: where caches lie that are moved to the disk; the system's own folder for temporary files by default.
    """

    def __init__(self, ledger: Ledger, *, limit_bytes: int = 256 << 20, folder: Path | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.suspension = Suspension(ledger, folder=folder)
        self._ledger = ledger
        self._lock = threading.RLock()
        # By session, the one suspended last at the end.
        self._kept: weakref.WeakKeyDictionary[object, SuspendedCaches | CachesOnDisk] = weakref.WeakKeyDictionary()
        self._uses_disk = False

    @property
    def n_bytes(self) -> int:
        """Memory that all of them take."""
        with self._lock:
            return sum(caches.n_bytes for _, caches in self._in_memory())

    def __contains__(self, session: object) -> bool:
        return session in self._kept

    def put(self, session: object, caches: SuspendedCaches) -> None:
        """Keep the caches of a session, if there is room for them at all."""
        with self._lock:
            self._kept.pop(session, None)
            if self._uses_disk:
                self._put_on_disk(session, caches)
            elif caches.n_bytes <= self.limit_bytes:
                self._kept[session] = caches
                self._evict()

    @contextmanager
    def borrowed(self, session: object) -> Iterator[SuspendedCaches | None]:
        """What is kept of a session, in memory while the context lasts; None if nothing is.

        Raises:
            BudgetExceeded: there is no memory for what lies on the disk.
        """
        with self._lock:
            found = self._kept.get(session)
        with ExitStack() as copies:
            caches = found if isinstance(found, SuspendedCaches) else None
            if isinstance(found, CachesOnDisk):
                # If the disk fails, the text is read again.
                with suppress(OSError):
                    caches = copies.enter_context(self.suspension.from_disk(found))
            yield caches

    def drop(self, session: object) -> None:
        """Nothing need be kept of a session any more."""
        with self._lock:
            self._kept.pop(session, None)
            self._enter()

    def to_disk(self, uses_disk: bool) -> bool:
        """Keep caches on the disk from now on and move those there that are in memory, or keep them in memory again.

        Returns:
            Whether any were moved.
        """
        with self._lock:
            self._uses_disk = uses_disk
            in_memory = self._in_memory() if uses_disk else []
            for session, caches in in_memory:
                del self._kept[session]
                self._put_on_disk(session, caches)
            self._enter()
            return bool(in_memory)

    def _put_on_disk(self, session: object, caches: SuspendedCaches) -> None:
        # Without room on the disk the text is read again.
        with suppress(OSError):
            self._kept[session] = self.suspension.to_disk(caches)

    def _in_memory(self) -> list[tuple[object, SuspendedCaches]]:
        return [(session, caches) for session, caches in self._kept.items() if isinstance(caches, SuspendedCaches)]

    def _evict(self) -> None:
        for session, _ in self._in_memory():
            if self.n_bytes <= self.limit_bytes and self._enter():
                return
            del self._kept[session]
        self._enter()

    def _enter(self) -> bool:
        """Enter in the ledger what there is; False if that is more than it allows."""
        try:
            self._ledger.set("sessions", "suspended", self.n_bytes)
        except BudgetExceeded:
            return False
        self._ledger.measure("sessions", "suspended", self.n_bytes)
        return True

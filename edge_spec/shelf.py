"""Caches of conversations that had to make way for another one."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edge_spec.errors import BudgetExceeded
from edge_spec.memory import Ledger

__all__ = ["Caches", "Holder", "Shelf"]


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What the models have in their caches of a text: states by model, see ``Speculator.save``."""

    states: Mapping[str, bytes]
    text: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Memory that they take."""
        return sum(map(len, self.states.values()))


class Holder(Protocol):
    """A conversation that can be laid aside."""

    caches: Caches | None


class Shelf:
    """Conversations laid aside with their caches, the latest last; the oldest lose theirs when it gets too much.

    Args:
        limit_bytes: the most that all caches on the shelf may take together.
        ledger: where they are entered; what it does not allow is not kept.
    """

    def __init__(self, limit_bytes: int, ledger: Ledger) -> None:
        self.limit_bytes = limit_bytes
        self._ledger = ledger
        self._shelved: list[weakref.ref[Holder]] = []
        self._spilled: weakref.WeakKeyDictionary[Holder, _OnDisk] = weakref.WeakKeyDictionary()

    @property
    def n_bytes(self) -> int:
        """Memory that all caches on the shelf take."""
        return sum(holder.caches.n_bytes for holder in self._living() if holder.caches)

    def lay(self, holder: Holder, caches: Caches) -> None:
        """Lay a conversation aside, if there is room for its caches at all."""
        holder.caches = caches if caches.n_bytes <= self.limit_bytes else None
        others = [other for other in self._living() if other is not holder]
        self._shelved = [*map(weakref.ref, others), weakref.ref(holder)]
        for other in (*others, holder):
            if self.n_bytes <= self.limit_bytes and self._entered():
                break
            other.caches = None

    def take(self, holder: Holder) -> Caches | None:
        """What was kept of a conversation, which is no longer on the shelf."""
        caches, holder.caches = holder.caches, None
        on_disk = self._spilled.pop(holder, None)
        if caches is None and on_disk is not None:
            # Whoever cleans up the temporary folder only makes us read a text again.
            with suppress(OSError):
                caches = on_disk.read()
        self._entered()
        return caches

    def spill(self) -> None:
        """Move all caches to the disk; what does not fit there stays."""
        for holder in self._living():
            if holder.caches is not None:
                with suppress(OSError):
                    self._spilled[holder] = _OnDisk(holder.caches)
                    holder.caches = None
        self._entered()

    def _entered(self) -> bool:
        """Enter what is there in the ledger; False if that is more than it allows."""
        self._ledger.release("sessions")
        try:
            self._ledger.claim("sessions", "laid aside", self.n_bytes)
        except BudgetExceeded:
            return False
        return True

    def _living(self) -> list[Holder]:
        return [holder for reference in self._shelved if (holder := reference()) is not None]


class _OnDisk:
    """Caches in a temporary folder, which goes when this does."""

    def __init__(self, caches: Caches) -> None:
        self._text = caches.text
        self._names = list(caches.states)
        self._folder = tempfile.TemporaryDirectory(prefix="edge-spec-", ignore_cleanup_errors=True)
        for number, state in enumerate(caches.states.values()):
            Path(self._folder.name, str(number)).write_bytes(state)

    def read(self) -> Caches:
        """The caches, in memory again."""
        states = {name: Path(self._folder.name, str(n)).read_bytes() for n, name in enumerate(self._names)}
        self._folder.cleanup()
        return Caches(states=states, text=self._text)

"""Caches of conversations that had to make way for another one."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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

    Usable from any thread.

    Args:
        ledger: where they are entered; what it does not allow is not kept.
        limit_bytes: the most that all caches on the shelf may take together.
        folder: where caches lie that must not lie in memory; the system's own for temporary files by default.
    """

    def __init__(self, ledger: Ledger, *, limit_bytes: int = 256 << 20, folder: Path | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.ledger = ledger
        self._folder = folder
        self._lock = threading.RLock()
        self._shelved: list[weakref.ref[Holder]] = []
        self._spilled: weakref.WeakKeyDictionary[Holder, _OnDisk] = weakref.WeakKeyDictionary()
        self._spills = False

    @property
    def n_bytes(self) -> int:
        """Memory that all caches on the shelf take."""
        return sum(caches.n_bytes for holder in self._living() if (caches := holder.caches) is not None)

    def lay(self, holder: Holder, caches: Caches) -> None:
        """Lay a conversation aside, if there is room for its caches at all."""
        with self._lock:
            self._spilled.pop(holder, None)
            if self._spills:
                self._spill(holder, caches)
                return
            holder.caches = caches if caches.n_bytes <= self.limit_bytes else None
            others = [other for other in self._living() if other is not holder]
            self._shelved = [*map(weakref.ref, others), weakref.ref(holder)]
            for other in (*others, holder):
                if self.n_bytes <= self.limit_bytes and self._entered():
                    break
                other.caches = None
            self._entered()

    @contextmanager
    def borrowed(self, holder: Holder) -> Iterator[Caches | None]:
        """What is kept of a conversation; what lies on the disk is in memory for as long as the context lasts.

        Raises:
            BudgetExceeded: there is no memory for that.
        """
        with ExitStack() as claims:
            with self._lock:
                caches, on_disk = holder.caches, self._spilled.get(holder)
                if caches is None and on_disk is not None:
                    took = claims.enter_context(self.ledger.lend("sessions", "back from the disk", on_disk.n_bytes))
                    # A disk that fails only makes us read a text again.
                    with suppress(OSError):
                        caches = on_disk.read()
                        took(caches.n_bytes)
            yield caches

    def drop(self, holder: Holder) -> None:
        """Nothing need be kept of a conversation any more."""
        with self._lock:
            holder.caches = None
            self._spilled.pop(holder, None)
            self._entered()

    def to_disk(self, spills: bool) -> bool:
        """Whether caches lie on the disk from now on; those in memory are moved then. Returns whether any were."""
        with self._lock:
            self._spills = spills
            in_memory = [holder for holder in self._living() if spills and holder.caches is not None]
            for holder in in_memory:
                if holder.caches is not None:
                    self._spill(holder, holder.caches)
            self._entered()
            return bool(in_memory)

    def _spill(self, holder: Holder, caches: Caches) -> None:
        """Move caches to the disk, or give them up where they do not fit there."""
        holder.caches = None
        with suppress(OSError):
            self._spilled[holder] = _OnDisk(caches, self._folder)

    def _entered(self) -> bool:
        """Enter what is there in the ledger; False if that is more than it allows."""
        try:
            self.ledger.set("sessions", "laid aside", self.n_bytes)
        except BudgetExceeded:
            return False
        self.ledger.measure("sessions", "laid aside", self.n_bytes)
        return True

    def _living(self) -> list[Holder]:
        return [holder for reference in self._shelved if (holder := reference()) is not None]


class _OnDisk:
    """Caches in files without a name, which go when this does, or the process."""

    def __init__(self, caches: Caches, folder: Path | None) -> None:
        self.n_bytes = caches.n_bytes
        self._text = caches.text
        self._files = {}
        for name, state in caches.states.items():
            # Closed when nobody holds it any more: it lives as long as this.
            file = self._files[name] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            file.write(state)
            file.flush()

    def read(self) -> Caches:
        """The caches, in memory again."""
        states = {}
        for name, file in self._files.items():
            file.seek(0)
            states[name] = file.read()
        return Caches(states=states, text=self._text)

    def __del__(self) -> None:
        for file in self._files.values():
            file.close()

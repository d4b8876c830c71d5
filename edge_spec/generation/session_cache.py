"""The session cache: what models had in their caches of texts whose cells others need."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edge_spec.errors import BudgetExceeded
from edge_spec.memory import Ledger
from edge_spec.speculation.loop import Speculator

__all__ = ["CachesOnDisk", "SessionCache", "SuspendedCaches"]

_TOKEN_BYTES = 64
"""What an engine saves of a token besides its keys and values, and more."""


@dataclass(frozen=True, kw_only=True)
class SuspendedCaches:
    """What the models have in their caches of a text.

    Attributes:
        states: by model, see ``Speculator.save``.
        text: token ids of the text.
    """

    states: Mapping[str, bytes]
    text: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Memory that they take."""
        return sum(map(len, self.states.values()))


class CachesOnDisk:
    """The same in files without a name, which go when this does, or the process.

    Raises:
        OSError: they cannot be written.
    """

    def __init__(self, caches: SuspendedCaches, folder: Path | None) -> None:
        self.n_bytes = caches.n_bytes
        self.text = caches.text
        self._files = {}
        for name, state in caches.states.items():
            # Closed with this.
            file = self._files[name] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            file.write(state)
            file.flush()

    def read(self) -> SuspendedCaches:
        """Return the caches, in memory again."""
        states = {}
        for name, file in self._files.items():
            file.seek(0)
            states[name] = file.read()
        return SuspendedCaches(states=states, text=self.text)

    def __del__(self) -> None:
        for file in self._files.values():
            file.close()


class SessionCache:
    """Copies caches out of the models, and keeps those of suspended conversations.

    The oldest are evicted when they get too large. Usable from any thread. What nobody refers to any more is dropped.

    Args:
        ledger: where room for copies is claimed; what it does not allow is not kept.
        limit_bytes: the most memory that all of them may take together.
        folder: where caches on disk lie; the system's own folder for temporary files by default.
    """

    def __init__(self, ledger: Ledger, *, limit_bytes: int = 256 << 20, folder: Path | None = None) -> None:
        self.ledger = ledger
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._lock = threading.RLock()
        # By session, the one suspended last at the end.
        self._kept: weakref.WeakKeyDictionary[object, SuspendedCaches | CachesOnDisk] = weakref.WeakKeyDictionary()
        self._uses_disk = False

    @property
    def n_bytes(self) -> int:
        """Memory that all of them take."""
        with self._lock:
            return sum(caches.n_bytes for _, caches in self._in_memory())

    # Copies.

    @contextmanager
    def suspended(
        self, speculator: Speculator, *, target: bool = True, drafters: bool = True
    ) -> Iterator[SuspendedCaches]:
        """Copies of the models' caches: of the ``target``'s, and of those of the drafter if it sits with the text.

        Raises:
            BudgetExceeded: there is no room for them. Cancelled, Closed: see ``Speculator.save``.
        """
        n_tokens = len(speculator.text)
        share = min(1.0, (n_tokens + 1) / speculator.model.n_ctx)
        shares = {"KV cache": share, "recurrent state": 1.0}
        caches: Counter[str] = Counter()
        for line in self.ledger:
            if line.name in shares and (target if line.owner == "target" else drafters):
                caches[line.owner] += int(shares[line.name] * line.predicted_bytes)
        # All of them, and the largest up to twice more while its engine hands it out.
        expected = caches.total() + 2 * max(caches.values(), default=0) + _TOKEN_BYTES * n_tokens * len(caches)
        with self.ledger.lend("sessions", "copies to save", expected) as took:
            states = speculator.save(target=target, drafters=drafters)
            sizes = [len(state) for state in states.values()]
            took(sum(sizes) + max(sizes, default=0))
            yield SuspendedCaches(states=states, text=tuple(speculator.text))

    def on_disk(self, caches: SuspendedCaches) -> CachesOnDisk:
        """Write caches to the disk.

        Raises:
            OSError: they cannot be written.
        """
        return CachesOnDisk(caches, self._folder)

    @contextmanager
    def from_disk(self, kept: CachesOnDisk, *, copies: int = 1) -> Iterator[SuspendedCaches]:
        """Caches that lie on the disk, in memory while the context lasts.

        Args:
            copies: how many times they are in memory then.

        Raises:
            BudgetExceeded: there is no room for them. OSError: they cannot be read.
        """
        with self.ledger.lend("sessions", "back from the disk", copies * kept.n_bytes) as took:
            caches = kept.read()
            took(copies * caches.n_bytes)
            yield caches

    # Caches of suspended conversations.

    def __contains__(self, session: object) -> bool:
        return session in self._kept

    def texts(self) -> list[tuple[object, tuple[int, ...]]]:
        """Return the sessions and their texts, the one suspended last at the end."""
        with self._lock:
            return [(session, caches.text) for session, caches in self._kept.items()]

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
                    caches = copies.enter_context(self.from_disk(found))
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
            self._kept[session] = self.on_disk(caches)

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
            self.ledger.set("sessions", "suspended", self.n_bytes)
        except BudgetExceeded:
            return False
        self.ledger.measure("sessions", "suspended", self.n_bytes)
        return True

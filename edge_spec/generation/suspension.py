"""Caches taken out of the models, in memory or on disk, to be restored later."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge_spec.memory import Ledger
from edge_spec.speculation.loop import Speculator

__all__ = ["CachesOnDisk", "SuspendedCaches", "Suspension"]

_TOKEN_BYTES = 64
"""What an engine saves of a token beside its keys and values, and more."""


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
        self._text = caches.text
        self._files = {}
        for name, state in caches.states.items():
            # Closed with this.
            file = self._files[name] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            file.write(state)
            file.flush()

    def read(self) -> SuspendedCaches:
        """The caches, in memory again."""
        states = {}
        for name, file in self._files.items():
            file.seek(0)
            states[name] = file.read()
        return SuspendedCaches(states=states, text=self._text)

    def __del__(self) -> None:
        for file in self._files.values():
            file.close()


class Suspension:
    """Copies caches, and claims room for the copies for as long as they are needed.

    Args:
        ledger: where the room is claimed.
        folder: where caches on disk lie; the system's own folder for temporary files by default.
    """

    def __init__(self, ledger: Ledger, *, folder: Path | None = None) -> None:
        self.ledger = ledger
        self._folder = folder

    @contextmanager
    def suspended(self, speculator: Speculator, *, drafters: bool = True) -> Iterator[SuspendedCaches]:
        """Copies of the models' caches; without ``drafters`` of the target's alone.

        Raises:
            BudgetExceeded: there is no room for them. Cancelled, Closed: see ``Speculator.save``.
        """
        n_tokens = len(speculator.text)
        share = min(1.0, (n_tokens + 1) / speculator.model.n_ctx)
        lines = (line for line in self.ledger if line.name == "KV cache" and (drafters or line.owner == "target"))
        cells = [int(share * line.predicted_bytes) for line in lines]
        # All of them, and the largest up to twice more while its engine hands it out.
        expected = sum(cells) + 2 * max(cells, default=0) + _TOKEN_BYTES * n_tokens * len(cells)
        with self.ledger.lend("sessions", "copies to save", expected) as took:
            states = speculator.save(drafters=drafters)
            sizes = [len(state) for state in states.values()]
            took(sum(sizes) + max(sizes, default=0))
            yield SuspendedCaches(states=states, text=tuple(speculator.text))

    def to_disk(self, caches: SuspendedCaches) -> CachesOnDisk:
        """Write caches to the disk.

        Raises:
            OSError: they cannot be written.
        """
        return CachesOnDisk(caches, self._folder)

    @contextmanager
    def from_disk(self, on_disk: CachesOnDisk, *, copies: int = 1) -> Iterator[SuspendedCaches]:
        """Caches that lie on the disk, in memory while the context lasts.

        Args:
            copies: how many times they are in memory then.

        Raises:
            BudgetExceeded: there is no room for them. OSError: they cannot be read.
        """
        with self.ledger.lend("sessions", "back from the disk", copies * on_disk.n_bytes) as took:
            caches = on_disk.read()
            took(copies * caches.n_bytes)
            yield caches

"""Copies of the cached states of a text: in memory, or in files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CachesOnDisk", "SuspendedCaches"]


@dataclass(frozen=True, kw_only=True)
class SuspendedCaches:
    """The cached states of the models for one text.

    Attributes:
        states: by model, see ``Slot.save``.
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

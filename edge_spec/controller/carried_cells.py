"""The cells of a KV cache, kept in a file while their context is reopened with another size."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from edge_spec.engines.cache_state import restated
from edge_spec.errors import EdgeSpecError
from edge_spec.memory import Ledger
from edge_spec.speculation.language_model import LanguageModel

__all__ = ["FAILURES", "CarriedCells", "carry"]

FAILURES = (EdgeSpecError, MemoryError, OSError)
"""What comes of too little memory, as far as it can be told."""

_COPIES = 3
"""A state on its way to a file or back, and once or twice more inside its envelope."""


class CarriedCells:
    """A copy of a target's cells in a file: two caches at once would take more memory than there was.

    Args:
        file: gone when nothing holds it any more.
    """

    def __init__(self, file: IO[bytes], ledger: Ledger) -> None:
        self._file = file
        self._ledger = ledger

    def bring_back(self, model: LanguageModel) -> None:
        """Fill the cache of a model that means the same by its cells; leave it empty if that fails."""
        n_bytes = _COPIES * self._file.tell()
        with suppress(*FAILURES), self._file, self._ledger.lend("sessions", "copies to save", n_bytes):
            self._file.seek(0)
            model.restore(restated(self._file.read(), profile=model.profile.name))
            return
        model.rollback(0)


def carry(model: LanguageModel, ledger: Ledger, folder: Path | None) -> CarriedCells | None:
    """A copy of the cells of a target; None if there is no room for one."""
    lines = (line for line in ledger if line.owner == "target" and line.name == "KV cache")
    n_bytes = sum(line.predicted_bytes for line in lines) * (model.n_past + 1) // model.n_ctx
    with suppress(*FAILURES), ledger.lend("sessions", "copies to save", _COPIES * n_bytes):
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        file.write(model.save())
        return CarriedCells(file, ledger)
    return None

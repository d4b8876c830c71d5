"""A target whose context is made anew while a text goes on."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from edge_spec.controller.open_models import OpenFamily
from edge_spec.engines.cache_state import restated
from edge_spec.engines.llama import LlamaSettings
from edge_spec.errors import EdgeSpecError
from edge_spec.memory.heap import trim_heap
from edge_spec.speculation.loop import Speculator

__all__ = ["FAILURES", "Renewal"]

FAILURES = (EdgeSpecError, MemoryError, OSError)
"""What comes of too little memory, as far as it can be told."""

_COPIES = 3
"""A state on its way to a file or back, and once or twice more in its envelope."""


class Renewal:
    """Goes over to a context with other settings, or back where that cannot be opened.

    Attributes:
        is_lost: the target is closed, and could not be opened again.

    Args:
        trees: whether the target must take trees.
        folder: where a cache lies meanwhile; the system's own for temporary files by default.
    """

    def __init__(self, speculator: Speculator, family: OpenFamily, *, trees: bool, folder: Path | None) -> None:
        self._speculator = speculator
        self._family = family
        self._trees = trees
        self._folder = folder
        self.is_lost = False

    def renew(self, settings: LlamaSettings, *, same_cells: bool) -> bool:
        """Whether there is such a context now; else the one before, if there is any.

        Nothing is read here: what a context lacks of the text, the next decode begins with, and whoever cancels that
        finds the step taken.

        Args:
            same_cells: what is in the cache means the same there, and finds room; else the text is read again.
        """
        if self.is_lost:
            return False
        before = self._family.target_settings
        copy = self._copied() if same_cells else None
        done = self._open(settings)
        if (done or self._open(before)) and copy is not None:
            self._bring_back(copy)
        # What trying out the new context and the copy took would else stay with this process.
        trim_heap()
        return done

    def recover(self) -> bool:
        """Open a lost target with the settings that it had; whether there is one. Nothing has been read then."""
        if self.is_lost and self._open(self._family.target_settings):
            self._speculator.forget()
        return not self.is_lost

    def _open(self, settings: LlamaSettings) -> bool:
        self.is_lost = True
        try:
            self._speculator.change_target(self._family.target_again(settings, trees=self._trees))
        except FAILURES:
            self._family.ledger.release("target")
            return False
        self.is_lost = False
        return True

    def _copied(self) -> IO[bytes] | None:
        """What the target has in its cache, in a file: two caches would be more than there was. None without room."""
        self._speculator.settle()
        model, ledger = self._speculator.model, self._family.ledger
        lines = (line for line in ledger if line.owner == "target" and line.name == "KV cache")
        n_bytes = sum(line.predicted_bytes for line in lines) * (model.n_past + 1) // model.n_ctx
        with suppress(*FAILURES), ledger.lend("sessions", "copies to save", _COPIES * n_bytes):
            # It goes when nobody holds it any more.
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            file.write(model.save())
            return file
        return None

    def _bring_back(self, file: IO[bytes]) -> None:
        model, ledger = self._speculator.model, self._family.ledger
        with suppress(*FAILURES), file, ledger.lend("sessions", "copies to save", _COPIES * file.tell()):
            file.seek(0)
            model.restore(restated(file.read(), profile=model.profile.name))
            return
        model.rollback(0)

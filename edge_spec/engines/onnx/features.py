"""What a head needs of its target: for every cell of a pool a row that the target's graph computes in passing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import NUMBERS, keep_features, read_features
from edge_spec.engines.tiles import Cells

__all__ = ["Features"]


class Features:
    """Rows of a graph's further output, cell by cell, in 16 or 8 bits: they only ever shape drafts.

    A row is rounded when it is computed, so that drafts of a text are the same in any company. A row of zeros stands
    for what is not known, as after a cache was restored: the next guesses are worse, and the text is the same.

    Attributes:
        name: of the output.
        computed: where a run puts it, f32 ``[n_run, width]``.

    Args:
        n_cells: of the pool.
        coarse: whether they are kept in 8 bits, each 32 numbers with a scale; their width is a multiple of 32.
    """

    def __init__(self, name: str, n_cells: int, computed: npt.NDArray[np.float32], *, coarse: bool = False) -> None:
        self.name = name
        self.computed = computed
        self._coarse = coarse
        width = computed.shape[1]
        self._rows: npt.NDArray[Any] = np.zeros((n_cells, width), np.int8 if coarse else np.float16)
        self._scales = np.zeros((n_cells, width // _BLOCK if coarse else 0), np.float16)

    @property
    def cell_bytes(self) -> int:
        """Bytes that the row of a cell takes."""
        return self._rows[:1].nbytes + self._scales[:1].nbytes

    def __getitem__(self, cells: Cells) -> npt.NDArray[Any]:
        """Return the rows of some cells, f16 ``[n, width]``, or f32 of those in 8 bits."""
        return read_features(cells, self._rows, self._scales) if self._coarse else self._rows[cells]

    def keep(self, cells: Cells) -> None:
        """A run has computed these cells, in this order."""
        computed = self.computed[: len(cells)]
        if self._coarse:
            keep_features(computed, cells, self._rows, self._scales)
        else:
            self._rows[cells] = np.clip(computed, -_LARGEST, _LARGEST)

    def save(self, cells: Cells) -> bytes:
        """Return the rows of some cells as they are kept."""
        return self._rows[cells].tobytes() + self._scales[cells].tobytes()

    def restore(self, cells: Cells, saved: bytes) -> bool:
        """Fill some cells with what was saved of as many; return False, and change nothing, if that is damaged."""
        end = len(cells) * self._rows[:1].nbytes
        rows, scales = np.frombuffer(saved[:end], self._rows.dtype), np.frombuffer(saved[end:], np.float16)
        if not (np.isfinite(rows).all() and np.isfinite(scales).all()):
            return False
        self._rows[cells] = rows.reshape(len(cells), self._rows.shape[1])
        self._scales[cells] = scales.reshape(len(cells), self._scales.shape[1])
        return True

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy rows from cells to others, all at once."""
        for array in (self._rows, self._scales):
            array[targets] = array[sources]

    def resize(self, n_cells: int) -> None:
        """Change the number of cells; those that remain keep their rows."""
        kept = min(n_cells, len(self._rows))
        for name in ("_rows", "_scales"):
            old = getattr(self, name)
            new = np.zeros((n_cells, old.shape[1]), old.dtype)
            new[:kept] = old[:kept]
            setattr(self, name, new)

    def forget(self, cells: Cells) -> None:
        """These cells now hold something else."""
        for array in (self._rows, self._scales):
            array[cells] = 0


_LARGEST = 65000.0
"""Below the largest number in 16 bits."""

_BLOCK = NUMBERS["FEATURES"]

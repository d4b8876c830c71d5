"""What a head needs of its target: for every cell of a pool a row that the target's graph computes in passing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.model import Cells

__all__ = ["Features"]


class Features:
    """Rows of a graph's further output, cell by cell, in 16 or 8 bits: they only ever shape drafts.

    A row of zeros stands for what is not known, as after a cache was restored: the next guesses are worse, and the
    text is the same. The last rows are kept as they were computed, and rounded many at once: what rounds them would
    otherwise have to come into the processor's caches anew in every round.

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
        # Rows that are not among the others yet, their cells, and where among them each cell has its row.
        self._last = np.zeros((_LAST, width), np.float32)
        self._cells = np.zeros(_LAST, np.intp)
        self._n_last = 0
        self._place_of = np.full(n_cells, -1, np.int16)

    @property
    def cell_bytes(self) -> int:
        """Bytes that the row of a cell takes."""
        return self._rows[:1].nbytes + self._scales[:1].nbytes

    def __getitem__(self, cells: Cells | slice) -> npt.NDArray[Any]:
        """Return the rows of some cells, f16 ``[n, width]``."""
        self._settle()
        rows = self._rows[cells]
        if not self._coarse:
            return rows
        scales = self._scales[cells]
        return (rows.reshape(*scales.shape, _BLOCK) * scales[..., None]).reshape(rows.shape)

    def of(self, cells: Cells) -> npt.NDArray[Any]:
        """Return the rows of some cells. Those computed last as they were computed, f32."""
        places = self._place_of[cells]
        return self._last[places] if (places >= 0).all() else self[cells]

    def __setitem__(self, cells: Cells | slice, rows: npt.NDArray[Any]) -> None:
        self._settle()
        self._put(cells, rows)

    def _put(self, cells: Cells | slice, rows: npt.NDArray[Any]) -> None:
        if not self._coarse:
            self._rows[cells] = rows
            return
        blocks = rows.astype(np.float32).reshape(len(rows), self._scales.shape[1], _BLOCK)
        scales = (np.abs(blocks).max(-1) / _LARGEST_CODE).astype(np.float16)
        self._scales[cells] = scales
        codes = np.rint(blocks / np.where(scales > 0, scales, np.inf)[..., None])
        # A small scale is rounded, and the largest code with it.
        self._rows[cells] = codes.clip(-_LARGEST_CODE, _LARGEST_CODE).reshape(rows.shape)

    def keep(self, cells: Cells) -> None:
        """A run has computed these cells, in this order."""
        n = len(cells)
        if n > _LAST:
            self[cells] = np.clip(self.computed[:n], -_LARGEST, _LARGEST)
            return
        if self._n_last + n > _LAST:
            self._settle()
        last = slice(self._n_last, self._n_last + n)
        self._n_last = last.stop
        # A cell that is there already counts where it comes last, here and when these rows are rounded.
        self._cells[last], self._last[last] = cells, self.computed[:n]
        self._place_of[cells] = np.arange(last.start, last.stop)

    def _settle(self) -> None:
        """Round the last rows."""
        n, self._n_last = self._n_last, 0
        if n:
            self._place_of[self._cells[:n]] = -1
            self._put(self._cells[:n], np.clip(self._last[:n], -_LARGEST, _LARGEST))

    def move(self, sources: Cells, targets: Cells) -> None:
        """Cells have been copied, all at once."""
        self._settle()
        for array in (self._rows, self._scales):
            array[targets] = array[sources]

    def resize(self, n_cells: int) -> None:
        """Be of so many cells; what both sizes have stays."""
        self._settle()
        kept = min(n_cells, len(self._rows))
        for name in ("_rows", "_scales"):
            old = getattr(self, name)
            new = np.zeros((n_cells, old.shape[1]), old.dtype)
            new[:kept] = old[:kept]
            setattr(self, name, new)
        self._place_of = np.full(n_cells, -1, np.int16)

    def forget(self, cells: Cells) -> None:
        """These cells now hold something else."""
        self[cells] = np.zeros((len(cells), self._rows.shape[1]), np.float16)


_LAST = 64
"""Rows that are rounded at once."""

_LARGEST = 65000.0
"""Below the largest number in 16 bits, so that no rounded scale brings one that is infinite."""

_BLOCK = 32
_LARGEST_CODE = 127

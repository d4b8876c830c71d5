"""What a head needs of its target: for every cell of the cache a row that the target's graph computes in passing."""

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
        computed: where a run puts it, f32 ``[n_run, width]``. Caches of one session share it.
        coarse: whether they are kept in 8 bits, each 32 numbers with a scale; their width is a multiple of 32.

    Args:
        n_cells: of the cache.
    """

    def __init__(self, name: str, n_cells: int, computed: npt.NDArray[np.float32], *, coarse: bool = False) -> None:
        self.name = name
        self.computed = computed
        self.coarse = coarse
        width = computed.shape[1]
        self._rows: npt.NDArray[Any] = np.zeros((n_cells, width), np.int8 if coarse else np.float16)
        self._scales = np.zeros((n_cells, width // _BLOCK if coarse else 0), np.float16)
        # Rows of the cells from ``_begin`` up to ``_end``, which are not among the others yet.
        self._last = np.zeros((_LAST, width), np.float32)
        self._begin = self._end = 0

    def __getitem__(self, cells: slice) -> npt.NDArray[Any]:
        """Return the rows of some cells, f16 ``[n, width]``."""
        self._settle()
        rows = self._rows[cells]
        if not self.coarse:
            return rows
        scales = self._scales[cells]
        return (rows.reshape(*scales.shape, _BLOCK) * scales[..., None]).reshape(rows.shape)

    def of(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return the rows of the cells from ``first`` up to ``last``.

        Those computed last as they were computed, f32.
        """
        if self._begin <= first and last <= self._end:
            return self._last[first - self._begin : last - self._begin]
        return self[first:last]

    def __setitem__(self, cells: Cells | slice, rows: npt.NDArray[Any]) -> None:
        self._settle()
        self._put(cells, rows)

    def _put(self, cells: Cells | slice, rows: npt.NDArray[Any]) -> None:
        if not self.coarse:
            self._rows[cells] = rows
            return
        blocks = rows.astype(np.float32).reshape(len(rows), self._scales.shape[1], _BLOCK)
        scales = (np.abs(blocks).max(-1) / _LARGEST_CODE).astype(np.float16)
        self._scales[cells] = scales
        codes = np.rint(blocks / np.where(scales > 0, scales, np.inf)[..., None])
        # A small scale is rounded, and the largest code with it.
        self._rows[cells] = codes.clip(-_LARGEST_CODE, _LARGEST_CODE).reshape(rows.shape)

    def keep(self, cells: Cells | slice, n: int) -> None:
        """A run has computed these ``n`` cells."""
        if not isinstance(cells, slice) or n > _LAST:
            self[cells] = np.clip(self.computed[:n], -_LARGEST, _LARGEST)
            return
        first = cells.start
        if not (self._begin <= first <= self._end and first + n - self._begin <= _LAST):
            self._settle()
            self._begin = first
        place = first - self._begin
        self._last[place : place + n] = self.computed[:n]
        self._end = first + n

    def _settle(self) -> None:
        """Round the last rows."""
        begin, end = self._begin, self._end
        self._begin = self._end
        if end > begin:
            self._put(slice(begin, end), np.clip(self._last[: end - begin], -_LARGEST, _LARGEST))

    def move(self, sources: Cells, targets: Cells) -> None:
        """Cells have been copied, all at once."""
        self._settle()
        for array in (self._rows, self._scales):
            array[targets] = array[sources]

    def forget(self, n: int) -> None:
        """The first ``n`` cells now hold something else."""
        self[:n] = np.zeros_like(self[:n])


_LAST = 64
"""Rows that are rounded at once."""

_LARGEST = 65000.0
"""Below the largest number in 16 bits, so that no rounded scale brings one that is infinite."""

_BLOCK = 32
_LARGEST_CODE = 127

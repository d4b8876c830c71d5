"""What a head needs of its target: for every cell of the cache a row that the target's graph computes in passing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.model import Cells

__all__ = ["Features"]


class Features:
    """Rows of a graph's further output, cell by cell, in 16 bits: they only ever shape drafts.

    A row of zeros stands for what is not known, as after a cache was restored: the next guesses are worse, and the
    text is the same.

    Attributes:
        name: of the output.
        computed: where a run puts it, f32 ``[n_run, width]``. Caches of one session share it.

    Args:
        n_cells: of the cache.
    """

    def __init__(self, name: str, n_cells: int, computed: npt.NDArray[np.float32]) -> None:
        self.name = name
        self.computed = computed
        self._rows: npt.NDArray[Any] = np.zeros((n_cells, computed.shape[1]), np.float16)

    def __getitem__(self, cells: slice) -> npt.NDArray[Any]:
        """The rows of some cells, f16 ``[n, width]``."""
        return self._rows[cells]

    def __setitem__(self, cells: slice, rows: npt.NDArray[Any]) -> None:
        self._rows[cells] = rows

    def keep(self, cells: Cells | slice, n: int) -> None:
        """A run has computed these ``n`` cells."""
        self._rows[cells] = np.clip(self.computed[:n], -_LARGEST, _LARGEST)

    def move(self, sources: Cells, targets: Cells) -> None:
        """Cells have been copied, all at once."""
        self._rows[targets] = self._rows[sources]

    def forget(self, n: int) -> None:
        """The first ``n`` cells now hold something else."""
        self._rows[:n] = 0


_LARGEST = float(np.finfo(np.float16).max)

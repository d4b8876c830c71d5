"""A large table of a model that stays in its file: only the rows that are asked for are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.errors import ModelFileError
from edge_spec.models.gguf.header import TensorInfo

__all__ = ["RowTable"]


class RowTable:
    """Rows of a tensor of a GGUF.

    They are read instead of mapped: so what was read stays in the system's page cache and does not count as memory of
    this process.

    Args:
        tensor: two-dimensional, of any type.

    Raises:
        ModelFileError: the file cannot be opened.
    """

    def __init__(self, tensor: TensorInfo) -> None:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        self.width, self._n_rows = tensor.shape
        self._tensor = tensor
        self._row_bytes = tensor.n_bytes // self._n_rows
        self._kind: Any = GGMLQuantizationType[tensor.type_name]
        self._dequantize = dequantize
        try:
            self._file = tensor.path.open("rb", buffering=0)
        except OSError as error:
            raise self._unreadable(error.strerror or "it cannot be opened") from error

    def read(self, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.float32]) -> None:
        """Fill rows with those of these numbers.

        Raises:
            ModelFileError: the file cannot be read, or has become shorter.
        """
        blocks = np.empty((len(ids), self._row_bytes), np.uint8)
        try:
            for block, row in zip(blocks, ids.tolist(), strict=True):
                self._file.seek(self._tensor.offset + row * self._row_bytes)
                if self._file.readinto(block.data) != self._row_bytes:
                    raise self._unreadable("it has become shorter")
        except OSError as error:
            raise self._unreadable(error.strerror or "an error of the disk") from error
        # A damaged file may hold numbers that are none; nobody needs to be warned of each.
        with np.errstate(all="ignore"):
            rows[:] = self._dequantize(blocks, self._kind)

    def _unreadable(self, why: str) -> ModelFileError:
        return ModelFileError(
            f"{self._tensor.name} in {self._tensor.path} cannot be read ({why})", hint="was the file moved or replaced?"
        )

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        self._file.close()

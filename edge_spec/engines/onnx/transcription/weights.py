"""The file beside the graphs that holds the large arrays, one after the other. It is mapped when a model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.transcription.proto import FLOAT, FLOAT16, UINT8, Graph

__all__ = ["WEIGHTS", "WeightsFile"]

WEIGHTS = "weights.bin"

_ALIGNMENT = 4096
"""A page: an array that begins on one can be mapped by itself."""

_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.float16): FLOAT16, np.dtype(np.uint8): UINT8}


class WeightsFile:
    """Writes the file; see ``Store`` in ``matrices`` for what its methods promise.

    Args:
        file: open for writing, at its start.
        progress: told the bytes written so far after every array.
    """

    def __init__(self, file: BinaryIO, progress: Callable[[int], None] = lambda n_bytes: None) -> None:
        self._file = file
        self._progress = progress
        self._end = 0
        self._known: dict[str, tuple[int, int, tuple[int, ...], int]] = {}

    def put(self, name: str, make: Callable[[], npt.NDArray[np.generic]]) -> None:
        if name in self._known:
            return
        array = np.ascontiguousarray(make())
        padding = -self._end % _ALIGNMENT
        self._file.write(bytes(padding))
        self._file.write(array.data)
        start = self._end + padding
        self._known[name] = (_TYPES[array.dtype], start, array.shape, array.nbytes)
        self._end = start + array.nbytes
        self._progress(self._end)

    def use(self, graph: Graph, name: str) -> str:
        kind, offset, shape, n_bytes = self._known[name]
        return graph.external(name, kind, shape, {"location": WEIGHTS, "offset": offset, "length": n_bytes})

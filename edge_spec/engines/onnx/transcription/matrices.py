"""Matrices of a transcription, in the graphs and in the file next to them.

Every matrix is packed for edge-spec's kernels, no weight rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import DOMAIN, GATHER_ROWS, MATMUL_ROWS, pack
from edge_spec.engines.onnx.kernels.packing import VERSION
from edge_spec.engines.onnx.transcription.proto import UINT8, Graph

__all__ = ["LAYOUT", "WEIGHTS", "Array", "Matrix", "Weights", "WeightsFile", "gather", "multiply"]

Array = npt.NDArray[np.uint8]

LAYOUT = f"rows{VERSION}"
"""The name and the version of how matrices are stored."""

WEIGHTS = "weights.bin"

_ALIGNMENT = 4096
"""A page: an array that begins on one can be mapped by itself."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One or several matrices of a GGUF on top of each other.

    Attributes:
        name: of the whole.
        kind: its type, such as ``Q4_0``.
        parts: GGUF's blocks of each, mapped from the file, ``[n_out, bytes per row]``.
    """

    name: str
    kind: str
    n_out: int
    n_in: int
    parts: Sequence[npt.NDArray[np.uint8]]

    def blocks(self) -> npt.NDArray[np.uint8]:
        """Return all blocks, ``[n_out, bytes per row]``."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)


class Weights(Protocol):
    """Where the matrices of graphs are put, each once under its name."""

    def put(self, name: str, make: Callable[[], Array]) -> None:
        """Store what ``make`` returns, unless there is an array of that name."""

    def use(self, graph: Graph, name: str) -> str:
        """Declare a stored array in a graph; returns its name."""


class WeightsFile:
    """The file next to the graphs that holds the large arrays, one after the other; it is mapped when a model runs.

    Each array is stored once, under its name, however many graphs use it.

    Args:
        file: open for writing, at its start.
        progress: called with the bytes written so far after every array.
    """

    def __init__(self, file: BinaryIO, progress: Callable[[int], None] = lambda n_bytes: None) -> None:
        self._file = file
        self._progress = progress
        self._end = 0
        self._known: dict[str, tuple[int, tuple[int, ...]]] = {}

    def put(self, name: str, make: Callable[[], Array]) -> None:
        """Store what ``make`` returns, unless there is an array of that name."""
        if name in self._known:
            return
        array = np.ascontiguousarray(make())
        padding = -self._end % _ALIGNMENT
        self._file.write(bytes(padding))
        self._file.write(array.data)
        start = self._end + padding
        self._known[name] = (start, array.shape)
        self._end = start + array.nbytes
        self._progress(self._end)

    def use(self, graph: Graph, name: str) -> str:
        """Declare a stored array in a graph; returns its name."""
        offset, shape = self._known[name]
        return graph.external(name, UINT8, shape, {"location": WEIGHTS, "offset": offset, "length": math.prod(shape)})


def multiply(graph: Graph, store: Weights, matrix: Matrix, x: str, y: str) -> None:
    """Add ``y[..., n_out] = x[..., n_in] @ matrix.T``."""
    _add_node(MATMUL_ROWS, graph, store, matrix, x, y)


def gather(graph: Graph, store: Weights, matrix: Matrix, ids: str, y: str) -> None:
    """Add ``y[..., n_in] = matrix[ids]``, float32."""
    _add_node(GATHER_ROWS, graph, store, matrix, ids, y)


def _add_node(operator: str, graph: Graph, store: Weights, matrix: Matrix, x: str, y: str) -> None:
    store.put(matrix.name, lambda: pack(matrix.blocks(), matrix.kind))
    packed = store.use(graph, matrix.name)
    graph.node(operator, [x, packed], [y], DOMAIN, n_in=matrix.n_in, n_out=matrix.n_out)

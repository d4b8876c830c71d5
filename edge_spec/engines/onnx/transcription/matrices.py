"""Matrices of a transcription, in the graphs and in the file next to them.

Every matrix is packed for edge-spec's kernels, no weight rounded. Those of experts lie on top of each other, each with
groups of outputs of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import DOMAIN, GATHER_ROWS, GROUP, MATMUL_ROWS, NUMBERS, pack, packed_bytes
from edge_spec.engines.onnx.transcription.proto import Graph
from edge_spec.models.onnx.wire import ELEMENT_NUMBERS

__all__ = [
    "LAYOUT",
    "WEIGHTS",
    "Array",
    "Matrix",
    "StoredBytes",
    "Weights",
    "WeightsFile",
    "gather",
    "group_outputs",
    "multiply",
    "packed",
]

Array = npt.NDArray[Any]

LAYOUT = f"rows{NUMBERS['VERSION']}"
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
        n_out: outputs as they are stored: of several experts, whole groups for each.
        parts: returns GGUF's blocks of each, mapped from the file, ``[n_out, bytes per row]``.
        n_expert: of how many experts it holds the matrices, on top of each other.
    """

    name: str
    kind: str
    n_out: int
    n_in: int
    parts: Callable[[], Sequence[npt.NDArray[np.uint8]]]
    n_expert: int = 1

    def blocks(self) -> npt.NDArray[np.uint8]:
        """Return all blocks, ``[n_out, bytes per row]``."""
        parts = self.parts()
        blocks = parts[0] if len(parts) == 1 else np.concatenate(parts)
        missing = (self.n_out - len(blocks)) // self.n_expert
        if missing:  # zero bytes are zero scales
            by_expert = blocks.reshape(self.n_expert, -1, blocks.shape[1])
            blocks = np.pad(by_expert, ((0, 0), (0, missing), (0, 0))).reshape(self.n_out, -1)
        return blocks


class Weights(Protocol):
    """Where the matrices of graphs, and other large arrays, are put, each once under its name."""

    def put(self, name: str, n_bytes: int, make: Callable[[], Array]) -> None:
        """Store what ``make`` returns, so many bytes, unless there is an array of that name."""

    def use(self, graph: Graph, name: str) -> str:
        """Declare a stored array in a graph; returns its name."""


class _Stored(NamedTuple):
    """Where an array is in the file, and what it is."""

    start: int
    kind: int
    shape: tuple[int, ...]
    n_bytes: int


class WeightsFile:
    """The file next to the graphs that holds the large arrays, one after the other; it is mapped when a model runs.

    Each array is stored once, under its name, however many graphs use it.

    Args:
        file: open for writing, at its start.
        progress: called with the bytes written so far after every array.

    Attributes:
        checksum: of all that was written (CRC-32).
    """

    def __init__(self, file: BinaryIO, progress: Callable[[int], None] = lambda n_bytes: None) -> None:
        self._file = file
        self._progress = progress
        self._end = 0
        self.checksum = 0
        self._known: dict[str, _Stored] = {}

    def put(self, name: str, n_bytes: int, make: Callable[[], Array]) -> None:
        """Store what ``make`` returns, so many bytes, unless there is an array of that name."""
        if name in self._known:
            return
        array = np.ascontiguousarray(make())
        padding = -self._end % _ALIGNMENT
        for each in (bytes(padding), array.data):
            self._file.write(each)
            self.checksum = zlib.crc32(each, self.checksum)
        start = self._end + padding
        self._known[name] = _Stored(start, ELEMENT_NUMBERS[array.dtype.name], array.shape, array.nbytes)
        self._end = start + array.nbytes
        self._progress(self._end)

    def use(self, graph: Graph, name: str) -> str:
        """Declare a stored array in a graph; returns its name."""
        at = self._known[name]
        place: dict[str, str | int] = {"location": WEIGHTS, "offset": at.start, "length": at.n_bytes}
        return graph.external(name, at.kind, at.shape, place)


class StoredBytes:
    """Counts what would be stored, and stores nothing."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    @property
    def total(self) -> int:
        """The most bytes of a ``WeightsFile`` with the same arrays."""
        return sum(n_bytes + _ALIGNMENT for n_bytes in self._known.values())

    def put(self, name: str, n_bytes: int, make: Callable[[], Array]) -> None:
        """Count an array, unless there is one of that name."""
        self._known[name] = n_bytes

    def use(self, graph: Graph, name: str) -> str:
        """Return the name."""
        return name


def group_outputs(n_out: int) -> int:
    """Return how many outputs are stored where an expert has so many: whole groups."""
    return n_out + -n_out % GROUP


def packed(graph: Graph, store: Weights, matrix: Matrix) -> str:
    """Store a matrix and declare it in a graph; returns its name."""
    n_bytes = packed_bytes(matrix.kind, matrix.n_out, matrix.n_in)
    store.put(matrix.name, n_bytes, lambda: pack(matrix.blocks(), matrix.kind))
    return store.use(graph, matrix.name)


def multiply(graph: Graph, store: Weights, matrix: Matrix, x: str, y: str) -> None:
    """Add ``y[..., n_out] = x[..., n_in] @ matrix.T``."""
    _add_node(MATMUL_ROWS, graph, store, matrix, x, y)


def gather(graph: Graph, store: Weights, matrix: Matrix, ids: str, y: str) -> None:
    """Add ``y[..., n_in] = matrix[ids]``, float32."""
    _add_node(GATHER_ROWS, graph, store, matrix, ids, y)


def _add_node(operator: str, graph: Graph, store: Weights, matrix: Matrix, x: str, y: str) -> None:
    graph.node(operator, [x, packed(graph, store, matrix)], [y], DOMAIN, n_in=matrix.n_in, n_out=matrix.n_out)

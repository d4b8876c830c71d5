"""The two ways in which a quantised matrix becomes a part of an ONNX graph. Neither rounds a weight.

``rows`` keeps GGUF's numbers in the order of our own kernels and multiplies with their operator. ``nbits`` writes
them for ONNX Runtime's ``MatMulNBits``, for where the kernels could not be built; it knows fewer types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.transcription.proto import FLOAT, Graph
from edge_spec.errors import UnsupportedModel

__all__ = ["FORMS", "Form", "Matrix", "Store", "best_form"]

Array = npt.NDArray[np.generic]

_FLOATS = {"F32": np.float32, "F16": np.float16}
_BLOCK = 32


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
        """All blocks, ``[n_out, bytes per row]``."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)


class Store(Protocol):
    """Where large arrays go. Each is stored once, under its name, however many graphs ask for it."""

    def put(self, name: str, make: Callable[[], Array]) -> None:
        """Store what ``make`` returns, unless there is something of that name."""

    def use(self, graph: Graph, name: str, *, shape: Sequence[int] = (), alias: str = "") -> str:
        """Make a stored array known to a graph, if wanted in another shape of as many bytes, under another name."""


class Form(Protocol):
    """One way to store and to use matrices."""

    name: str

    @property
    def layout(self) -> str:
        """The name and the version of how matrices are stored."""

    def attention(self, head_dim: int) -> str:
        """The attention that goes with it: ``rows``, our own, or ``gqa``, ONNX Runtime's."""

    def stored_bytes(self, kind: str, n_out: int, n_in: int) -> int:
        """What ``multiply`` or ``gather`` will store for a matrix.

        Raises:
            UnsupportedModel: this form has no place for the type.
        """

    def multiply(self, graph: Graph, store: Store, matrix: Matrix, x: str, y: str) -> None:
        """Add ``y[..., n_out] = x[..., n_in] @ matrix.T``."""

    def gather(self, graph: Graph, store: Store, matrix: Matrix, ids: str, y: str) -> None:
        """Add ``y[..., n_in] = matrix[ids]``, float32."""


class Rows:
    """Our own kernels, see ``edge_spec.engines.onnx.kernels``."""

    name = "rows"

    @property
    def layout(self) -> str:
        from edge_spec.engines.onnx.kernels.packing import VERSION

        return f"{self.name}{VERSION}"

    def attention(self, head_dim: int) -> str:
        return "rows" if head_dim in range(16, 513, 16) else "gqa"

    def stored_bytes(self, kind: str, n_out: int, n_in: int) -> int:
        from edge_spec.engines.onnx.kernels import packed_bytes

        return 4 * n_out * n_in if kind in _FLOATS else packed_bytes(kind, n_out, n_in)

    def multiply(self, graph: Graph, store: Store, matrix: Matrix, x: str, y: str) -> None:
        if matrix.kind in _FLOATS:
            _multiply_floats(graph, store, matrix, x, y)
        else:
            self._node("MatMulRows", graph, store, matrix, x, y)

    def gather(self, graph: Graph, store: Store, matrix: Matrix, ids: str, y: str) -> None:
        if matrix.kind in _FLOATS:
            _gather_floats(graph, store, matrix, ids, y)
        else:
            self._node("GatherRows", graph, store, matrix, ids, y)

    def _node(self, operator: str, graph: Graph, store: Store, matrix: Matrix, x: str, y: str) -> None:
        from edge_spec.engines.onnx.kernels import DOMAIN, pack

        store.put(matrix.name, lambda: pack(matrix.blocks(), matrix.kind))
        packed = store.use(graph, matrix.name)
        graph.node(operator, [x, packed], [y], DOMAIN, n_in=matrix.n_in, n_out=matrix.n_out)


class NBits:
    """ONNX Runtime's own operators, with activations rounded to 8 bits as llama.cpp does (accuracy level 4).

    They know blocks of a scale. Where a block has a minimum as well (Q4_1), what it adds to all its weights is a matrix
    of its own, multiplied with the sums over blocks of the input: ``scale * (code - 8) + (minimum + 8 * scale)``.
    """

    name = layout = "nbits"

    _BITS: ClassVar = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
    _MINIMA = ("Q4_1",)

    def attention(self, head_dim: int) -> str:
        return "gqa"

    def stored_bytes(self, kind: str, n_out: int, n_in: int) -> int:
        if kind in _FLOATS:
            return 4 * n_out * n_in
        return n_out * n_in // _BLOCK * (4 * self._bits(kind) + (8 if kind in self._MINIMA else 4))

    def multiply(self, graph: Graph, store: Store, matrix: Matrix, x: str, y: str) -> None:
        if matrix.kind in _FLOATS:
            _multiply_floats(graph, store, matrix, x, y)
            return
        bits, name = self._put(store, matrix), matrix.name
        shape = (matrix.n_out, matrix.n_in // _BLOCK, 4 * bits)
        codes = store.use(graph, name, shape=shape, alias=name + ".blocks")
        product = y + ".scaled" if matrix.kind in self._MINIMA else y
        graph.node(
            "MatMulNBits",
            [x, codes, store.use(graph, name + ".scales")],
            [product],
            "com.microsoft",
            K=matrix.n_in,
            N=matrix.n_out,
            bits=bits,
            block_size=_BLOCK,
            accuracy_level=4,
        )
        if matrix.kind in self._MINIMA:
            graph.node("Reshape", [x, _in_blocks(graph, matrix)], [y + ".x"])
            graph.node("ReduceSum", [y + ".x", _last_axis(graph)], [y + ".sums"], keepdims=0)
            graph.node("MatMul", [y + ".sums", store.use(graph, name + ".added")], [y + ".added"])
            graph.node("Add", [product, y + ".added"], [y])

    def gather(self, graph: Graph, store: Store, matrix: Matrix, ids: str, y: str) -> None:
        if matrix.kind in _FLOATS:
            _gather_floats(graph, store, matrix, ids, y)
            return
        bits, name = self._put(store, matrix), matrix.name
        scaled = y + ".scaled" if matrix.kind in self._MINIMA else y
        graph.node(
            "GatherBlockQuantized",
            [store.use(graph, name), ids, store.use(graph, name + ".scales")],
            [scaled],
            "com.microsoft",
            bits=bits,
            block_size=_BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )
        if matrix.kind in self._MINIMA:
            flat = graph.constant(f"flat_{matrix.n_in}", np.array([1, -1, matrix.n_in], np.int64))
            graph.node("Gather", [store.use(graph, name + ".added"), ids], [y + ".columns"], axis=1)
            graph.node("Transpose", [y + ".columns"], [y + ".rows"], perm=[1, 2, 0])
            graph.node("Unsqueeze", [y + ".rows", _last_axis(graph)], [y + ".added"])
            graph.node("Reshape", [scaled, _in_blocks(graph, matrix)], [y + ".blocks"])
            graph.node("Add", [y + ".blocks", y + ".added"], [y + ".sum"])
            graph.node("Reshape", [y + ".sum", flat], [y])

    def _bits(self, kind: str) -> int:
        if kind not in self._BITS:
            raise UnsupportedModel(f"weights of type {kind} need edge-spec's own kernels", hint="use --engine llama")
        return self._BITS[kind]

    def _put(self, store: Store, matrix: Matrix) -> int:
        """Store codes, ``[n_out, bytes]``, and scales, ``[n_out, n_blocks]``, which both operators can read.

        Where there are minima, also what blocks add, ``[n_blocks, n_out]``.
        """
        bits, n_halves = self._bits(matrix.kind), 2 if matrix.kind in self._MINIMA else 1

        def parts() -> npt.NDArray[np.uint8]:
            n_bytes = 2 * n_halves + 4 * bits
            return np.asarray(matrix.blocks()).reshape(matrix.n_out, matrix.n_in // _BLOCK, n_bytes)

        def codes() -> Array:
            stored = parts()[..., 2 * n_halves :]
            if bits == 8:
                return (stored ^ 128).reshape(matrix.n_out, -1)  # the same number above a zero point of 128
            # GGUF: byte i holds weights i and i + 16. Here: weights 2i and 2i + 1.
            unpacked = np.concatenate([stored & 15, stored >> 4], axis=-1)
            packed: Array = (unpacked[..., 0::2] | unpacked[..., 1::2] << 4).reshape(matrix.n_out, -1)
            return packed

        def halves() -> npt.NDArray[np.float32]:
            found: npt.NDArray[np.float16] = np.ascontiguousarray(parts()[..., : 2 * n_halves]).view(np.float16)
            return found.astype(np.float32)

        store.put(matrix.name, codes)
        store.put(matrix.name + ".scales", lambda: np.ascontiguousarray(halves()[..., 0]))
        if n_halves == 2:
            store.put(matrix.name + ".added", lambda: (halves() @ np.array([8, 1], np.float32)).T)
        return bits


def _in_blocks(graph: Graph, matrix: Matrix) -> str:
    return graph.constant(f"blocks_{matrix.n_in}", np.array([1, -1, matrix.n_in // _BLOCK, _BLOCK], np.int64))


def _last_axis(graph: Graph) -> str:
    return graph.constant("last_axis", np.array([-1], np.int64))


def _multiply_floats(graph: Graph, store: Store, matrix: Matrix, x: str, y: str) -> None:
    name = matrix.name + ".t"
    store.put(name, lambda: np.ascontiguousarray(_floats(matrix).astype(np.float32).T))
    graph.node("MatMul", [x, store.use(graph, name)], [y])


def _gather_floats(graph: Graph, store: Store, matrix: Matrix, ids: str, y: str) -> None:
    store.put(matrix.name, lambda: _floats(matrix))
    graph.node("Gather", [store.use(graph, matrix.name), ids], [y + ".stored"])
    graph.node("Cast", [y + ".stored"], [y], to=FLOAT)


def _floats(matrix: Matrix) -> Array:
    numbers: Array = np.asarray(matrix.blocks()).view(_FLOATS[matrix.kind])
    return numbers


FORMS: dict[str, Form] = {form.name: form for form in (Rows(), NBits())}
"""Every form that has a name."""


def best_form() -> Form:
    """``rows`` where fast kernels are there, else ``nbits``."""
    from edge_spec.engines.onnx.kernels import why_slow

    return FORMS["rows" if why_slow() is None else "nbits"]

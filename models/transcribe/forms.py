"""The two ways in which a quantised matrix becomes a part of an ONNX graph. Neither rounds a weight.

``rows`` keeps GGUF's numbers in the order of our own kernels and multiplies with their operator. ``nbits`` writes
them for ONNX Runtime's ``MatMulNBits``, for where the kernels could not be built; it knows fewer types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.errors import UnsupportedModel
from edge_spec.models.transcribe.proto import FLOAT, FLOAT16, UINT8, Graph

__all__ = ["FORMS", "Blocks", "Form", "Store", "best_form"]

Blocks = npt.NDArray[np.uint8]
"""A matrix in GGUF's blocks, ``[n_out, bytes per row]``."""

_FLOATS = {"F32": FLOAT, "F16": FLOAT16}
_BLOCK = 32


class Store(Protocol):
    """Where large arrays go."""

    def put(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Store an array once under its name; returns the name, for nodes to refer to."""

    def alias(self, name: str, of: str, shape: Sequence[int]) -> str:
        """The same bytes in another shape under another name."""


class Form(Protocol):
    """One way to store and to use matrices."""

    name: str

    def stored_bytes(self, kind: str, n_out: int, n_in: int) -> int:
        """What ``multiply`` and ``gather`` will store for a matrix.

        Raises:
            UnsupportedModel: this form has no place for the type.
        """

    def multiply(self, graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, x: str, y: str) -> None:
        """Add ``y[..., n_out] = x[..., n_in] @ matrix.T``."""

    def gather(self, graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, ids: str, y: str) -> None:
        """Add ``y[..., n_in] = matrix[ids]``, float32."""


class Rows:
    """Our own kernels, see ``edge_spec.kernels``."""

    name = "rows"

    def stored_bytes(self, kind: str, n_out: int, n_in: int) -> int:
        from edge_spec.kernels import packed_bytes

        return _float_bytes(kind, n_out, n_in) or packed_bytes(kind, n_out, n_in)

    def multiply(self, graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, x: str, y: str) -> None:
        if kind in _FLOATS:
            _multiply_floats(graph, store, name, kind, blocks, x, y)
        else:
            self._node("MatMulRows", graph, store, name, kind, blocks, x, y)

    def gather(self, graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, ids: str, y: str) -> None:
        if kind in _FLOATS:
            _gather_floats(graph, store, name, kind, blocks, ids, y)
        else:
            self._node("GatherRows", graph, store, name, kind, blocks, ids, y)

    def _node(
        self, operator: str, graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, x: str, y: str
    ) -> None:
        from edge_spec.kernels import DOMAIN, pack, read_header

        packed = pack(blocks, kind)
        header = read_header(packed)
        store.put(name, packed)
        graph.node(operator, [x, name], [y], DOMAIN, n_in=header.n_in, n_out=header.n_out)


class NBits:
    """ONNX Runtime's own operators, with activations rounded to 8 bits as llama.cpp does (accuracy level 4)."""

    name = "nbits"

    _TYPES = {"Q4_0": (18, 4), "Q8_0": (34, 8)}

    def stored_bytes(self, kind: str, n_out: int, n_in: int) -> int:
        if floats := _float_bytes(kind, n_out, n_in):
            return floats
        _, bits = self._type(kind)
        return n_out * n_in // _BLOCK * (4 * bits + 4)

    def multiply(self, graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, x: str, y: str) -> None:
        if kind in _FLOATS:
            _multiply_floats(graph, store, name, kind, blocks, x, y)
            return
        n_out, n_blocks, bits = self._put(store, name, kind, blocks)
        codes = store.alias(name + ".blocks", name, (n_out, n_blocks, 4 * bits))
        graph.node(
            "MatMulNBits", [x, codes, name + ".scales"], [y], "com.microsoft",
            K=n_blocks * _BLOCK, N=n_out, bits=bits, block_size=_BLOCK, accuracy_level=4,
        )  # fmt: skip

    def gather(self, graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, ids: str, y: str) -> None:
        if kind in _FLOATS:
            _gather_floats(graph, store, name, kind, blocks, ids, y)
            return
        _, _, bits = self._put(store, name, kind, blocks)
        graph.node(
            "GatherBlockQuantized", [name, ids, name + ".scales"], [y], "com.microsoft",
            bits=bits, block_size=_BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def _type(self, kind: str) -> tuple[int, int]:
        if kind not in self._TYPES:
            raise UnsupportedModel(
                f"weights of type {kind} need edge-spec's kernels, which are not available", hint="use --engine llama"
            )
        return self._TYPES[kind]

    def _put(self, store: Store, name: str, kind: str, blocks: Blocks) -> tuple[int, int, int]:
        """Store codes, ``[n_out, bytes]``, and scales, ``[n_out, n_blocks]``; both operators read them."""
        block_bytes, bits = self._type(kind)
        n_out, n_blocks = blocks.shape[0], blocks.shape[1] // block_bytes
        parts = np.asarray(blocks).reshape(n_out, n_blocks, block_bytes)
        scales = np.ascontiguousarray(parts[..., :2]).view(np.float16).astype(np.float32)
        codes = parts[..., 2:]
        if bits == 4:
            # GGUF: byte i holds weights i and i + 16. Here: weights 2i and 2i + 1.
            unpacked = np.concatenate([codes & 15, codes >> 4], axis=-1)
            codes = unpacked[..., 0::2] | unpacked[..., 1::2] << 4
        else:
            codes = codes ^ 128  # signed to the same number above a zero point of 128
        store.put(name, codes.reshape(n_out, -1))
        store.put(name + ".scales", scales.reshape(n_out, n_blocks))
        return n_out, n_blocks, bits


def _float_bytes(kind: str, n_out: int, n_in: int) -> int:
    """Bytes of an unquantised matrix, 0 for another. It is multiplied as float32 and looked up as it is."""
    return 4 * n_out * n_in if kind in _FLOATS else 0


def _multiply_floats(graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, x: str, y: str) -> None:
    store.put(name + ".t", np.ascontiguousarray(_floats(kind, blocks).astype(np.float32).T))
    graph.node("MatMul", [x, name + ".t"], [y])


def _gather_floats(graph: Graph, store: Store, name: str, kind: str, blocks: Blocks, ids: str, y: str) -> None:
    store.put(name, _floats(kind, blocks))
    graph.node("Gather", [name, ids], [y + ".stored"])
    graph.node("Cast", [y + ".stored"], [y], to=FLOAT)


def _floats(kind: str, blocks: Blocks) -> npt.NDArray[np.generic]:
    return np.asarray(blocks).view(np.float32 if kind == "F32" else np.float16)


FORMS: dict[str, Form] = {form.name: form for form in (Rows(), NBits())}
"""Every form that has a name."""


def best_form() -> Form:
    """``rows`` where the kernels are there, else ``nbits``."""
    try:
        from edge_spec.kernels import available
    except ImportError:
        return FORMS["nbits"]
    return FORMS["rows" if available() is None else "nbits"]


_ = UINT8

"""The kernels' C functions that only tests call: products and weights, without ONNX Runtime."""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import library_path

GROUP = 16
"""Outputs that lie together in packed weights."""


class Refused(Exception):
    """The kernels do not take these weights, or arguments."""


def shape_of(packed: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Outputs and inputs, as the header says."""
    return struct.unpack_from("<QQ", packed, 16)


def matmul_rows(
    packed: npt.NDArray[np.uint8],
    activations: npt.NDArray[np.float32],
    *,
    variant: str = "",
    groups: range | None = None,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """Activations ``[n_rows, n_in]`` times packed weights, ``[n_rows, n_out]``.

    Args:
        variant: "" for the fastest.
        groups: only the outputs of these groups of 16; the others stay as they are in ``out``.
    """
    library = _library()
    packed, activations = np.ascontiguousarray(packed), np.ascontiguousarray(activations)
    _check(library.edge_rows_check(packed.ctypes.data, packed.nbytes))
    n_out, n_in = shape_of(packed)
    assert activations.dtype == np.float32 and activations.shape[1] == n_in
    out = np.zeros((activations.shape[0], n_out), np.float32) if out is None else out
    chosen = range(-(-n_out // GROUP)) if groups is None else groups
    _check(
        library.edge_rows_multiply(
            packed.ctypes.data,
            packed.nbytes,
            variant.encode() or None,
            activations.ctypes.data,
            activations.shape[0],
            chosen.start,
            chosen.stop,
            out.ctypes.data,
        )
    )
    return out


def weights(packed: npt.NDArray[np.uint8], rows: range | None = None) -> npt.NDArray[np.float32]:
    """The values that packed weights stand for, ``[rows, n_in]``."""
    library = _library()
    n_out, n_in = shape_of(packed)
    chosen = range(n_out) if rows is None else rows
    values = np.empty((len(chosen), n_in), np.float32)
    _check(library.edge_rows_weights(packed.ctypes.data, packed.nbytes, chosen.start, len(chosen), values.ctypes.data))
    return values


def _check(wrong: bytes | None) -> None:
    if wrong is not None:
        raise Refused(wrong.decode())


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(library_path()))
    array, count, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    for name, arguments in (
        ("edge_rows_check", [array, count]),
        ("edge_rows_multiply", [array, count, text, array, count, count, count, array]),
        ("edge_rows_weights", [array, count, count, count, array]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = text, arguments
    return library

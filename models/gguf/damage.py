"""Find weights of a file that are not numbers: NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge_spec.models.gguf.header import TensorInfo

__all__ = ["without_numbers"]

_HALF, _BRAIN, _SINGLE = ("<u2", 0x7C00), ("<u2", 0x7F80), ("<u4", 0x7F800000)
"""Unsigned integers of each type of float, and the bits that are all set in NaN and infinity."""

_FLOATS = {
    "F32": ((0,), _SINGLE),
    "F16": ((0,), _HALF),
    "BF16": ((0,), _BRAIN),
    "Q4_0": ((0,), _HALF),
    "Q4_1": ((0, 2), _HALF),
    "Q5_0": ((0,), _HALF),
    "Q5_1": ((0, 2), _HALF),
    "Q8_0": ((0,), _HALF),
    "Q2_K": ((80, 82), _HALF),
    "Q3_K": ((108,), _HALF),
    "Q4_K": ((0, 2), _HALF),
    "Q5_K": ((0, 2), _HALF),
    "Q6_K": ((208,), _HALF),
    "IQ4_NL": ((0,), _HALF),
    "IQ4_XS": ((0,), _HALF),
    "TQ1_0": ((52,), _HALF),
    "TQ2_0": ((64,), _HALF),
    "Q1_0": ((0,), _HALF),
    "Q2_0": ((0,), _HALF),
}
"""Positions and types of the floats in a block of each type (ggml-common.h of llama.cpp)."""

_AT_ONCE = 1 << 14
"""Blocks."""


def without_numbers(tensors: Iterable[TensorInfo]) -> str | None:
    """Return the name of the first tensor with a weight or scale that is not a number; None if there is none.

    Reads the weights, some hundred KiB at a time, up to the one that it finds.

    Raises:
        OSError: they cannot be read.
    """
    return next((tensor.name for tensor in tensors if tensor.type_name in _FLOATS and _is_damaged(tensor)), None)


def _is_damaged(tensor: TensorInfo) -> bool:
    places, (kind, mask) = _FLOATS[tensor.type_name]
    n_block, n_float = tensor.type.block_bytes, np.dtype(kind).itemsize
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        for left in range(tensor.n_bytes, 0, -n_block * _AT_ONCE):
            raw = file.read(min(left, n_block * _AT_ONCE))
            blocks = np.frombuffer(raw[: len(raw) // n_block * n_block], np.uint8).reshape(-1, n_block)
            for place in places:
                bits = np.ascontiguousarray(blocks[:, place : place + n_float]).view(kind)
                if bool(((bits & mask) == mask).any()):
                    return True
    return False

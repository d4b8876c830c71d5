"""Whether all weights of a file are numbers, as far as can be told without computing them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge_spec.models.gguf.header import TensorInfo

__all__ = ["CHECKED_TYPES", "not_numbers"]

_EXPONENTS = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}
"""How wide a number is, and the bits that are all set where it is none, or endless."""

_SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "Q1_0", "Q2_0"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1"), (0, 2)),
    **dict.fromkeys(("Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
"""Where blocks have their scales, which are F16."""

CHECKED_TYPES = frozenset((*_EXPONENTS, *_SCALES))
"""Types that can be looked through."""

_PORTION = 1 << 22


def not_numbers(tensors: Iterable[TensorInfo]) -> str:
    """Return the name of the first tensor that holds NaN or an infinity; empty if none does.

    Raises:
        OSError, ValueError: a file was removed or cut off since its header was read.
    """
    return next((tensor.name for tensor in tensors if not _is_finite(tensor)), "")


def _is_finite(tensor: TensorInfo) -> bool:
    if tensor.type_name in _EXPONENTS:
        kind, exponent = _EXPONENTS[tensor.type_name]
        numbers = np.memmap(tensor.path, np.uint8, "r", tensor.offset, (tensor.n_bytes,)).view(kind)
        portions = (numbers[start : start + _PORTION] for start in range(0, len(numbers), _PORTION))
        return all(((portion & exponent) != exponent).all() for portion in portions)
    starts = _SCALES.get(tensor.type_name)
    if starts is None:
        return True
    shape = (tensor.n_elements // tensor.type.block, tensor.type.block_bytes)
    blocks = np.memmap(tensor.path, np.uint8, "r", tensor.offset, shape)
    return all(
        bool(np.isfinite(np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)).all()) for start in starts
    )

"""The types of tensors and caches in ggml: the one table of their numbers, blocks and bytes.

As in ggml's ``ggml.h`` and ``ggml-common.h``; a test compares it with the ``gguf`` package, which takes 150 ms to
import. A type stores ``block`` neighboring values of a row together in ``block_bytes`` bytes.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KV_TYPES", "TYPES", "TYPES_BY_NUMBER", "TensorType"]


class TensorType(NamedTuple):
    """A type of ggml.

    Attributes:
        name: such as ``Q4_0``.
        number: in files and in ggml's interface.
        block: values in a block.
        block_bytes: size of a block.
    """

    name: str
    number: int
    block: int
    block_bytes: int

    def row_bytes(self, n_values: int) -> int:
        """Return the bytes of a row of ``n_values``, which must be a multiple of ``block``."""
        return n_values // self.block * self.block_bytes


TYPES_BY_NUMBER = {
    number: TensorType(name, number, block, block_bytes)
    for name, number, block, block_bytes in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q8_1", 9, 32, 40),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("Q8_K", 15, 256, 292),
        ("IQ2_XXS", 16, 256, 66),
        ("IQ2_XS", 17, 256, 74),
        ("IQ3_XXS", 18, 256, 98),
        ("IQ1_S", 19, 256, 50),
        ("IQ4_NL", 20, 32, 18),
        ("IQ3_S", 21, 256, 110),
        ("IQ2_S", 22, 256, 82),
        ("IQ4_XS", 23, 256, 136),
        ("I8", 24, 1, 1),
        ("I16", 25, 1, 2),
        ("I32", 26, 1, 4),
        ("I64", 27, 1, 8),
        ("F64", 28, 1, 8),
        ("IQ1_M", 29, 256, 56),
        ("BF16", 30, 1, 2),
        ("TQ1_0", 34, 256, 54),
        ("TQ2_0", 35, 256, 66),
        ("MXFP4", 39, 32, 17),
        ("NVFP4", 40, 64, 36),
        ("Q1_0", 41, 128, 18),
        ("Q2_0", 42, 64, 18),
    )
}
TYPES = {each.name: each for each in TYPES_BY_NUMBER.values()}

KV_TYPES = {
    name.lower(): TYPES[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")
}
"""The types that llama.cpp can keep keys and values in, under their names on the command line, the largest first."""

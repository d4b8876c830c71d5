"""The types of elements in ONNX files, by the numbers of onnx.proto."""

from __future__ import annotations

__all__ = ["ELEMENT_NUMBERS", "ELEMENT_TYPES"]

ELEMENT_TYPES = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    16: ("bfloat16", 16),
    21: ("uint4", 4),
    22: ("int4", 4),
}
"""Number -> (name, as NumPy has it, and bits)."""

ELEMENT_NUMBERS = {name: number for number, (name, _) in ELEMENT_TYPES.items()}

"""ONNX files, written without the onnx package: the few messages of onnx.proto that a graph needs.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, IR version 9.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["FLOAT", "FLOAT16", "INT32", "INT64", "UINT8", "Graph"]

FLOAT, UINT8, INT32, INT64, FLOAT16 = 1, 2, 6, 7, 10
_TYPES = {
    np.dtype(np.float32): FLOAT,
    np.dtype(np.uint8): UINT8,
    np.dtype(np.int32): INT32,
    np.dtype(np.int64): INT64,
    np.dtype(np.float16): FLOAT16,
}
_IR_VERSION = 9
_OPSETS = {"": 17, "com.microsoft": 1, "edge_spec": 1}

Value = int | float | str | Sequence[int]
"""What an attribute of a node holds."""

Shape = Sequence[int | str]
"""Dimensions; a name stands for one that is known only when the graph runs."""


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _attribute(name: str, value: Value) -> bytes:
    head = _bytes(1, name)
    if isinstance(value, str):
        return head + _bytes(4, value) + _int(20, 3)
    if isinstance(value, float):
        return head + _varint(2 << 3 | 5) + struct.pack("<f", value) + _int(20, 1)
    if isinstance(value, int):
        return head + _int(3, value) + _int(20, 2)
    return head + b"".join(_int(8, item) for item in value) + _int(20, 7)


def _value(name: str, kind: int, shape: Shape) -> bytes:
    dims = b"".join(_bytes(1, _bytes(2, size) if isinstance(size, str) else _int(1, size)) for size in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _int(1, kind) + _bytes(2, dims)))


def _tensor(name: str, kind: int, shape: Sequence[int]) -> bytes:
    return b"".join(_int(1, size) for size in shape) + _int(2, kind) + _bytes(8, name)


@dataclass
class Graph:
    """A graph as it grows: nodes in the order in which they can run, and what goes in and out."""

    nodes: list[bytes] = field(default_factory=list)
    constants: dict[str, bytes] = field(default_factory=dict)
    inputs: dict[str, bytes] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)

    def node(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Value
    ) -> None:
        """Add an operation; ``""`` stands for an optional input or output that is left out."""
        self.nodes.append(
            b"".join(_bytes(1, name) for name in inputs)
            + b"".join(_bytes(2, name) for name in outputs)
            + _bytes(4, operator)
            + b"".join(_bytes(5, _attribute(name, value)) for name, value in attributes.items())
            + _bytes(7, domain)
        )

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """A small constant, stored inside the file; returns its name."""
        head = _tensor(name, _TYPES[array.dtype], array.shape)
        self.constants[name] = head + _bytes(9, np.ascontiguousarray(array).tobytes())
        return name

    def external(self, name: str, kind: int, shape: Sequence[int], at: Mapping[str, str | int]) -> str:
        """A constant that lies in another file: ``at`` has its location, offset and length; returns its name."""
        entries = b"".join(_bytes(13, _bytes(1, key) + _bytes(2, str(value))) for key, value in at.items())
        self.constants[name] = _tensor(name, kind, shape) + entries + _int(14, 1)
        return name

    def takes(self, name: str, kind: int, shape: Shape) -> None:
        """Declare an input."""
        self.inputs[name] = _value(name, kind, shape)

    def gives(self, name: str, kind: int, shape: Shape) -> None:
        """Declare an output."""
        self.outputs[name] = _value(name, kind, shape)

    def serialize(self) -> bytes:
        """The ModelProto."""
        graph = (
            b"".join(_bytes(1, node) for node in self.nodes)
            + _bytes(2, "edge-spec")
            + b"".join(_bytes(5, constant) for constant in self.constants.values())
            + b"".join(_bytes(11, value) for value in self.inputs.values())
            + b"".join(_bytes(12, value) for value in self.outputs.values())
        )
        opsets = (_bytes(8, _bytes(1, domain) + _int(2, version)) for domain, version in _OPSETS.items())
        return _int(1, _IR_VERSION) + _bytes(2, "edge-spec") + _bytes(7, graph) + b"".join(opsets)

"""Writing ONNX files without the ``onnx`` package: the few messages of onnx.proto that a graph needs.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, IR version 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge_spec.models.onnx.wire import ELEMENT_NUMBERS, bytes_field, float_field, int_field

__all__ = ["FLOAT", "FLOAT16", "INT32", "INT64", "UINT8", "Graph", "Node"]

FLOAT, FLOAT16, UINT8 = (ELEMENT_NUMBERS[name] for name in ("float32", "float16", "uint8"))
INT32, INT64 = (ELEMENT_NUMBERS[name] for name in ("int32", "int64"))

_IR_VERSION = 9
_OPSETS = {"": 17, "com.microsoft": 1, "edge_spec": 1}

Value = int | float | str | Sequence[int]
"""What an attribute of a node holds."""

Shape = Sequence[int | str]
"""Dimensions; a name stands for one that is known only when the graph runs."""

ROWS = (1, "S")
"""The first dimensions of what has a row for every token of a run."""


def _attribute(name: str, value: Value) -> bytes:
    head = bytes_field(1, name)
    if isinstance(value, str):
        return head + bytes_field(4, value) + int_field(20, 3)
    if isinstance(value, float):
        return head + float_field(2, value) + int_field(20, 1)
    if isinstance(value, int):
        return head + int_field(3, value) + int_field(20, 2)
    return head + b"".join(int_field(8, item) for item in value) + int_field(20, 7)


def _value(name: str, kind: int, shape: Shape) -> bytes:
    dims = b"".join(
        bytes_field(1, bytes_field(2, size) if isinstance(size, str) else int_field(1, size)) for size in shape
    )
    return bytes_field(1, name) + bytes_field(2, bytes_field(1, int_field(1, kind) + bytes_field(2, dims)))


def _tensor(name: str, kind: int, shape: Sequence[int]) -> bytes:
    return b"".join(int_field(1, size) for size in shape) + int_field(2, kind) + bytes_field(8, name)


@dataclass(frozen=True)
class Node:
    """An operation; ``""`` stands for an optional input or output that is left out."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)

    def serialize(self) -> bytes:
        """Return the NodeProto."""
        return (
            b"".join(bytes_field(1, name) for name in self.inputs)
            + b"".join(bytes_field(2, name) for name in self.outputs)
            + bytes_field(4, self.operator)
            + b"".join(bytes_field(5, _attribute(name, value)) for name, value in self.attributes.items())
            + bytes_field(7, self.domain)
        )


@dataclass
class Graph:
    """A graph as it grows: nodes in the order in which they can run, and what goes in and out.

    Attributes:
        arrays: the small constants among ``constants``.
        widths: of inputs with a row for every token.
    """

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, bytes] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)

    def node(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Value
    ) -> None:
        """Add an operation; ``""`` stands for an optional input or output that is left out."""
        self.nodes.append(Node(operator, tuple(inputs), tuple(outputs), domain, attributes))

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Return a small constant, stored inside the file; returns its name."""
        head = _tensor(name, ELEMENT_NUMBERS[array.dtype.name], array.shape)
        self.constants[name] = head + bytes_field(9, np.ascontiguousarray(array).tobytes())
        self.arrays[name] = array
        return name

    def external(self, name: str, kind: int, shape: Sequence[int], at: Mapping[str, str | int]) -> str:
        """Return a constant that lies in another file: ``at`` has its location, offset and length; returns its name."""
        entries = b"".join(
            bytes_field(13, bytes_field(1, key) + bytes_field(2, str(value))) for key, value in at.items()
        )
        self.constants[name] = _tensor(name, kind, shape) + entries + int_field(14, 1)
        return name

    def takes(self, name: str, kind: int, shape: Shape) -> None:
        """Declare an input."""
        self.inputs[name] = _value(name, kind, shape)
        if tuple(shape[:2]) == ROWS and len(shape) > len(ROWS) and isinstance(shape[-1], int):
            self.widths[name] = shape[-1]

    def gives(self, name: str, kind: int, shape: Shape) -> None:
        """Declare an output."""
        self.outputs[name] = _value(name, kind, shape)

    def serialize(self) -> bytes:
        """Return the ModelProto."""
        graph = (
            b"".join(bytes_field(1, node.serialize()) for node in self.nodes)
            + bytes_field(2, "edge-spec")
            + b"".join(bytes_field(5, constant) for constant in self.constants.values())
            + b"".join(bytes_field(11, value) for value in self.inputs.values())
            + b"".join(bytes_field(12, value) for value in self.outputs.values())
        )
        opsets = (bytes_field(8, bytes_field(1, domain) + int_field(2, version)) for domain, version in _OPSETS.items())
        return int_field(1, _IR_VERSION) + bytes_field(2, "edge-spec") + bytes_field(7, graph) + b"".join(opsets)

"""ONNX models of a few nodes, written without the onnx package.

Only what kernel tests and benchmarks need: field numbers are those of onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

FLOAT, UINT8, INT64 = 1, 2, 7
_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.uint8): UINT8, np.dtype(np.int64): INT64}


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _attribute(name: str, value: int | float | str) -> bytes:
    if isinstance(value, str):
        return _bytes(1, name) + _bytes(4, value) + _int(20, 3)
    if isinstance(value, float):
        return _bytes(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + _int(20, 1)
    return _bytes(1, name) + _int(3, value) + _int(20, 2)


def node(
    operator: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    domain: str = "",
    **attributes: int | float | str,
) -> bytes:
    return (
        b"".join(_bytes(1, name) for name in inputs)
        + b"".join(_bytes(2, name) for name in outputs)
        + _bytes(4, operator)
        + b"".join(_bytes(5, _attribute(name, value)) for name, value in attributes.items())
        + _bytes(7, domain)
    )


def _tensor(name: str, array: npt.NDArray[np.generic]) -> bytes:
    dims = b"".join(_int(1, size) for size in array.shape)
    return dims + _int(2, _TYPES[array.dtype]) + _bytes(8, name) + _bytes(9, array.tobytes())


def _value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    dims = b"".join(_bytes(1, _bytes(2, d) if isinstance(d, str) else _int(1, d)) for d in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _int(1, kind) + _bytes(2, dims)))


def model(
    nodes: Sequence[bytes],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str]]],
    constants: Mapping[str, npt.NDArray[np.generic]],
) -> bytes:
    """A ModelProto: inputs and outputs are name -> (element type, shape)."""
    graph = (
        b"".join(_bytes(1, entry) for entry in nodes)
        + _bytes(2, "graph")
        + b"".join(_bytes(5, _tensor(name, array)) for name, array in constants.items())
        + b"".join(_bytes(11, _value(name, *rest)) for name, rest in inputs.items())
        + b"".join(_bytes(12, _value(name, *rest)) for name, rest in outputs.items())
    )
    versions = {"": 17, "edge_spec": 1, "com.microsoft": 1}
    return (
        _int(1, 9)
        + _bytes(7, graph)
        + b"".join(_bytes(8, _bytes(1, domain) + _int(2, version)) for domain, version in versions.items())
    )

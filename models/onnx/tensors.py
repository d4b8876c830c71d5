"""The constants of a graph, which are mostly weights: the files that hold them, and the identity of their content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import BinaryIO

from edge_spec import foreign
from edge_spec.errors import ModelNotFound, TruncatedModel
from edge_spec.models.onnx.wire import Span, WireFile

__all__ = ["Tensor", "check_sizes", "fingerprint", "open_regular"]

_SAMPLE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A constant.

    Attributes:
        kind: type of its elements, such as ``float16``; empty if it is not known here.
        file: the file that holds it.
        offset, n_bytes: where in that file.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        """The number of its elements."""
        return prod(self.shape)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a folder, or a pipe that would block, is refused.

    Raises:
        ModelNotFound: it does not exist, or is not a regular file.
    """
    try:
        return foreign.open_regular(path)
    except FileNotFoundError as error:
        raise ModelNotFound(f"there is no file {path}", hint="check the path") from error
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{str(path)!r} cannot be read ({getattr(error, 'strerror', None) or error})", hint="check the path"
        ) from error


def check_sizes(tensors: tuple[Tensor, ...], graph: Path) -> None:
    """Check that every file that holds weights exists and is long enough.

    Raises:
        ModelNotFound, TruncatedModel: a file is missing or too short.
    """
    ends: dict[Path, int] = {}
    for tensor in tensors:
        ends[tensor.file] = max(ends.get(tensor.file, 0), tensor.offset + tensor.n_bytes)
    for file, end in ends.items():
        missing = end - _size(file, graph)
        if missing > 0:
            raise TruncatedModel(
                f"{file} ends too early, {missing:,} bytes of the weights of {graph.name} are missing",
                hint="download it again and compare the file sizes",
            )


def fingerprint(wire: WireFile, tensors: tuple[Tensor, ...]) -> str:
    """Return a hash of file sizes, the graph without large constants, and a sample of each large or external one."""
    state = blake2b(digest_size=16)
    at = 0
    inline = (tensor for tensor in tensors if tensor.file == wire.path and tensor.n_bytes > _SAMPLE_BYTES)
    for tensor in sorted(inline, key=lambda tensor: tensor.offset):
        state.update(wire.read(Span(at, tensor.offset)))
        state.update(wire.read(_middle(tensor)))
        at = tensor.offset + tensor.n_bytes
    state.update(wire.read(Span(at, wire.whole.end)))
    others = sorted({tensor.file for tensor in tensors if tensor.file != wire.path})
    for path in others:
        with open_regular(path) as file:
            other = WireFile(file, path, os.fstat(file.fileno()).st_size)
            state.update(other.whole.end.to_bytes(8, "little"))
            for tensor in tensors:
                if tensor.file == path:
                    state.update(other.read(_middle(tensor)))
    state.update(wire.whole.end.to_bytes(8, "little"))
    return state.hexdigest()


def _middle(tensor: Tensor) -> Span:
    n = min(tensor.n_bytes, _SAMPLE_BYTES)
    start = tensor.offset + (tensor.n_bytes - n) // 2
    return Span(start, start + n)


def _size(file: Path, graph: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise ModelNotFound(
            f"{file} holds weights of {graph.name} and is missing", hint="download it into the same folder"
        ) from error

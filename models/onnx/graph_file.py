"""Read the graph of an ONNX file without its weights.

Our own reader, because the ``onnx`` package is not a dependency and loads whole files, see ``wire``. Field numbers are
those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath

from edge_spec.errors import ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel
from edge_spec.models.onnx.tensors import Tensor, check_sizes, fingerprint, open_regular
from edge_spec.models.onnx.wire import ELEMENT_TYPES, Span, WireFile

__all__ = ["GraphFile", "Node", "Port", "read_graph"]

_MAX_PARTS = 1 << 20
_MAX_DIMS = 16
_GRAPH = 7


@dataclass(frozen=True, kw_only=True)
class Port:
    """An input or output of a graph.

    Attributes:
        kind: type of its elements, such as ``float16``; empty if it is not an array of a known type.
        shape: sizes; a name or an empty text where one is known only when the graph runs.
    """

    name: str
    kind: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    """An operation."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GraphFile:
    """An ONNX file that was read without its weights.

    Attributes:
        inputs, outputs: by name, in order.
        nodes: the operations of the main graph.
        tensors: its constants.
        fingerprint: see ``read_graph``; 32 hexadecimal digits.
    """

    path: Path
    inputs: dict[str, Port]
    outputs: dict[str, Port]
    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    fingerprint: str


def read_graph(path: Path) -> GraphFile:
    """Inspect an ONNX file and the files that hold its weights.

    The fingerprint hashes the sizes of all files, the whole graph, and of each constant up to 4 KiB from the middle.

    Raises:
        ModelNotFound: it, or a file with its weights, does not exist.
        NotAModel: another kind of file, or a damaged one.
        TruncatedModel: it, or a file with its weights, ends too early.
        UnsupportedModel: its weights are outside its folder.
    """
    try:
        with open_regular(path) as file:
            wire = WireFile(file, path, os.fstat(file.fileno()).st_size)
            found = _read_model(wire)
            check_sizes(found.tensors, path)
            return replace(found, fingerprint=fingerprint(wire, found.tensors))
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read ({error.strerror or error})", hint="was it moved?") from error


def _read_model(wire: WireFile) -> GraphFile:
    graph: Span | None = None
    looks_right = False
    try:
        for number, value in wire.fields(wire.whole):
            # Writers put the version first.
            looks_right |= number == 1 and isinstance(value, int) and 0 < value < 1000
            if number == _GRAPH and isinstance(value, Span):
                graph = value
    except NotAModel:
        if looks_right:
            raise TruncatedModel(
                f"{wire.path} ends before its content does", hint="download it again and compare the file sizes"
            ) from None
        graph = None
    if graph is None:
        raise _another_kind(wire)
    return _read_graph(wire, graph)


def _another_kind(wire: WireFile) -> NotAModel:
    start = wire.read(Span(0, min(64, wire.whole.end)))
    if not start:
        return NotAModel(f"{wire.path} is empty", hint="download it again")
    if start.startswith(b"version https://git-lfs"):
        return NotAModel(f"{wire.path} is only a Git LFS pointer", hint="run 'git lfs pull' in its folder")
    return NotAModel(f"{wire.path} is not an ONNX file", hint="it may be damaged: download it again")


def _read_graph(wire: WireFile, graph: Span) -> GraphFile:
    nodes: list[Node] = []
    tensors: list[Tensor] = []
    ports: dict[int, list[Port]] = {11: [], 12: []}
    for n, (number, value) in enumerate(wire.fields(graph)):
        if n > _MAX_PARTS:
            raise wire.damaged(f"more than {_MAX_PARTS:,} parts")
        if not isinstance(value, Span):
            continue
        if number == 1:
            nodes.append(_read_node(wire, value))
        elif number == 5:
            tensors.append(_read_tensor(wire, value))
        elif number in ports:
            ports[number].append(_read_port(wire, value))
    # Old exporters list constants as inputs too.
    constants = {tensor.name for tensor in tensors}
    return GraphFile(
        path=wire.path,
        inputs={port.name: port for port in ports[11] if port.name not in constants},
        outputs={port.name: port for port in ports[12]},
        nodes=tuple(nodes),
        tensors=tuple(tensors),
        fingerprint="",
    )


_ENDLESS = frozenset(("Loop", "Scan"))
"""Operators that may loop for ever; no language model needs them."""

_MAX_BRANCHES = 8
"""The deepest nesting of branches."""


def _read_node(wire: WireFile, message: Span, depth: int = 0) -> Node:
    operator, domain = "", ""
    names: dict[int, list[str]] = {1: [], 2: []}
    attributes: list[Span] = []
    for number, value in wire.fields(message):
        if not isinstance(value, Span):
            continue
        if number in names:
            names[number].append(wire.text(value))
        elif number == 4:
            operator = wire.text(value)
        elif number == 5:
            attributes.append(value)
        elif number == 7:
            domain = wire.text(value)
    if operator in _ENDLESS or depth > _MAX_BRANCHES:
        raise UnsupportedModel(
            f"{wire.path} has the operator {operator[:32]!r}, which may never end", hint="export the model without it"
        )
    for attribute in attributes:
        for number, value in wire.fields(attribute):
            if number == 3 and isinstance(value, int) and domain and 1 << 31 <= value < (1 << 64) - (1 << 31):
                raise wire.damaged(f"an impossible number in the operator {operator[:32]!r}")
            if number in (6, 11) and isinstance(value, Span):
                for branch in _spans(wire, value, 1):
                    _read_node(wire, branch, depth + 1)
    return Node(operator=operator, inputs=tuple(names[1]), outputs=tuple(names[2]))


def _read_port(wire: WireFile, message: Span) -> Port:
    name, kind = "", ""
    shape: list[int | str] = []
    for number, value in wire.fields(message):
        if number == 1 and isinstance(value, Span):
            name = wire.text(value)
        elif number == 2 and isinstance(value, Span):
            for array in _spans(wire, value, 1):
                for part, inner in wire.fields(array):
                    if part == 1 and isinstance(inner, int):
                        kind = ELEMENT_TYPES.get(inner, ("", 0))[0]
                    elif part == 2 and isinstance(inner, Span):
                        shape = [_read_size(wire, size) for size in _spans(wire, inner, 1)]
    return Port(name=name, kind=kind, shape=tuple(shape))


def _read_size(wire: WireFile, message: Span) -> int | str:
    for number, value in wire.fields(message):
        if number == 1 and isinstance(value, int):
            return value
        if number == 2 and isinstance(value, Span):
            return wire.text(value)
    return ""


def _spans(wire: WireFile, message: Span, wanted: int) -> list[Span]:
    return [value for number, value in wire.fields(message) if number == wanted and isinstance(value, Span)]


def _read_tensor(wire: WireFile, message: Span) -> Tensor:
    name, type_id, shape, elsewhere = "", 0, [], False
    data = Span(message.end, message.end)
    facts: dict[str, str] = {}
    for number, value in wire.fields(message):
        if number == 1:
            shape += wire.numbers(value)
        elif number == 2 and isinstance(value, int):
            type_id = value
        elif number == 8 and isinstance(value, Span):
            name = wire.text(value)
        elif number == 13 and isinstance(value, Span):
            entry = [wire.text(part) for _, part in wire.fields(value) if isinstance(part, Span)]
            facts |= dict([entry]) if len(entry) == 2 else {}
        elif number == 14:
            elsewhere = value == 1
        elif isinstance(value, Span) and value.n_bytes > data.n_bytes:
            data = value
    if len(shape) > _MAX_DIMS or any(size < 0 for size in shape):
        raise wire.damaged(f"the constant {name[:64]!r} has an impossible shape")
    kind, bits = ELEMENT_TYPES.get(type_id, ("", 0))
    n_bytes = -(-prod(shape) * bits // 8)
    if not elsewhere:
        return Tensor(name=name, kind=kind, shape=tuple(shape), file=wire.path, offset=data.start, n_bytes=data.n_bytes)
    try:
        offset, n_bytes = int(facts.get("offset", 0)), int(facts.get("length", n_bytes))
    except ValueError:
        raise wire.damaged(f"the constant {name[:64]!r} has an impossible place") from None
    if offset < 0 or n_bytes < 0:
        raise wire.damaged(f"the constant {name[:64]!r} has an impossible place")
    file = wire.path.parent / _inside(wire, facts.get("location", ""))
    return Tensor(name=name, kind=kind, shape=tuple(shape), file=file, offset=offset, n_bytes=n_bytes)


def _inside(wire: WireFile, location: str) -> str:
    """Return the path of a file in the graph's folder: a downloaded model must not reach outside it."""
    parts = {*PurePosixPath(location).parts, *PureWindowsPath(location).parts}
    if not location.isprintable() or not parts or ".." in parts or PureWindowsPath(location).anchor:
        raise UnsupportedModel(
            f"{wire.path} has its weights in {location[:64]!r}, outside its folder", hint="get it in one folder"
        )
    return location

"""Layers that keep a state instead of keys and values: what each kind of them tells of itself.

A kind is a file of its own: how its tensors are shaped, what its state is, and its nodes in a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from edge_spec.engines.onnx.transcription.architecture import llama_only
from edge_spec.engines.onnx.transcription.matrices import Array, Weights
from edge_spec.engines.onnx.transcription.proto import FLOAT, INT32, Graph
from edge_spec.models.gguf.header import GGUFHeader
from edge_spec.models.model_file import ModelFile

__all__ = [
    "PLACE",
    "RUN",
    "Parts",
    "RecurrentLayer",
    "Shape",
    "State",
    "add_convolution_weights",
    "declare",
    "whole_number",
]

Shape = tuple[int, ...]

RUN = "run"
"""The graph's input that says which rows a run goes over, i32 ``[3]``: see ``kernels/src/recurrent.h``."""

PLACE = "place"
"""How the inputs begin that say where each layer is, i32 ``[2]``."""


@dataclass(frozen=True, kw_only=True)
class State:
    """An array of float32 that a layer of a text reads and writes in place.

    Attributes:
        name: of the graph's input.
        shape: of what belongs to the state itself.
        keeps: whether further rows of the same width lie behind it, for tokens that the state has not taken in.
    """

    name: str
    shape: Shape
    keeps: bool

    @property
    def n_bytes(self) -> int:
        """What the state itself takes."""
        return 4 * prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """What a further row takes."""
        return 4 * self.shape[-1] * self.keeps

    def array(self, n_rows: int) -> Array:
        """Return it for an empty text, with room for so many further rows."""
        return np.zeros((self.shape[0] + n_rows * self.keeps, *self.shape[1:]), np.float32)

    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """From what ``facts`` returned."""
        return cls(name=str(facts["name"]), shape=tuple(map(int, facts["shape"])), keeps=bool(facts["keeps"]))


class Parts(Protocol):
    """A graph as it is written."""

    graph: Graph
    store: Weights

    def products(self, x: str, names: Sequence[str], y: str) -> list[str]:
        """Products of rows with several matrices, as one array where their types agree."""

    def vector(self, name: str) -> str:
        """Return a small tensor as a constant."""

    def values(self, name: str) -> Array:
        """Return the numbers of a tensor of floats."""


class RecurrentLayer(Protocol):
    """A kind of layers with the sizes of one model.

    Attributes:
        SETTINGS: what the metadata say of it, without the architecture's name.
    """

    SETTINGS: ClassVar[tuple[str, ...]]

    @classmethod
    def read(cls, file: ModelFile, header: GGUFHeader, *, epsilon: float) -> Self:
        """Return it as a file says.

        Args:
            epsilon: of the root-mean-square norms.

        Raises:
            UnsupportedModel: its settings contradict each other, or are not known.
        """

    def shapes(self) -> dict[str, Shape]:
        """Return the tensors of a layer and their shapes, by what follows ``blk.N.`` in their names."""

    def products(self) -> Sequence[Sequence[str]]:
        """Return the matrices of a layer, those together that are multiplied with the same rows, named likewise."""

    def states(self, layer: int) -> list[State]:
        """Return the states of a layer."""

    def add(self, parts: Parts, layer: int, x: str) -> str:
        """Add what a layer makes of rows; returns its name."""


def declare(graph: Graph, states: Sequence[State], layers: Sequence[int]) -> None:
    """Declare the inputs of a graph with such layers."""
    for state in states:
        first = f"{state.name}_rows" if state.keeps else state.shape[0]
        graph.takes(state.name, FLOAT, (first, *state.shape[1:]))
    for layer in layers:
        graph.takes(f"{PLACE}_{layer}", INT32, (2,))
    graph.takes(RUN, INT32, (3,))


def add_convolution_weights(parts: Parts, name: str) -> str:
    """Store the weights of a convolution, tap by tap; returns their name in the graph."""
    parts.store.put(name, lambda: np.ascontiguousarray(parts.values(name).T))
    return parts.store.use(parts.graph, name)


def whole_number(file: ModelFile, header: GGUFHeader, key: str, most: int) -> int:
    """Return a number of the metadata from 1 to ``most``.

    Raises:
        UnsupportedModel: it is missing or another one.
    """
    name = f"{file.architecture}.{key}"
    value = header.metadata.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise llama_only(file, f"has no {name} from 1 to {most}")
    return value

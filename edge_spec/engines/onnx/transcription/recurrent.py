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
from edge_spec.engines.onnx.transcription.proto import INT64, Graph
from edge_spec.models.gguf.header import GGUFHeader
from edge_spec.models.model_file import ModelFile

__all__ = [
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
"""The graph's input that says where the states of each text lie and which rows a run goes over, i64: see
``kernels/src/recurrent_operator.h``."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Float32 numbers that a layer keeps of a text, reads and writes in place.

    Attributes:
        shape: of what belongs to the state itself.
        keeps: whether further rows of the same width follow it, for tokens that the state has not taken in.
    """

    shape: Shape
    keeps: bool

    @property
    def n_own(self) -> int:
        """How many numbers the state itself has."""
        return prod(self.shape)

    @property
    def n_row(self) -> int:
        """How many a further row has."""
        return self.shape[-1] * self.keeps

    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """From what ``facts`` returned."""
        return cls(shape=tuple(map(int, facts["shape"])), keeps=bool(facts["keeps"]))


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

    def states(self) -> list[State]:
        """Return the states of a layer, in the order in which they lie in memory."""

    def add(self, parts: Parts, layer: int, number: int, x: str) -> str:
        """Add what a layer makes of rows; returns its name.

        Args:
            number: which layer of the kind it is.
        """


def declare(graph: Graph) -> None:
    """Declare the input of a graph with such layers."""
    graph.takes(RUN, INT64, ("T",))


def add_convolution_weights(parts: Parts, name: str) -> str:
    """Store the weights of a convolution, tap by tap; returns their name in the graph."""
    taps = np.ascontiguousarray(parts.values(name).T)
    parts.store.put(name, taps.nbytes, lambda: taps)
    return parts.store.use(parts.graph, name)


def whole_number(
    file: ModelFile, header: GGUFHeader, key: str, most: int, *, least: int = 1, default: int | None = None
) -> int:
    """Return a number of the metadata from ``least`` to ``most``, or the default where the file has none.

    Raises:
        UnsupportedModel: it is another one, or missing without a default.
    """
    name = f"{file.architecture}.{key}"
    value = header.metadata.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise llama_only(file, f"has no {name} from {least} to {most}")
    return value

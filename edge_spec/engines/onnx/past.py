"""The KV cache of a published graph, which takes past keys and values and returns past and present ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.runner import value_of
from edge_spec.models.onnx.signature import CachePort, PublishedGraph

__all__ = ["Alternating", "InPlace", "Past", "new_past"]

Array = npt.NDArray[Any]


class Past(Protocol):
    """Memory for the cells of a text and of the pending nodes after it."""

    def bind(self, binding: Any, start: int, n_run: int) -> None:
        """Bind ``start`` cells of the past, and room for ``n_run`` more."""

    def ran(self) -> None:
        """The bound run has succeeded: its cells are there."""

    def views(self) -> Iterator[Array]:
        """Keys and values in alternation, ``[n_heads, cells, head_dim]``, as they are now."""

    def refill(self, n: int) -> Iterator[Array]:
        """Return the same arrays, to be filled with ``n`` cells."""


def new_past(graph: PublishedGraph, n_cells: int) -> Past:
    """Return an empty cache of ``n_cells``."""
    return InPlace(graph, n_cells) if graph.in_place else Alternating(graph, n_cells)


class InPlace:
    """One block of memory per layer goes in and comes out, and new cells are written into it."""

    def __init__(self, graph: PublishedGraph, n_cells: int) -> None:
        self._ports = graph.cache
        self._arrays = [np.zeros((1, port.n_heads, n_cells, port.head_dim), graph.cache_kind) for port in graph.cache]
        self._bound = False

    def bind(self, binding: Any, start: int, n_run: int) -> None:
        if not self._bound:
            for port, array in zip(self._ports, self._arrays, strict=True):
                value = value_of(array)
                binding.bind_ortvalue_input(port.past, value)
                binding.bind_ortvalue_output(port.present, value)
        self._bound = True

    def ran(self) -> None:
        """Nothing to remember: the model counts the cells."""

    def views(self) -> Iterator[Array]:
        yield from (array[0] for array in self._arrays)

    def refill(self, n: int) -> Iterator[Array]:
        yield from (array[0, :, :n] for array in self._arrays)


class Alternating:
    """Two blocks of memory per layer: a run reads the block that the last one has written, and writes the other.

    The cells of a head are contiguous, followed by those of the next head. So when a run starts with fewer cells than
    there are, after a rollback, they are moved together first; when all are kept, nothing moves.
    """

    def __init__(self, graph: PublishedGraph, n_cells: int) -> None:
        self._ports = graph.cache
        self._blocks = [
            [np.zeros(port.n_heads * n_cells * port.head_dim, graph.cache_kind) for port in graph.cache]
            for _ in range(2)
        ]
        self._held = self._coming = 0

    def bind(self, binding: Any, start: int, n_run: int) -> None:
        self._shrink(start)
        self._coming = start + n_run
        for port, old, new in zip(self._ports, *self._blocks, strict=True):
            binding.bind_ortvalue_input(port.past, value_of(_cells(port, old, start)[None]))
            binding.bind_ortvalue_output(port.present, value_of(_cells(port, new, self._coming)[None]))

    def ran(self) -> None:
        self._blocks.reverse()
        self._held = self._coming

    def views(self) -> Iterator[Array]:
        yield from (_cells(port, block, self._held) for port, block in zip(self._ports, self._blocks[0], strict=True))

    def refill(self, n: int) -> Iterator[Array]:
        self._held = n
        yield from self.views()

    def _shrink(self, n: int) -> None:
        if n < self._held:
            for port, block in zip(self._ports, self._blocks[0], strict=True):
                wide, narrow = _cells(port, block, self._held), _cells(port, block, n)
                for head in range(1, port.n_heads):
                    narrow[head] = wide[head, :n]
        self._held = n


def _cells(port: CachePort, block: Array, n: int) -> Array:
    """Return the first ``n`` cells of a block, ``[n_heads, n, head_dim]``."""
    return block[: port.n_heads * n * port.head_dim].reshape(port.n_heads, n, port.head_dim)

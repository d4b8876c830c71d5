"""The KV cache as each kind of attention wants it, and how a graph is told where its tokens go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.transcription import LANES, Transcription
from edge_spec.speculation.tree import Tree

__all__ = ["Cache", "GroupedCache", "Place", "RowsCache", "new_cache"]

Array = npt.NDArray[Any]
Cells = npt.NDArray[np.intp]

_HIDDEN = np.float32(-1e9)
"""Added to a score it leaves a weight of exactly 0."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tokens of a run go.

    Attributes:
        n_text: committed cells, which every token sees.
        first: pending nodes that are in the cache already, in the cells behind the text.
        n_run: tokens of this run, padding included, in the cells behind those.
        tree: all pending nodes, those of this run included; None if each is the parent of the next.
    """

    n_text: int
    first: int
    n_run: int
    tree: Tree | None = None


class Cache(Protocol):
    """Memory for keys and values that a session reads and writes in place."""

    inputs: dict[str, Array]
    """Bound once, by the names of the graph's inputs."""

    outputs: dict[str, Array]
    """Bound once, by the names of its outputs."""

    def place(self, place: Place) -> Iterator[tuple[str, Array]]:
        """Prepare a run; yields the inputs whose shape depends on it."""

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy cells, all at once."""

    def keys_of(self, layer: int, cells: Cells) -> Array:
        """A copy of the keys of some cells, ``[n, n_head_kv, head_dim]``."""

    def put_keys(self, layer: int, cells: Cells, keys: Array) -> None:
        """Replace them."""

    def save(self, n: int) -> bytes:
        """The first ``n`` cells."""

    def restore(self, body: bytes, n: int) -> bool:
        """Bring ``n`` cells back; False if the bytes are too many or too few."""


def new_cache(
    model: Transcription, n_ctx: int, n_cells: int, max_run_tokens: int, *, trees: bool, f16: bool = False
) -> Cache:
    """An empty cache of at least ``n_cells``; all sizes in it are multiples of what the graph asks for.

    Args:
        n_ctx: the most tokens of a text; some models see positions otherwise where it is long.
        max_run_tokens: of one run.
        f16: whether it holds halves.
    """
    if model.attention == "rows":
        n_cells += -n_cells % LANES
        return RowsCache(model, n_cells, _turns(model, n_cells, n_ctx), np.dtype(np.float16 if f16 else np.float32))
    return GroupedCache(model, n_cells, _turns(model, n_cells, n_ctx), max_run_tokens, trees=trees)


class RowsCache:
    """For our own attention: keys of 16 cells side by side, and a tree as an array of parents."""

    def __init__(self, model: Transcription, n_cells: int, turns: dict[str, Array], kind: np.dtype[Any]) -> None:
        heads = (model.n_layers, model.n_head_kv)
        self._keys = np.zeros((*heads, n_cells // LANES, model.head_dim, LANES), kind)
        self._values = np.zeros((*heads, n_cells, model.head_dim), kind)
        self.inputs: dict[str, Array] = dict(turns)
        for layer in range(model.n_layers):
            self.inputs |= {f"key_{layer}": self._keys[layer], f"value_{layer}": self._values[layer]}
        self.outputs: dict[str, Array] = {}
        # The number of committed cells, then parents: a chain, until a tree needs other ones.
        self._chain = np.arange(-2, n_cells - 1, dtype=np.int32)
        self._tree = self._chain.copy()

    def place(self, place: Place) -> Iterator[tuple[str, Array]]:
        end = 1 + place.first + place.n_run
        tree = self._chain
        if place.tree is not None:
            tree = self._tree
            n = len(place.tree)
            tree[1 : 1 + n] = place.tree.parents
            tree[1 + n : end] = -1
        tree[0] = place.n_text
        yield "tree", tree[:end]

    def move(self, sources: Cells, targets: Cells) -> None:
        keys, lanes = self._keys, LANES
        keys[:, :, targets // lanes, :, targets % lanes] = keys[:, :, sources // lanes, :, sources % lanes]
        self._values[:, :, targets] = self._values[:, :, sources]

    def keys_of(self, layer: int, cells: Cells) -> Array:
        found: Array = self._keys[layer][:, cells // LANES, :, cells % LANES]
        return found

    def put_keys(self, layer: int, cells: Cells, keys: Array) -> None:
        self._keys[layer][:, cells // LANES, :, cells % LANES] = keys

    def save(self, n: int) -> bytes:
        tiles = self._keys[:, :, : -(-n // LANES)].transpose(0, 1, 2, 4, 3)
        keys = tiles.reshape(*tiles.shape[:2], -1, tiles.shape[-1])[:, :, :n]
        return keys.tobytes() + self._values[:, :, :n].tobytes()

    def restore(self, body: bytes, n: int) -> bool:
        values = self._values[:, :, :n]
        if len(body) != 2 * values.nbytes:
            return False
        both = np.frombuffer(body, values.dtype).reshape(2, *values.shape)
        cells = np.arange(n)
        self._keys[:, :, cells // LANES, :, cells % LANES] = both[0].transpose(2, 0, 1, 3)
        values[...] = both[1]
        return True


class GroupedCache:
    """For ``GroupQueryAttention``: keys and values alike, and for trees positions and a bias that hides."""

    def __init__(
        self, model: Transcription, n_cells: int, turns: dict[str, Array], max_run_tokens: int, *, trees: bool
    ) -> None:
        self._trees = trees
        # Keys and values by turns.
        self._cells = np.zeros((2 * model.n_layers, 1, model.n_head_kv, n_cells, model.head_dim), np.float32)
        self._last_cell, self._n_cells = np.zeros(1, np.int32), np.zeros((), np.int32)
        self._positions = np.zeros(max_run_tokens, np.int64)
        self._bias = np.zeros(max_run_tokens * n_cells if trees else 0, np.float32)
        self._n_biased = 0
        names = [f"{name}_{layer}" for layer in range(model.n_layers) for name in ("key", "value")]
        cells = dict(zip(names, self._cells, strict=True))
        self.inputs: dict[str, Array] = cells | turns | {"last_cell": self._last_cell, "n_cells": self._n_cells}
        self.outputs: dict[str, Array] = {f"new_{name}": array for name, array in cells.items()}

    def place(self, place: Place) -> Iterator[tuple[str, Array]]:
        start = place.n_text + place.first
        end = start + place.n_run
        self._last_cell[0] = end - 1
        self._n_cells[()] = end
        if not self._trees:
            return
        positions = self._positions[: place.n_run]
        positions[:] = range(start, end)
        self._bias[: self._n_biased] = 0
        self._n_biased = 0
        bias = self._bias[: place.n_run * end].reshape(1, 1, place.n_run, end)
        if place.tree is not None:
            n = len(place.tree)
            positions[: n - place.first] = [place.n_text + depth for depth in place.tree.depths[place.first :]]
            hidden = ~place.tree.mask()[place.first :]
            bias[0, 0, : n - place.first, place.n_text : place.n_text + n][hidden] = _HIDDEN
            self._n_biased = place.n_run * end
        yield "positions", positions.reshape(1, -1)
        yield "bias", bias

    def move(self, sources: Cells, targets: Cells) -> None:
        self._cells[:, :, :, targets] = self._cells[:, :, :, sources]

    def keys_of(self, layer: int, cells: Cells) -> Array:
        found: Array = self._cells[2 * layer, 0][:, cells].transpose(1, 0, 2).copy()
        return found

    def put_keys(self, layer: int, cells: Cells, keys: Array) -> None:
        self._cells[2 * layer, 0][:, cells] = keys.transpose(1, 0, 2)

    def save(self, n: int) -> bytes:
        return self._cells[:, :, :, :n].tobytes()

    def restore(self, body: bytes, n: int) -> bool:
        cells = self._cells[:, :, :, :n]
        if len(body) != cells.nbytes:
            return False
        cells[...] = np.frombuffer(body, np.float32).reshape(cells.shape)
        return True


def _turns(model: Transcription, n_cells: int, n_ctx: int) -> dict[str, Array]:
    """Cosines and sines by position, ``[n_cells, n_turned / 2]``, by the names of the graph's inputs."""
    tables = {name: turns.table(n_cells, n_ctx) for name, turns in model.turns.items()}
    turned = {"cos": 0, "sin": 1}
    return {f"{turn}_{name}": table[place] for name, table in tables.items() for turn, place in turned.items()}

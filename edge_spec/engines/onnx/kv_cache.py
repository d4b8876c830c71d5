"""The cells of a transcription's pool: arrays that a session reads and writes in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import copy_cells
from edge_spec.engines.onnx.runner import Runner, value_of
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.tiles import Cells
from edge_spec.memory.blocks import give_back, new_block
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import TILE

__all__ = ["BoundCache", "KVCache"]

Array = npt.NDArray[Any]

_NUMBERS = 256
"""Room for what is said of the texts of a run; it grows."""


class KVCache:
    """Keys and values in tiles of cells; the keys of a tile lie side by side.

    All layers are in one block of memory, which large pages can hold: with small ones a long text takes up to a tenth
    longer.

    Attributes:
        inputs: what is bound to the graph, by the names of its inputs: the cells, and what was given.

    Args:
        tables: what else is bound, by the names of the graph's inputs: rotary embeddings, with a row for every place in
            a text.
        n: how many tiles there are.
        f16: whether it holds fp16, else fp32.

    Raises:
        MemoryError: there is not so much memory.
    """

    def __init__(self, model: Transcription, tables: Mapping[str, Array], n: int, *, f16: bool) -> None:
        self.inputs: dict[str, Array] = dict(tables)
        self._heads, self._cell_numbers = model.heads, model.cell_numbers
        self._kind = np.dtype(np.float16 if f16 else np.float32)
        self._take(n)

    def _take(self, n: int) -> None:
        """Have a block of ``n`` tiles of zeros."""
        n_numbers = self._cell_numbers * n * TILE
        self._block = new_block(n_numbers * self._kind.itemsize)
        numbers = np.frombuffer(self._block, self._kind, n_numbers)
        self._layers: list[tuple[Array, Array]] = []
        self._addresses: dict[tuple[int, int], Array] = {}
        for layer, (n_heads, dim) in enumerate(self._heads):
            half = n_heads * n * TILE * dim
            both = numbers[:half].reshape(n_heads, n, dim, TILE), numbers[half : 2 * half].reshape(n_heads, -1, dim)
            numbers = numbers[2 * half :]
            self._layers.append(both)
            self.inputs[f"key_{layer}"], self.inputs[f"value_{layer}"] = both
        for heads in set(self._heads):
            alike = [both for both, own in zip(self._layers, self._heads, strict=True) if own == heads]
            addresses = [[array.ctypes.data for array in both] for both in alike]
            self._addresses[heads] = np.array(addresses, np.uintp).T.copy()
        self._n_cells = n * TILE

    def copy(self, sources: Cells, targets: Cells) -> None:
        """Copy cells, one after the other."""
        for (n_heads, dim), addresses in self._addresses.items():
            shape = n_heads, self._n_cells, dim, self._kind.itemsize
            copy_cells(addresses, shape, np.stack([sources, targets], axis=1))

    def resize(self, n: int, n_kept: int) -> None:
        """Change the number of tiles to ``n``, and keep the first ``n_kept``. Nothing may be bound to the arrays.

        Raises:
            MemoryError: there is not enough memory; nothing has changed.
        """
        block, layers = self._block, self._layers
        self._take(n)
        for layer, (new, old) in enumerate(zip(self._layers, layers, strict=True)):
            new[0][:, :n_kept] = old[0][:, :n_kept]
            new[1][:, : n_kept * TILE] = old[1][:, : n_kept * TILE]
            # What was copied is given back at once: no more than a layer is there twice.
            give_back(block, (layer + 1) * len(block) // len(layers))

    def keys_of(self, layer: int, cells: Cells) -> Array:
        """Return a copy of the keys of some cells, ``[n, n_head_kv, head_dim]``."""
        found: Array = self._layers[layer][0][:, cells // TILE, :, cells % TILE]
        return found

    def put_keys(self, layer: int, cells: Cells, keys: Array) -> None:
        """Replace them."""
        self._layers[layer][0][:, cells // TILE, :, cells % TILE] = keys

    def save(self, tiles: Sequence[int], n: int) -> bytes:
        """Return the first ``n`` cells of a list of tiles."""
        saved = np.empty(self._cell_numbers * n, self._kind)
        for (keys, values), own_keys, own_values in zip(self._layers, *self._sides(saved, n), strict=True):
            for first, tile in zip(range(0, n, TILE), tiles, strict=False):
                last = min(first + TILE, n)
                own_keys[:, first:last] = keys[:, tile].transpose(0, 2, 1)[:, : last - first]
                own_values[:, first:last] = values[:, tile * TILE : tile * TILE + last - first]
        return saved.tobytes()

    def _sides(self, saved: Array, n: int) -> tuple[list[Array], list[Array]]:
        """Keys and values of ``n`` saved cells by layer, ``[n_heads, n, head_dim]``: all keys, then all values."""
        sizes = [n_heads * n * dim for n_heads, dim in self._heads]
        parts = np.split(saved, np.cumsum(2 * sizes)[:-1])
        shaped = [part.reshape(n_heads, n, dim) for part, (n_heads, dim) in zip(parts, 2 * self._heads, strict=True)]
        return shaped[: len(sizes)], shaped[len(sizes) :]

    def state_bytes(self, n: int) -> int:
        """Return how many bytes ``save`` returns of so many cells."""
        return self._cell_numbers * n * self._kind.itemsize

    def restore(self, body: bytes, cells: Cells) -> None:
        """Make some cells what was saved of as many."""
        saved = np.frombuffer(body, self._kind)
        for layer, (keys, values) in enumerate(zip(*self._sides(saved, len(cells)), strict=True)):
            self.put_keys(layer, cells, keys.transpose(1, 0, 2))
            self._layers[layer][1][:, cells] = values


class BoundCache:
    """A cache bound to a session's graph.

    Args:
        ids: i64 ``[n]``, to be filled before a run.
        rows: i64 ``[R]``.
        logits: f32 ``[R, n_vocab]``.
        taken, given: further inputs and outputs with a row for every token of a run, f32 ``[n, width]``, by name.
    """

    def __init__(
        self,
        cache: KVCache,
        ids: Array,
        rows: Array,
        logits: Array,
        *,
        taken: Mapping[str, Array] = MappingProxyType({}),
        given: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self._ids, self._rows, self._logits = ids, rows, logits
        self._taken, self._given = taken, given
        self._tree = np.zeros(_NUMBERS, np.int32)
        self._inputs = {name: value_of(array) for name, array in cache.inputs.items()}
        self._bindings: dict[tuple[int, int], Any] = {}

    def run(self, runner: Runner, tree: Sequence[int], inputs: Mapping[str, Array], n_run: int, rows: range) -> Logits:
        """Compute ``ids[:n_run]``.

        Args:
            runner: the session; nothing here keeps it alive.
            tree: the graph's input of that name; nothing is read beyond what its first numbers announce.
            inputs: what is said of this run alone, by the names of the graph's inputs.
            rows: the tokens whose logits are wanted.

        Returns:
            Logits ``[rows, n_vocab]``, valid until the next run.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed.
        """
        self._rows[: len(rows)] = rows
        if len(tree) > len(self._tree):
            self._tree = np.zeros(2 * len(tree), np.int32)
            self._bindings.clear()
        self._tree[: len(tree)] = tree
        binding = self._binding(runner, n_run, len(rows))
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, value_of(array))
        runner.compute(binding, long=n_run > len(self._rows))
        result = self._logits[: len(rows)]
        result.flags.writeable = False
        return result

    def _binding(self, runner: Runner, n: int, n_rows: int) -> Any:
        """Everything bound for runs of this shape."""
        binding = self._bindings.get((n, n_rows))
        if binding is not None:
            return binding
        binding = runner.binding()
        binding.bind_ortvalue_input("ids", value_of(self._ids[:n].reshape(1, n)))
        binding.bind_ortvalue_input("rows", value_of(self._rows[:n_rows]))
        binding.bind_ortvalue_input("tree", value_of(self._tree))
        for name, array in self._taken.items():
            binding.bind_ortvalue_input(name, value_of(array[None, :n]))
        for name, array in self._given.items():
            binding.bind_ortvalue_output(name, value_of(array[None, :n]))
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        logits = self._logits[:n_rows]
        binding.bind_ortvalue_output("logits", value_of(logits.reshape(1, *logits.shape)))
        if n <= len(self._rows):
            self._bindings[n, n_rows] = binding
        return binding

    def close(self) -> None:
        """Let go of the arrays. Safe to call twice."""
        self._bindings.clear()
        self._inputs.clear()

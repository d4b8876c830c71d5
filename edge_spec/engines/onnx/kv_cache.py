"""The KV cache of a transcription: arrays that a session reads and writes in place."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.model import Cells, Place
from edge_spec.engines.onnx.runner import Runner, value_of
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.onnx.transcription.graph import LANES
from edge_spec.speculation.language_model import Logits

__all__ = ["BoundCache", "KVCache"]

Array = npt.NDArray[Any]


class KVCache:
    """Keys and values that a session reads and writes in place; the keys of 16 cells lie side by side.

    Attributes:
        inputs: what is bound once, by the names of the graph's inputs: the cache, and the tables of rotary embeddings.

    Args:
        tables: of rotary embeddings, by the names of the graph's inputs, with a row for every place in a text.
        n_cells: a multiple of ``LANES``.
        f16: whether it holds fp16, else fp32.
    """

    def __init__(self, model: Transcription, tables: Mapping[str, Array], n_cells: int, *, f16: bool) -> None:
        heads, kind = (model.n_layers, model.n_head_kv), np.float16 if f16 else np.float32
        self._keys: Array = np.zeros((*heads, n_cells // LANES, model.head_dim, LANES), kind)
        self._values: Array = np.zeros((*heads, n_cells, model.head_dim), kind)
        self.inputs: dict[str, Array] = dict(tables)
        for layer in range(model.n_layers):
            self.inputs |= {f"key_{layer}": self._keys[layer], f"value_{layer}": self._values[layer]}
        self._tiles = np.arange(n_cells // LANES, dtype=np.int32)

    def place(self, place: Place) -> npt.NDArray[np.int32]:
        """Return the graph's input ``tree`` for a run of a single text."""
        end = place.first + place.n_run
        tree = np.arange(-6, end - 1 + len(self._tiles), dtype=np.int32)
        tree[:5] = 1, place.n_text, end, place.n_run, len(self._tiles)
        if place.tree is not None:
            n = len(place.tree)
            tree[5 : 5 + n] = place.tree.parents
            tree[5 + n : 5 + end] = -1
        tree[5 + end :] = self._tiles
        return tree

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy cells, all at once."""
        keys, lanes = self._keys, LANES
        keys[:, :, targets // lanes, :, targets % lanes] = keys[:, :, sources // lanes, :, sources % lanes]
        self._values[:, :, targets] = self._values[:, :, sources]

    def copy(self, source: int, target: int, n: int) -> None:
        """Copy ``n`` cells between runs of cells that begin at multiples of ``LANES`` and do not overlap."""
        tiles, first, last = -(-n // LANES), source // LANES, target // LANES
        self._keys[:, :, last : last + tiles] = self._keys[:, :, first : first + tiles]
        self._values[:, :, target : target + n] = self._values[:, :, source : source + n]

    def keys_of(self, layer: int, cells: Cells) -> Array:
        """Return a copy of the keys of some cells, ``[n, n_head_kv, head_dim]``."""
        found: Array = self._keys[layer][:, cells // LANES, :, cells % LANES]
        return found

    def put_keys(self, layer: int, cells: Cells, keys: Array) -> None:
        """Replace them."""
        self._keys[layer][:, cells // LANES, :, cells % LANES] = keys

    def save(self, n: int) -> bytes:
        """Return the first ``n`` cells."""
        tiles = self._keys[:, :, : -(-n // LANES)].transpose(0, 1, 2, 4, 3)
        keys = tiles.reshape(*tiles.shape[:2], -1, tiles.shape[-1])[:, :, :n]
        return keys.tobytes() + self._values[:, :, :n].tobytes()

    def restore(self, body: bytes, n: int) -> bool:
        """Bring ``n`` cells back; False if there are too many or too few bytes."""
        values = self._values[:, :, :n]
        if len(body) != 2 * values.nbytes:
            return False
        both = np.frombuffer(body, values.dtype).reshape(2, *values.shape)
        cells = np.arange(n)
        self._keys[:, :, cells // LANES, :, cells % LANES] = both[0].transpose(2, 0, 1, 3)
        values[...] = both[1]
        return True


class BoundCache:
    """A cache bound to a session's graph. Caches of one session share all other arrays.

    Attributes:
        cache: the cache.

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
        self.cache = cache
        self.ids, self._rows, self._logits = ids, rows, logits
        self._taken, self._given = taken, given
        self._inputs = {name: value_of(array) for name, array in cache.inputs.items()}
        self._bindings: dict[tuple[int, int], Any] = {}

    def run(self, runner: Runner, tree: npt.NDArray[np.int32], n_run: int, rows: range) -> Logits:
        """Compute ``ids[:n_run]``.

        Args:
            runner: the session; nothing here keeps it alive.
            tree: the graph's input of that name.
            rows: the tokens whose logits are wanted.

        Returns:
            Logits ``[rows, n_vocab]``, valid until this or another cache of the session is run.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed.
        """
        self._rows[: len(rows)] = rows
        binding = self._binding(runner, n_run, len(rows))
        binding.bind_ortvalue_input("tree", value_of(tree))
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
        binding.bind_ortvalue_input("ids", value_of(self.ids[:n].reshape(1, n)))
        binding.bind_ortvalue_input("rows", value_of(self._rows[:n_rows]))
        for name, array in self._taken.items():
            binding.bind_ortvalue_input(name, value_of(array[:n].reshape(1, n, -1)))
        for name, array in self._given.items():
            binding.bind_ortvalue_output(name, value_of(array[:n].reshape(1, n, -1)))
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

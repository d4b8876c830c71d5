"""A transcription with its KV cache: arrays bound in place, and how the graph is told where tokens go."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels import library_path
from edge_spec.engines.onnx.model import Cells, Place
from edge_spec.engines.onnx.runner import Runner, value_of
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.onnx.transcription.graph import LANES
from edge_spec.engines.settings import ModelSettings
from edge_spec.speculation.language_model import Logits

__all__ = ["KVCache", "Session"]


class Session(Runner):
    """A session and the arrays that go in and out. A run copies nothing and binds once per shape.

    Attributes:
        ids: int64 ``[prefill_chunk]``, to be filled before a run.
        pads_logits: false: our kernels compute a row alike whatever is computed with it, so logits of padding are not
            needed.

    Raises:
        BackendError: ONNX Runtime cannot load the graph (the error quotes its reason), or the kernels are missing.
    """

    pads_logits = False

    def __init__(self, model: Transcription, settings: ModelSettings) -> None:
        f16 = settings.kv_k == "f16"
        super().__init__(
            model.graph(f16=f16),
            n_threads=settings.threads[0],
            spin=settings.exact,
            operators=library_path(),
            hint="delete that folder, so that it is made again, or use `engine='llama'`",
        )
        self._source, self._n_ctx = model, settings.n_ctx
        self.n_vocab = model.n_vocab
        self._cache = KVCache(model, settings.n_ctx, settings.n_cells, f16=f16)
        self.ids = np.zeros(settings.prefill_chunk, np.int64)
        self._rows = np.zeros(settings.max_rows, np.int64)
        self._logits = np.zeros((settings.max_rows, model.n_vocab), np.float32)
        self._inputs = {name: value_of(array) for name, array in self._cache.inputs.items()}
        self._bindings: dict[tuple[int, int], Any] = {}

    def run(self, place: Place, rows: range) -> Logits:
        """Compute ``ids[:place.n_run]``.

        Args:
            rows: the tokens whose logits are wanted.

        Returns:
            Logits ``[rows, n_vocab]``, valid until the next run.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed.
        """
        self._rows[: len(rows)] = rows
        binding = self._binding(place.n_run, len(rows))
        binding.bind_ortvalue_input("tree", value_of(self._cache.place(place)))
        self.compute(binding, long=place.n_run > len(self._rows))
        result = self._logits[: len(rows)]
        result.flags.writeable = False
        return result

    def _binding(self, n: int, n_rows: int) -> Any:
        """Everything bound for runs of this shape."""
        binding = self._bindings.get((n, n_rows))
        if binding is not None:
            return binding
        binding = self.binding()
        binding.bind_ortvalue_input("ids", value_of(self.ids[:n].reshape(1, n)))
        binding.bind_ortvalue_input("rows", value_of(self._rows[:n_rows]))
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        logits = self._logits[:n_rows]
        binding.bind_ortvalue_output("logits", value_of(logits.reshape(1, *logits.shape)))
        if n <= len(self._rows):
            self._bindings[n, n_rows] = binding
        return binding

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy cells of the cache, all at once."""
        self._cache.move(sources, targets)

    def shift(self, first: int, last: int, n_past: int) -> None:
        """Move the cells from ``last`` to ``n_past`` to ``first``, and turn their keys back by as many positions."""
        source, by = self._source, last - first
        cells = np.arange(last, n_past)
        self._cache.move(cells, cells - by)
        for layer, name in enumerate(source.layer_rotary):
            keys = source.rotary[name].moved_back(
                self._cache.keys_of(layer, cells - by), by, self._n_ctx, interleaved=source.interleaved
            )
            self._cache.put_keys(layer, cells - by, keys)

    def save(self, n: int) -> bytes:
        """The first ``n`` cells."""
        return self._cache.save(n)

    def restore(self, body: bytes, n: int) -> bool:
        """Bring ``n`` cells back; False if there are too many or too few bytes."""
        return self._cache.restore(body, n)

    def close(self) -> None:
        """Free the library's part; the arrays go with this object. Safe to call twice."""
        self._bindings.clear()
        self._inputs.clear()
        super().close()


Array = npt.NDArray[Any]


class KVCache:
    """Keys and values that a session reads and writes in place; the keys of 16 cells lie side by side.

    Attributes:
        inputs: what is bound once, by the names of the graph's inputs: the cache, and the tables of rotary embeddings.

    Args:
        n_ctx: the most tokens of a text; some models use other rotary embeddings where it is long.
        n_cells: rounded up to a multiple of ``LANES``.
        f16: whether it holds fp16, else fp32.
    """

    def __init__(self, model: Transcription, n_ctx: int, n_cells: int, *, f16: bool) -> None:
        n_cells += -n_cells % LANES
        heads, kind = (model.n_layers, model.n_head_kv), np.float16 if f16 else np.float32
        self._keys: Array = np.zeros((*heads, n_cells // LANES, model.head_dim, LANES), kind)
        self._values: Array = np.zeros((*heads, n_cells, model.head_dim), kind)
        self.inputs: dict[str, Array] = {}
        for name, rotary in model.rotary.items():
            self.inputs[f"cos_{name}"], self.inputs[f"sin_{name}"] = rotary.table(n_cells, n_ctx)
        for layer in range(model.n_layers):
            self.inputs |= {f"key_{layer}": self._keys[layer], f"value_{layer}": self._values[layer]}
        # The number of committed cells, then parents: a chain, unless there is a tree.
        self._chain = np.arange(-2, n_cells - 1, dtype=np.int32)
        self._tree = self._chain.copy()

    def place(self, place: Place) -> npt.NDArray[np.int32]:
        """The graph's input ``tree`` for a run: the number of committed cells, and the parent of every node."""
        end = 1 + place.first + place.n_run
        tree = self._chain
        if place.tree is not None:
            tree = self._tree
            n = len(place.tree)
            tree[1 : 1 + n] = place.tree.parents
            tree[1 + n : end] = -1
        tree[0] = place.n_text
        return tree[:end]

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy cells, all at once."""
        keys, lanes = self._keys, LANES
        keys[:, :, targets // lanes, :, targets % lanes] = keys[:, :, sources // lanes, :, sources % lanes]
        self._values[:, :, targets] = self._values[:, :, sources]

    def keys_of(self, layer: int, cells: Cells) -> Array:
        """A copy of the keys of some cells, ``[n, n_head_kv, head_dim]``."""
        found: Array = self._keys[layer][:, cells // LANES, :, cells % LANES]
        return found

    def put_keys(self, layer: int, cells: Cells, keys: Array) -> None:
        """Replace them."""
        self._keys[layer][:, cells // LANES, :, cells % LANES] = keys

    def save(self, n: int) -> bytes:
        """The first ``n`` cells."""
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

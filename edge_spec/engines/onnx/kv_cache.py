"""The KV cache of a transcription, and how its graph is told where tokens go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.onnx.transcription.graph import LANES
from edge_spec.speculation.tree import Tree

__all__ = ["Cells", "KVCache", "Place"]

Array = npt.NDArray[Any]
Cells = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tokens of a run go.

    Attributes:
        n_text: committed cells, which every token sees.
        first: pending nodes that are in the cache already, in the cells after the text.
        n_run: tokens of this run, padding included, in the cells after those.
        tree: all pending nodes, those of this run included; None if each is the parent of the next.
    """

    n_text: int
    first: int
    n_run: int
    tree: Tree | None = None


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

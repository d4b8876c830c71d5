"""A transcription with the cells of its pool: arrays bound in place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.features import Features
from edge_spec.engines.onnx.kernels import library_path
from edge_spec.engines.onnx.kv_cache import BoundCache, KVCache
from edge_spec.engines.onnx.row_table import RowTable
from edge_spec.engines.onnx.runner import Runner
from edge_spec.engines.onnx.states import StatesMemory, kept_rows
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.onnx.transcription.fusion import THREADS
from edge_spec.engines.onnx.transcription.matrices import WEIGHTS
from edge_spec.engines.onnx.transcription.per_layer import PER_LAYER
from edge_spec.engines.onnx.transcription.recurrent import RUN
from edge_spec.engines.registry import use
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tiles import Cells, n_tiles
from edge_spec.errors import Sentence
from edge_spec.memory.device import probe
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import TILE

__all__ = ["Session"]


class Session(Runner):
    """A session and the arrays that go in and out. A run copies nothing and binds once per shape.

    Attributes:
        ids: int64 ``[prefill_chunk]``, to be filled before a run.
        features: what ``give_features`` gave.
        states: what texts take for recurrent layers; None where there are none.

    Raises:
        BackendError: ONNX Runtime cannot load the graph (the error quotes its reason), or the kernels are missing.
    """

    _looked_up_as = PER_LAYER
    """The input that takes rows of the model's table."""

    def __init__(self, model: Transcription, settings: ModelSettings) -> None:
        self._f16 = f16 = settings.kv_k == "f16"
        super().__init__(
            model.graph(f16=f16),
            n_threads=settings.threads[0],
            spin=settings.exact,
            operators=library_path(),
            held_experts=settings.held_experts,
            forgets_experts=bool(settings.held_experts) and not _has_room(model.folder / WEIGHTS),
            hint=Sentence("delete that folder, so that it is made again, or {use}", use=use("llama")),
        )
        self._source, self._n_ctx = model, settings.n_ctx
        self.n_vocab = model.n_vocab
        tables: dict[str, npt.NDArray[Any]] = {}
        self.n_tiles = n_tiles(settings.n_cells)
        n_cells = self.n_tiles * TILE
        for name, rotary in model.rotary.items():
            tables[f"cos_{name}"], tables[f"sin_{name}"] = rotary.table(n_cells, settings.n_ctx)
        if model.rotary["all"].temperature:
            tables["query_scales"] = model.rotary["all"].query_scales(n_cells)
        tables[THREADS] = self._n_threads = np.ones(1, np.int64)
        self.ids = np.zeros(settings.prefill_chunk, np.int64)
        self._rows = np.zeros(settings.max_rows, np.int64)
        self._logits = np.zeros((settings.max_rows, model.n_vocab), np.float32)
        self.features: Features | None = None
        n_kept = kept_rows(settings)
        self.states = StatesMemory(model.states, model.n_recurrent, n_kept) if model.states else None
        self._table = RowTable(model.table) if model.table is not None else None
        width = self._table.width if self._table is not None else 0
        self._looked_up = np.zeros((settings.prefill_chunk, width), np.float32)
        self._cache = KVCache(model, tables, self.n_tiles, f16=f16)
        self._bound = self._bind()

    @property
    def cell_bytes(self) -> int:
        """Bytes that a token takes in a cache, with its features for a head."""
        of_features = self.features.cell_bytes if self.features is not None else 0
        return self._source.cell_numbers * (2 if self._f16 else 4) + of_features

    def give_features(self, tail: bytes, name: str, width: int, *, coarse: bool = False) -> Features:
        """From now on keep what further nodes compute of every token. Cells that are in the cache already have zeros.

        The rows keep their bits: nodes are only added.

        Args:
            tail: nodes that are added to the graph, and their output of that name, f32 ``[1, S, width]``.
            coarse: keep them in 8 bits.

        Raises:
            BackendError: ONNX Runtime cannot load the graph with them; the session is as it was then.
        """
        self.features = None
        self._bound.close()
        try:
            self.extend(self._source.graph(f16=self._f16, visible=True), tail)
            computed = np.zeros((len(self.ids), width), np.float32)
            self.features = features = Features(name, self.n_tiles * TILE, computed, coarse=coarse)
        finally:
            self._bound = self._bind()
        return features

    def drop_features(self, features: Features) -> None:
        """Free the features. The added nodes stay in the graph and are still computed, which takes little time."""
        if self.features is features:
            self.features = None
            self._bound.close()
            self._bound = self._bind()

    def _bind(self) -> BoundCache:
        """Return the cells, bound to the graph."""
        return BoundCache(self._cache, self.ids, self._rows, self._logits, taken=self._taken(), given=self._given())

    def _taken(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return further inputs with a row for every token."""
        return {self._looked_up_as: self._looked_up} if self._table is not None else {}

    def _given(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return further outputs with a row for every token."""
        return {self.features.name: self.features.computed} if self.features is not None else {}

    def run(
        self,
        tree: Sequence[int],
        n_run: int,
        rows: range,
        states: Sequence[Sequence[int]] = (),
        *,
        n_threads: int,
    ) -> Logits:
        """Compute ``ids[:n_run]``; see ``BoundCache.run``.

        Args:
            n_threads: how many of the session's threads share the work. The bits do not depend on it.
            states: what ``States.prepare`` returned of each text.

        Raises:
            ModelFileError: what is looked up in the model's file cannot be read.
        """
        self._n_threads[0] = n_threads
        if self._table is not None:
            self._table.read(self.ids[:n_run], self._looked_up[:n_run])
        inputs = {RUN: self.states.numbers(states)} if self.states is not None else {}
        return self._bound.run(self, tree, inputs, n_run, rows)

    def copy(self, sources: Cells, targets: Cells) -> None:
        """Copy cells, one after the other; sources that are copied to as well come before that."""
        self._cache.copy(sources, targets)
        if self.features is not None:
            self.features.move(sources, targets)

    def turn_back(self, cells: Cells, by: int) -> None:
        """Turn the keys of some cells back by so many places."""
        source = self._source
        for layer, name in enumerate(source.layer_rotary):
            keys = source.rotary[name].moved_back(
                self._cache.keys_of(layer, cells), by, self._n_ctx, interleaved=source.interleaved
            )
            self._cache.put_keys(layer, cells, keys)

    def resize(self, n: int, n_kept: int) -> None:
        """Have ``n`` tiles, the first ``n_kept`` as they are.

        Raises:
            MemoryError: there is not so much memory; nothing has changed.
        """
        self._bound.close()
        try:
            self._cache.resize(n, n_kept)
            if self.features is not None:
                self.features.resize(n * TILE)
            self.n_tiles = n
        finally:
            self._bound = self._bind()

    def save(self, tiles: Sequence[int], n: int) -> bytes:
        """Return the first ``n`` cells of a list of tiles."""
        return self._cache.save(tiles, n)

    def state_bytes(self, n: int) -> int:
        """Return how many bytes ``save`` returns."""
        return self._cache.state_bytes(n)

    def restore(self, body: bytes, cells: Cells) -> None:
        """Make some cells what was saved of as many."""
        if self.features is not None:
            # They are not saved with the cells: whoever needs them keeps its own.
            self.features.forget(cells)
        self._cache.restore(body, cells)

    def close(self) -> None:
        """Free the library's part; the arrays go with this object. Safe to call twice."""
        self._bound.close()
        self.features = None
        if self._table is not None:
            self._table.close()
        super().close()


def _has_room(path: Path) -> bool:
    """Return whether the system can keep all of a file in memory, beyond what is taken."""
    return probe().available_bytes >= path.stat().st_size

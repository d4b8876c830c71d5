"""A transcription with its KV cache: arrays bound in place, and how the graph is told where tokens go."""

from __future__ import annotations

import numpy as np

from edge_spec.engines.onnx.features import Features
from edge_spec.engines.onnx.kernels import library_path
from edge_spec.engines.onnx.kv_cache import BoundCache, KVCache
from edge_spec.engines.onnx.model import Cells, Place
from edge_spec.engines.onnx.runner import Runner
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.onnx.transcription.graph import LANES
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Arguments, Sentence
from edge_spec.speculation.language_model import Logits

__all__ = ["Session"]


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
        self._f16 = f16 = settings.kv_k == "f16"
        super().__init__(
            model.graph(f16=f16),
            n_threads=settings.threads[0],
            spin=settings.exact,
            operators=library_path(),
            hint=Sentence(
                "delete that folder, so that it is made again, or use {instead}", instead=Arguments(engine="llama")
            ),
        )
        self._source, self._n_ctx = model, settings.n_ctx
        self.n_vocab = model.n_vocab
        self._tables = {}
        self._n_cells = n_cells = settings.n_cells + -settings.n_cells % LANES
        for name, rotary in model.rotary.items():
            self._tables[f"cos_{name}"], self._tables[f"sin_{name}"] = rotary.table(n_cells, settings.n_ctx)
        if model.rotary["all"].temperature:
            self._tables["query_scales"] = model.rotary["all"].query_scales(n_cells)
        self.ids = np.zeros(settings.prefill_chunk, np.int64)
        self._rows = np.zeros(settings.max_rows, np.int64)
        self._logits = np.zeros((settings.max_rows, model.n_vocab), np.float32)
        self._features: Features | None = None
        self._bound = self._bind(KVCache(model, self._tables, n_cells, f16=f16))
        self._cache = self._bound.cache

    @property
    def cell_bytes(self) -> int:
        """What a token takes in a cache."""
        model = self._source
        return model.n_layers * model.n_head_kv * model.head_dim * 2 * (2 if self._f16 else 4)

    def new_cache(self, n_cells: int) -> BoundCache:
        """Return an empty cache of ``n_cells``, a multiple of ``LANES``, for several texts."""
        return self._bind(KVCache(self._source, self._tables, n_cells, f16=self._f16))

    def new_features(self, n_cells: int) -> Features | None:
        """Return what ``give_features`` gave, for another cache of so many cells."""
        own = self._features
        return Features(own.name, n_cells, own.computed, coarse=own.coarse) if own is not None else None

    def give_features(self, tail: bytes, name: str, width: int, *, coarse: bool = False) -> Features:
        """From now on keep what further nodes compute of every token. Cells that are in the cache already have zeros.

        The rows keep their bits: nodes are only added.

        Args:
            tail: nodes that are added to the graph, and their output of that name, f32 ``[1, S, width]``.
            coarse: keep them in 8 bits.

        Raises:
            BackendError: ONNX Runtime cannot load the graph with them; the session is as it was then.
        """
        self._features = None
        self._bound.close()
        try:
            self.extend(tail)
            computed = np.zeros((len(self.ids), width), np.float32)
            self._features = features = Features(name, self._n_cells, computed, coarse=coarse)
        finally:
            self._bound = self._bind(self._cache)
        return features

    def drop_features(self, features: Features) -> None:
        """Free them. The graph goes on computing what it was given, which is little."""
        if self._features is features:
            self._features = None
            self._bound.close()
            self._bound = self._bind(self._cache)

    def _bind(self, cache: KVCache) -> BoundCache:
        """Return a cache, bound to the graph."""
        given = {self._features.name: self._features.computed} if self._features is not None else {}
        return BoundCache(cache, self.ids, self._rows, self._logits, given=given)

    def run(self, place: Place, rows: range) -> Logits:
        """Compute ``ids[:place.n_run]``.

        Args:
            rows: the tokens whose logits are wanted.

        Returns:
            Logits ``[rows, n_vocab]``, valid until the next run.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed.
        """
        logits = self._bound.run(self, self._cache.place(place), place.n_run, rows)
        if self._features is not None:
            first = place.n_text + place.first
            self._features.keep(slice(first, first + place.n_run), place.n_run)
        return logits

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy cells of the cache, all at once."""
        self._cache.move(sources, targets)
        if self._features is not None:
            self._features.move(sources, targets)

    def shift(self, first: int, last: int, n_past: int) -> None:
        """Move the cells from ``last`` to ``n_past`` to ``first``, and turn their keys back by as many positions."""
        source, by = self._source, last - first
        cells = np.arange(last, n_past)
        self.move(cells, cells - by)
        for layer, name in enumerate(source.layer_rotary):
            keys = source.rotary[name].moved_back(
                self._cache.keys_of(layer, cells - by), by, self._n_ctx, interleaved=source.interleaved
            )
            self._cache.put_keys(layer, cells - by, keys)

    def save(self, n: int) -> bytes:
        """Return the first ``n`` cells."""
        return self._cache.save(n)

    def restore(self, body: bytes, n: int) -> bool:
        """Bring ``n`` cells back; False if there are too many or too few bytes."""
        if self._features is not None:
            # They are not saved with the cells: whoever needs them keeps its own.
            self._features.forget(n)
        return self._cache.restore(body, n)

    def close(self) -> None:
        """Free the library's part; the arrays go with this object. Safe to call twice."""
        self._bound.close()
        self._features = None
        super().close()

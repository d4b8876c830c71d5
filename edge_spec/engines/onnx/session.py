"""A transcription with its arrays bound in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_spec.engines.onnx.kernels import library_path
from edge_spec.engines.onnx.kv_cache import Cells, KVCache, Place
from edge_spec.engines.onnx.runner import Runner, value_of
from edge_spec.engines.onnx.transcription.cache import Transcription
from edge_spec.engines.settings import ModelSettings
from edge_spec.speculation.language_model import Logits

__all__ = ["Session"]


class Session:
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
        self._runner = Runner(
            model.graph(f16=f16),
            n_threads=settings.threads[0],
            spin=settings.exact,
            operators=library_path(),
            hint="delete that folder, so that it is made again, or use --engine llama",
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
        self._runner.run(binding, long=place.n_run > len(self._rows))
        result = self._logits[: len(rows)]
        result.flags.writeable = False
        return result

    def _binding(self, n: int, n_rows: int) -> Any:
        """Everything bound for runs of this shape."""
        binding = self._bindings.get((n, n_rows))
        if binding is not None:
            return binding
        binding = self._runner.binding()
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

    def cancel(self) -> None:
        """Make a run in progress, or else the next one, raise ``Cancelled``."""
        self._runner.cancel()

    def resume(self) -> None:
        """Forget a ``cancel``."""
        self._runner.resume()

    def close(self) -> None:
        """Free the library's part; the arrays go with this object. Safe to call twice."""
        self._bindings.clear()
        self._inputs.clear()
        self._runner.close()

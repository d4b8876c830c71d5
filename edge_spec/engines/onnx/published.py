"""A published graph with memory bound to its inputs and outputs, and what that takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.past import new_past
from edge_spec.engines.onnx.runner import Runner, value_of
from edge_spec.engines.pool import Part
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tiles import Cells
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile
from edge_spec.models.onnx.signature import PublishedGraph
from edge_spec.speculation.language_model import Logits

__all__ = ["PublishedSession", "prefill_chunk", "published_footprint"]

Array = npt.NDArray[Any]

_MAX_BYTES = 64 << 20
"""The most for the logits of one run, and for its attention scores. Many graphs return logits for every token."""

_HIDDEN = {"float32": -1e9, "float16": -3e4}
"""A score that this is added to has a weight of exactly 0."""


class PublishedSession(Runner):
    """A published graph, loaded.

    Attributes:
        ids: ``[prefill_chunk]``, to be filled before a run.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load it; the error quotes its reason.
    """

    def __init__(self, graph: PublishedGraph, settings: ModelSettings, *, n_vocab: int) -> None:
        super().__init__(
            graph.path,
            n_threads=settings.threads[0],
            spin=settings.exact,
            external=True,
            hint="get another export of the model, or a newer onnxruntime",
        )
        self._graph = graph
        self.n_vocab = n_vocab
        self.cell_bytes = cell_bytes(graph)
        self.ids = np.zeros(settings.prefill_chunk, graph.ids.kind)
        self._past = new_past(graph, settings.n_cells)
        self._seen = np.ones(settings.n_cells, graph.mask.kind) if graph.mask is not None else np.ones(0)
        self._places = np.arange(settings.n_cells)
        self._computed = np.zeros((_logit_rows(graph, settings), n_vocab), graph.logits.kind)
        self._rows = np.zeros((settings.max_rows, n_vocab), np.float32)
        self._binding: Any = None

    def run(self, part: Part[Any], n_run: int, rows: range) -> Logits:
        """Compute ``ids[:n_run]``, the tokens of a part and padding; returns logits ``[rows, n_vocab]``, valid until
        the next run.

        Raises:
            Cancelled: ``cancel`` was called. BackendError: ONNX Runtime failed. Closed.
        """
        if self._binding is None:
            self._binding = self.binding()
        binding, start, n = self._binding, part.start, n_run
        inputs = dict(self._inputs(part, n, n - rows.start))
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, value_of(array))
        # The graph returns the last rows, as many as it is asked for.
        n_rows = 1 if self._graph.last_row_only else n if self._graph.keep is None else n - rows.start
        computed = self._computed[:n_rows]
        binding.bind_ortvalue_output(self._graph.logits.name, value_of(computed[None]))
        self._past.bind(binding, start, n)
        self.compute(binding, long=n > len(self._rows))
        self._past.ran()
        first = rows.start - (n - n_rows)
        result = self._rows[: len(rows)]
        result[...] = computed[first : first + len(rows)]
        result.flags.writeable = False
        return result

    def _inputs(self, part: Part[Any], n: int, n_kept: int) -> dict[str, Array]:
        graph, start, n_past, tree = self._graph, part.start, part.path.n_past, part.tree
        found = {graph.ids.name: self.ids[:n].reshape(1, n)}
        if graph.positions is not None:
            positions = self._places[start : start + n].astype(graph.positions.kind)
            if tree is not None and not tree.is_sequence:
                depths = tree.depths[part.first :]
                positions[: len(depths)] = [n_past + depth for depth in depths]
            found[graph.positions.name] = positions.reshape(1, n)
        if graph.mask is not None:
            flat = len(graph.mask.shape) == 2
            found[graph.mask.name] = self._seen[: start + n].reshape(1, -1) if flat else self._mask(part, n)
        if graph.keep is not None:
            found[graph.keep.name] = np.array(n_kept, graph.keep.kind)
        return found

    def _mask(self, part: Part[Any], n_run: int) -> Array:
        """Return what each token of a run sees, ``[1, 1, n_run, cells]``."""
        assert self._graph.mask is not None
        n_past, tree = part.path.n_past, part.tree
        cells = self._places[: part.start + n_run]
        seen = cells <= cells[part.start :, None]
        if tree is not None and not tree.is_sequence:
            n = len(tree)
            seen[: n - part.first, n_past : n_past + n] = tree.mask()[part.first :]
        kind = self._graph.mask.kind
        mask = seen if kind == "bool" else np.where(seen, 0, _HIDDEN[kind]).astype(kind)
        return mask[None, None]

    def move(self, sources: Cells, targets: Cells) -> None:
        """Copy cells of the cache, all at once."""
        for cells in self._past.views():
            cells[:, targets] = cells[:, sources]

    def save(self, n: int) -> bytes:
        """Return the first ``n`` cells."""
        return b"".join(cells[:, :n].tobytes() for cells in self._past.views())

    def restore(self, body: bytes, n: int) -> bool:
        """Bring ``n`` cells back; False if there are too many or too few bytes."""
        if len(body) != n * cell_bytes(self._graph):
            return False
        at = 0
        for cells in self._past.refill(n):
            cells[...] = np.frombuffer(body, cells.dtype, cells.size, at).reshape(cells.shape)
            at += cells.nbytes
        return True

    def close(self) -> None:
        """Free the library's part; the arrays go with this object. Safe to call twice."""
        self._binding = None
        super().close()


def cell_bytes(graph: PublishedGraph) -> int:
    """Return what the keys and values of one token take."""
    return sum(port.n_heads * port.head_dim for port in graph.cache) * np.dtype(graph.cache_kind).itemsize


def prefill_chunk(file: ModelFile, graph: PublishedGraph, settings: ModelSettings) -> int:
    """Return how many tokens of a prompt are read in one run: as many as asked for, limited by what they take.

    Graphs compute the logits of every token unless told otherwise, and the scores of every token with every other one.
    """
    row = 4 * file.n_head * settings.n_cells
    if graph.keep is None and not graph.last_row_only:
        row = max(row, np.dtype(graph.logits.kind).itemsize * file.n_vocab)
    return min(settings.prefill_chunk, max(settings.max_rows, _MAX_BYTES // row))


def _logit_rows(graph: PublishedGraph, settings: ModelSettings) -> int:
    if graph.last_row_only:
        return 1
    return settings.max_rows if graph.keep is not None else settings.prefill_chunk


def published_footprint(file: ModelFile, settings: ModelSettings) -> Footprint:
    """Return what a published model takes: weights, KV cache, logits, and what reading a chunk of a prompt computes.

    ONNX Runtime keeps a second copy of 4-bit weights in an order of its own, and 16-bit ones as 32-bit where the
    processor has no arithmetic for them; the mapped copy in the file can be evicted.
    """
    graph = file.graph
    assert graph is not None
    chunk = prefill_chunk(file, graph, settings)
    rows = settings.max_rows if graph.keep is not None else chunk
    scores = 3 * 4 * file.n_head * chunk * settings.n_ctx
    return Footprint(
        copied_bytes=sum(n * (2 if kind == "float16" else 1) for kind, n in file.tensor_types.items()),
        kv_cache_bytes=(1 if graph.in_place else 2) * cell_bytes(graph) * settings.n_cells,
        compute_bytes=scores + chunk * file.n_embd * 17 * 4,
        # Those that are computed, once more inside the library, and those that are returned.
        logits_bytes=4 * file.n_vocab * (2 * rows + settings.max_rows),
    )

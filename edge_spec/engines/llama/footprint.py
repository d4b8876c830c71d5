"""What a model will take on llama.cpp, before it is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from edge_spec.engines.llama.architectures import GRAPH_NODES
from edge_spec.engines.llama.settings import LlamaSettings, context_parameters
from edge_spec.llama_cpp.library import Library, library
from edge_spec.llama_cpp.weights import vocabulary_bytes
from edge_spec.memory import Footprint
from edge_spec.memory.usage import trim_heap
from edge_spec.models import ModelFile, TensorInfo
from edge_spec.models.model_file import kv_cache_bytes

__all__ = ["DryModel", "listen_to_buffers", "llama_footprint", "loads_mapped", "repacks_k_quants"]

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"

_ROWS = {
    # What the library repacks on processors with a flag: type -> output rows must be a multiple of this. From
    # ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp.
    "AVX2": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8},
    "AVX512": {"Q2_K": 8},
    "DOTPROD": {"Q4_0": 4, "Q4_K": 8, "Q5_K": 8, "Q6_K": 8, "IQ4_NL": 4, "MXFP4": 4, "Q8_0": 4, "Q1_0": 4},
}

_CONTEXT_BYTES = 1 << 20
"""What a context takes besides its buffers: the graph, the list of cells, the threads."""

_BYTES_PER_NODE = 1 << 10
_NODES_PER_LAYER = 96
"""The graph as a list of operations, twice: as it was planned and as it runs."""

_BYTES_PER_RESERVED_NODE = 2 << 10
"""Of lists with room for many more operations than there are, which are cleared as a whole; up to 2.0 KB, and less
where the heap has such room from a context before."""


class DryModel:
    """A model loaded without its weights: llama.cpp says what contexts of it would take, and allocates nothing.

    Only the library knows how it shares memory among the operations of an architecture, and it says so in its log.
    """

    def __init__(self, file: ModelFile) -> None:
        self._lib: Library = library()
        self._known: dict[LlamaSettings, str] = {}
        params = self._lib.c.llama_model_default_params()
        params.n_gpu_layers = 0
        params.no_alloc = True
        params.load_mode = self._lib.c.LLAMA_LOAD_MODE_NONE
        self._handle: Any = self._lib.c.llama_model_load_from_file(os.fsencode(file.path), params)
        self._lib.complaint()

    def compute_bytes(self, settings: LlamaSettings) -> int | None:
        """Size of the compute buffers of a context; None if the library does not say."""
        found = re.findall(r"compute buffer size = +([0-9.]+) MiB", self._log(settings))
        return sum(map(_bytes, found)) if found else None

    def state_bytes(self, settings: LlamaSettings) -> int | None:
        """Size of one state of the recurrent layers of a context; None if the library does not say."""
        found = re.findall(_STATES, self._log(settings))
        return sum(map(_bytes, found)) // _n_states(settings) if found else None

    def cells_bytes(self, settings: LlamaSettings) -> int | None:
        """Size of the caches of keys and values of a context, to 5 KiB each; None if the library does not say."""
        found = re.findall(_CELLS, self._log(settings))
        return sum(map(_bytes, found)) if found else None

    def _log(self, settings: LlamaSettings) -> str:
        """Return what the library says while it makes a context; nothing if it cannot."""
        if settings not in self._known:
            self._known[settings] = self._ask(settings) if self._handle else ""
        return self._known[settings]

    def _ask(self, settings: LlamaSettings) -> str:
        log: list[str] = []
        with self._lib.listen(log.append):
            context = self._lib.c.llama_init_from_model(self._handle, context_parameters(settings))
        self._lib.complaint()
        if not context:
            return ""
        self._lib.c.llama_free(context)
        return "".join(log)

    def close(self) -> None:
        """Free it. Safe to call twice."""
        handle, self._handle = self._handle, None
        if handle:
            self._lib.c.llama_model_free(handle)
            trim_heap()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_STATES = r"(?:RS|state) buffer size = +([0-9.]+) MiB"
"""Of recurrent layers, in the library's log."""

_CELLS = r"llama_kv_cache: size = +([0-9.]+) MiB"
"""Of all caches of a context: some architectures have more than one, and some share one among layers."""

_ROUNDED_BYTES = 16 << 10
"""By how much sizes in the log may be rounded."""

_COPIES = 2
"""States that a target has copies of at most: where a prompt began to be read, and where it ended."""


def _bytes(mib: str) -> int:
    return round(float(mib) * 1024) << 10


def _n_states(settings: LlamaSettings) -> int:
    """Return how many states of recurrent layers a context has room for."""
    return (1 + settings.n_snapshots) * (1 + settings.holds)


@contextmanager
def listen_to_buffers(measured: Callable[[str, int], None], settings: LlamaSettings) -> Iterator[None]:
    """Pass on what the library says it allocates meanwhile, by the names of ``Footprint.lines``.

    Args:
        settings: of the context that is made.
    """
    log: list[str] = []
    with library().listen(log.append):
        yield
    sizes: dict[str, int] = {}
    for buffer, kind, mib in re.findall(r"(\w+) (model|KV|compute) buffer size = +([0-9.]+) MiB", "".join(log)):
        weights = "mapped" if buffer.endswith("_Mapped") else "copied" if buffer == "CPU" else "repacked"
        name = {"KV": "KV cache", "compute": "compute buffers"}.get(kind, f"weights, {weights}")
        sizes[name] = sizes.get(name, 0) + _bytes(mib)
    states = sum(map(_bytes, re.findall(_STATES, "".join(log))))
    if states:
        sizes["recurrent state"] = one = states // _n_states(settings)
        sizes["copies of the state" if settings.holds else "snapshots for drafts"] = states - one
    for name, n_bytes in sizes.items():
        measured(name, n_bytes)


def llama_footprint(file: ModelFile, settings: LlamaSettings, *, dry: DryModel | None = None) -> Footprint:
    """Return what ``file`` takes with ``settings``.

    Args:
        dry: asked for the compute buffers, states and caches, which are estimated otherwise.
    """
    settings = settings.for_heads(file.head_dim_k).for_states(file.architecture)
    repacked = _repacked(file) if settings.repack else []
    staged = {tensor.name: tensor.n_bytes for tensor in repacked}
    others = file.weight_bytes - sum(staged.values())
    if not any(tensor.name == _HEAD for tensor in file.tensors) and _EMBEDDINGS in staged:
        # Embeddings that also serve as the head: looked up in one layout, multiplied with in the other.
        others += staged[_EMBEDDINGS]
    mapped = not repacked
    compute = dry.compute_bytes(settings) if dry is not None else None
    if compute is None:
        compute = _guess_compute_bytes(file, settings)
    state = dry.state_bytes(settings) if dry is not None else None
    if state is None:
        state = file.state_bytes
    cells = kv_cache_bytes(file, settings.n_cells, settings.kv_k, settings.kv_v)
    said = dry.cells_bytes(settings) if dry is not None else None
    if said is not None and abs(said - cells) > _ROUNDED_BYTES:
        cells = said
    return Footprint(
        mapped_bytes=others if mapped else 0,
        repacked_bytes=sum(staged.values()),
        copied_bytes=0 if mapped else others,
        loading_bytes=max(0, _staging_bytes(list(staged.values())) - others),
        vocabulary_bytes=vocabulary_bytes(file.vocabulary.n_tokens, file.n_merges),
        kv_cache_bytes=cells,
        state_bytes=state,
        snapshot_bytes=settings.n_snapshots * state,
        copy_bytes=(_COPIES if settings.exact else settings.holds) * state,
        compute_bytes=compute + _work_bytes(file, settings) + _CONTEXT_BYTES + _graph_bytes(file, settings),
        logits_bytes=4 * file.n_vocab * settings.max_rows,
    )


def loads_mapped(file: ModelFile, settings: LlamaSettings) -> bool:
    """Return whether the file is best mapped: if none of it is repacked."""
    return not (settings.repack and _repacked(file))


def repacks_k_quants(file: ModelFile, settings: LlamaSettings) -> bool:
    """Return whether the library copies K-quants into another layout on this processor."""
    return settings.repack and any(tensor.type_name.endswith("_K") for tensor in _repacked(file))


def _repacked(file: ModelFile) -> list[TensorInfo]:
    """Return the tensors that the library copies into another layout on this processor: matrices to multiply with."""
    rows = _repackable()
    tied = all(tensor.name != _HEAD for tensor in file.tensors)
    return [
        tensor
        for tensor in file.tensors
        if len(tensor.shape) > 1
        and tensor.shape[1] % rows.get(tensor.type_name, 1 << 62) == 0
        and (tensor.name.startswith("blk.") or tensor.name == (_EMBEDDINGS if tied else _HEAD))
    ]


def _staging_bytes(sizes: list[int]) -> int:
    """Return what repacking takes beyond its result: each tensor once more while it is copied, the largest first."""
    total = most = 0
    for size in sorted(sizes, reverse=True):
        total += size
        most = max(most, total + size)
    return max(0, most - total)


def _repackable() -> dict[str, int]:
    flags = set(re.findall(r"(\w+) = 1", library().features))
    if "REPACK" not in flags:
        return {}
    return {kind: rows for flag, kinds in _ROWS.items() if flag in flags for kind, rows in kinds.items()}


def _work_bytes(file: ModelFile, settings: LlamaSettings) -> int:
    """Return what a chunk's activations take when they are rounded to 8 bits for a product, with the widest input."""
    widest = max(tensor.shape[0] for tensor in file.tensors if len(tensor.shape) > 1)
    return settings.prefill_chunk * widest * 9 // 8


def _graph_bytes(file: ModelFile, settings: LlamaSettings) -> int:
    nodes = GRAPH_NODES.get(file.architecture, 0) * min(settings.prefill_chunk, settings.n_cells)
    return max(file.n_layers * _NODES_PER_LAYER * _BYTES_PER_NODE, nodes * _BYTES_PER_RESERVED_NODE)


def _guess_compute_bytes(file: ModelFile, settings: LlamaSettings) -> int:
    """For when the library says nothing: 17 numbers per token and width, a mask twice, and the rows of logits."""
    return settings.prefill_chunk * (file.n_embd * 17 * 4 + settings.n_cells * 6) + 4 * file.n_vocab * settings.max_rows

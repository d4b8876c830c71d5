"""ONNX Runtime as an engine: GGUFs, transcribed for edge-spec's kernels, and published ONNX models as they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from edge_spec.engines.base import Engine, Estimator
from edge_spec.engines.onnx.kernels import FLOATS, KINDS, NUMBERS, can_drop_pages, features, packed_bytes, why_slow
from edge_spec.engines.onnx.opener import (
    CACHE_KINDS,
    OnnxOpener,
    cache_kind,
    drafter_settings,
    known_onnx_profile,
    onnx_settings,
)
from edge_spec.engines.onnx.published import published_footprint
from edge_spec.engines.onnx.runner import is_loaded, runtime_version
from edge_spec.engines.onnx.states import kept_rows, most_copies
from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES, unfit
from edge_spec.engines.onnx.transcription.cache import is_current, is_transcribed, is_whole
from edge_spec.engines.onnx.transcription.cache_folder import transcriptions_in
from edge_spec.engines.onnx.transcription.graph import ATTENTION_HEADS, LANES
from edge_spec.engines.onnx.transcription.head import fusing_bytes, head_bytes, head_folder, head_network
from edge_spec.engines.onnx.transcription.matrices import group_outputs
from edge_spec.engines.onnx.transcription.network import FUSED_EXPERTS, KEYS_AND_VALUES
from edge_spec.engines.onnx.transcription.per_layer import per_layer_table
from edge_spec.engines.settings import ModelSettings, ThreadCounts
from edge_spec.engines.thread_counts import known_counts
from edge_spec.engines.tokenizers import why_no_tokenizer
from edge_spec.errors import ModelFileError
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile, TensorInfo
from edge_spec.models.heads import is_head
from edge_spec.models.model_file import bytes_by_type
from edge_spec.models.mtp import mtp_layers
from edge_spec.speculation.language_model import NumericsProfile

__all__ = ["OnnxEngine", "OnnxEstimator", "onnx_footprint"]

_MIN_SHARE = 0.75
"""Of a model's bytes, in quantized types: our kernels multiply floats too, but no faster than they come from memory."""

_QUANTIZED = frozenset(KINDS) - frozenset(FLOATS)


def _too_few_quantized(file: ModelFile) -> str | None:
    """Return why our kernels are no faster with a model, whose weights are of other types; None if they are faster."""
    types = bytes_by_type((tensor.type_name, tensor.n_bytes) for tensor in _stored(file))
    total = sum(types.values())
    if sum(types.get(kind, 0) for kind in _QUANTIZED) >= _MIN_SHARE * total:
        return None
    kind = next(kind for kind in types if kind not in _QUANTIZED)
    share = 100 * types[kind] // max(1, total)
    what = "do not multiply its" if kind not in KINDS else "are not known to be faster with"
    return f"edge-spec's kernels {what} weights of type {kind}, {share} % of all"


def _stored(file: ModelFile) -> list[TensorInfo]:
    """Return the tensors that a transcription contains.

    Left out are a table of which single rows are read, weights for keys and values of layers that read another layer's,
    and layers for further tokens, which are a head.
    """
    table, mtp = per_layer_table(file), tuple(f"blk.{layer}." for layer in mtp_layers(file.tensors))
    shared = {layer for layer, source in enumerate(file.sources) if source != layer}
    unused = {f"blk.{layer}.{name}" for layer in shared for name in KEYS_AND_VALUES}
    return [
        tensor
        for tensor in file.tensors
        if tensor is not table and tensor.name not in unused and not (mtp and tensor.name.startswith(mtp))
    ]


class OnnxEstimator(Estimator):
    """Footprints on ONNX Runtime, which follow from the file alone."""

    def _footprint(self, file: ModelFile, settings: ModelSettings, *, rough: bool) -> Footprint:
        return onnx_footprint(file, onnx_settings(settings))


_ACTIVATIONS = {
    **dict.fromkeys(("llama", "lfm2", "lfm2moe"), (5, 2)),
    **dict.fromkeys(("qwen2", "qwen3"), (7, 2)),
    "qwen35": (4, 2),
}
"""Numbers per token while a chunk is read, in units of the feed-forward network's width and of the model's: fitted to
what 512 tokens took in shapes of 14 million to a billion parameters."""

_LARGEST = (7, 2)

_LOOKED_UP = 2
"""Copies of what layers take in for every token: as it is looked up, and as they take it in."""

_ATTENTION_ROWS, _EXPERT_ROWS = 4, 4
"""The same for models with experts, in units of what attention reads and of the model's width: fitted to what 128 and
512 tokens took in three shapes."""

_PLAIN = 2
"""Dimensions of a matrix; one of every expert has one more."""

_EDGES_BYTES = 2 << 12
"""Pages that an expert shares with those beside it."""

_CONVOLUTIONS = ("shortconv.conv.weight", "ssm_conv1d.weight")

_TABLE_BYTES = 5 << 20
"""The code that reads rows of a table, of any type."""

_SESSION_BYTES = 4 << 20
"""The runtime's own code and tables for a graph."""


def onnx_footprint(file: ModelFile, settings: ModelSettings) -> Footprint:
    """Return what ``file`` takes with ``settings``, without its tokenizer."""
    if file.graph is not None:
        return published_footprint(file, settings)
    if is_head(file):
        return head_footprint(file, settings)
    matrices = _matrices(file)
    stored = [_stored_bytes(tensor) for tensor in matrices]
    n_cells = _n_cells(settings)
    cache = n_cells * _cell_bytes(file, settings)
    tables = 4 * n_cells * sum(set(file.head_dims) or {file.head_dim_k})
    of_experts = sum(n_bytes for n_bytes, tensor in zip(stored, matrices, strict=True) if len(tensor.shape) > _PLAIN)
    held_experts = of_experts if not settings.held_experts else _held_expert_bytes(file, settings.held_experts)
    paged = max(0, of_experts - held_experts)
    held = sum(stored) - paged
    states = _recurrent_bytes(file, settings)
    return Footprint(
        mapped_bytes=sum(stored) - of_experts,
        expert_bytes=of_experts - paged,
        paged_bytes=paged,
        kv_cache_bytes=cache + tables,
        **states,
        compute_bytes=_SESSION_BYTES + (_TABLE_BYTES if per_layer_table(file) is not None else 0),
        reading_bytes=_reading_bytes(file, settings.prefill_chunk),
        logits_bytes=4 * settings.max_rows * file.n_vocab,
        # While a model is transcribed: the largest matrix, its blocks and its new order.
        loading_bytes=max(0, 3 * max(stored, default=0) - held),
    )


def _n_cells(settings: ModelSettings) -> int:
    """Return how many cells a text has, room for drafts included."""
    return settings.n_cells + -settings.n_cells % LANES


def _cell_bytes(file: ModelFile, settings: ModelSettings) -> int:
    """Return what a token takes in a cache."""
    if is_head(file):
        # Keys and values in 16 bits, and in 8 the features that the target has computed.
        return 4 * file.n_head_kv[0] * file.head_dim_k + file.n_embd * 17 // 16
    return (2 if settings.kv_k == "f16" else 4) * sum(map(sum, file.cell_widths))


def _matrices(file: ModelFile) -> list[TensorInfo]:
    return [tensor for tensor in _stored(file) if len(tensor.shape) > 1]


def _recurrent_bytes(file: ModelFile, settings: ModelSettings) -> dict[str, int]:
    """Return what the states of a text take: themselves, what came in for the last tokens, and copies."""
    convolved = sum(math.prod(t.shape[1:]) for t in file.tensors if t.name.endswith(_CONVOLUTIONS))
    scores = sum(2 * t.n_elements for t in file.tensors if t.name.endswith("ssm_a"))
    return {
        "state_bytes": file.state_bytes,
        "snapshot_bytes": 4 * (convolved + scores) * kept_rows(settings),
        "copy_bytes": file.state_bytes * most_copies(settings),
    }


def _held_expert_bytes(file: ModelFile, n_held: int) -> int:
    """Return what so many experts of each layer take in memory, and for a moment all others that a layer uses."""
    held, others = 0, Counter[str]()
    for tensor in _stored(file):
        if len(tensor.shape) > _PLAIN:
            of_one = _stored_bytes(tensor) // tensor.shape[-1]
            held += n_held * (of_one + _EDGES_BYTES)
            # By layer. A strange file may have others besides; it is refused where it is transcribed.
            others[tensor.name.rpartition(".ffn")[0]] += (tensor.shape[-1] - n_held) * of_one
    return held + max(others.values(), default=0)


def _stored_bytes(tensor: TensorInfo) -> int:
    """Return what a matrix takes in a transcription."""
    if tensor.type_name in KINDS:
        return packed_bytes(tensor.type_name, _stored_outputs(tensor), tensor.shape[0])
    # A type that is not transcribed counts like floats until the file is refused.
    return 4 * tensor.n_elements


def _stored_outputs(tensor: TensorInfo) -> int:
    """Outputs of a matrix, or of those of all experts, each with groups of its own."""
    _, n_out, *n_expert = tensor.shape
    n_parts = 2 if FUSED_EXPERTS in tensor.name else 1
    return math.prod(n_expert) * n_parts * group_outputs(n_out // n_parts) if n_expert else n_out


def _reading_bytes(file: ModelFile, chunk: int) -> int:
    """What is held besides while a chunk is read."""
    expert = next((t for t in file.tensors if t.name.endswith("ffn_down_exps.weight")), None)
    of_ff, of_embd = _ACTIVATIONS.get(file.architecture, _LARGEST)
    table = per_layer_table(file)
    looked_up = table.shape[0] if table is not None else 0
    of_whole = 4 * chunk * (of_ff * _n_ff(file) + of_embd * file.n_embd + _LOOKED_UP * looked_up)
    if expert is None:
        return of_whole
    # What one expert hides is held for a bounded number of rows; attention's rows are the widest arrays.
    of_attention = (file.n_head + 2 * max(file.n_head_kv)) * file.head_dim_k
    shared = next((t.shape[1] for t in file.tensors if t.name.endswith("ffn_up_shexp.weight")), 0)
    of_rows = _ATTENTION_ROWS * of_attention + _EXPERT_ROWS * (file.n_embd + shared) + expert.shape[-1]
    of_experts = 4 * chunk * of_rows + 4 * NUMBERS["BLOCK_USES"] * (file.n_embd + 2 * expert.shape[0])
    # Layers without experts, with which some models begin, may be wider than what a row uses of the others.
    has_whole = any(t.name.endswith("ffn_up.weight") for t in file.tensors)
    return max(of_experts, of_whole) if has_whole else of_experts


def _n_ff(file: ModelFile) -> int:
    return max((t.shape[1] for t in file.tensors if t.name.endswith("ffn_up.weight")), default=4 * file.n_embd)


def head_footprint(file: ModelFile, settings: ModelSettings) -> Footprint:
    """Return what a head takes, with what its target keeps for it."""
    n_cells = _n_cells(settings)
    largest = max((tensor.n_bytes for tensor in file.tensors if len(tensor.shape) > 1), default=0)
    return Footprint(
        mapped_bytes=head_bytes(file),
        # The runtime holds it as it was given, too.
        copied_bytes=2 * fusing_bytes(file),
        # Tables of rotary embeddings count as well.
        kv_cache_bytes=n_cells * (_cell_bytes(file, settings) + 4 * file.head_dim_k),
        compute_bytes=_SESSION_BYTES,
        reading_bytes=4 * settings.prefill_chunk * (8 * file.n_embd + 3 * _n_ff(file)),
        logits_bytes=4 * settings.max_rows * (file.head.n_rows if file.head is not None else file.n_vocab),
        # While it is written: the largest matrix, its blocks and its new order.
        loading_bytes=3 * largest,
    )


class OnnxEngine(Engine):
    """Runs models on ONNX Runtime."""

    name = "onnx"
    title = "ONNX Runtime"
    package = "onnxruntime"
    auto_kv = CACHE_KINDS[0]
    process_bytes = 6 << 20
    library_bytes = 18 << 20
    estimator = OnnxEstimator
    opener = OnnxOpener

    def libraries(self) -> dict[str, str]:
        return {**super().libraries(), "own kernels": why_slow() or f"built, {features()[0]}"}

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(ARCHITECTURES)

    def load_library(self, *, verbose: bool = False) -> None:
        runtime_version()

    @property
    def is_loaded(self) -> bool:
        return is_loaded()

    def why_not(self, file: ModelFile) -> str | None:
        if file.graph is not None or is_head(file):
            return None
        what = unfit(file)
        # A trimmed drafter has its target's tokenizer.
        return f"it {what}" if what is not None else None if file.trimmed is not None else why_no_tokenizer(file)

    def why_not_draft(self, file: ModelFile, *, trees: bool) -> str | None:
        return "this model's recurrent layers take no trees" if trees and file.state_bytes else None

    def why_not_here(self, file: ModelFile) -> str | None:
        if file.graph is not None:
            return None
        odd = next((dim for dim in file.head_dims or (file.head_dim_k,) if dim not in ATTENTION_HEADS), None)
        return f"edge-spec's kernels have no attention for heads of {odd} numbers" if odd is not None else why_slow()

    def disk_bytes(self, file: ModelFile, *, cache_dir: Path | None) -> int:
        if file.graph is not None:
            return 0
        if is_head(file):
            kept = (cache_dir / "onnx").glob(f"*/{head_folder(file)}") if cache_dir is not None else ()
            return 0 if any(kept) else head_bytes(file)
        is_there = cache_dir is not None and is_transcribed(file, cache_dir / "onnx")
        return 0 if is_there else sum(map(_stored_bytes, _matrices(file)))

    def why_not_first(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> str | None:
        if file.graph is not None:
            return None
        why = super().why_not_first(file, settings, cache_dir=cache_dir)
        if is_head(file):
            return why
        why = why or _too_few_quantized(file)
        return why or (None if cache_dir is not None else "there is no cache folder to keep its ONNX form in")

    def why_not_network(self, head: ModelFile) -> str | None:
        try:
            head_network(head)
        except ModelFileError as error:
            return error.message
        return None

    def gives_hidden_rows(self, file: ModelFile) -> bool:
        return file.graph is None

    def unused(self, settings: ModelSettings) -> tuple[str, ...]:
        names = {*super().unused(settings), *(["n_threads_batch"] if settings.n_threads_batch else [])}
        if cache_kind(settings) is None:
            names |= {name for name in ("kv_k", "kv_v") if getattr(settings, name) != "auto"}
        return tuple(sorted(names))

    def resolve(self, file: ModelFile, settings: ModelSettings) -> ModelSettings:
        return drafter_settings(settings) if is_head(file) else onnx_settings(settings)

    def variants(self, file: ModelFile, settings: ModelSettings, fixed: frozenset[str]) -> Iterator[ModelSettings]:
        yield settings
        n_experts, n_used = file.experts
        if "held_experts" not in fixed and settings.held_experts != n_used < n_experts and can_drop_pages():
            # As many as a row uses are the least; a plan takes as many as there is room for.
            yield replace(settings, held_experts=n_used)

    def smaller_caches(self, file: ModelFile, settings: ModelSettings) -> list[tuple[str, str]]:
        # A published graph brings its own type.
        is_usual = file.graph is not None or onnx_settings(settings).kv_k == self.auto_kv
        return [] if is_usual else [(self.auto_kv, self.auto_kv)]

    def texts_bytes(self, file: ModelFile, settings: ModelSettings, n_texts: int) -> int:
        if file.graph is not None:
            return 0
        cells = _n_cells(settings) * _cell_bytes(file, settings)
        # The cells of the first text are planned with the model.
        n_further = min(n_texts, settings.max_rows) - 1
        return n_further * (cells + sum(_recurrent_bytes(file, settings).values()))

    def shown(self, settings: ModelSettings, footprint: Footprint) -> Mapping[str, str]:
        cache = {"kv": f"{settings.kv_k}/{settings.kv_v}"} if settings.kv_k != self.auto_kv else {}
        return cache | ({"experts": str(settings.held_experts)} if footprint.paged_bytes else {})

    def threads(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> ThreadCounts:
        if file.graph is not None:
            return super().threads(file, settings, cache_dir=cache_dir)
        return known_counts(file.fingerprint, onnx_settings(settings), cache_dir=cache_dir)

    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        return known_onnx_profile(file, settings, cache_dir=cache_dir)

    def kept_files(self, cache_dir: Path) -> Iterator[tuple[str, Path]]:
        return transcriptions_in(cache_dir / "onnx")

    def verified_files(self, cache_dir: Path) -> Iterator[tuple[str, Path, bool]]:
        for name, folder in self.kept_files(cache_dir):
            if is_current(folder):
                yield name, folder, is_whole(folder)

"""Facts from the header of a model file, and the size of its KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_spec.models.gguf.header import TensorInfo

if TYPE_CHECKING:
    from edge_spec.models.gguf.trimmed import TrimmedVocabulary
    from edge_spec.models.head_facts import HeadFacts
    from edge_spec.models.onnx.signature import PublishedGraph
from edge_spec.errors import Arguments, Sentence, SettingsError
from edge_spec.models.gguf.types import KV_TYPES
from edge_spec.options import require_one_of
from edge_spec.tokens.tokenizer import VocabularyIdentity

__all__ = ["CTX_STEP", "ModelFile", "bytes_by_type", "kv_cache_bytes"]


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model file that was inspected but not loaded.

    Attributes:
        path: the file; the first one if there are several.
        parts: all files of the model, ``path`` first.
        fingerprint: identity of its content, see ``inspect``; 32 hexadecimal digits.
        architecture: such as ``llama`` or ``qwen2``.
        name: from its metadata (printable characters only), else the file name without its extension.
        n_layers: transformer blocks.
        n_embd: width.
        n_head: query heads of the layer that has most.
        n_head_kv: key and value heads, ``[n_layers]``; 0 where a layer keeps no such cache: a recurrent one, one for
            further tokens (MTP), one that reads those of another.
        head_dim_k: width of a key, the largest if ``head_dims`` has several.
        head_dim_v: width of a value, likewise.
        head_dims: width of a key and of a value by layer; empty where all are alike.
        sources: the layer whose keys and values each layer reads; empty where all read their own.
        experts: how many a layer with experts has, and how many of them a row uses; 0 where there are none.
        n_ctx_train: context it was trained for; 0 if the file does not say.
        n_positions: rows of its table of positions, without which no token is computed; 0 if it has none.
        n_vocab: columns of a row of logits; of a published head the tokens of its target.
        state_bytes: the states of its recurrent layers, for one text; 0 if it has none. Some architectures have a
            little more.
        latent_attention: keys and values are computed from one cached row, which is stored as a key.
        sliding_window: how many tokens layers with a window look back; None if there are none.
        tensors: of all parts; empty for an ONNX model.
        n_merges: merges of its tokenizer; 0 for other kinds of tokenizers.
        n_params: number of weights.
        weight_bytes: size of all tensors.
        tensor_types: bytes per tensor type, largest first.
        quantization: the type that holds most bytes of the layers, such as ``Q4_0``. Embeddings do not count:
            in small models they outweigh the layers.
        vocabulary: identity of its vocabulary.
        chat_template: Jinja template of a conversation; None if the file has none.
        graph: inputs and outputs of a published ONNX model; None for a GGUF.
        trimmed: of a drafter that knows only some of its target's tokens; None if it knows all.
        head: what it reads of its target, of an EAGLE-3 head; None for a model of its own.
        license: as its metadata name it, printable; empty if they do not.
        sampling: the fields of ``SamplerSettings`` that are recommended for it, in their ranges or not; empty if none.
        sampling_by: who recommends them: its author, in the ``file``, or ``edge-spec``, which measured it.
    """

    path: Path
    parts: tuple[Path, ...]
    fingerprint: str
    architecture: str
    name: str
    n_layers: int
    n_embd: int
    n_head: int
    n_head_kv: tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    n_ctx_train: int
    n_vocab: int
    sliding_window: int | None
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    n_merges: int
    n_params: int
    weight_bytes: int
    tensor_types: dict[str, int]
    quantization: str
    vocabulary: VocabularyIdentity
    chat_template: str | None
    graph: PublishedGraph | None = None
    trimmed: TrimmedVocabulary | None = None
    head: HeadFacts | None = None
    license: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    sampling_by: str = "file"
    latent_attention: bool = False
    state_bytes: int = 0
    head_dims: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    experts: tuple[int, int] = (0, 0)
    n_positions: int = 0

    @property
    def cell_widths(self) -> list[tuple[int, int]]:
        """Return how many numbers of keys and of values each layer stores for a token."""
        dims = [(dim, dim) for dim in self.head_dims] or [(self.head_dim_k, self.head_dim_v)] * len(self.n_head_kv)
        return [(heads * k, heads * v) for heads, (k, v) in zip(self.n_head_kv, dims, strict=True)]


def bytes_by_type(tensors: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return bytes per type, largest first, from the type and the bytes of each tensor."""
    types: dict[str, int] = {}
    for kind, n_bytes in tensors:
        types[kind] = types.get(kind, 0) + n_bytes
    return dict(sorted(types.items(), key=lambda item: (-item[1], item[0])))


CTX_STEP = 256
"""llama.cpp rounds a context up to a multiple of this."""


def kv_cache_bytes(file: ModelFile, n_ctx: int, kv_k: str = "f16", kv_v: str = "f16") -> int:
    """Return the bytes of the keys and values of ``n_ctx`` tokens in a cache that keeps them all.

    In each layer a token has a row of ``n_head_kv * head_dim_k`` numbers for keys and one of
    ``n_head_kv * head_dim_v`` for values; rows are stored in whole blocks. Where values are computed from the keys'
    rows (latent attention), these are all. A cache with a sliding window takes less.

    Args:
        n_ctx: tokens; rounded up to ``CTX_STEP``.

    Raises:
        SettingsError: an unknown type, a context below 1, or rows that a type's blocks do not divide.
    """
    if n_ctx < 1:
        raise SettingsError(f"is {n_ctx} and must be at least 1", argument="n_ctx")
    n_cells = n_ctx + -n_ctx % CTX_STEP
    stored = (("kv_k", kv_k), ("kv_v", kv_v))[: 1 if file.latent_attention else 2]
    return n_cells * sum(
        _row_bytes(name, widths[side], kind) for side, (name, kind) in enumerate(stored) for widths in file.cell_widths
    )


def _row_bytes(name: str, n_values: int, kind: str) -> int:
    require_one_of(name, kind, KV_TYPES)
    of_kind = KV_TYPES[kind]
    if n_values % of_kind.block:
        problem = f"is {kind!r}, in blocks of {of_kind.block}, and this model's cache has rows of {n_values} numbers"
        raise SettingsError(problem, argument=name, hint=Sentence("use {instead}", instead=Arguments({name: "f16"})))
    return of_kind.row_bytes(n_values)

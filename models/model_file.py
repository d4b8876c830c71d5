"""What a model file holds, as far as planning, pairing and caching need to know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edge_spec.models.gguf.header import TensorInfo
from edge_spec.models.vocabulary import VocabularyIdentity

if TYPE_CHECKING:
    from edge_spec.models.onnx.signature import PublishedGraph

__all__ = ["ModelFile", "bytes_by_type"]


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
        n_head_kv: key and value heads, ``[n_layers]``; 0 where a layer keeps no such cache.
        head_dim_k: width of a key.
        head_dim_v: width of a value.
        n_ctx_train: context it was trained for; 0 if the file does not say.
        n_vocab: columns of a row of logits.
        sliding_window: how many tokens layers with a window look back; None if there are none.
        tensors: of all parts; empty for an ONNX model.
        n_merges: merges of its tokenizer; 0 for other kinds of tokenizers.
        n_params: number of weights.
        weight_bytes: size of all tensors.
        tensor_types: bytes per tensor type, largest first.
        quantisation: the type that holds most bytes of the layers, such as ``Q4_0``. Embeddings do not count:
            in small models they outweigh the layers.
        vocabulary: identity of its vocabulary.
        chat_template: Jinja template of a conversation; None if the file has none.
        graph: inputs and outputs of a published ONNX model; None for a GGUF.
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
    quantisation: str
    vocabulary: VocabularyIdentity
    chat_template: str | None
    graph: PublishedGraph | None = None


def bytes_by_type(tensors: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes per type, largest first, from the type and the bytes of each tensor."""
    types: dict[str, int] = {}
    for kind, n_bytes in tensors:
        types[kind] = types.get(kind, 0) + n_bytes
    return dict(sorted(types.items(), key=lambda item: (-item[1], item[0])))

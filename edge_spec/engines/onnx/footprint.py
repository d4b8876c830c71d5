"""What a model will take on ONNX Runtime, before it is transcribed or loaded."""

from __future__ import annotations

from edge_spec.engines.onnx.published import published_footprint
from edge_spec.engines.onnx.transcription.graph import LANES
from edge_spec.engines.onnx.transcription.matrices import stored_bytes
from edge_spec.engines.settings import ModelSettings
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile

__all__ = ["onnx_footprint"]

_ACTIVATIONS = {"llama": (5, 2), "qwen2": (7, 2), "qwen3": (7, 2)}
"""Numbers per token while a chunk is read, in units of the feed-forward network's width and of the model's: fitted to
what 512 tokens took in shapes of 14 million to a billion parameters."""

_LARGEST = (7, 2)

_SESSION_BYTES = 4 << 20
"""The runtime's own code and tables for a graph."""


def onnx_footprint(file: ModelFile, settings: ModelSettings) -> Footprint:
    """What ``file`` takes with ``settings``, without its tokenizer."""
    if file.graph is not None:
        return published_footprint(file, settings)
    matrices = [tensor for tensor in file.tensors if len(tensor.shape) > 1]
    # BF16 is not transcribed; it counts like other floats until the file is refused.
    stored = [
        4 * tensor.n_elements
        if tensor.type_name == "BF16"
        else stored_bytes(tensor.type_name, tensor.shape[1], tensor.shape[0])
        for tensor in matrices
    ]
    n_cells = settings.n_cells + -settings.n_cells % LANES
    per_cell = sum(heads * (file.head_dim_k + file.head_dim_v) for heads in file.n_head_kv)
    cache = (2 if settings.kv_k == "f16" else 4) * n_cells * per_cell
    tables = 4 * n_cells * file.head_dim_k
    of_ff, of_embd = _ACTIVATIONS.get(file.architecture, _LARGEST)
    n_ff = max((t.shape[1] for t in matrices if t.name.endswith("ffn_up.weight")), default=4 * file.n_embd)
    held = sum(stored)
    return Footprint(
        mapped_bytes=held,
        kv_cache_bytes=cache + tables,
        compute_bytes=_SESSION_BYTES,
        reading_bytes=4 * settings.prefill_chunk * (of_ff * n_ff + of_embd * file.n_embd),
        logits_bytes=4 * settings.max_rows * file.n_vocab,
        # While a model is transcribed: the largest matrix, its blocks and its new order.
        loading_bytes=max(0, 3 * max(stored, default=0) - held),
    )

"""What a model will take on ONNX Runtime, before it is transcribed or loaded."""

from __future__ import annotations

from edge_spec.engines.onnx.published import published_footprint
from edge_spec.engines.onnx.settings import OnnxSettings
from edge_spec.engines.onnx.transcription import LANES, best_form
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile

__all__ = ["onnx_footprint"]

_ACTIVATIONS = {"llama": (5, 2), "qwen2": (7, 2), "qwen3": (7, 2)}
"""Numbers per token while a chunk is read, in units of the feed-forward network's width and of the model's: fitted to
what 512 tokens took in shapes of 14 million to a billion parameters."""

_LARGEST = (7, 2)

_SESSION_BYTES = 4 << 20
"""The runtime's own code and tables for a graph."""

_FLOATS = ("F32", "F16", "BF16")


def onnx_footprint(file: ModelFile, settings: OnnxSettings) -> Footprint:
    """What ``file`` takes with ``settings``. The tokeniser is llama.cpp's and not counted here."""
    if file.graph is not None:
        return published_footprint(file, settings)
    form = best_form()
    matrices = [tensor for tensor in file.tensors if len(tensor.shape) > 1]
    stored = {
        tensor.name: form.stored_bytes(tensor.type_name, tensor.shape[1], tensor.shape[0])
        if tensor.type_name not in _FLOATS
        else 4 * tensor.n_elements
        for tensor in matrices
    }
    own_attention = form.attention(file.head_dim_k) == "rows"
    n_cells = settings.n_ctx + 2 * settings.max_rows
    if own_attention:
        n_cells += -n_cells % LANES
    per_cell = sum(heads * (file.head_dim_k + file.head_dim_v) for heads in file.n_head_kv)
    cache = (2 if settings.kv == "f16" else 4) * n_cells * per_cell
    turns = 4 * n_cells * file.head_dim_k
    bias = 0 if own_attention or not settings.trees else 4 * settings.prefill_chunk * n_cells
    of_ff, of_embd = _ACTIVATIONS.get(file.architecture, _LARGEST)
    n_ff = max((t.shape[1] for t in matrices if t.name.endswith("ffn_up.weight")), default=4 * file.n_embd)
    activations = 4 * settings.prefill_chunk * (of_ff * n_ff + of_embd * file.n_embd)
    held = sum(stored.values())
    mapped = form.name == "rows"
    return Footprint(
        mapped_bytes=held if mapped else 0,
        # ONNX Runtime's own operators pack weights into memory of their own.
        repacked_bytes=0 if mapped else held,
        kv_cache_bytes=cache + turns,
        compute_bytes=bias + _SESSION_BYTES,
        reading_bytes=activations,
        logits_bytes=4 * settings.max_rows * file.n_vocab,
        # While a model is transcribed: the largest matrix, its blocks and its new order.
        loading_bytes=max(0, 3 * max(stored.values(), default=0) - held),
    )

"""Heads on hidden states, with random weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from edge_spec.models import ModelFile
from edge_spec.models.made_for import add_target

__all__ = ["random_head", "write_head"]


def random_head(target: ModelFile, n_ff: int, *, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Weights by their names, of such sizes that every part changes what comes out."""
    random = np.random.default_rng(seed)
    width, kv = target.n_embd, target.n_head_kv[0] * target.head_dim_k
    sizes = {
        "fc": (width, 3 * width),
        "blk.0.attn_q": (target.n_head * target.head_dim_k, 2 * width),
        "blk.0.attn_k": (kv, 2 * width),
        "blk.0.attn_v": (kv, 2 * width),
        "blk.0.attn_output": (width, target.n_head * target.head_dim_k),
        "blk.0.ffn_gate": (n_ff, width),
        "blk.0.ffn_up": (n_ff, width),
        "blk.0.ffn_down": (width, n_ff),
    }
    norms = ("blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm")
    matrices = {name: random.standard_normal(size) / size[1] ** 0.5 for name, size in sizes.items()}
    arrays = {**matrices, **{name: random.uniform(0.5, 1.5, width) for name in norms}}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def write_head(
    path: Path, target: ModelFile, kept: npt.NDArray[np.int64], layers: tuple[int, ...], *, seed: int = 0
) -> None:
    """A head that knows ``kept`` of the target's tokens, and one row for all others."""
    n_ff = 2 * target.n_embd
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(target.n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(target.n_head)
    writer.add_head_count_kv(target.n_head_kv[0])
    writer.add_key_length(target.head_dim_k)
    writer.add_value_length(target.head_dim_k)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(target.head_dim_k)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(kept) + 1)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", target.n_embd)
    writer.add_tokenizer_model("none")
    add_target(writer, kept.tolist(), target)
    for name, array in random_head(target, n_ff, seed=seed).items():
        packed = gguf.GGMLQuantizationType.Q4_0 if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(array, packed) if array.ndim == 2 else array
        writer.add_tensor(f"{name}.weight", data, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

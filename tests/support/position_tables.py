"""A small GPT-2, which has a table of positions instead of rotary embeddings."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf_files import HEAD_DIM, N_EMBD, N_FF, N_LAYERS, N_VOCAB, add_vocabulary

__all__ = ["write_gpt2"]


def write_gpt2(path: Path, n_positions: int) -> Path:
    """Write one that knows so many positions; llama.cpp ends a process that computes a token at a later one."""
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(n_positions)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_EMBD // HEAD_DIM)
    writer.add_layer_norm_eps(1e-5)
    add_vocabulary(writer)
    chance = np.random.default_rng(1)

    def add(name: str, *shape: int, bias: bool = True) -> None:
        for part, size in (("weight", shape), *([("bias", shape[:1])] if bias else [])):
            writer.add_tensor(f"{name}.{part}", chance.normal(0, 0.05, size).astype(np.float32))

    add("token_embd", N_VOCAB, N_EMBD, bias=False)
    add("position_embd", n_positions, N_EMBD, bias=False)
    add("output_norm", N_EMBD)
    for layer in range(N_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", N_EMBD)
        add(f"blk.{layer}.attn_qkv", 3 * N_EMBD, N_EMBD)
        add(f"blk.{layer}.attn_output", N_EMBD, N_EMBD)
        add(f"blk.{layer}.ffn_up", N_FF, N_EMBD)
        add(f"blk.{layer}.ffn_down", N_EMBD, N_FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

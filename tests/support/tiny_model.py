"""A GGUF of two layers and 48 tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter


def write_model(path: Path, change: Callable[[GGUFWriter], None] | None = None, **facts: Any) -> Path:
    """A model of two layers, large enough to have every part that a real one has."""
    writer = GGUFWriter(path, facts.get("arch", "llama"))
    writer.add_name(facts.get("name", "tiny"))
    writer.add_block_count(facts.get("n_layers", 2))
    writer.add_embedding_length(64)
    writer.add_context_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(facts.get("n_head_kv", 2))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {i} ü" for i in range(48)])
    writer.add_token_types([1] * 48)
    writer.add_chat_template("{{ messages }}")
    if change is not None:
        change(writer)
    rng = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", rng.standard_normal((48, 64), dtype=np.float32))
    for layer in range(2):
        writer.add_tensor(f"blk.{layer}.attn_q.weight", rng.standard_normal((64, 64)).astype(np.float16))
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

"""GGUFs with the shapes of common models and random weights, for measuring memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

__all__ = ["SHAPES", "Shape", "add_sizes", "add_vocabulary", "finish", "repeated_blocks", "write_shape"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a transformer.

    Attributes:
        window: how far back most layers attend; 0 if all attend to everything.
        merges: whether the vocabulary has merges, as those of Llama 3 and Qwen, rather than scores.
        tied: whether the output matrix is the embedding.
    """

    architecture: str
    n_layers: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    tied: bool = False
    merges: bool = False
    window: int = 0


SHAPES = {
    "llama-20m": Shape(
        architecture="llama", n_layers=4, n_embd=256, n_ff=768, n_head=4, n_head_kv=4, head_dim=64, n_vocab=32000
    ),
    "llama-20m-128k": Shape(
        architecture="llama",
        n_layers=4,
        n_embd=256,
        n_ff=768,
        n_head=4,
        n_head_kv=4,
        head_dim=64,
        n_vocab=128256,
        tied=True,
        merges=True,
    ),
    "llama-0.1b": Shape(
        architecture="llama", n_layers=12, n_embd=768, n_ff=2048, n_head=12, n_head_kv=12, head_dim=64, n_vocab=32000
    ),
    "qwen2-0.5b": Shape(
        architecture="qwen2",
        n_layers=24,
        n_embd=896,
        n_ff=4864,
        n_head=14,
        n_head_kv=2,
        head_dim=64,
        n_vocab=151936,
        tied=True,
        merges=True,
    ),
    "llama-0.5b": Shape(
        architecture="llama", n_layers=24, n_embd=1024, n_ff=4096, n_head=16, n_head_kv=8, head_dim=64, n_vocab=32000
    ),
    "gemma3-1b": Shape(
        architecture="gemma3",
        n_layers=26,
        n_embd=1152,
        n_ff=6912,
        n_head=4,
        n_head_kv=1,
        head_dim=256,
        n_vocab=65536,
        tied=True,
        window=512,
    ),
    "llama-1.1b": Shape(
        architecture="llama", n_layers=22, n_embd=2048, n_ff=5632, n_head=32, n_head_kv=4, head_dim=64, n_vocab=32000
    ),
    "llama-1b": Shape(
        architecture="llama",
        n_layers=16,
        n_embd=2048,
        n_ff=8192,
        n_head=32,
        n_head_kv=8,
        head_dim=64,
        n_vocab=128256,
        tied=True,
        merges=True,
    ),
    # SmolLM2-1.7B's width and heads, with SmolLM2-135M's 30 layers instead of 24; 6,144 instead of 8,192 numbers in the
    # feed-forward part make up for these.
    "llama-1.7b": Shape(
        architecture="llama",
        n_layers=30,
        n_embd=2048,
        n_ff=6144,
        n_head=32,
        n_head_kv=32,
        head_dim=64,
        n_vocab=49152,
        tied=True,
        merges=True,
    ),
    "llama-3b": Shape(
        architecture="llama",
        n_layers=28,
        n_embd=3072,
        n_ff=8192,
        n_head=24,
        n_head_kv=8,
        head_dim=128,
        n_vocab=32000,
    ),
}
"""Shapes by name."""

_SCALES = {
    "Q4_K": slice(0, 4),
    **dict.fromkeys(("Q6_K", "TQ1_0", "TQ2_0"), slice(-2, None)),
    **dict.fromkeys(("Q4_0", "Q8_0", "Q1_0"), slice(0, 2)),
}
"""Where a block has its 16-bit scales."""


def write_shape(
    path: Path, shape: Shape, kind: str, *, embeddings: str = "", chat_template: str = "", n_ctx_train: int = 32768
) -> Path:
    """Write a model of a shape, its matrices of type ``kind``, its embedding and output matrix of type ``embeddings``.

    ``Q4_K_M`` is llama.cpp's mix of that name: Q4_K, with Q6_K for the output matrix and, in the layers where errors
    matter most, for values and down projections (``llama_tensor_get_type`` in src/llama-quant.cpp).
    """
    writer = GGUFWriter(path, shape.architecture)
    add_sizes(writer, shape, n_ctx_train)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    if shape.architecture == "llama":
        writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10000.0)
    if shape.window:
        writer.add_sliding_window(shape.window)
    add_vocabulary(writer, n_vocab=shape.n_vocab, merges=shape.merges, architecture=shape.architecture)
    if chat_template:
        writer.add_chat_template(chat_template)
    _add_tensors(writer, shape, kind, embeddings)
    finish(writer)
    return path


def add_sizes(writer: GGUFWriter, shape: Shape, n_ctx_train: int) -> None:
    """The metadata that every architecture has."""
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)


def finish(writer: GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: GGUFWriter, s: Shape, kind: str, embeddings: str) -> None:
    mixed = kind == "Q4_K_M"
    kind = "Q4_K" if mixed else kind
    embeddings = embeddings or kind

    def matrix(name: str, n_in: int, n_out: int, kind: str = kind) -> None:
        writer.add_tensor(f"{name}.weight", repeated_blocks(kind, n_out, n_in), raw_dtype=GGMLQuantizationType[kind])

    def vector(name: str, n: int) -> None:
        writer.add_tensor(name, np.ones(n, np.float32))

    head = "Q6_K" if mixed else embeddings
    matrix("token_embd", s.n_embd, s.n_vocab, head if s.tied else embeddings)
    vector("output_norm.weight", s.n_embd)
    if not s.tied:
        matrix("output", s.n_embd, s.n_vocab, head)
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    norms = ["attn_norm", "ffn_norm"]
    if s.architecture == "gemma3":
        norms += ["post_attention_norm", "post_ffw_norm"]
    for layer in range(s.n_layers):
        blk = f"blk.{layer}."
        finer = "Q6_K" if mixed and _matters_more(layer, s.n_layers) else kind
        for name in norms:
            vector(f"{blk}{name}.weight", s.n_embd)
        for name, n_out in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
            matrix(blk + name, s.n_embd, n_out, finer if name == "attn_v" else kind)
            if s.architecture == "qwen2":
                vector(f"{blk}{name}.bias", n_out)
        if s.architecture == "gemma3":
            vector(f"{blk}attn_q_norm.weight", s.head_dim)
            vector(f"{blk}attn_k_norm.weight", s.head_dim)
        matrix(blk + "attn_output", n_q, s.n_embd)
        for name in ("ffn_gate", "ffn_up"):
            matrix(blk + name, s.n_embd, s.n_ff)
        matrix(blk + "ffn_down", s.n_ff, s.n_embd, finer)


def _matters_more(layer: int, n_layers: int) -> bool:
    """Return whether llama.cpp spends more bits on a layer: the first and last eighth, and every third in between."""
    first, last = n_layers // 8, 7 * n_layers // 8
    return layer < first or layer >= last or (layer - first) % 3 == 2


def repeated_blocks(kind: str, n_out: int, n_in: int, *, n_rows: int = 16, scale: int = 1) -> npt.NDArray[np.uint8]:
    """Random blocks; the same ``n_rows`` are repeated, so that they are made faster than a disk writes them.

    Args:
        scale: how much larger their numbers are than those of others.
    """
    n_weights, n_bytes = gguf.constants.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    per_row = n_in // n_weights
    few = np.random.default_rng(n_in + n_out).integers(0, 256, (n_rows, per_row, n_bytes), dtype=np.uint8)
    place = _SCALES[kind]
    n_scales = len(range(*place.indices(n_bytes))) // 2
    few[..., place] = np.full((n_rows, per_row, n_scales), 2e-4 * scale, np.float16).view(np.uint8)
    rows = few.reshape(n_rows, -1)
    return np.concatenate([rows] * (n_out // n_rows) + [rows[: n_out % n_rows]])


def add_vocabulary(writer: GGUFWriter, *, n_vocab: int, merges: bool, architecture: str) -> None:
    """Tokens with merges, as the architecture's models have them, or with scores."""
    n = n_vocab
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + number) for number in range(256 - len(letters))]
    if not merges:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        kinds = [2, 3, 3, *[6] * 256]
        more = n - len(tokens)
        tokens += [f"▁w{number}" for number in range(more)]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(number) for number in range(n)])
        writer.add_token_types(kinds + [1] * more)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        return
    pairs = list(islice(product(letters, letters), n - len(letters) - 2))
    threes = islice(((a + b, c) for (a, b), c in product(pairs, letters)), n - len(letters) - 2 - len(pairs))
    merged = pairs + list(threes)
    tokens = [*letters, *(a + b for a, b in merged), "<|begin|>", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if architecture.startswith("qwen") else "llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (n - 2) + [3, 3])
    # Real vocabularies have up to twice as many merges as tokens.
    writer.add_token_merges([f"{a} {b}" for a, b in merged])
    writer.add_bos_token_id(n - 2)
    writer.add_eos_token_id(n - 1)

"""GGUFs of Gemma 4's architecture with random weights: the shape of a real one, and small ones for tests.

In the small ones every layer differs from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from model_shapes import add_vocabulary, finish, repeated_blocks

__all__ = ["E2B", "SHAPES", "Gemma4Shape", "write_gemma4"]


@dataclass(frozen=True, kw_only=True)
class Gemma4Shape:
    """The sizes of a model.

    Attributes:
        windowed: which layers have a window; its length is the number of layers.
        n_shared: layers at the end that read the keys and values of others.
        heads: of queries; of keys and values in layers without a window, and with one.
        dims: width of a head without a window, and with one.
        n_ff: how wide feed-forward networks are, by layer.
        per_layer: numbers that a layer takes in for a token; 0 for none.
        turned: pairs of a head that positions turn, without a window.
        unvalued: layers whose values are their keys.
        keeps_keys: whether layers that read the keys and values of others have tensors for their own nevertheless.
        fused: layers whose queries, keys and values come from one matrix.
        scaled: whether what goes out of layers is multiplied.
        soft_cap: bound of logits; 0 for none, and None where the file does not say.
    """

    windowed: tuple[bool, ...] = (True, True, False, True, False, True, False)
    n_shared: int = 2
    heads: tuple[int, int, int] = (4, 1, 2)
    dims: tuple[int, int] = (64, 32)
    n_ff: tuple[int, ...] = (384, 384, 256, 384, 256, 512, 640)
    n_embd: int = 256
    n_vocab: int = 384
    per_layer: int = 64
    turned: int = 8
    unvalued: tuple[int, ...] = ()
    keeps_keys: bool = False
    fused: tuple[int, ...] = ()
    scaled: bool = True
    soft_cap: float | None = 3.0
    window: int = 16
    tied: bool = True
    n_ctx_train: int = 1024

    @property
    def n_layers(self) -> int:
        return len(self.windowed)

    def has_keys(self, layer: int) -> bool:
        """Return whether there are tensors for a layer's keys and values."""
        return self.keeps_keys or layer < self.n_layers - self.n_shared


SHAPES = {
    "as E2B: shared layers, a table": Gemma4Shape(),
    "as 31B: keys are values, no table": Gemma4Shape(
        n_shared=0, heads=(4, 2, 4), per_layer=0, unvalued=(2, 4, 6), scaled=False, soft_cap=None, tied=False
    ),
    "one head of keys, fused, keys are values": Gemma4Shape(
        windowed=(True, False, True, False, False),
        n_shared=1,
        heads=(4, 1, 1),
        dims=(48, 80),
        n_ff=(384,) * 5,
        turned=24,
        soft_cap=0.0,
        unvalued=(2, 3),
        fused=(0, 1),
    ),
}
"""Tiny models: heads of two sizes, other heads of keys and values and other networks by layer."""


E2B = Gemma4Shape(
    windowed=(True, True, True, True, False) * 7,
    n_shared=20,
    heads=(8, 1, 1),
    dims=(512, 256),
    n_ff=(6144,) * 15 + (12288,) * 20,
    n_embd=1536,
    n_vocab=262144,
    per_layer=256,
    turned=64,
    soft_cap=30.0,
    window=512,
    n_ctx_train=32768,
)
"""The shape of the smallest real one: the table has 2.35 G numbers, all else 2.3 G."""


def write_gemma4(
    path: Path,
    shape: Gemma4Shape,
    kind: str = "F32",
    *,
    table: str | None = None,
    seed: int | None = 0,
    noise: float = 0.0,
    chat_template: str = "",
) -> Path:
    """Write a model.

    Args:
        kind: of its matrices.
        table: type of the table of what layers take in; ``kind`` if not told.
        seed: draw every weight; with None a few rows are repeated, for large models.
        noise: add so many standard deviations of other numbers to the weights: a drafter for the model without.
    """
    writer = GGUFWriter(path, "gemma4")
    _add_facts(writer, shape)
    add_vocabulary(writer, n_vocab=shape.n_vocab, merges=False, architecture="gemma4")
    if chat_template:
        writer.add_chat_template(chat_template)
    tensors = _Tensors(writer, kind, seed, noise)
    embd, wide, n_head = shape.n_embd, shape.dims[0], shape.heads[0]
    tensors.matrix("token_embd", embd, shape.n_vocab)
    tensors.vector("output_norm.weight", embd, 1)
    if not shape.tied:
        tensors.matrix("output", embd, shape.n_vocab)
    if not all(shape.windowed):
        divisors = [1.0] * shape.turned + [1e30] * (wide // 2 - shape.turned)
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    if shape.per_layer:
        tensors.matrix("per_layer_token_embd", shape.n_layers * shape.per_layer, shape.n_vocab, kind=table)
        tensors.matrix("per_layer_model_proj", embd, shape.n_layers * shape.per_layer)
        tensors.vector("per_layer_proj_norm.weight", shape.per_layer, 1)
    for layer, narrow in enumerate(shape.windowed):
        blk, dim, n_kv = f"blk.{layer}.", shape.dims[narrow], shape.heads[1 + narrow]
        for name in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            tensors.vector(f"{blk}{name}.weight", embd, 1)
        tensors.attention(blk, shape, layer, n_head * dim, n_kv * dim)
        tensors.matrix(f"{blk}attn_output", n_head * dim, embd)
        tensors.vector(f"{blk}attn_q_norm.weight", dim, 0.4)
        if shape.has_keys(layer):
            tensors.vector(f"{blk}attn_k_norm.weight", dim, 0.4)
        tensors.matrix(f"{blk}ffn_gate", embd, shape.n_ff[layer])
        tensors.matrix(f"{blk}ffn_up", embd, shape.n_ff[layer])
        tensors.matrix(f"{blk}ffn_down", shape.n_ff[layer], embd)
        if shape.per_layer:
            tensors.matrix(f"{blk}inp_gate", embd, shape.per_layer)
            tensors.matrix(f"{blk}proj", shape.per_layer, embd)
            tensors.vector(f"{blk}post_norm.weight", embd, 1)
        if shape.scaled:
            tensors.vector(f"{blk}layer_output_scale.weight", 1, 0.8)
    finish(writer)
    return path


def _add_facts(writer: GGUFWriter, s: Gemma4Shape) -> None:
    numbers: dict[str, Any] = {
        "context_length": s.n_ctx_train,
        "embedding_length": s.n_embd,
        "block_count": s.n_layers,
        "attention.head_count": s.heads[0],
        "attention.key_length": s.dims[0],
        "attention.value_length": s.dims[0],
        "attention.key_length_swa": s.dims[1],
        "attention.value_length_swa": s.dims[1],
        "attention.sliding_window": s.window,
        "attention.shared_kv_layers": s.n_shared,
        "embedding_length_per_layer_input": s.per_layer,
        "rope.dimension_count": s.dims[0],
        "rope.dimension_count_swa": s.dims[1],
    }
    reals = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}
    if s.soft_cap is not None:
        reals["final_logit_softcapping"] = s.soft_cap
    for name, number in numbers.items():
        writer.add_uint32(f"gemma4.{name}", number)
    for name, real in reals.items():
        writer.add_float32(f"gemma4.{name}", real)
    writer.add_sliding_window_pattern(s.windowed)
    # Converters write one number where all layers have the same.
    n_head_kv = [s.heads[1 + narrow] for narrow in s.windowed]
    writer.add_head_count_kv(n_head_kv if len(set(n_head_kv)) > 1 else n_head_kv[0])
    writer.add_feed_forward_length(list(s.n_ff) if len(set(s.n_ff)) > 1 else s.n_ff[0])


class _Tensors:
    """Adds random tensors to a file."""

    def __init__(self, writer: GGUFWriter, kind: str, seed: int | None, noise: float) -> None:
        self._writer, self._kind, self._noise, self._repeats = writer, kind, noise, seed is None
        self._rng, self._other = (np.random.default_rng((seed or 0) + other) for other in (0, 99))

    def matrix(self, name: str, n_in: int, n_out: int, *, kind: str | None = None) -> None:
        stored = GGMLQuantizationType[kind or self._kind]
        if self._repeats:
            self._writer.add_tensor(f"{name}.weight", repeated_blocks(stored.name, n_out, n_in), raw_dtype=stored)
            return
        values = self._rng.standard_normal((n_out, n_in))
        values += self._noise * self._other.standard_normal(values.shape)
        blocks = gguf.quants.quantize((values * 2 / np.sqrt(n_in)).astype(np.float32), stored)
        self._writer.add_tensor(f"{name}.weight", blocks, raw_dtype=stored)

    def vector(self, name: str, n: int, mean: float) -> None:
        self._writer.add_tensor(name, (mean * (1 + 0.2 * self._rng.standard_normal(n))).astype(np.float32))

    def attention(self, blk: str, shape: Gemma4Shape, layer: int, n_q: int, n_kv: int) -> None:
        """Add what makes queries, and keys and values if a layer has its own."""
        if layer in shape.fused:
            self.matrix(f"{blk}attn_qkv", shape.n_embd, n_q + 2 * n_kv)
            return
        names: Sequence[str] = ("attn_k",) if layer in shape.unvalued else ("attn_k", "attn_v")
        self.matrix(f"{blk}attn_q", shape.n_embd, n_q)
        for name in names if shape.has_keys(layer) else ():
            self.matrix(blk + name, shape.n_embd, n_kv)

"""GGUFs with the shapes of models with recurrent layers and random weights: real ones, and small ones for tests.

The sizes of the real ones are those that llama.cpp tells such models by (``load_arch_hparams`` in its src/models), and
those of the models' published configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from model_shapes import add_vocabulary, finish, repeated_blocks

__all__ = ["HYBRIDS", "SMALL_HYBRIDS", "HybridShape", "write_hybrid"]

_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class HybridShape:
    """The sizes of a model with recurrent layers.

    Attributes:
        attention: layers with attention.
        conv: over how many tokens a recurrent layer's convolution reaches.
        state: numbers of a state for each of its channels; 0 for convolutions alone.
        inner: channels of a state.
        groups: of keys and queries that channels share.
        tied: whether the output matrix is the embedding.
        merges: whether the vocabulary has merges rather than scores.
        experts: how many a layer has, how many of them a row uses, and how wide each is, like the one that all rows use
            besides; none if empty.
        dense: layers at the beginning that have none.
        mtp: layers for further tokens behind the others.
    """

    architecture: str
    n_layers: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    attention: tuple[int, ...]
    conv: int = 4
    state: int = 128
    inner: int = 0
    groups: int = 0
    tied: bool = False
    merges: bool = False
    experts: tuple[int, ...] = ()
    dense: int = 1
    mtp: int = 0


HYBRIDS = {
    "lfm2.5-1.2b": HybridShape(
        architecture="lfm2",
        n_layers=16,
        n_embd=2048,
        n_ff=8192,
        n_head=32,
        n_head_kv=8,
        head_dim=64,
        n_vocab=65536,
        attention=(2, 5, 8, 10, 12, 14),
        conv=3,
        state=0,
        tied=True,
        merges=True,
    ),
    "lfm2-8b-a1b": HybridShape(
        architecture="lfm2moe",
        n_layers=24,
        n_embd=2048,
        n_ff=7168,
        n_head=32,
        n_head_kv=8,
        head_dim=64,
        n_vocab=65536,
        attention=(2, 6, 10, 14, 18, 21),
        conv=3,
        state=0,
        tied=True,
        merges=True,
        experts=(32, 4, 1792),
        dense=2,
    ),
    "qwen3.5-2b": HybridShape(
        architecture="qwen35",
        n_layers=24,
        n_embd=2048,
        n_ff=6144,
        n_head=8,
        n_head_kv=2,
        head_dim=256,
        n_vocab=248320,
        attention=tuple(range(3, 24, 4)),
        inner=2048,
        groups=16,
        tied=True,
        merges=True,
    ),
}
"""Shapes of real models by name."""

_SMALL = HybridShape(
    architecture="", n_layers=2, n_embd=256, n_ff=384, n_head=4, n_head_kv=2, head_dim=64, n_vocab=384, attention=(1,)
)

SMALL_HYBRIDS = {
    "lfm2": replace(_SMALL, architecture="lfm2", conv=3, state=0),
    "qwen35": replace(_SMALL, architecture="qwen35", inner=256, groups=2),
    "nemotron_h": replace(_SMALL, architecture="nemotron_h", n_layers=3, state=32, inner=256, groups=2),
    "falcon-h1": replace(_SMALL, architecture="falcon-h1", attention=(0, 1), state=32, inner=256, groups=2),
    "mamba": replace(_SMALL, architecture="mamba", attention=(), state=16, inner=512),
}
"""Shapes of a few layers by architecture. llama.cpp keeps no snapshots of the last two."""


def write_hybrid(path: Path, shape: HybridShape, kind: str, *, seed: int | None = None, noise: float = 0.0) -> Path:
    """Write a model of a shape, its matrices of type ``kind``.

    Args:
        seed: draw every weight, for small models whose text should not repeat itself; else a few rows are repeated.
        noise: add so many standard deviations of other numbers to the drawn weights: a drafter for the model without.
    """
    writer = GGUFWriter(path, shape.architecture)
    _add_sizes(writer, shape)
    add_vocabulary(writer, n_vocab=shape.n_vocab, merges=shape.merges, architecture=shape.architecture)
    writer.add_chat_template(_TEMPLATE)
    tensors = _Tensors(writer, kind, seed, noise)
    tensors.matrix("token_embd", shape.n_embd, shape.n_vocab)
    tensors.vector(
        "token_embd_norm.weight" if shape.architecture.startswith("lfm2") else "output_norm.weight", shape.n_embd
    )
    if not shape.tied:
        tensors.matrix("output", shape.n_embd, shape.n_vocab)
    for layer in range(shape.n_layers + shape.mtp):
        _LAYERS[shape.architecture](tensors, shape, layer, f"blk.{layer}.")
    finish(writer)
    return path


_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def _add_sizes(writer: GGUFWriter, s: HybridShape) -> None:
    numbers: dict[str, Any] = {
        "context_length": 32768,
        "embedding_length": s.n_embd,
        "block_count": s.n_layers + s.mtp,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "vocab_size": s.n_vocab,
    }
    by_layer = s.architecture in ("lfm2", "lfm2moe", "nemotron_h", "granitehybrid")
    heads_kv = [s.n_head_kv * (layer in s.attention) for layer in range(s.n_layers)]
    numbers["attention.head_count"] = s.n_head if s.attention else 0
    numbers["attention.head_count_kv"] = heads_kv if by_layer else s.n_head_kv if s.attention else 0
    numbers["feed_forward_length"] = s.n_ff if s.attention else 0
    if s.architecture.startswith("lfm2"):
        numbers["shortconv.l_cache"] = s.conv
    else:
        numbers |= {
            "ssm.conv_kernel": s.conv,
            "ssm.inner_size": s.inner,
            "ssm.state_size": s.state,
            "ssm.time_step_rank": s.n_embd // 16 if s.architecture == "mamba" else _heads(s),
            "ssm.group_count": s.groups,
        }
    if s.experts:
        names = ("expert_count", "expert_used_count", "expert_feed_forward_length")
        numbers |= dict(zip(names, s.experts, strict=True))
        if s.architecture != "lfm2moe":
            numbers["expert_shared_feed_forward_length"] = s.experts[2]
    if s.architecture == "lfm2moe":
        numbers |= {"leading_dense_block_count": s.dense, "expert_gating_func": 2}
    if s.architecture.startswith("qwen35"):
        # A quarter of a head is turned, in three sections.
        n_pairs = s.head_dim // 8
        numbers["rope.dimension_count"] = 2 * n_pairs
        third = n_pairs // 3
        numbers["rope.dimension_sections"] = [n_pairs - 2 * third, third, third, 0]
        numbers["full_attention_interval"] = s.attention[0] + 1
        if s.mtp:
            numbers["nextn_predict_layers"] = s.mtp
    if s.architecture == "nemotron_h":
        numbers["feed_forward_length"] = [s.n_ff * (layer >= 2) for layer in range(s.n_layers)]
    for name, value in numbers.items():
        (writer.add_array if isinstance(value, list) else writer.add_uint32)(f"{s.architecture}.{name}", value)
    writer.add_layer_norm_rms_eps(_EPSILON)
    if s.architecture == "nemotron_h":
        writer.add_layer_norm_eps(_EPSILON)
    writer.add_rope_freq_base(1e6)


def _heads(s: HybridShape) -> int:
    """Heads of a state: as wide as they are long in the delta rule, else 64 channels."""
    return s.inner // (s.state if s.architecture.startswith("qwen35") else 64)


class _Tensors:
    """Adds random tensors to a file; ``seed`` and ``noise`` are those of ``write_hybrid``."""

    def __init__(self, writer: GGUFWriter, kind: str, seed: int | None, noise: float) -> None:
        self._writer, self._kind, self._noise = writer, kind, noise
        self._drawn = np.random.default_rng(seed) if seed is not None else None
        self._other = np.random.default_rng(1000 + (seed or 0))

    def _normal(self, *shape: int) -> Any:
        assert self._drawn is not None
        return self._drawn.standard_normal(shape) + self._noise * self._other.standard_normal(shape)

    def matrix(self, name: str, n_in: int, n_out: int, *, kind: str = "", n_expert: int = 0) -> None:
        """A matrix of a type, or one of every expert; as small ones cannot be of every type, ``kind`` names another."""
        kind = kind or self._kind
        of_kind = GGMLQuantizationType[kind]
        n_rows, n_out = n_out, n_out * max(1, n_expert)
        if self._drawn is None and kind not in ("F32", "F16"):
            # Many different tokens, larger than what layers add, so that rows choose different experts in all of them.
            is_table = name == "token_embd"
            blocks = repeated_blocks(kind, n_out, n_in, **{"n_rows": 1024, "scale": 64} if is_table else {})
            blocks = blocks.reshape(n_expert, n_rows, -1) if n_expert else blocks
            self._writer.add_tensor(f"{name}.weight", blocks, raw_dtype=of_kind)
            return
        if self._drawn is not None:
            values = self._normal(n_out, n_in)
        elif name.endswith("ffn_gate_inp"):
            # What layers add repeats every 16 numbers. Routers that do not see it choose by the token alone: all
            # experts are used about as often as any other, as those of trained models are.
            values = self._other.standard_normal((n_out, n_in // 16, 16))
            values = (values - values.mean(axis=1, keepdims=True)).reshape(n_out, n_in)
        else:
            values = np.ones((n_out, n_in))
        values = (values * (2 / np.sqrt(n_in))).astype(np.float32)
        blocks = gguf.quants.quantize(values, of_kind)
        blocks = blocks.reshape(n_expert, n_rows, -1) if n_expert else blocks
        self._writer.add_tensor(f"{name}.weight", blocks, raw_dtype=of_kind)

    def vector(self, name: str, *shape: int, mean: float = 1.0, spread: float = 0.1) -> None:
        """Numbers around ``mean``; all of them ``mean`` without a seed."""
        values = mean + spread * self._normal(*shape) if self._drawn is not None else np.full(shape, mean)
        self._writer.add_tensor(name, values.astype(np.float32))


def _attention(t: _Tensors, s: HybridShape, blk: str, *, gated: bool = False, norms: bool = False) -> None:
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    t.matrix(f"{blk}attn_q", s.n_embd, n_q * (1 + gated))
    t.matrix(f"{blk}attn_k", s.n_embd, n_kv)
    t.matrix(f"{blk}attn_v", s.n_embd, n_kv)
    t.matrix(f"{blk}attn_output", n_q, s.n_embd)
    for name in ("attn_q_norm", "attn_k_norm") if norms else ():
        t.vector(f"{blk}{name}.weight", s.head_dim)


def _feed_forward(t: _Tensors, s: HybridShape, blk: str, *, gate: bool = True) -> None:
    if s.experts and not (s.architecture == "lfm2moe" and int(blk.split(".")[1]) < s.dense):
        _experts(t, s, blk)
        return
    for name in ("ffn_gate", "ffn_up") if gate else ("ffn_up",):
        t.matrix(blk + name, s.n_embd, s.n_ff)
    t.matrix(f"{blk}ffn_down", s.n_ff, s.n_embd)


def _experts(t: _Tensors, s: HybridShape, blk: str) -> None:
    n_expert, _, n_ff = s.experts
    t.matrix(f"{blk}ffn_gate_inp", s.n_embd, n_expert, kind="F32")
    shared = s.architecture != "lfm2moe"
    if shared:
        t.vector(f"{blk}ffn_gate_inp_shexp.weight", s.n_embd, mean=0.0)
    else:
        t.vector(f"{blk}exp_probs_b.bias", n_expert, mean=0.0)
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        sizes = (n_ff, s.n_embd) if name == "ffn_down" else (s.n_embd, n_ff)
        t.matrix(f"{blk}{name}_exps", *sizes, n_expert=n_expert)
        if shared:
            t.matrix(f"{blk}{name}_shexp", *sizes)


def _lfm2(t: _Tensors, s: HybridShape, layer: int, blk: str) -> None:
    for name in ("attn_norm", "ffn_norm"):
        t.vector(f"{blk}{name}.weight", s.n_embd)
    if layer in s.attention:
        _attention(t, s, blk, norms=True)
    else:
        t.matrix(f"{blk}shortconv.in_proj", s.n_embd, 3 * s.n_embd)
        t.matrix(f"{blk}shortconv.conv", s.conv, s.n_embd, kind="F32")
        t.matrix(f"{blk}shortconv.out_proj", s.n_embd, s.n_embd)
    _feed_forward(t, s, blk)


def _qwen35(t: _Tensors, s: HybridShape, layer: int, blk: str) -> None:
    for name in ("attn_norm", "post_attention_norm"):
        t.vector(f"{blk}{name}.weight", s.n_embd)
    if layer in s.attention or layer >= s.n_layers:
        _attention(t, s, blk, gated=True, norms=True)
    else:
        channels = 2 * s.groups * s.state + s.inner
        t.matrix(f"{blk}attn_qkv", s.n_embd, channels)
        t.matrix(f"{blk}attn_gate", s.n_embd, s.inner)
        t.matrix(f"{blk}ssm_conv1d", s.conv, channels, kind="F32")
        t.vector(f"{blk}ssm_dt.bias", _heads(s))
        t.vector(f"{blk}ssm_a", _heads(s), mean=-1.0)
        t.matrix(f"{blk}ssm_alpha", s.n_embd, _heads(s))
        t.matrix(f"{blk}ssm_beta", s.n_embd, _heads(s))
        t.vector(f"{blk}ssm_norm.weight", s.state)
        t.matrix(f"{blk}ssm_out", s.inner, s.n_embd)
    _feed_forward(t, s, blk)
    if layer >= s.n_layers:
        t.matrix(f"{blk}nextn.eh_proj", 2 * s.n_embd, s.n_embd)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            t.vector(f"{blk}nextn.{name}.weight", s.n_embd)


def _mamba2(t: _Tensors, s: HybridShape, blk: str) -> None:
    channels = s.inner + 2 * s.groups * s.state
    t.matrix(f"{blk}ssm_in", s.n_embd, channels + s.inner + _heads(s))
    t.matrix(f"{blk}ssm_conv1d", s.conv, channels, kind="F32")
    t.vector(f"{blk}ssm_conv1d.bias", channels, mean=0.0)
    t.vector(f"{blk}ssm_dt.bias", _heads(s))
    t.vector(f"{blk}ssm_a", _heads(s), 1, mean=-1.0)
    t.vector(f"{blk}ssm_d", _heads(s), 1)
    t.vector(f"{blk}ssm_norm.weight", s.groups, s.inner // s.groups)
    t.matrix(f"{blk}ssm_out", s.inner, s.n_embd)


def _nemotron_h(t: _Tensors, s: HybridShape, layer: int, blk: str) -> None:
    t.vector(f"{blk}attn_norm.weight", s.n_embd)
    if layer in s.attention:
        _attention(t, s, blk)
    elif layer < 2:
        _mamba2(t, s, blk)
    else:
        _feed_forward(t, s, blk, gate=False)


def _granite_hybrid(t: _Tensors, s: HybridShape, layer: int, blk: str) -> None:
    for name in ("attn_norm", "ffn_norm"):
        t.vector(f"{blk}{name}.weight", s.n_embd)
    if layer in s.attention:
        _attention(t, s, blk)
    else:
        _mamba2(t, s, blk)
    _feed_forward(t, s, blk)


def _falcon_h1(t: _Tensors, s: HybridShape, layer: int, blk: str) -> None:
    t.vector(f"{blk}attn_norm.weight", s.n_embd)
    t.vector(f"{blk}ffn_norm", s.n_embd)
    _attention(t, s, blk)
    _mamba2(t, s, blk)
    _feed_forward(t, s, blk)


def _mamba(t: _Tensors, s: HybridShape, layer: int, blk: str) -> None:
    rank = s.n_embd // 16
    t.vector(f"{blk}attn_norm.weight", s.n_embd)
    t.matrix(f"{blk}ssm_in", s.n_embd, 2 * s.inner)
    t.matrix(f"{blk}ssm_conv1d", s.conv, s.inner, kind="F32")
    t.vector(f"{blk}ssm_conv1d.bias", s.inner, mean=0.0)
    t.matrix(f"{blk}ssm_x", s.inner, rank + 2 * s.state)
    t.matrix(f"{blk}ssm_dt", rank, s.inner, kind="F32")
    t.vector(f"{blk}ssm_dt.bias", s.inner)
    t.vector(f"{blk}ssm_a", s.inner, s.state, mean=-1.0)
    t.vector(f"{blk}ssm_d", s.inner)
    t.matrix(f"{blk}ssm_out", s.inner, s.n_embd)


_Layer = Callable[[_Tensors, HybridShape, int, str], None]

_LAYERS: dict[str, _Layer] = {
    "lfm2": _lfm2,
    "lfm2moe": _lfm2,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
    "nemotron_h": _nemotron_h,
    "granitehybrid": _granite_hybrid,
    "falcon-h1": _falcon_h1,
    "mamba": _mamba,
}
"""What adds the tensors of a layer, by architecture."""

"""Small GGUFs with random weights, of every architecture and weight type that tests need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_LAYERS, N_VOCAB = 256, 512, 4, 2, 64, 2, 384

MATRICES = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""The last parts of the names of all matrices."""

EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
"""The same of those of experts."""

SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
"""The same of a network that all rows go through besides."""

Fact = str | bool | int | float
"""What metadata say of a model."""

GEMMA3: dict[str, Any] = {
    "architecture": "gemma3",
    "head_norms": True,
    "post_norms": True,
    "tied": True,
    "extra": {"attention.sliding_window": 24, "attention.sliding_window_pattern": 2, "rope.freq_base": 1e6},
}
PHI3: dict[str, Any] = {
    "architecture": "phi3",
    "fused": True,
    "long_factors": 24,
    "extra": {"rope.dimension_count": 48},
}
"""Arguments of ``write_gguf`` for networks with windows, and with heads that are partly turned."""

_SCALES = {
    "Q2_K": (80, (8e-3, 1e-2)),
    "Q3_K": (108, (8e-4,)),
    "Q4_K": (0, (3e-4, 2e-3)),
    "Q5_K": (0, (1.5e-4, 2e-3)),
    "Q6_K": (208, (5e-5,)),
    "IQ4_NL": (0, (2e-3,)),
    "IQ4_XS": (0, (1e-4,)),
    "Q1_0": (0, (0.125,)),
    "IQ3_S": (0, (1e-3,)),
}
"""Where the half-precision scales of a block of these types are, and values that make numbers about as large as those
of the other types. gguf cannot quantize them, so the other bytes are random."""


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    kinds: Mapping[str, str] | None = None,
    tied: bool = False,
    biases: bool = False,
    more_biases: Sequence[str] = (),
    head_norms: bool = False,
    whole_norms: bool = False,
    pre_norms: Sequence[str] = ("attn_norm", "ffn_norm"),
    post_norms: bool = False,
    fused: bool = False,
    gated: bool = True,
    rope_factors: bool = False,
    long_factors: int = 0,
    experts: tuple[int, int, int] | None = None,
    expert_biases: bool = False,
    shared: int = 0,
    shared_gate: bool = False,
    sinks: bool = False,
    n_layers: int = N_LAYERS,
    heads: tuple[int, int] = (N_HEAD, N_HEAD_KV),
    head_dim: int = HEAD_DIM,
    extra: Mapping[str, Fact] | None = None,
    chat_template: str = "",
    seed: int = 0,
) -> Path:
    """Write a model.

    Args:
        kinds: weight types by the last part of a tensor's name, such as ``attn_v``; Q4_0 where nothing is said.
        biases: of queries, keys and values.
        more_biases: further matrices of a layer that have one.
        whole_norms: queries and keys are normalized, all heads together.
        pre_norms: names of norms before attention and the feed-forward network.
        heads: of queries, and of keys and values.
        fused: queries, keys and values are one matrix, and so are gate and up.
        experts: how many a layer has, how many of them a row uses, and how wide each is.
        expert_biases: the router and the experts have biases.
        shared: how wide a network is that all rows go through besides.
        shared_gate: a number of each row says how much of it is added.
        sinks: each head of queries has a score that belongs to no token.
        long_factors: pairs of numbers that are turned by other angles in short and in long contexts.
        extra: further metadata; the architecture is put before its names, unless they begin with ``general.``.
    """
    writer = GGUFWriter(path, architecture)
    _add_facts(writer, architecture, n_layers, heads, head_dim, {**_expert_facts(experts), **(extra or {})})
    add_vocabulary(writer)
    if chat_template:
        writer.add_chat_template(chat_template)
    tensors = _Tensors(writer, kinds or {}, seed)
    tensors.add_matrix("token_embd", N_EMBD, N_VOCAB)
    tensors.add_vector("output_norm.weight", N_EMBD, 1)
    if not tied:
        tensors.add_matrix("output", N_EMBD, N_VOCAB)
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, head_dim // 2).astype(np.float32))
    for number, name in enumerate(("rope_factors_short", "rope_factors_long")):
        if long_factors:
            writer.add_tensor(f"{name}.weight", np.linspace(1, 2 + 6 * number, long_factors).astype(np.float32))
    norms = (*pre_norms, *(("post_attention_norm", "post_ffw_norm") if post_norms else ()))
    for layer in range(n_layers):
        for name in norms:
            tensors.add_vector(f"blk.{layer}.{name}.weight", N_EMBD, 1)
        tensors.add_layer(
            f"blk.{layer}.",
            heads[0] * head_dim,
            heads[1] * head_dim,
            fused=fused,
            gated=gated,
            biases=(*(("attn_q", "attn_k", "attn_v") if biases else ()), *more_biases),
            norms=(head_dim, head_dim) if head_norms else (heads[0] * head_dim, heads[1] * head_dim),
            normed=head_norms or whole_norms,
            experts=experts,
            expert_biases=expert_biases,
        )
        if shared:
            tensors.add_shared(f"blk.{layer}.", shared, gate=shared_gate)
        if sinks:
            tensors.add_vector(f"blk.{layer}.attn_sinks.weight", heads[0], 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_facts(
    writer: GGUFWriter,
    architecture: str,
    n_layers: int,
    heads: tuple[int, int],
    head_dim: int,
    extra: Mapping[str, Fact],
) -> None:
    facts: dict[str, Fact] = {
        "context_length": 512,
        "embedding_length": N_EMBD,
        "block_count": n_layers,
        "feed_forward_length": N_FF,
        "attention.head_count": heads[0],
        "attention.head_count_kv": heads[1],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": head_dim,
        "rope.freq_base": 10000.0,
    }
    for name, value in (facts | dict(extra)).items():
        adds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add: Any = adds[type(value)]
        add(name if name.startswith("general.") else f"{architecture}.{name}", value)


def _expert_facts(experts: tuple[int, int, int] | None) -> dict[str, Fact]:
    names = ("expert_count", "expert_used_count", "expert_feed_forward_length")
    return dict(zip(names, experts, strict=True)) if experts else {}


class _Tensors:
    """Adds random tensors to a file; ``kinds`` are weight types by the last part of a matrix's name."""

    def __init__(self, writer: GGUFWriter, kinds: Mapping[str, str], seed: int) -> None:
        self._writer, self._kinds = writer, kinds
        self._rng = np.random.default_rng(seed)

    def add_matrix(self, name: str, n_in: int, n_out: int, *, n_expert: int = 0) -> None:
        """Add a matrix, or one of every expert."""
        kind = self._kinds.get(name.split(".")[-1], "F32" if name.endswith("gate_inp") else "Q4_0")
        blocks = random_blocks(self._rng, kind, max(1, n_expert) * n_out, n_in)
        blocks = blocks.reshape(n_expert, n_out, -1) if n_expert else blocks
        self._writer.add_tensor(name + ".weight", blocks, raw_dtype=GGMLQuantizationType[kind])

    def add_vector(self, name: str, n: int | tuple[int, ...], mean: float) -> None:
        self._writer.add_tensor(name, (mean + 0.1 * self._rng.standard_normal(n)).astype(np.float32))

    def add_layer(
        self,
        blk: str,
        n_q: int,
        n_kv: int,
        *,
        fused: bool,
        gated: bool,
        biases: Sequence[str],
        norms: tuple[int, int],
        normed: bool,
        experts: tuple[int, int, int] | None,
        expert_biases: bool,
    ) -> None:
        def add(name: str, n_in: int, n_out: int) -> None:
            self.add_matrix(blk + name, n_in, n_out)
            if name in biases:
                self.add_vector(f"{blk}{name}.bias", n_out, 0)

        if fused:
            add("attn_qkv", N_EMBD, n_q + 2 * n_kv)
        for name, n_out in () if fused else (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
            add(name, N_EMBD, n_out)
        add("attn_output", n_q, N_EMBD)
        if normed:
            for name, n in zip(("attn_q_norm", "attn_k_norm"), norms, strict=True):
                self.add_vector(f"{blk}{name}.weight", n, 1)
        if experts:
            self._add_experts(blk, *experts, biased=expert_biases)
            return
        for name in ("ffn_up",) if fused or not gated else ("ffn_gate", "ffn_up"):
            add(name, N_EMBD, 2 * N_FF if fused else N_FF)
        add("ffn_down", N_FF, N_EMBD)

    def add_shared(self, blk: str, n_ff: int, *, gate: bool) -> None:
        """Add a network that all rows go through besides the experts."""
        for name in SHARED:
            n_in, n_out = (n_ff, N_EMBD) if name == "ffn_down_shexp" else (N_EMBD, n_ff)
            self.add_matrix(blk + name, n_in, n_out)
        if gate:
            self.add_vector(f"{blk}ffn_gate_inp_shexp.weight", N_EMBD, 0)

    def _add_experts(self, blk: str, n_expert: int, n_used: int, n_ff: int, *, biased: bool) -> None:
        self.add_matrix(f"{blk}ffn_gate_inp", N_EMBD, n_expert)
        for name in EXPERTS:
            n_in, n_out = (n_ff, N_EMBD) if name == "ffn_down_exps" else (N_EMBD, n_ff)
            self.add_matrix(blk + name, n_in, n_out, n_expert=n_expert)
            if biased:
                self.add_vector(f"{blk}{name}.bias", (n_expert, n_out), 0)
        if biased:
            self.add_vector(f"{blk}ffn_gate_inp.bias", n_expert, 0)


def random_blocks(rng: np.random.Generator, kind: str, n_out: int, n_in: int) -> npt.NDArray[np.generic]:
    if kind not in _SCALES:
        values = rng.standard_normal((n_out, n_in)).astype(np.float32) / np.sqrt(n_in) * 2
        blocks: npt.NDArray[np.generic] = gguf.quants.quantize(values, GGMLQuantizationType[kind])
        return blocks
    weights, n_bytes = gguf.constants.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (n_out, n_in // weights, n_bytes), dtype=np.uint8)
    start, sizes = _SCALES[kind]
    raw[..., start : start + 2 * len(sizes)] = np.array(sizes, np.float16).view(np.uint8)
    return raw.reshape(n_out, -1)


def add_vocabulary(writer: GGUFWriter) -> None:
    """Add a vocabulary of bytes and of some words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    more = N_VOCAB - len(tokens)
    tokens += [f"▁w{number}" for number in range(more)]
    kinds += [gguf.TokenType.NORMAL] * more
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(N_VOCAB)])
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

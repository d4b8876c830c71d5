"""What a GGUF says about its network, as far as it can be written down for ONNX Runtime.

Everything that is not understood here is refused: a graph without a tensor or a setting would still run, and write
another text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES, Kind, llama_only, unfit
from edge_spec.engines.onnx.transcription.convolution import ShortConvolution
from edge_spec.engines.onnx.transcription.delta_net import DeltaNet
from edge_spec.engines.onnx.transcription.per_layer import PerLayerInputs
from edge_spec.engines.onnx.transcription.recurrent import RecurrentLayer, Shape, whole_number
from edge_spec.engines.onnx.transcription.rotary import BETA_FAST, BETA_SLOW, Rotary, no_rotary, rotary_embedding
from edge_spec.engines.registry import use
from edge_spec.errors import UnsupportedModel
from edge_spec.models.gguf.experts import MOST_EXPERTS
from edge_spec.models.gguf.header import GGUFArray, GGUFHeader, TensorInfo
from edge_spec.models.model_file import ModelFile

__all__ = [
    *("FUSED_EXPERTS", "KEYS_AND_VALUES", "OUTPUT_SCALE", "Network"),
    *("number", "read_network", "read_rotary", "tensor_blocks", "tensor_values"),
]

_IGNORED = ("context_length", "vocab_size", "rope.scaling.finetuned")

# Converters write these, and llama.cpp reads the last two for few architectures: else it uses YaRN's own values.
_YARN = tuple(f"rope.scaling.yarn_{name}" for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow"))

_PATTERN = "attention.sliding_window_pattern"

_TEMPERATURE = "attention.temperature_scale"

_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"

_EXPERT_LENGTH = "expert_feed_forward_length"

_EXPERTS = ("expert_count", "expert_used_count", _EXPERT_LENGTH)

_SHARED_LENGTH = "expert_shared_feed_forward_length"

_DENSE, _GATING = "leading_dense_block_count", "expert_gating_func"

_SIGMOID = 2
"""What ``expert_gating_func`` says where shares are numbers from 0 to 1."""

_KNOWN = frozenset(
    (
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        *_IGNORED,
        *_YARN,
    )
)

_BY_LAYER = (
    *("attention.key_length_swa", "attention.value_length_swa", "attention.shared_kv_layers"),
    "rope.dimension_count_swa",
)

_PER_LAYER, _SOFT_CAP = "embedding_length_per_layer_input", "final_logit_softcapping"

_FURTHER = "nextn_predict_layers"

_SECTIONS = "rope.dimension_sections"

RECURRENT: dict[str, type[RecurrentLayer]] = {"convolution": ShortConvolution, "delta net": DeltaNet}
"""Kinds of layers without keys and values."""

FUSED_EXPERTS, _FUSED_PARTS = "ffn_gate_up_exps", ("ffn_gate_exps.weight", "ffn_up_exps.weight")
"""A tensor that may hold gate and up of all experts, and those that it stands for, after ``blk.N.``."""

OUTPUT_SCALE = "layer_output_scale.weight"
"""What all that goes out of a layer is multiplied by, after ``blk.N.``."""

KEYS_AND_VALUES = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
"""What makes keys and values, after ``blk.N.``; a layer that reads those of another has no use for it."""

_OF_KIND = {
    "window_every": ("attention.sliding_window", _PATTERN, "rope.freq_base_swa"),
    "temperature": (_TEMPERATURE,),
    "experts": _EXPERTS,
    "yarn_settings": (_LOG_MULTIPLIER,),
    "sections": (_SECTIONS,),
    "by_layer": _BY_LAYER,
    "per_layer": (_PER_LAYER,),
    "soft_cap": (_SOFT_CAP,),
}
_OF_EXPERTS = {"shared": (_SHARED_LENGTH,), "preferred": (_DENSE, _GATING)}
"""Metadata keys that are accepted only where the architecture has that property."""

# Converters write that there are none.
_NONE_IF_ZERO = ("expert_count", "expert_used_count")

_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, kw_only=True)
class Network:
    """A decoder-only transformer with grouped-query attention and gated feed-forward networks.

    Attributes:
        kind: what distinguishes its architecture.
        tensors: by name, as in the file.
        n_head: heads of queries.
        n_head_kv: heads of keys and values, ``[n_layers]``.
        head_dims: width of a head, ``[n_layers]``.
        epsilon: of the root-mean-square norms.
        windows: how many tokens each layer sees, the current one included, ``[n_layers]``; 0 for all.
        turned: whether each layer has rotary embeddings, ``[n_layers]``.
        rotary: rotary embeddings: ``all`` of most layers, ``window`` of layers with one if theirs differ, ``none`` of
            layers that know no positions.
        embedding_scale: embeddings are multiplied by it.
        attention_scale: scores are multiplied by it; 0 where it is 1 / sqrt(head_dim).
        residual_scale: what attention and the feed-forward network add is multiplied by it.
        logit_scale: logits are multiplied by it.
        recurrent: what its layers without keys and values are; None where there are none.
        recurrent_layers: which these are.
        n_expert, n_used: experts of a layer, and how many of them each row uses; 0 where there are none.
        n_dense: number of first layers that have a dense feed-forward network instead of experts.
        sources: the layer whose keys and values each reads; empty where all read their own.
        n_ff: how wide feed-forward networks are, by layer; empty where all are like the first.
        per_layer: per-layer embeddings; None if there are none.
        soft_cap: logits are squashed to between -``soft_cap`` and ``soft_cap``; 0 where they are not.
        n_unseen: how many first tokens no other sees.
    """

    kind: Kind
    tensors: dict[str, TensorInfo]
    n_layers: int
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: tuple[int, ...]
    head_dims: tuple[int, ...]
    epsilon: float
    windows: tuple[int, ...]
    turned: tuple[bool, ...]
    rotary: dict[str, Rotary]
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    recurrent: RecurrentLayer | None = None
    recurrent_layers: frozenset[int] = frozenset()
    n_expert: int = 0
    n_used: int = 0
    n_dense: int = 0
    sources: tuple[int, ...] = ()
    n_ff: tuple[int, ...] = ()
    per_layer: PerLayerInputs | None = None
    soft_cap: float = 0.0
    n_unseen: int = 0

    def source_of(self, layer: int) -> int:
        """Return the layer whose keys and values a layer reads."""
        return self.sources[layer] if self.sources else layer

    def query_scale(self, layer: int) -> float:
        """Return what queries are multiplied by besides 1 / sqrt(head_dim)."""
        return self.attention_scale * math.sqrt(self.head_dims[layer]) or 1.0

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer's feed-forward networks are experts."""
        return self.n_expert > 0 and layer >= self.n_dense

    @property
    def attention_layers(self) -> list[int]:
        """Layers with keys and values of their own, in order."""
        return [
            layer
            for layer in range(self.n_layers)
            if layer not in self.recurrent_layers and self.source_of(layer) == layer
        ]

    @property
    def n_ff_expert(self) -> int:
        """How wide an expert is: how many numbers it hides."""
        blk = f"blk.{self.n_dense}."
        both = self.tensors.get(f"{blk}{FUSED_EXPERTS}.weight") if self.has_fused_experts(self.n_dense) else None
        gate = both or self.tensors.get(f"{blk}ffn_gate_exps.weight")
        return gate.shape[1] // (2 if both else 1) if gate is not None and len(gate.shape) == 3 else 0

    def has_fused_experts(self, layer: int) -> bool:
        """Return whether gate and up of a layer's experts are one tensor."""
        experts = self.kind.experts
        return experts is not None and experts.fused_gate and self.has(f"blk.{layer}.{FUSED_EXPERTS}")

    @property
    def has_shared(self) -> bool:
        """Whether all rows go through a network besides those of the experts."""
        experts = self.kind.experts
        is_there = experts is not None and experts.shared and self.has("blk.0.ffn_up_shexp")
        return self.n_expert > 0 and (is_there or (experts is not None and experts.shared_gate))

    def has(self, name: str) -> bool:
        """Return whether there is a matrix or vector of weights of this name."""
        return name + ".weight" in self.tensors

    def rotary_of(self, layer: int) -> str:
        """Return the name of a layer's rotary embeddings."""
        if not self.turned[layer]:
            return "none"
        return "window" if self.windows[layer] and "window" in self.rotary else "all"


def read_network(file: ModelFile, header: GGUFHeader) -> Network:
    """Return the network of a model file, or of an MTP head, whose layer is one of its architecture's with attention.

    Raises:
        UnsupportedModel: another architecture, or a setting or tensor that the graph could not express.
    """
    what = unfit(file)
    if what is not None:
        raise llama_only(file, what)
    kind = ARCHITECTURES[file.architecture]
    prefix = file.architecture + "."
    known_keys = _KNOWN.union(kind.ignored, kind.multipliers)
    known_keys = known_keys.union(*(keys for name, keys in _OF_KIND.items() if getattr(kind, name)))
    known_keys = known_keys.union(*(keys for name, keys in _OF_EXPERTS.items() if getattr(kind.experts, name, False)))
    known_keys |= {*RECURRENT[kind.recurrent].SETTINGS, _FURTHER} if kind.recurrent else set()
    for key in header.metadata:
        if header.metadata[key] == 0 and key.removeprefix(prefix) in _NONE_IF_ZERO:
            continue
        if key.startswith(prefix) and key.removeprefix(prefix) not in known_keys:
            raise llama_only(file, f"sets {key}, which the ONNX graph cannot express")
    for name in kind.required:
        if prefix + name not in header.metadata:
            raise llama_only(file, f"does not set {prefix + name}")
    kind = replace(kind, recurrent="") if file.head is not None else kind
    tensors = {tensor.name: tensor for tensor in file.tensors}
    windows, turned = _windows(file, header, kind), _turned(file, header, kind)
    rotary = read_rotary(file, header, tensors, windows=any(windows))
    if not all(turned):
        rotary["none"] = no_rotary(rotary["all"])

    def multiplier(name: str, default: float) -> float:
        """Return the setting, where the architecture has it; 0 stands for none."""
        value = header.metadata.get(prefix + name, 0) if name in kind.multipliers else 0
        return number(header, prefix + name, default) if value != 0 else default

    n_expert, n_used = _experts(file, header, kind)
    attention_scale = multiplier("attention.scale", kind.attention_scale)
    if file.architecture == "gemma3" and file.n_layers == 62:  # Gemma 3 27B scales by another width than that of heads.
        attention_scale = (file.n_embd // file.n_head) ** -0.5
    epsilon = float(number(header, prefix + "attention.layer_norm_rms_epsilon", 1e-5))
    recurrent = RECURRENT[kind.recurrent].read(file, header, epsilon=epsilon) if kind.recurrent else None
    n_layers = file.n_layers
    if file.head is None:
        # Layers at the end for further tokens (MTP) are left out.
        n_layers -= whole_number(file, header, _FURTHER, file.n_layers - 1, least=0, default=0)
    network = Network(
        kind=kind,
        tensors=tensors,
        n_layers=n_layers,
        n_embd=file.n_embd,
        n_vocab=file.n_vocab,
        n_head=file.n_head,
        n_head_kv=tuple(file.n_head_kv[source] for source in file.sources) or (max(file.n_head_kv),) * n_layers,
        head_dims=file.head_dims or (file.head_dim_k,) * n_layers,
        epsilon=epsilon,
        windows=windows,
        turned=turned,
        rotary=rotary,
        embedding_scale=math.sqrt(file.n_embd) if kind.scales else multiplier("embedding_scale", 1.0),
        attention_scale=attention_scale,
        residual_scale=multiplier("residual_scale", 1.0),
        logit_scale=1 / multiplier("logit_scale", 1.0),
        recurrent=recurrent,
        recurrent_layers=frozenset(layer for layer in range(n_layers) if recurrent and not file.n_head_kv[layer]),
        n_expert=n_expert,
        n_used=n_used,
        n_dense=_n_dense(file, header) if kind.experts is not None and kind.experts.preferred else 0,
        sources=file.sources,
        n_ff=_feed_forward_widths(file, header) if kind.by_layer else (),
        per_layer=_per_layer(file, header, epsilon) if kind.per_layer else None,
        soft_cap=number(header, prefix + _SOFT_CAP, kind.soft_cap, least=0) if kind.soft_cap else 0.0,
    )
    told = header.metadata.get(prefix + _EXPERT_LENGTH) or network.n_ff_expert
    if n_expert and not isinstance(told, GGUFArray) and told != network.n_ff_expert:
        raise llama_only(
            file, f"says that {_EXPERT_LENGTH} is {told}, and experts of {network.n_ff_expert} numbers lie in it"
        )
    _check_tensors(file, network)
    return network


def _feed_forward_widths(file: ModelFile, header: GGUFHeader) -> tuple[int, ...]:
    told = header.metadata.get(f"{file.architecture}.feed_forward_length")
    widths = told.decode() if isinstance(told, GGUFArray) else (told,) * file.n_layers
    found = tuple(n for n in widths if isinstance(n, int) and not isinstance(n, bool) and n > 0)
    if len(found) != file.n_layers or len(widths) != file.n_layers:
        raise llama_only(file, "does not say how wide the feed-forward networks of its layers are")
    return found


def _per_layer(file: ModelFile, header: GGUFHeader, epsilon: float) -> PerLayerInputs | None:
    width = whole_number(file, header, _PER_LAYER, 1 << 31, least=0)
    sizes = {"n_layers": file.n_layers, "n_embd": file.n_embd, "n_vocab": file.n_vocab}
    return PerLayerInputs(**sizes, width=width, epsilon=epsilon) if width else None


def _windows(file: ModelFile, header: GGUFHeader, kind: Kind) -> tuple[int, ...]:
    if not kind.window_every or file.sliding_window is None:
        return (0,) * file.n_layers
    told = header.metadata.get(f"{file.architecture}.{_PATTERN}")
    if isinstance(told, GGUFArray) and told.length == file.n_layers:
        return tuple(file.sliding_window if flag else 0 for flag in told.decode())
    every = whole_number(file, header, _PATTERN, 1 << 31, least=0, default=kind.window_every)
    wide = [every > 0 and layer % every == every - 1 for layer in range(file.n_layers)]
    return tuple(0 if sees_all else file.sliding_window for sees_all in wide)


def _experts(file: ModelFile, header: GGUFHeader, kind: Kind) -> tuple[int, int]:
    """How many experts a layer has, and how many of them a row uses."""
    if kind.experts is None:
        return 0, 0
    n, n_used = (whole_number(file, header, key, MOST_EXPERTS, least=0, default=0) for key in _EXPERTS[:2])
    if not 1 <= n_used <= n and not (kind.experts.optional and n == n_used == 0):
        raise llama_only(file, f"uses {n_used} of {n} experts")
    return n, n_used


def _n_dense(file: ModelFile, header: GGUFHeader) -> int:
    """How many layers come before those with experts, whose shares are numbers from 0 to 1."""
    gating = header.metadata.get(f"{file.architecture}.{_GATING}", 0)
    if gating != _SIGMOID:
        raise llama_only(file, f"weighs experts in the way {gating}")
    return whole_number(file, header, _DENSE, file.n_layers - 1, least=0, default=0)


def _turned(file: ModelFile, header: GGUFHeader, kind: Kind) -> tuple[bool, ...]:
    if kind.unturned_setting and header.metadata.get(f"{file.architecture}.rope.scaling.finetuned", True) is False:
        return (False,) * file.n_layers
    every = kind.unturned_every
    return tuple(not every or layer % every != every - 1 for layer in range(file.n_layers))


def read_rotary(
    file: ModelFile, header: GGUFHeader, tensors: dict[str, TensorInfo], *, windows: bool
) -> dict[str, Rotary]:
    """Return the rotary embeddings of a model, by name, but that of layers that know no positions.

    Args:
        windows: whether there are layers with a window.

    Raises:
        UnsupportedModel: a setting that the graph could not express.
    """
    rope = f"{file.architecture}.rope."
    kind = ARCHITECTURES.get(file.architecture, ARCHITECTURES["llama"])
    n_rotary = number(header, rope + "dimension_count", file.head_dim_k)
    if n_rotary % 2 or n_rotary > file.head_dim_k:
        raise llama_only(file, f"turns {n_rotary} of the {file.head_dim_k} numbers of each head")
    scaling = header.metadata.get(rope + "scaling.type", "linear")
    if scaling not in _SCALINGS:
        raise llama_only(file, f"scales positions in the way {scaling!r}")
    n_original = int(number(header, rope + "scaling.original_context_length", file.n_ctx_train, least=0))
    if scaling == "yarn" and not n_original:
        raise llama_only(file, "scales positions beyond a context of which it does not say how long it is")

    n_window, narrow = n_rotary, float(file.head_dim_k)
    if kind.by_layer:
        n_window = number(header, rope + "dimension_count_swa", n_rotary)
        narrow = number(header, f"{file.architecture}.attention.key_length_swa", narrow)
    if windows and (n_window % 2 or n_window > narrow):
        raise llama_only(file, f"turns {n_window} of the {narrow} numbers of each head with a window")

    def divisors(name: str) -> npt.NDArray[np.float64] | None:
        tensor = tensors.get(name + ".weight")
        if tensor is None:
            return None
        if tensor.shape != (n_rotary // 2,):
            raise llama_only(file, f"has {tensor.name} in the shape {tensor.shape} instead of {(n_rotary // 2,)}")
        return tensor_values(tensor).astype(np.float64)

    def turns(name: str, default: float) -> float:
        """Return a bound of YaRN, where it is heeded."""
        return number(header, f"{rope}scaling.yarn_{name}", default) if kind.yarn_settings else default

    temperature = f"{file.architecture}.{_TEMPERATURE}"
    heats = number(header, temperature, 0.0, least=0) if kind.temperature else 0.0
    multiplier = number(header, rope + "scaling.yarn_log_multiplier", 0.0, least=0) if kind.yarn_settings else 0.0

    def rotary(base: float, factor: float, attention_factor: float, *, divided: bool = True) -> Rotary:
        freqs = divisors("rope_freqs") if divided else None
        return rotary_embedding(
            int(n_rotary if divided else n_window),
            base,
            factor=factor,
            yarn=scaling == "yarn",
            n_original=n_original or 1,
            attention_factor=attention_factor,
            turns=(turns("beta_fast", BETA_FAST), turns("beta_slow", BETA_SLOW)),
            log_multiplier=multiplier,
            temperature=heats,
            divisors=divisors("rope_factors_short") if divided and freqs is None else freqs,
            long_divisors=divisors("rope_factors_long") if divided and freqs is None else freqs,
        )

    factor = 1.0 if scaling == "none" else number(header, rope + "scaling.factor", 1.0)
    attention_factor = number(header, rope + "scaling.attn_factor", 1.0)
    base = number(header, rope + "freq_base", 10000.0)
    window_base = number(header, rope + "freq_base_swa", 10000.0 if kind.own_window_base else base)
    turned = _turned_pairs(file, header, int(n_rotary) // 2) if kind.sections else None
    if min(base, window_base) <= 1:
        raise llama_only(file, f"turns heads by powers of {min(base, window_base)}")
    found = {"all": rotary(base, factor, attention_factor)}
    if turned is not None:
        found["all"] = found["all"].of_pairs(turned)
    if windows and kind.windows_scaled:
        if window_base != base:
            found["window"] = rotary(window_base, factor, attention_factor)
    elif windows:
        found["window"] = rotary(window_base, 1.0, attention_factor if kind.own_window_base else 1.0, divided=False)
    return found


def _turned_pairs(file: ModelFile, header: GGUFHeader, n_pairs: int) -> npt.NDArray[np.bool_]:
    """Which pairs of numbers a text's positions turn; others would be turned by where something is in a picture.

    As ``ggml_mrope_cache_init`` in llama.cpp's ggml/src/ggml-cpu/ops.cpp: pairs take the first three sections by turns.
    """
    told = header.metadata.get(f"{file.architecture}.{_SECTIONS}")
    sections: Sequence[Any] = told.decode() if isinstance(told, GGUFArray) and 3 <= told.length <= 4 else []
    if not all(isinstance(n, int) and n >= 0 for n in sections) or not 0 < sum(sections) <= file.head_dim_k:
        raise llama_only(file, f"does not divide the {2 * n_pairs} numbers that are turned into sections")
    pairs = np.arange(n_pairs) % sum(sections)
    return np.asarray(pairs < 3 * np.array(sections[:3])[pairs % 3])


def _check_tensors(file: ModelFile, network: Network) -> None:
    """Every tensor is one that the graph uses, in the shape it expects, and none is missing."""
    embd, half = network.n_embd, network.rotary["all"].frequencies.shape
    needed: dict[str, Shape] = {f"{network.kind.output_norm}.weight": (embd,)}
    optional: dict[str, Shape] = {}
    if file.head is not None:
        blk = "blk.0.nextn."
        needed |= {
            f"{blk}eh_proj.weight": (2 * embd, embd),
            f"{blk}enorm.weight": (embd,),
            f"{blk}hnorm.weight": (embd,),
        }
    (needed if file.head is None else optional)["token_embd.weight"] = (embd, network.n_vocab)
    (needed if network.kind.own_output and file.head is None else optional)["output.weight"] = (embd, network.n_vocab)
    optional |= {f"rope_{name}.weight": half for name in ("freqs", "factors_short", "factors_long")}
    if network.kind.by_layer and not all(network.windows):
        needed["rope_freqs.weight"] = half
    if network.per_layer is not None:
        needed |= network.per_layer.shapes()
    for layer in range(network.n_layers):
        mixing = _recurrent_shapes if layer in network.recurrent_layers else _attention_shapes
        for shapes_of in (mixing, _expert_shapes if network.has_experts(layer) else _feed_forward_shapes):
            parts, further = shapes_of(network, layer)
            needed |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
            optional |= {f"blk.{layer}.{name}": shape for name, shape in further.items()}
        if network.per_layer is not None:
            needed |= {f"blk.{layer}.{name}": shape for name, shape in network.per_layer.layer_shapes().items()}
        if network.kind.per_layer:
            optional[f"blk.{layer}.{OUTPUT_SCALE}"] = (1,)
    for name, shape in needed.items():
        if name not in network.tensors:
            raise llama_only(file, f"lacks the tensor {name}")
        if network.tensors[name].shape != shape:
            raise llama_only(file, f"has {name} in the shape {network.tensors[name].shape} instead of {shape}")
    left_out = tuple(f"blk.{layer}." for layer in range(network.n_layers, file.n_layers))
    for name, tensor in network.tensors.items():
        if left_out and name.startswith(left_out):
            continue
        if name not in needed and optional.get(name) != tensor.shape:
            raise llama_only(file, f"has the tensor {name}, which the ONNX graph has no place for")


def _recurrent_shapes(network: Network, layer: int) -> tuple[dict[str, Shape], dict[str, Shape]]:
    assert network.recurrent is not None
    return network.recurrent.shapes() | {f"{network.kind.ffn_norm}.weight": (network.n_embd,)}, {}


def _attention_shapes(network: Network, layer: int) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Tensors of attention and of a layer's norms: those that must be there, and those that may."""
    kind, embd, dim = network.kind, network.n_embd, network.head_dims[layer]
    q, kv = network.n_head * dim, network.n_head_kv[layer] * dim
    needed: dict[str, Shape] = {"attn_output.weight": (q, embd)}
    optional: dict[str, Shape] = {"attn_output.bias": (embd,)} if "attn_output" in kind.biases else {}
    if kind.pre_norms:
        needed |= {"attn_norm.weight": (embd,), f"{kind.ffn_norm}.weight": (embd,)}
    if kind.post_norms:
        needed |= {"post_attention_norm.weight": (embd,), "post_ffw_norm.weight": (embd,)}
    if kind.head_norms:
        needed |= {"attn_q_norm.weight": (dim,), "attn_k_norm.weight": (dim,)}
    if kind.whole_norms:
        needed |= {"attn_q_norm.weight": (q,), "attn_k_norm.weight": (kv,)}
    if kind.sinks:
        needed["attn_sinks.weight"] = (network.n_head,)
    shared = network.source_of(layer) != layer
    if network.has(f"blk.{layer}.attn_qkv") and not shared:
        needed["attn_qkv.weight"] = (embd, q + 2 * kv)
    else:
        sizes = {"attn_q": q * (1 + kind.gated_attention), "attn_k": kv, "attn_v": kv}
        needed |= {f"{name}.weight": (embd, n) for name, n in sizes.items()}
        optional |= {f"{name}.bias": (n,) for name, n in sizes.items() if not kind.by_layer}
    further = [name for name in KEYS_AND_VALUES if shared or (kind.keys_as_values and name == "attn_v.weight")]
    optional |= {name: needed.pop(name) for name in further if name in needed}
    return needed, optional


def _feed_forward_shapes(network: Network, layer: int) -> tuple[dict[str, Shape], dict[str, Shape]]:
    kind, embd = network.kind, network.n_embd
    n_up = network.tensors["blk.0.ffn_up.weight"].shape[-1] if network.has("blk.0.ffn_up") else 0
    n_up = network.n_ff[layer] if network.n_ff else n_up
    n_ff = n_up // 2 if kind.fused_gate else n_up
    needed: dict[str, Shape] = {"ffn_up.weight": (embd, n_up), "ffn_down.weight": (n_ff, embd)}
    if not kind.fused_gate and not kind.squared:
        needed["ffn_gate.weight"] = (embd, n_ff)
    sizes = {"ffn_gate": n_ff, "ffn_up": n_up, "ffn_down": embd}
    return needed, {f"{name}.bias": (n,) for name, n in sizes.items() if name in kind.biases}


def _expert_shapes(network: Network, layer: int) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the shapes of experts' tensors. The first layer's tell their width, which is checked."""
    experts, embd, n = network.kind.experts, network.n_embd, network.n_expert
    assert experts is not None
    n_ff = network.n_ff_expert
    needed: dict[str, Shape] = {
        "ffn_gate_inp.weight": (embd, n),
        "ffn_gate_exps.weight": (embd, n_ff, n),
        "ffn_up_exps.weight": (embd, n_ff, n),
        "ffn_down_exps.weight": (n_ff, embd, n),
    }
    if network.has_fused_experts(layer):
        needed = {name: shape for name, shape in needed.items() if name not in _FUSED_PARTS}
        needed[f"{FUSED_EXPERTS}.weight"] = (embd, 2 * n_ff, n)
    if experts.preferred:
        needed["exp_probs_b.bias"] = (n,)
    if experts.biased:
        needed |= {"ffn_gate_inp.bias": (n,), "ffn_gate_exps.bias": (n_ff, n), "ffn_up_exps.bias": (n_ff, n)}
        needed |= {"ffn_down_exps.bias": (embd, n), "attn_output.bias": (embd,)}
    if network.has_shared:
        up = network.tensors.get("blk.0.ffn_up_shexp.weight")
        n_shared = up.shape[-1] if up is not None else 0
        needed |= {f"ffn_{side}_shexp.weight": (embd, n_shared) for side in ("gate", "up")}
        needed["ffn_down_shexp.weight"] = (n_shared, embd)
        needed |= {"ffn_gate_inp_shexp.weight": (embd,)} if experts.shared_gate else {}
    return needed, {}


def number(header: GGUFHeader, key: str, default: float, *, least: float = math.nextafter(0, 1)) -> float:
    """Return a finite number of the metadata, or the default where the file has none.

    Raises:
        UnsupportedModel: it is another one, or below ``least``.
    """
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise UnsupportedModel(f"{header.path} has no usable number for {key}", hint="convert the model again")
    return value


def tensor_blocks(tensor: TensorInfo) -> npt.NDArray[np.uint8]:
    """Return a matrix as it lies in the file, mapped: ``[n_out, bytes per row]``."""
    rows = tensor.n_elements // tensor.shape[0]
    return np.memmap(tensor.path, np.uint8, "r", tensor.offset, (rows, tensor.n_bytes // rows))


def tensor_values(tensor: TensorInfo) -> npt.NDArray[np.float32]:
    """Return the numbers of a small unquantized tensor, float32, slowest dimension first.

    Raises:
        UnsupportedModel: it is quantized.
    """
    raw = np.asarray(tensor_blocks(tensor))
    shape = tensor.shape[::-1]
    if tensor.type_name == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if tensor.type_name not in ("F32", "F16"):
        raise UnsupportedModel(
            f"{tensor.name} is {tensor.type_name}, not plain numbers",
            hint=use("llama"),
        )
    return raw.view(np.float32 if tensor.type_name == "F32" else np.float16).astype(np.float32).reshape(shape)

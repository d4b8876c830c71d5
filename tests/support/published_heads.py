"""EAGLE-3 heads with random weights in the published layouts, and what they compute, in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf_files import random_blocks

from edge_spec.models import ModelFile, read_header

__all__ = ["HeadNetwork", "PublishedHead", "write_gguf_head", "write_safetensors_head"]

Array = npt.NDArray[np.float64]

_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_norm_2": "hidden_norm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
_WHOLE = {
    "fc": "fc",
    "output_norm": "norm",
    "output": "lm_head",
    "token_embd": "embed_tokens",
    "enc.output_norm": "input_norm",
}


@dataclass(frozen=True, kw_only=True)
class PublishedHead:
    """A head.

    Attributes:
        width: of the head.
        read: of the target's hidden states.
        n_vocab: tokens of the target.
        ids: the target's token of each output row; None if there are as many rows as tokens.
        own: which of the target's tables it has itself.
        fc_norm: what is read of each layer is normalized.
        head_norms, biases: of queries and keys.
        kind: the type of its matrices.
        llama3: scaling of positions.
        changed: a tensor whose numbers change places in the network, but not in files.
    """

    width: int
    read: int
    n_vocab: int
    layers: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 48
    n_ff: int = 256
    ids: tuple[int, ...] | None = None
    own: tuple[str, ...] = ("output",)
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_norm: bool = False
    head_norms: bool = False
    biases: bool = False
    half_apart: bool = False
    llama3: bool = False
    base: float = 5000.0
    n_rotary: int = 48
    epsilon: float = 1e-5
    kind: str = "F32"
    seed: int = 0
    changed: str = ""

    @property
    def n_rows(self) -> int:
        return self.n_vocab if self.ids is None else len(self.ids)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensors, ``[outputs, inputs]``."""
        w, q, kv, read = self.width, self.heads[0] * self.head_dim, self.heads[1] * self.head_dim, len(self.layers)
        blk = "blk.0."
        found: dict[str, tuple[int, ...]] = {
            "fc": (w, read * self.read),
            "output_norm": (w,),
            **{blk + name: (w,) for name in ("attn_norm", "attn_norm_2", "ffn_norm")},
            f"{blk}attn_q": (q, 2 * w),
            f"{blk}attn_k": (kv, 2 * w),
            f"{blk}attn_v": (kv, 2 * w),
            f"{blk}attn_output": (w, q),
            f"{blk}ffn_gate": (self.n_ff, w),
            f"{blk}ffn_up": (self.n_ff, w),
            f"{blk}ffn_down": (w, self.n_ff),
        }
        if self.norm_before_fc:
            found["enc.output_norm"] = (read * self.read,)
        if self.fc_norm:
            found |= {f"fc_norm.{place}": (self.read,) for place in range(read)}
        if self.head_norms:
            found |= {f"{blk}attn_q_norm": (self.head_dim,), f"{blk}attn_k_norm": (self.head_dim,)}
        if self.biases:
            found |= {f"{blk}attn_{name}.bias": (n,) for name, n in (("q", q), ("k", kv), ("v", kv))}
        rows = {"output": (self.n_rows, w), "token_embd": (self.n_vocab, w)}
        return found | {name: rows[name] for name in self.own}

    def stored(self) -> dict[str, tuple[npt.NDArray[Any], str]]:
        """Tensors as they are stored, and their types."""
        random = np.random.default_rng(self.seed)
        found: dict[str, tuple[npt.NDArray[Any], str]] = {}
        for name, shape in sorted(self.shapes().items()):
            if len(shape) > 1:
                found[name] = random_blocks(random, self.kind, *shape), self.kind
            else:
                around = 0.0 if name.endswith("bias") else 1.0
                found[name] = (around + random.uniform(-0.5, 0.5, shape)).astype(np.float32), "F32"
        return found

    def weights(self) -> dict[str, Array]:
        """The same as numbers."""
        found = {}
        for name, (array, kind) in self.stored().items():
            numbers = gguf.quants.dequantize(array, gguf.GGMLQuantizationType[kind]).astype(np.float64)
            found[name] = np.roll(numbers, 1, axis=-1) if name == self.changed else numbers
        return found

    def rotated_angles(self) -> Array:
        """The angle of each pair of numbers from one place to the next."""
        angles = self.base ** (-2 * np.arange(self.n_rotary // 2) / self.n_rotary)
        if not self.llama3:
            return angles
        # transformers' ``_compute_llama3_parameters``, with a factor of 4, an original context of 64, bounds 1 and 4.
        length = 2 * np.pi / angles
        smooth = (64 / length - 1) / (4 - 1)
        medium = (1 - smooth) * angles / 4 + smooth * angles
        return np.where(length > 64, angles / 4, np.where(length < 16, angles, medium))


class HeadNetwork:
    """A head in float64, one token after the other, the first one left out, before which there is no feature.

    Args:
        tables: the target's embeddings and output rows, by name.
    """

    def __init__(self, head: PublishedHead, tables: Mapping[str, Array]) -> None:
        self.head, self.w = head, {**tables, **head.weights()}
        self._keys: list[Array] = []
        self._values: list[Array] = []

    def fused(self, read: list[Array]) -> Array:
        """Features from what was read of each layer, ``[n, width]``."""
        if self.head.fc_norm:
            read = [self._norm(rows, f"fc_norm.{place}") for place, rows in enumerate(read)]
        rows = np.concatenate(read, axis=-1)
        rows = self._norm(rows, "enc.output_norm") if self.head.norm_before_fc else rows
        return rows @ self.w["fc"].T

    def __call__(self, token: int, feature: Array) -> tuple[Array, Array]:
        """A token's logits, and the feature that it gives to a drafted one after it."""
        head, w, blk = self.head, self.w, "blk.0."
        before = self._norm(feature, f"{blk}attn_norm_2")
        both = np.concatenate([self._norm(w["token_embd"][token], f"{blk}attn_norm"), before])
        q, k, v = (w[f"{blk}attn_{name}"] @ both + w.get(f"{blk}attn_{name}.bias", 0) for name in "qkv")
        queries, keys, values = (each.reshape(-1, head.head_dim) for each in (q, k, v))
        if head.head_norms:
            queries, keys = self._norm(queries, f"{blk}attn_q_norm"), self._norm(keys, f"{blk}attn_k_norm")
        place, group = len(self._keys), head.heads[0] // head.heads[1]
        self._keys.append(self._turned(keys, place))
        self._values.append(values)
        all_keys, all_values, seen = np.stack(self._keys), np.stack(self._values), []
        for number, query in enumerate(self._turned(queries, place)):
            scores = all_keys[:, number // group] @ query / head.head_dim**0.5
            shares = np.exp(scores - scores.max())
            seen.append(shares / shares.sum() @ all_values[:, number // group])
        x = (before if head.norm_before_residual else feature) + w[f"{blk}attn_output"] @ np.concatenate(seen)
        y = self._norm(x, f"{blk}ffn_norm")
        gate = w[f"{blk}ffn_gate"] @ y
        x = x + w[f"{blk}ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w[f"{blk}ffn_up"] @ y))
        normed = self._norm(x, "output_norm")
        return w["output"] @ normed, normed if head.norm_output else x

    def back(self, n: int) -> None:
        """Forget all but the first ``n`` tokens that were read."""
        del self._keys[n:], self._values[n:]

    def _norm(self, x: Array, name: str) -> Array:
        square = np.mean(x * x, axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(square + self.head.epsilon) * self.w[name])

    def _turned(self, x: Array, place: int) -> Array:
        angles, n = place * self.head.rotated_angles(), self.head.n_rotary
        halves = (slice(0, n // 2), slice(n // 2, n)) if self.head.half_apart else (slice(0, n, 2), slice(1, n, 2))
        y = x.copy()
        y[..., halves[0]] = x[..., halves[0]] * np.cos(angles) - x[..., halves[1]] * np.sin(angles)
        y[..., halves[1]] = x[..., halves[0]] * np.sin(angles) + x[..., halves[1]] * np.cos(angles)
        return y


def write_gguf_head(path: Path, target: ModelFile, head: PublishedHead, *, tokenizer: bool = True) -> Path:
    """Write a head as llama.cpp's converter does; with the tokenizer of its target."""
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(head.width)
    writer.add_feed_forward_length(head.n_ff)
    writer.add_head_count(head.heads[0])
    writer.add_head_count_kv(head.heads[1])
    writer.add_key_length(head.head_dim)
    writer.add_value_length(head.head_dim)
    writer.add_layer_norm_rms_eps(head.epsilon)
    writer.add_rope_dimension_count(head.n_rotary)
    writer.add_rope_freq_base(head.base)
    writer.add_vocab_size(head.n_vocab)
    writer.add_array("eagle3.target_layers", list(head.layers))
    writer.add_uint32("eagle3.target_hidden_size", head.read)
    writer.add_bool("eagle3.norm_before_residual", head.norm_before_residual)
    writer.add_bool("eagle3.norm_before_fc", head.norm_before_fc)
    for key, value in read_header(target.path).metadata.items() if tokenizer else ():
        if key.startswith("tokenizer.ggml."):
            _add(writer, key, value)
    for name, (array, kind) in head.stored().items():
        ending = "" if name.endswith("bias") else ".weight"
        writer.add_tensor(name + ending, array, raw_dtype=gguf.GGMLQuantizationType[kind])
    if head.ids is not None:
        writer.add_tensor("d2t", np.array(head.ids, np.int64))
    if head.llama3:
        plain = replace(head, llama3=False).rotated_angles()
        writer.add_tensor("rope_freqs.weight", (plain / head.rotated_angles()).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_safetensors_head(folder: Path, head: PublishedHead, *, layout: str = "angelslim") -> Path:
    """Write a head and its settings in the layout of one of those who train them.

    Args:
        layout: ``angelslim``, ``specforge`` or ``speculators``.
    """
    assert head.half_apart and head.kind in ("F32", "F16", "BF16")
    folder.mkdir(parents=True, exist_ok=True)
    layer = "layers.0." if layout == "speculators" else "midlayer."
    tensors: dict[str, tuple[npt.NDArray[Any], str]] = {}
    for name, (array, kind) in head.stored().items():
        stem = name.removesuffix(".bias")
        bare = stem.removeprefix("blk.0.")
        given = layer + _IN_LAYER[bare] if bare != stem else _WHOLE.get(stem, stem)
        tensors[given + (".bias" if name.endswith(".bias") else ".weight")] = array, kind
    if head.ids is not None:
        offsets = np.array(head.ids, np.int64) - np.arange(len(head.ids))
        tensors |= {"d2t": (offsets, "I64"), "t2d": (np.isin(np.arange(head.n_vocab), head.ids), "BOOL")}
    _write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(_config(head, layout)), "utf-8")
    return folder / "model.safetensors"


def _config(head: PublishedHead, layout: str) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "hidden_size": head.width,
        "intermediate_size": head.n_ff,
        "num_attention_heads": head.heads[0],
        "num_key_value_heads": head.heads[1],
        "num_hidden_layers": 1,
        "head_dim": head.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": head.epsilon,
        "rope_theta": head.base,
        "partial_rotary_factor": head.n_rotary / head.head_dim,
        "vocab_size": head.n_vocab,
        "max_position_embeddings": 512,
    }
    if head.llama3:
        layer["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    flags = {name: getattr(head, name) for name in ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm")}
    whole: dict[str, Any] = {"draft_vocab_size": head.n_rows, "target_hidden_size": head.read, **flags}
    layers = list(head.layers)
    if layout == "speculators":
        kind = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
        return {**kind, **whole, "eagle_aux_hidden_state_layer_ids": layers, "transformer_layer_config": layer}
    if layout == "specforge":
        # What goes out of layers is numbered by these.
        nested = {"eagle_aux_hidden_state_layer_ids": [n - 1 for n in layers], "use_aux_hidden_state": True}
        return {"architectures": ["LlamaForCausalLMEagle3"], **layer, **whole, "eagle_config": nested}
    return {"architectures": ["Eagle3LlamaForCausalLM"], **layer, **whole, "eagle_aux_hidden_state_layer_ids": layers}


def _write_safetensors(path: Path, tensors: Mapping[str, tuple[npt.NDArray[Any], str]]) -> None:
    """By hand: NumPy has no BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, end = [], 0
    for name, (array, kind) in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        item = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "BOOL": 1}[kind]
        shape = [*array.shape[:-1], array.shape[-1] * array.itemsize // item]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = gguf.GGUFValueType
    if hasattr(value, "decode"):
        if value.length:
            writer.add_key_value(key, list(value.decode()), kinds.ARRAY, sub_type=kinds(value.element_type))
        return
    kind = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}[type(value)]
    writer.add_key_value(key, value, kind)

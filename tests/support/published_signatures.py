"""Signatures that published models have, and the network that they all compute, in NumPy."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from published_weights import Weights

SIGNATURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("plain", "float32", {}),
    "plain-f16": ("plain", "float16", {}),
    "plain-q4": ("plain", "float32", {"four_bits": True}),
    "plain-f16-keep": ("plain", "float16", {"logits_kind": "float32", "keep": True}),
    "plain-mask4": ("plain", "float32", {"mask_dims": 4}),
    "plain-mask4-f16": ("plain", "float16", {"mask_dims": 4}),
    "plain-last": ("plain", "float32", {"last_only": True}),
    "plain-last-f16": ("plain", "float16", {"last_only": True}),
    "genai": ("genai", "float32", {}),
    "genai-f16": ("genai", "float16", {}),
    "genai-q4": ("genai", "float32", {"four_bits": True}),
    "genai-q4f16": ("genai", "float16", {"four_bits": True}),
}
"""Style, type of the cache, and arguments of ``publish`` by name."""


def reference(w: Weights, tokens: list[int], *, four_bits: bool) -> np.ndarray[Any, Any]:
    """Logits of every token, as the network is written down, in 64 bits."""

    def matrix(name: str) -> np.ndarray[Any, Any]:
        found = w.arrays[name]
        if four_bits:
            kind = GGMLQuantizationType.Q4_0
            found = gguf.quants.dequantize(gguf.quants.quantize(found, kind), kind)
        return found.astype(np.float64)

    def norm(x: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + w.epsilon) * w.arrays[name]

    n, d = len(tokens), w.head_dim
    angles = np.arange(n)[:, None] * w.base ** (-np.arange(0, d, 2) / d)

    def turned(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        first, second = x[..., : d // 2], x[..., d // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    x = w.arrays["token_embd"][tokens].astype(np.float64)
    for layer in range(w.n_layers):
        blk = f"blk.{layer}."
        h = norm(x, blk + "attn_norm")
        q, k, v = (
            (h @ matrix(blk + part).T).reshape(n, -1, d).swapaxes(0, 1) for part in ("attn_q", "attn_k", "attn_v")
        )
        k, v = (np.repeat(each, w.n_head // w.n_head_kv, 0) for each in (turned(k), v))
        scores = turned(q) @ k.swapaxes(1, 2) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
        x = x + attended @ matrix(blk + "attn_output").T
        h = norm(x, blk + "ffn_norm")
        gate = h @ matrix(blk + "ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ matrix(blk + "ffn_up").T)) @ matrix(blk + "ffn_down").T
    return norm(x, "output_norm") @ matrix("output").T

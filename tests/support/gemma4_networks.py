"""Gemma 4 in float64: the formulas, and none of our tables."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["gemma4_logits"]

Array = npt.NDArray[np.float64]


class _File(Protocol):
    def fact(self, name: str, default: Any = None) -> Any: ...

    def tensor(self, name: str) -> Array | None: ...


def gemma4_logits(file: _File, tokens: list[int]) -> Array:
    """Logits after every token, ``[n, n_vocab]``."""
    embeddings = _weight(file, "token_embd")
    n_embd, n_layers = file.fact("embedding_length"), file.fact("block_count")
    x = embeddings[tokens] * np.sqrt(n_embd)
    taken_in = _per_layer(file, tokens, x)
    stored: dict[int, tuple[Array, Array]] = {}
    for layer in range(n_layers):
        blk = f"blk.{layer}."
        y = _attention(file, layer, _norm(file, x, blk + "attn_norm"), stored)
        x = x + _norm(file, y, blk + "post_attention_norm")
        y = _norm(file, x, blk + "ffn_norm")
        y = _gelu(y @ _weight(file, blk + "ffn_gate").T) * (y @ _weight(file, blk + "ffn_up").T)
        x = x + _norm(file, y @ _weight(file, blk + "ffn_down").T, blk + "post_ffw_norm")
        if taken_in is not None:
            y = _gelu(x @ _weight(file, blk + "inp_gate").T) * taken_in[:, layer]
            x = x + _norm(file, y @ _weight(file, blk + "proj").T, blk + "post_norm")
        scale = file.tensor(f"{blk}layer_output_scale.weight")
        x = x if scale is None else x * scale
    output = file.tensor("output.weight")
    logits = _norm(file, x, "output_norm") @ (embeddings if output is None else output).T
    cap = file.fact("final_logit_softcapping", 30.0)
    return np.asarray(cap * np.tanh(logits / cap) if cap else logits)


def _per_layer(file: _File, tokens: list[int], x: Array) -> Array | None:
    """Return what each layer takes in for each token, ``[n, n_layers, width]``."""
    width = file.fact("embedding_length_per_layer_input")
    if not width:
        return None
    shape = (len(tokens), -1, width)
    projected = (x @ _weight(file, "per_layer_model_proj").T / np.sqrt(x.shape[1])).reshape(shape)
    table = (_weight(file, "per_layer_token_embd")[tokens] * np.sqrt(width)).reshape(shape)
    return np.asarray((_norm(file, projected, "per_layer_proj_norm") + table) / np.sqrt(2))


def _attention(file: _File, layer: int, x: Array, stored: dict[int, tuple[Array, Array]]) -> Array:
    blk, n, windowed = f"blk.{layer}.", len(x), file.fact("attention.sliding_window_pattern")
    narrow, end, n_layers = windowed[layer], "_swa" if windowed[layer] else "", len(windowed)
    width, n_head = file.fact(f"attention.key_length{end}"), file.fact("attention.head_count")
    n_kv = int(np.broadcast_to(file.fact("attention.head_count_kv"), n_layers)[layer])
    fused = file.tensor(f"{blk}attn_qkv.weight")
    queries = _weight(file, f"{blk}attn_q") if fused is None else fused[: n_head * width]
    q = _norm(file, (x @ queries.T).reshape(n, n_head, width), f"{blk}attn_q_norm")
    own = n_layers - file.fact("attention.shared_kv_layers", 0)
    if layer < own:
        parts = np.split(fused[n_head * width :], 2) if fused is not None else []
        keys = parts[0] if parts else _weight(file, f"{blk}attn_k")
        values = parts[1] if parts else file.tensor(f"{blk}attn_v.weight")
        k = (x @ keys.T).reshape(n, n_kv, width)
        v = k if values is None else (x @ values.T).reshape(n, n_kv, width)
        v = v / np.sqrt((v**2).mean(axis=-1, keepdims=True) + file.fact("attention.layer_norm_rms_epsilon"))
        stored[layer] = _turned(file, _norm(file, k, f"{blk}attn_k_norm"), narrow=narrow), v
    k, v = stored[layer if layer < own else max(each for each in stored if windowed[each] == narrow)]
    q = _turned(file, q, narrow=narrow)
    place = np.arange(n)
    seen = place[None] <= place[:, None]
    if narrow:
        seen &= place[None] > place[:, None] - file.fact("attention.sliding_window")
    out = np.zeros_like(q)
    for head in range(n_head):
        scores = np.where(seen, q[:, head] @ k[:, head // (n_head // n_kv)].T, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, head // (n_head // n_kv)]
    return np.asarray(out.reshape(n, -1) @ _weight(file, f"{blk}attn_output").T)


def _turned(file: _File, x: Array, *, narrow: bool) -> Array:
    end = "_swa" if narrow else ""
    n_turned, base = file.fact(f"rope.dimension_count{end}"), file.fact(f"rope.freq_base{end}")
    angles = base ** (-2.0 * np.arange(n_turned // 2) / n_turned)
    angles = angles if narrow else angles / _weight(file, "rope_freqs")
    turn = np.exp(1j * np.arange(len(x))[:, None] * angles)[:, None]
    turned = (x[..., : n_turned // 2] + 1j * x[..., n_turned // 2 : n_turned]) * turn
    return np.concatenate([turned.real, turned.imag, x[..., n_turned:]], axis=-1)


def _norm(file: _File, x: Array, name: str) -> Array:
    square = (x**2).mean(axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(square + file.fact("attention.layer_norm_rms_epsilon")) * _weight(file, name))


def _gelu(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _weight(file: _File, name: str) -> Array:
    weight = file.tensor(f"{name}.weight")
    assert weight is not None, name
    return weight

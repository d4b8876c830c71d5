"""Networks of small GGUFs in float64, written down by architecture: the formulas, and none of our tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gemma4_networks import gemma4_logits
from recurrent_networks import gated_delta_net, short_convolution, sigmoid

__all__ = ["float_logits", "last_rows", "layer_inputs", "mtp_rows", "rows_near_a_tie"]

Array = npt.NDArray[np.float64]

_INTERLEAVED = {
    *("llama", "mistral3", "smollm3", "granite", "granitemoe", "minicpm", "ernie4_5", "internlm2", "xverse", "arcee"),
}
_QWEN35 = ("qwen35", "qwen35moe")


class _File:
    """Metadata and tensors of a file."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.architecture: str = reader.fields["general.architecture"].contents()
        self._facts = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self.margins: list[Array] = []
        self.inputs: list[Array] = []

    def fact(self, name: str, default: Any = None) -> Any:
        return self._facts.get(f"{self.architecture}.{name}", default)

    def tensor(self, name: str) -> Array | None:
        return self._tensors.get(name)


def float_logits(path: Path, tokens: list[int]) -> Array:
    """Logits after every token, ``[n, n_vocab]``."""
    return _logits(_File(path), tokens)


def layer_inputs(path: Path, tokens: list[int]) -> list[Array]:
    """Return what goes into each layer, and at last what goes out of the last one, ``[n, n_embd]`` each."""
    file = _File(path)
    _logits(file, tokens)
    return file.inputs


def last_rows(path: Path, tokens: list[int]) -> Array:
    """Return the rows after the last norm, ``[n, n_embd]``."""
    file = _File(path)
    _logits(file, tokens)
    return _norm(file, file.inputs[-1], "output_norm")


def mtp_rows(path: Path, tokens: list[int], features: Array, *, rounds: bool) -> tuple[Array, Array]:
    """Return logits of the layer for further tokens after each token, and what it gives to the next one.

    Args:
        features: what it reads of the tokens before these, ``[n, n_embd]``.
        rounds: output rows of the model are rounded to 4 bits; its own are not.
    """
    file = _File(path)
    layer = file.fact("block_count") - 1
    blk = f"blk.{layer}."

    def first(*names: str) -> tuple[str, Array]:
        found = [(name, weight) for name in names if (weight := file.tensor(f"{name}.weight")) is not None]
        return found[0]

    _, embeddings = first(f"{blk}nextn.embed_tokens", "token_embd")
    both = [_norm(file, embeddings[tokens], f"{blk}nextn.enorm"), _norm(file, features, f"{blk}nextn.hnorm")]
    x = _product(file, np.concatenate(both, axis=-1), f"{blk}nextn.eh_proj")
    x = x + _attention(file, layer, _norm(file, x, f"{blk}attn_norm"))
    x = x + _feed_forward(file, blk, _norm(file, x, f"{blk}post_attention_norm"))
    given = _norm(file, x, first(f"{blk}nextn.shared_head_norm", "output_norm")[0])
    own, output = first(f"{blk}nextn.shared_head_head", "output", "token_embd")
    if rounds and not own.startswith(blk):
        q4_0 = gguf.GGMLQuantizationType.Q4_0
        output = gguf.quants.dequantize(gguf.quants.quantize(output.astype(np.float32), q4_0), q4_0)
    return given @ output.T, given


def rows_near_a_tie(path: Path, tokens: list[int], *, within: float) -> npt.NDArray[np.bool_]:
    """Return which rows choose between experts, in any layer, so close that rounding decides, ``[n]``."""
    file = _File(path)
    _logits(file, tokens)
    return np.min(file.margins, axis=0) < within


def _logits(file: _File, tokens: list[int]) -> Array:
    if file.architecture == "gemma4":
        return gemma4_logits(file, tokens)
    made, n_embd = file.architecture, file.fact("embedding_length")
    embeddings = file.tensor("token_embd.weight")
    assert embeddings is not None
    x = embeddings[tokens] * {"gemma": np.sqrt(n_embd)}.get(made, file.fact("embedding_scale", 1.0))
    added = file.fact("residual_scale", 1.0)
    before_ffn = "post_attention_norm" if made in ("seed_oss", "gpt-oss", *_QWEN35) else "ffn_norm"
    after = made in ("olmo2", "exaone4")
    for layer in range(file.fact("block_count") - file.fact("nextn_predict_layers", 0)):
        blk = f"blk.{layer}."
        file.inputs.append(x)
        y = _mixed(file, layer, x if after else _norm(file, x, blk + "attn_norm"))
        x = x + added * (_norm(file, y, blk + "post_attention_norm") if after else y)
        y = _feed_forward(file, blk, x if after else _norm(file, x, blk + before_ffn))
        x = x + added * (_norm(file, y, blk + "post_ffw_norm") if after else y)
    file.inputs.append(x)
    output = file.tensor("output.weight")
    last_norm = "token_embd_norm" if made in ("lfm2", "lfm2moe") else "output_norm"
    return _norm(file, x, last_norm) @ (embeddings if output is None else output).T / file.fact("logit_scale", 1.0)


def _norm(file: _File, x: Array, name: str) -> Array:
    weight = file.tensor(name + ".weight")
    assert weight is not None
    square = (x**2).mean(axis=-1, keepdims=True)
    return x / np.sqrt(square + file.fact("attention.layer_norm_rms_epsilon")) * weight


def _product(file: _File, x: Array, name: str) -> Array:
    weight, bias = file.tensor(name + ".weight"), file.tensor(name + ".bias")
    assert weight is not None
    return x @ weight.T + (0 if bias is None else bias)


def _mixed(file: _File, layer: int, x: Array) -> Array:
    """Return what a layer takes from other tokens."""
    blk = f"blk.{layer}."
    if file.tensor(f"{blk}shortconv.conv.weight") is not None:
        return short_convolution(file, blk, x)
    return gated_delta_net(file, blk, x) if file.tensor(f"{blk}ssm_a") is not None else _attention(file, layer, x)


def _attention(file: _File, layer: int, x: Array) -> Array:
    blk, n, made = f"blk.{layer}.", len(x), file.architecture
    n_head, n_kv = file.fact("attention.head_count"), np.max(file.fact("attention.head_count_kv"))
    width = file.fact("attention.key_length")
    q, k, v = (_product(file, x, f"{blk}attn_{part}") for part in "qkv")
    if made in ("olmo2", "olmoe"):
        q, k = _norm(file, q, blk + "attn_q_norm"), _norm(file, k, blk + "attn_k_norm")
    gate = np.full((n, n_head * width), np.inf)
    if made in _QWEN35:  # Behind the queries of each head are as many numbers that gate it.
        both = q.reshape(n, n_head, 2, width)
        q, gate = both[:, :, 0], both[:, :, 1].reshape(n, -1)
    q, k, v = (part.reshape(n, -1, width) for part in (q, k, v))
    if made in ("exaone4", "qwen3", "qwen3moe", "lfm2", "lfm2moe", *_QWEN35):
        q, k = _norm(file, q, blk + "attn_q_norm"), _norm(file, k, blk + "attn_k_norm")
    every = {"olmo2": file.fact("attention.sliding_window_pattern", 4), "gpt-oss": 2}.get(made, 0)
    window = file.fact("attention.sliding_window", 0) if every and layer % every != every - 1 else 0
    sinks = file.tensor(f"{blk}attn_sinks.weight")
    unturned = (made == "smollm3" and layer % 4 == 3) or not file.fact("rope.scaling.finetuned", True)
    if not unturned:
        q, k = (_turned(file, part, local=window > 0) for part in (q, k))
    if made == "mistral3":
        contexts = np.floor(np.arange(n) / file.fact("rope.scaling.original_context_length", 512))
        q = q * (1 + file.fact("attention.temperature_scale", 0.0) * np.log(1 + contexts))[:, None, None]
    scale = file.fact("attention.scale", width**-0.5)
    out = np.zeros((n, n_head, width))
    place = np.arange(n)
    seen = place[None] <= place[:, None]
    if window:
        seen &= place[None] > place[:, None] - window
    for head in range(n_head):
        scores = np.where(seen, q[:, head] @ k[:, head // (n_head // n_kv)].T * scale, -np.inf)
        weights = np.exp(scores)
        total = weights.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks[head]))
        out[:, head] = weights / total @ v[:, head // (n_head // n_kv)]
    return _product(file, out.reshape(n, -1) * sigmoid(gate), blk + "attn_output")


def _turned(file: _File, x: Array, *, local: bool) -> Array:
    """Rotary embeddings, scaled linearly or as YaRN does."""
    width, base = x.shape[-1], file.fact("rope.freq_base")
    pairs = np.arange(width // 2)
    base = file.fact("rope.freq_base_swa", base) if local else base
    angles, grown = base ** (-2.0 * pairs / width), 1.0
    n_turned = file.fact("rope.dimension_count", width)
    if file.architecture in _QWEN35:
        turned = _by_angles(file, x[..., :n_turned], _sectioned(file, n_turned))
        return np.concatenate([turned, x[..., n_turned:]], axis=-1)
    if local and file.architecture != "gpt-oss":
        return _by_angles(file, x, angles)
    if file.fact("rope.scaling.type") == "yarn":
        factor, original = file.fact("rope.scaling.factor"), file.fact("rope.scaling.original_context_length")
        bounds = [file.fact(f"rope.scaling.yarn_beta_{name}", 0) for name in ("fast", "slow")]
        fast, slow = bounds if file.architecture == "mistral3" and all(bounds) else (32.0, 1.0)
        low, high = (width * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base)) for turns in (fast, slow))
        low, high = max(0, np.floor(low)), min(width - 1, np.ceil(high))
        divided = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        angles = angles * (divided / factor + (1 - divided))
        multiplier = file.fact("rope.scaling.yarn_log_multiplier", 0.0)
        grown = (1 + 0.1 * np.log(factor)) / (1 + 0.1 * multiplier * np.log(factor))
        grown *= file.fact("rope.scaling.attn_factor", 1.0)
    return grown * _by_angles(file, x, angles)


def _sectioned(file: _File, n_turned: int) -> Array:
    """Angles of pairs that take their positions by turns from the first three sections; what is left over has none."""
    sections, angles = file.fact("rope.dimension_sections"), []
    for pair in range(n_turned // 2):
        place = pair % sum(sections)
        is_turned = place < 3 * sections[place % 3]
        angles.append(file.fact("rope.freq_base") ** (-2.0 * pair / n_turned) * is_turned)
    return np.array(angles)


def _by_angles(file: _File, x: Array, angles: Array) -> Array:
    width, turn = x.shape[-1], np.exp(1j * np.arange(len(x))[:, None] * angles)[:, None]
    if file.architecture in _INTERLEAVED:
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    turned = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _feed_forward(file: _File, blk: str, x: Array) -> Array:
    if file.tensor(f"{blk}ffn_gate_inp.weight") is not None:
        return _experts(file, blk, x)
    up = _product(file, x, blk + "ffn_up")
    if file.architecture == "arcee":
        return _product(file, np.maximum(up, 0) ** 2, blk + "ffn_down")
    gate = _product(file, x, blk + "ffn_gate")
    if file.architecture == "gemma":
        gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    else:
        gate = gate / (1 + np.exp(-gate))
    return _product(file, gate * up, blk + "ffn_down")


def _experts(file: _File, blk: str, x: Array) -> Array:
    scores = _product(file, x, blk + "ffn_gate_inp")
    n_used, out = file.fact("expert_used_count"), np.zeros_like(x)
    preferences = file.tensor(f"{blk}exp_probs_b.bias")
    ranks = scores if preferences is None else sigmoid(scores) + preferences
    file.margins.append(_margins(ranks, n_used))
    for row, scored in enumerate(scores):
        used = np.argsort(-ranks[row], kind="stable")[:n_used]
        weights = np.exp(scored - scored.max())
        if preferences is not None:
            shares = sigmoid(scored[used]) / sigmoid(scored[used]).sum()
        elif file.architecture == "gpt-oss":
            shares = weights[used] / weights[used].sum()
        else:
            shares = weights[used] / weights.sum()
            shares = shares if file.architecture in ("olmoe", "qwen2moe") else shares / shares.sum()
        for share, expert in zip(shares, used, strict=True):
            gate, up = (_of_expert(file, x[row], f"{blk}ffn_{side}_exps", expert) for side in ("gate", "up"))
            if file.architecture == "gpt-oss":
                gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
                hidden = gate / (1 + np.exp(-1.702 * gate)) * up
            else:
                hidden = gate / (1 + np.exp(-gate)) * up
            out[row] += share * _of_expert(file, hidden, f"{blk}ffn_down_exps", expert)
    if file.tensor(f"{blk}ffn_up_shexp.weight") is None:
        return out
    gate, up = (_product(file, x, f"{blk}ffn_{side}_shexp") for side in ("gate", "up"))
    shared = _product(file, gate / (1 + np.exp(-gate)) * up, f"{blk}ffn_down_shexp")
    weight = file.tensor(f"{blk}ffn_gate_inp_shexp.weight")
    return out + (shared if weight is None else shared / (1 + np.exp(-(x @ weight)))[:, None])


def _of_expert(file: _File, x: Array, name: str, expert: int) -> Array:
    weight, bias = file.tensor(name + ".weight"), file.tensor(name + ".bias")
    assert weight is not None
    return weight[expert] @ x + (0 if bias is None else bias[expert])


def _margins(scores: Array, n_used: int) -> Array:
    """By how much the last expert that is used is ahead of the first that is not, by row; infinite if all are used."""
    ordered = np.sort(scores, axis=-1)[:, ::-1]
    if n_used == scores.shape[1]:
        return np.full(len(scores), np.inf)
    return np.asarray(ordered[:, n_used - 1] - ordered[:, n_used])

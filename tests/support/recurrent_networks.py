"""Recurrent layers of small GGUFs in float64: the formulas, and none of our tables."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["gated_delta_net", "short_convolution", "sigmoid"]

Array = npt.NDArray[np.float64]


class _File(Protocol):
    def fact(self, name: str, default: Any = None) -> Any: ...

    def tensor(self, name: str) -> Array | None: ...


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def short_convolution(file: _File, blk: str, x: Array) -> Array:
    """Rows of a text after a layer of LFM2 that mixes neighbors."""
    b, c, inner = np.split(x @ _weight(file, f"{blk}shortconv.in_proj").T, 3, axis=1)
    return np.asarray(
        (c * _convolved(b * inner, _weight(file, f"{blk}shortconv.conv"))) @ _weight(file, f"{blk}shortconv.out_proj").T
    )


def gated_delta_net(file: _File, blk: str, x: Array) -> Array:
    """Rows of a text after a layer of Qwen3.5 with a state: token by token, each with the whole matrix."""
    n, size, epsilon = len(x), file.fact("ssm.state_size"), file.fact("attention.layer_norm_rms_epsilon")
    n_heads, n_keys = file.fact("ssm.time_step_rank"), file.fact("ssm.group_count")
    mixed = _convolved(x @ _weight(file, f"{blk}attn_qkv").T, _weight(file, f"{blk}ssm_conv1d"))
    q, k, v = np.split((mixed * sigmoid(mixed)).reshape(n, -1, size), [n_keys, 2 * n_keys], axis=1)
    q, k = (each / np.sqrt((each**2).sum(axis=-1, keepdims=True) + epsilon) for each in (q, k))
    step, rate = file.tensor(f"{blk}ssm_dt.bias"), file.tensor(f"{blk}ssm_a")
    assert step is not None and rate is not None
    decays = np.exp(rate * np.log1p(np.exp(x @ _weight(file, f"{blk}ssm_alpha").T + step)))
    shares = sigmoid(x @ _weight(file, f"{blk}ssm_beta").T)
    # Head h reads the queries and keys of head h % n_keys.
    q, k = (np.tile(each, (1, n_heads // n_keys, 1)) for each in (q, k))
    state, out = np.zeros((n_heads, size, size)), np.zeros((n, n_heads, size))
    for row in range(n):
        state *= decays[row, :, None, None]
        wrong = (v[row] - np.einsum("hij,hi->hj", state, k[row])) * shares[row, :, None]
        state += k[row, :, :, None] * wrong[:, None]
        out[row] = np.einsum("hij,hi->hj", state, q[row]) / np.sqrt(size)
    out = out / np.sqrt((out**2).mean(axis=-1, keepdims=True) + epsilon) * _weight(file, f"{blk}ssm_norm")
    z = x @ _weight(file, f"{blk}attn_gate").T
    return np.asarray((out.reshape(n, -1) * z * sigmoid(z)) @ _weight(file, f"{blk}ssm_out").T)


def _weight(file: _File, name: str) -> Array:
    weight = file.tensor(f"{name}.weight")
    assert weight is not None
    return weight


def _convolved(x: Array, weights: Array) -> Array:
    """Each channel of rows, mixed with those before; ``weights`` are ``[n_channels, n_taps]``."""
    n_taps = weights.shape[1]
    before = np.concatenate([np.zeros((n_taps - 1, x.shape[1])), x])
    return np.asarray(sum(before[i : i + len(x)] * weights[:, i] for i in range(n_taps)))

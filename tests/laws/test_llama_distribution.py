"""Laws of sampling beside llama.cpp: its chain of samplers has the same distribution."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import pytest
from sampling_reference import (
    distribution,
    naive,
    random_settings,
)

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.adjustments import adjusted
from edge_spec.sampling.candidates import Row


def llama_distribution(row: Row, s: SamplerSettings, text: Sequence[int]) -> dict[int, float]:
    """The same by llama.cpp's chain."""
    n = row.size
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    biases = (llama_cpp.llama_logit_bias * len(s.logit_bias))(*s.logit_bias.items())
    window = len(text) if s.penalty_window < 0 else s.penalty_window
    for part in (
        llama_cpp.llama_sampler_init_logit_bias(n, len(biases), biases),
        llama_cpp.llama_sampler_init_penalties(n, window, s.repeat_penalty, s.frequency_penalty, s.presence_penalty),
        llama_cpp.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        llama_cpp.llama_sampler_init_top_k(s.top_k),
        llama_cpp.llama_sampler_init_typical(s.typical_p, 1),
        llama_cpp.llama_sampler_init_top_p(s.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(s.min_p, 1),
        llama_cpp.llama_sampler_init_temp(s.temperature),
    ):
        llama_cpp.llama_sampler_chain_add(chain, part)
    for token in text:
        llama_cpp.llama_sampler_accept(chain, token)
    data = np.zeros(n, dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
    data["id"], data["logit"] = np.arange(n), row
    pointer = data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    array = llama_cpp.llama_token_data_array(pointer, n, -1, False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    llama_cpp.llama_sampler_free(chain)
    kept = data[: array.size]
    kept = kept[kept["logit"] > -np.inf]
    p = np.exp(kept["logit"].astype(np.float64) - kept["logit"].max())
    return dict(zip(kept["id"].tolist(), (p / p.sum()).tolist(), strict=True))


@pytest.mark.long
def test_the_distribution_equals_llama_cpps() -> None:
    rng = np.random.default_rng(4)
    n_compared = 0
    for _ in range(300):
        n = int(rng.integers(2, 1500))
        row = (rng.normal(size=n) * rng.choice([0.5, 2.5, 8.0])).astype(np.float32)
        text = rng.integers(n, size=rng.integers(0, 100)).tolist()
        s = random_settings(rng, 0.4)
        changes: dict[str, Any] = {"temperature": float(rng.choice([0.3, 0.8, 1.0, 2.0]))}
        if s.top_n_sigma > 0:
            changes["typical_p"] = 1.0  # a deliberate difference, see SamplerSettings
        if rng.random() < 0.5:
            changes |= {"repeat_penalty": 1.3, "penalty_window": int(rng.choice([-1, 0, 5, 64]))}
        if rng.random() < 0.3:
            changes |= {"frequency_penalty": 0.4, "presence_penalty": -0.7}
        if rng.random() < 0.3:
            changes["logit_bias"] = {0: 3.5, int(rng.integers(1, n)): -2.0}
        s = dataclasses.replace(s, **changes)
        changed = adjusted(row, text, s, {})
        # llama.cpp sums in float32: where that may decide which candidates stay, there is nothing to compare.
        if naive(changed, s, -1e-4) != naive(changed, s, 1e-4):
            continue
        n_compared += 1
        ours, theirs = distribution(row, s, text), llama_distribution(row, s, text)
        assert ours.keys() == theirs.keys(), s
        for token, p in ours.items():
            assert theirs[token] == pytest.approx(p, rel=1e-4, abs=1e-30), s
    assert n_compared > 150


def test_the_greedy_token_equals_llama_cpps() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        row = rng.normal(size=200).astype(np.float32)
        text = rng.integers(200, size=80).tolist()
        bias = {7: -math.inf}
        s = SamplerSettings(temperature=0, repeat_penalty=1.5, frequency_penalty=0.3, logit_bias=bias)
        assert llama_distribution(row, s, text) == {Sampler(s, []).pick(row, text): 1.0}

"""The documented filters word by word, random rows and settings, and what draws are compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.adjustments import adjusted
from edge_spec.sampling.candidates import Row, candidates_of
from edge_spec.sampling.noise import stream_of

ALL: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Every filter off."""


LARGEST = float(np.finfo(np.float32).max)


def naive(row: Row, s: SamplerSettings, slack: float = 0.0) -> list[int]:
    """The documented filters, word by word; ``slack`` widens every threshold a little."""
    logits = {token: min(x, LARGEST) for token, x in enumerate(row.tolist()) if x > -math.inf}
    if not logits:
        return [0]
    ids = sorted(logits, key=lambda token: (-logits[token], token))
    best = logits[ids[0]]
    if s.top_n_sigma > 0:
        # As the row is float32, so is the threshold.
        floor = best - s.top_n_sigma * float(np.std(list(logits.values())))
        floor = float(np.float32(max(floor - slack * abs(floor), -LARGEST)))
        ids = [token for token in ids if logits[token] >= floor]
    if s.top_k > 0:
        ids = ids[: s.top_k]
    if s.typical_p < 1:
        log_p = log_probabilities(ids, logits)
        entropy = -math.fsum(math.exp(x) * x for x in log_p.values())
        ordered = sorted(ids, key=lambda token: abs(-log_p[token] - entropy))
        kept, mass = set(), 0.0
        for token in ordered:
            kept.add(token)
            mass += math.exp(log_p[token])
            if mass > s.typical_p + slack:
                break
        ids = [token for token in ids if token in kept]
    if s.top_p < 1:
        log_p = log_probabilities(ids, logits)
        mass = 0.0
        for count, token in enumerate(ids, start=1):
            mass += math.exp(log_p[token])
            if mass >= s.top_p * (1 + slack):
                ids = ids[:count]
                break
    if s.min_p > 0:
        deepest = max(0.0, slack - math.log(s.min_p))
        ids = [token for token in ids if logits[ids[0]] - logits[token] <= deepest]
    return ids


def log_probabilities(ids: list[int], logits: dict[int, float]) -> dict[int, float]:
    best = logits[ids[0]]
    total = math.log(math.fsum(math.exp(logits[token] - best) for token in ids))
    return {token: logits[token] - best - total for token in ids}


def random_row(rng: np.random.Generator, n: int) -> Row:
    """A row of one of many kinds."""
    row: Row = (rng.normal(size=n) * rng.choice([0.01, 1.0, 2.5, 8.0])).astype(np.float32)
    kind = rng.integers(10)
    if kind == 0:
        row[:] = rng.normal()
    elif kind == 1:
        row = ((row * 2).round() / 2).astype(np.float32)  # many ties
    elif kind == 2:
        row[rng.integers(n, size=3)] += 15  # a few stand out
    elif kind == 3:
        row += np.linspace(0, 20, n, dtype=np.float32)
    elif kind == 4:
        row += np.float32(rng.choice([-1e4, 1e4, 1e8]))
    if rng.random() < 0.2:
        row[rng.random(n) < rng.choice([0.01, 0.5, 1.0])] = -np.inf
    if rng.random() < 0.15:
        row[rng.random(n) < rng.choice([0.01, 0.5, 1.0])] = np.nan
    if rng.random() < 0.03:
        row[rng.integers(n, size=2)] = np.inf
    return row


FILTERS: dict[str, list[Any]] = {
    "top_k": [1, 2, 5, 40, 64, 100, 200, 10_000],
    "top_p": [0.95, 0.9, 0.5, 0.999999, 0.01, 1e-9],
    "min_p": [0.05, 0.5, 1.0, 1e-3, 1e-9, 1e-300],
    "typical_p": [0.95, 0.5, 0.02],
    "top_n_sigma": [0.3, 1.0, 3.0],
}


def random_settings(rng: np.random.Generator, share: float = 0.5) -> SamplerSettings:
    names = [name for name in FILTERS if rng.random() < share]
    chosen = {name: FILTERS[name][rng.integers(len(FILTERS[name]))] for name in names}
    return SamplerSettings(**(ALL | chosen))


def distribution(row: Row, s: SamplerSettings, text: Sequence[int] = ()) -> dict[int, float]:
    """Token ids and their probabilities."""
    ids, x = candidates_of(adjusted(row, text, s, {}), s)
    p = np.exp((np.asarray(x) - np.max(x)) / s.temperature)
    return dict(zip((int(token) for token in ids), (p / p.sum()).tolist(), strict=True))


SMALL = np.array([1.0, 0.0, 2.0, -1.0, 1.5, -np.inf, 1.0], dtype=np.float32)


WIDE = np.random.default_rng(6).normal(size=300).astype(np.float32)


MIDDLE = np.random.default_rng(7).normal(size=60).astype(np.float32)


DISTRIBUTIONS: dict[str, tuple[Row, dict[str, Any]]] = {
    "plain": (SMALL, ALL | {"temperature": 1.0}),
    "cold": (SMALL, ALL | {"temperature": 0.5}),
    "hot": (SMALL, ALL | {"temperature": 3.0}),
    "filtered": (SMALL, {"top_k": 4, "top_p": 0.9, "min_p": 0.1}),
    "penalized": (SMALL, ALL | {"repeat_penalty": 1.5, "presence_penalty": 0.2, "logit_bias": {1: 1, 2: -2}}),
    "noise from NumPy": (MIDDLE, ALL | {"temperature": 0.7}),
    "many candidates": (WIDE, ALL | {"temperature": 1.0}),
}


def chi_square(counts: Counter[Any], expected: dict[Any, float]) -> float:
    """The p-value of the counts; what is expected fewer than 10 times is pooled."""
    n = sum(counts.values())
    assert counts.keys() <= expected.keys()
    common = [key for key, p in expected.items() if p * n >= 10]
    observed = [float(counts[key]) for key in common]
    wanted = [expected[key] * n for key in common]
    if n - sum(wanted) > 1:
        observed.append(n - sum(observed))
        wanted.append(n - sum(wanted))
    return float(stats.chisquare(observed, np.array(wanted) * n / sum(wanted)).pvalue)


def samplers(chosen: dict[str, Any], n_seeds: int = 20_000) -> Iterator[Sampler]:
    """One for each seed."""
    sampler = Sampler(SamplerSettings(**chosen), [9])
    for seed in range(n_seeds):
        sampler.stream = stream_of(seed, 0, [9])
        yield sampler

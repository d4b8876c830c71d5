"""Laws of guesses: the best one is the pick, and the others are drawn without replacement."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import (
    ALL,
    DISTRIBUTIONS,
    chi_square,
    distribution,
    random_row,
    random_settings,
    samplers,
)

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.adjustments import adjusted
from edge_spec.sampling.candidates import candidates_of


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 400), limit=st.integers(1, 20))
def test_the_best_guess_is_the_pick(seed: int, n: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    row = random_row(rng, n)
    if np.isnan(row).all():  # an error, with a law of its own
        row[0] = 0.0
    text = rng.integers(n, size=20).tolist()
    s = dataclasses.replace(
        random_settings(rng, 0.3),
        temperature=float(rng.choice([0.0, 0.0, 0.8, 1e-300, 50.0])),
        repeat_penalty=float(rng.choice([1.0, 1.4])),
        logit_bias={} if rng.random() < 0.5 else {int(rng.integers(n)): 4.0, 0: -math.inf},
        seed=seed,
    )
    sampler = Sampler(s, text[:5])
    guesses = sampler.guess(row, text, limit)
    assert guesses[0][0] == sampler.pick(row, text)
    tokens, chances = zip(*guesses, strict=True)
    assert len(set(tokens)) == len(tokens) <= limit
    assert list(chances) == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 1 + 1e-12
    if s.temperature > 0:
        assert set(tokens) <= {int(token) for token in candidates_of(adjusted(row, text, s, {}), s)[0]}


def ordered_pairs(p: dict[int, float]) -> Iterator[tuple[tuple[int, int], float]]:
    for a in p:
        for b in p.keys() - {a}:
            yield (a, b), p[a] * p[b] / (1 - p[a])


@pytest.mark.parametrize("name", ["filtered", "penalized"])
def test_guesses_are_drawn_without_replacement(name: str) -> None:
    row, chosen = DISTRIBUTIONS[name]
    text = [2, 2, 4]
    pairs: Counter[tuple[int, int]] = Counter()
    for sampler in samplers(chosen, 6000):
        (a, _), (b, _) = sampler.guess(row, text, 2)
        pairs[a, b] += 1
    assert chi_square(pairs, dict(ordered_pairs(distribution(row, SamplerSettings(**chosen), text)))) > 1e-4


def test_chances_are_those_of_a_target_with_gumbel_errors() -> None:
    # Without filters and noise the chances are the distribution itself, at temperature 1.
    row = np.array([1.0, 3.0, 2.5], dtype=np.float32)
    guesses = Sampler(SamplerSettings(temperature=0), []).guess(row, [], 3)
    p = distribution(row, SamplerSettings(**ALL, temperature=1.0))
    assert [token for token, _ in guesses] == [1, 2, 0]
    assert [chance for _, chance in guesses] == pytest.approx([p[1], p[2], p[0]])


def test_a_greedy_guess_leaves_out_what_is_hopeless() -> None:
    row = np.array([0.0, 9.0, 8.0, 1.0], dtype=np.float32)
    assert [token for token, _ in Sampler(SamplerSettings(temperature=0), []).guess(row, [], 4)] == [1, 2]

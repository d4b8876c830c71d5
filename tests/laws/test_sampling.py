"""Laws of the draw: how often a token is drawn, and what a draw depends on."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from sampling_reference import (
    ALL,
    DISTRIBUTIONS,
    MIDDLE,
    SMALL,
    WIDE,
    chi_square,
    distribution,
    random_row,
    random_settings,
    samplers,
)

from edge_spec.errors import BackendError, SettingsError
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.noise import stream_of


def test_a_sampler_draws_by_the_stream_of_seed_attempt_and_prompt() -> None:
    assert Sampler(SamplerSettings(seed=5, attempt=2), [9, 8]).stream == stream_of(5, 2, [9, 8])


@pytest.mark.long
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_pick_is_drawn_from_the_distribution(name: str) -> None:
    row, chosen = DISTRIBUTIONS[name]
    text = [2, 2, 4]
    picks = Counter(sampler.pick(row, text) for sampler in samplers(chosen))
    assert chi_square(picks, distribution(row, SamplerSettings(**chosen), text)) > 1e-4


def test_picks_at_different_positions_are_independent() -> None:
    row = np.array([0.5, 0.0, 1.0], dtype=np.float32)
    s = SamplerSettings(**ALL, temperature=1.0)
    sampler = Sampler(s, [1, 2])
    text = [1, 2]
    picks = []
    for _ in range(20_000):
        picks.append(sampler.pick(row, text))
        text.append(0)
    p = distribution(row, s)
    for lag in (1, 2, 7):
        # Pairs that share no pick.
        pairs = Counter((picks[i], picks[i + lag]) for i in range(len(picks) - lag) if i // lag % 2 == 0)
        assert chi_square(pairs, {(a, b): p[a] * p[b] for a in p for b in p}) > 1e-4


def test_a_pick_depends_on_row_text_and_settings_alone() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        row = random_row(rng, int(rng.integers(2, 500)))
        s = dataclasses.replace(random_settings(rng), seed=int(rng.integers(100)), temperature=1.0)
        text = [0] * int(rng.integers(3, 50))
        row[0] = 0.0 if np.isnan(row).all() else row[0]
        before = row.copy()
        token = Sampler(s, [0, 0, 0]).pick(row, text)
        sampler = Sampler(s, [0, 0, 0])
        sampler.pick(WIDE, [1, 2, 3, 4])
        assert sampler.pick(row.copy(), tuple(text)) == token
        np.testing.assert_array_equal(row, before)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    greedy = Sampler(SamplerSettings(temperature=0), [])
    nan, inf = math.nan, math.inf
    for values, best in (
        ([1.0, 3.0, 3.0], 1),
        ([nan, 1.0, 2.0, 2.0], 2),
        ([-inf, -inf, -5.0], 2),
        ([0.0, inf, inf], 1),
        ([nan, 1.0, inf], 2),
        ([-inf, -inf], 0),
        ([nan, -inf], 0),
    ):
        row = np.array(values, dtype=np.float32)
        assert greedy.pick(row, []) == best
        assert greedy.guess(row, [], 1)[0][0] == best


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 0}])
def test_a_row_without_any_number_is_an_error(settings: dict[str, Any]) -> None:
    row = np.full(50, np.nan, dtype=np.float32)
    with pytest.raises(BackendError, match="NaN"):
        Sampler(SamplerSettings(**settings), []).pick(row, [])
    row[7] = -5.0
    assert Sampler(SamplerSettings(**settings), []).pick(row, []) == 7


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_temperatures_near_zero_take_the_best_token(temperature: float) -> None:
    s = SamplerSettings(**ALL, temperature=temperature)
    for row in (SMALL, MIDDLE, WIDE, WIDE * 1e30):
        assert Sampler(s, []).pick(row, []) == row.argmax()


def test_a_boundless_temperature_draws_evenly() -> None:
    picks = Counter(sampler.pick(SMALL, [9]) for sampler in samplers(ALL | {"temperature": 1e300}, 3000))
    assert chi_square(picks, dict.fromkeys([0, 1, 2, 3, 4, 6], 1 / 6)) > 1e-4


def test_a_forbidden_token_is_never_drawn() -> None:
    s = SamplerSettings(**ALL, temperature=5.0, logit_bias={2: -math.inf, 4: -math.inf})
    sampler = Sampler(s, [])
    assert {sampler.pick(SMALL, [0] * i) for i in range(500)} == {0, 1, 3, 6}


def test_the_window_of_penalties_moves_with_the_text() -> None:
    row = np.array([3.0, 2.0, 1.0], dtype=np.float32)
    for window, text, best in ((1, [0, 2], 0), (2, [0, 2], 1), (-1, [0, 2, 2], 1), (0, [0], 0), (9, [], 0)):
        s = SamplerSettings(temperature=0, presence_penalty=1.5, penalty_window=window)
        assert Sampler(s, []).pick(row, text) == best


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(SettingsError, match="names token 7; this model has 7 tokens"):
        Sampler(SamplerSettings(logit_bias={7: 1.0}), []).pick(SMALL, [])

"""The draw in C is the draw in Python, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.sampling.native import native_draw
from edge_spec.sampling.noise import position_key
from edge_spec.tokens.kept_tokens import KeptTokens

pytestmark = pytest.mark.skipif(
    native_draw(SamplerSettings()) is None, reason="the package was installed without a C compiler"
)

WIDTHS = (1, 2, 5, 40, 63, 64, 65, 300, 1000, 8192, 20_000)


def rows(number: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A row of any width and spread; some with ties, some with infinities and NaN of both signs."""
    n = int(rng.choice(WIDTHS))
    row = (rng.standard_normal(n) * float(rng.choice([0.3, 1, 2, 4, 8]))).astype(np.float32)
    if number % 5 == 0:
        row = np.round(row)
    if number % 7 == 0:
        row[rng.integers(0, n, n // 3 + 1)] = -np.inf
    if number % 11 == 0 and n > 1:
        row[rng.integers(0, n)] = np.nan if number % 2 else -np.float32(np.nan)
    if number % 13 == 0:
        row[rng.integers(0, n)] = np.inf
    return row


def settings(number: int, rng: np.random.Generator) -> SamplerSettings:
    return SamplerSettings(
        temperature=float(rng.choice([0, 1e-3, 0.2, 0.7, 1, 1.5])),
        top_k=int(rng.choice([0, 1, 5, 40, 100])),
        top_p=float(rng.choice([1e-6, 0.3, 0.9, 0.95, 1])),
        min_p=float(rng.choice([0, 0.05, 0.001, 0.3, 1])),
        seed=number,
    )


def scattered(row: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The same numbers, but not one after the other in memory: what C leaves to Python."""
    return np.repeat(row, 2)[::2]


def test_draw_in_c_equals_draw_in_python() -> None:
    rng = np.random.default_rng(5)
    n_drawn = 0
    for number in range(3000):
        row = rows(number, rng)
        sampler = Sampler(settings(number, rng), [1, 2])
        text = [1, 2] + [3] * (number % 9)
        native = native_draw(sampler.settings)
        assert native is not None
        n_drawn += native(row, position_key(sampler.stream, len(text) - 2)) is not None
        assert sampler.pick(row, text) == sampler.pick(scattered(row), text)
        assert sampler.guess(row, text, row.size) == sampler.guess(scattered(row), text, row.size)
    assert n_drawn > 1500, "the usual case must be one for C"


def test_draw_in_c_from_some_tokens_equals_draw_in_python() -> None:
    """Rows with a column for each kept token only: the noise is that of the tokens' own ids."""
    rng = np.random.default_rng(6)
    for number in range(600):
        row = rows(number, rng)
        kept = KeptTokens(np.sort(rng.choice(40_000, row.size, replace=False)), 40_000)
        sampler = Sampler(settings(number, rng), [1, 2]).over(kept)
        text = [1, 2] + [3] * (number % 9)
        assert sampler.pick(row, text) == sampler.pick(scattered(row), text)
        assert sampler.guess(row, text, row.size) == sampler.guess(scattered(row), text, row.size)


def test_a_row_of_another_width_than_the_kept_tokens_is_left_to_python() -> None:
    native = native_draw(SamplerSettings(), KeptTokens([3, 5, 8], 10))
    assert native is not None
    drawn = native(np.array([0, 9, 0], np.float32), 1)
    assert drawn is not None and 5 in drawn[0]
    assert native(np.array([0, 9, 0, 0], np.float32), 1) is None


def test_rows_that_are_not_contiguous_memory_are_left_to_python() -> None:
    native = native_draw(SamplerSettings())
    assert native is not None
    row = np.linspace(0, 5, 100, dtype=np.float32)
    assert native(row, 1) is not None
    assert native(scattered(row), 1) is None

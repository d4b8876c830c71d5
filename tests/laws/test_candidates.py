"""Laws of filters: the candidates of every row are those of the documented definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import (
    ALL,
    FILTERS,
    LARGEST,
    naive,
    random_row,
    random_settings,
)

from edge_spec.sampling import SamplerSettings
from edge_spec.sampling.candidates import Row, candidates_of, head


def check_candidates(row: Row, s: SamplerSettings) -> bool:
    """Asserts that candidates are the naive ones; returns whether rounding could not have decided them."""
    before = row.copy()
    ids, x = candidates_of(row, s)
    np.testing.assert_array_equal(row, before)
    got = [int(token) for token in ids]
    assert len(set(got)) == len(got) >= 1
    if row[got[0]] > -np.inf:
        assert [float(v) for v in x] == [min(float(row[token]), LARGEST) for token in got]
    if isinstance(ids, list):
        order = sorted(range(len(got)), key=lambda place: (-x[place], got[place]))
        assert order == list(range(len(got)))
    narrow, wide = naive(row, s, -1e-12), naive(row, s, 1e-12)
    if narrow == wide:
        assert sorted(got) == sorted(wide), s
    elif s.typical_p == 1:
        assert set(narrow) <= set(got) <= set(wide), s
    return narrow == wide


def test_candidates_equal_the_naive_reference() -> None:
    clear: list[bool] = []

    @settings(max_examples=300, deadline=None)
    @given(seed=st.integers(0, 2**32), n=st.integers(1, 300))
    def check(seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        clear.append(check_candidates(random_row(rng, n), random_settings(rng)))

    check()
    assert np.mean(clear) > 0.9


@pytest.mark.long
def test_candidates_equal_the_naive_reference_among_ties() -> None:
    clear: list[bool] = []

    @settings(max_examples=300, deadline=None)
    @given(
        row=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 4.0, 9.0, -9.0, -math.inf, math.nan]), min_size=1),
        seed=st.integers(0, 2**32),
    )
    def check(row: list[float], seed: int) -> None:
        clear.append(check_candidates(np.array(row, dtype=np.float32), random_settings(np.random.default_rng(seed))))

    check()
    assert np.mean(clear) > 0.9


@pytest.mark.long
def test_candidates_equal_the_naive_reference_on_thousands_of_rows() -> None:
    rng = np.random.default_rng(1)
    sizes = [int(rng.integers(1, 80)) if i % 10 else int(rng.integers(1, 5000)) for i in range(1500)]
    clear = [check_candidates(random_row(rng, n), random_settings(rng)) for n in sizes]
    assert np.mean(clear) > 0.95


@pytest.mark.parametrize("name", FILTERS)
def test_candidates_equal_the_naive_reference_with_one_filter(name: str) -> None:
    rng = np.random.default_rng(2)
    clear = [
        check_candidates(random_row(rng, int(rng.integers(1, 600))), SamplerSettings(**(ALL | {name: value})))
        for value in FILTERS[name]
        for _ in range(12)
    ]
    assert np.mean(clear) > 0.9


@pytest.mark.long
@pytest.mark.parametrize("chosen", [{}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_k": 40, "top_p": 0.95, "min_p": 0.05}])
def test_candidates_equal_the_naive_reference_at_the_largest_vocabulary(chosen: dict[str, Any]) -> None:
    row = (np.random.default_rng(3).normal(size=152_064) * 2.5).astype(np.float32)
    assert check_candidates(row, SamplerSettings(**(ALL | chosen)))


@given(seed=st.integers(0, 2**32), n=st.integers(1, 3000), k=st.integers(1, 3000))
def test_the_head_is_the_start_of_the_sorted_row(seed: int, n: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=n) * rng.choice([0.3, 3, 30])).round().astype(np.float32)
    ids, logits = head(row, k)
    assert ids.tolist() == sorted(range(n), key=lambda token: (-row[token], token))[:k]
    assert logits.tolist() == row[ids].tolist()

"""Laws of what a head's target keeps for it, cell by cell."""

from __future__ import annotations

import numpy as np
import pytest

from edge_spec.engines.onnx.features import Features


@pytest.mark.parametrize("coarse", [False, True])
def test_rows_are_kept_moved_and_forgotten(coarse: bool) -> None:
    """In 8 bits as closely as a 200th of the largest of 32 numbers, whatever its size."""
    random = np.random.default_rng(1)
    sizes = 10.0 ** random.uniform(-3, 6, (12, 3, 1))
    computed = (random.standard_normal((12, 3, 32)) * sizes).reshape(12, 96).astype(np.float32)
    features = Features("feature", 20, computed, coarse=coarse)
    features.keep(np.arange(4, 14))
    wanted = np.clip(computed[:10], -65000, 65000)
    largest = np.abs(wanted.reshape(10, 3, 32)).max(-1, keepdims=True)
    apart = np.abs(features[np.arange(4, 14)].astype(np.float32) - wanted).reshape(10, 3, 32)
    assert (apart <= largest * (1 / 200 if coarse else 1 / 2000) + 1e-5).all()
    assert np.isfinite(features[np.arange(0, 20)]).all()
    assert not features[np.arange(0, 4)].any()
    assert features[np.arange(4, 4)].shape == (0, 96)
    found, saved = features[np.arange(4, 14)], features.save(np.arange(4, 14))
    assert len(saved) == 10 * features.cell_bytes
    features.forget(np.arange(20))
    assert not features.restore(np.arange(10), saved[:-2] + b"\xff\xff")
    assert not features[np.arange(0, 20)].any()
    assert features.restore(np.arange(4, 14), saved)
    assert np.array_equal(features[np.arange(4, 14)], found)
    found = features[np.arange(8, 14)].copy()
    features.move(np.arange(8, 14), np.arange(4, 10))
    assert np.array_equal(features[np.arange(4, 10)], found)
    features.forget(np.arange(6))
    assert not features[np.arange(0, 6)].any()
    assert np.array_equal(features[np.arange(6, 10)], found[2:])


@pytest.mark.parametrize("coarse", [False, True])
def test_rows_that_come_in_rounds_are_those_of_one_long_run(coarse: bool) -> None:
    """Each round computes some cells, of which the next one may replace the last: drafts that were rejected."""
    random = np.random.default_rng(2)
    truth = random.standard_normal((400, 64)).astype(np.float32)
    whole = Features("feature", 400, truth, coarse=coarse)
    whole.keep(np.arange(400))
    rounds = Features("feature", 400, np.zeros((80, 64), np.float32), coarse=coarse)
    first = 0
    while first < 300:
        n = int(random.integers(1, 6)) if random.random() > 0.02 else 75
        rounds.computed[:n] = truth[first : first + n]
        rounds.keep(np.arange(first, first + n))
        assert np.array_equal(rounds[np.arange(first, first + n)], whole[np.arange(first, first + n)])
        rounds.computed[:] = np.nan
        first += n - int(random.integers(0, n))


def test_numbers_that_are_none_count_as_zero() -> None:
    computed = np.ones((1, 96), np.float32)
    computed[0, [3, 40]] = np.nan, np.inf
    features = Features("feature", 1, computed, coarse=True)
    features.keep(np.arange(1))
    assert not features[np.arange(0, 1)][0, :64].any()
    assert np.allclose(features[np.arange(0, 1)][0, 64:], 1, atol=0.01)

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
    features.keep(slice(4, 14), 10)
    wanted = np.clip(computed[:10], -65000, 65000)
    largest = np.abs(wanted.reshape(10, 3, 32)).max(-1, keepdims=True)
    apart = np.abs(features[4:14].astype(np.float32) - wanted).reshape(10, 3, 32)
    assert (apart <= largest * (1 / 200 if coarse else 1 / 2000) + 1e-5).all()
    assert np.isfinite(features[0:20]).all()
    assert not features[0:4].any()
    assert features[4:4].shape == (0, 96)
    found = features[4:14].astype(np.float32)
    features[4:14] = found
    # Rows that were saved and are restored are the same but for the rounding of their scales.
    assert (np.abs(features[4:14] - found).reshape(10, 3, 32) <= largest / 500 + 1e-5).all()
    found = features[8:14].copy()
    features.move(np.arange(8, 14), np.arange(4, 10))
    assert np.array_equal(features[4:10], found)
    features.forget(6)
    assert not features[0:6].any()
    assert np.array_equal(features[6:10], found[2:])

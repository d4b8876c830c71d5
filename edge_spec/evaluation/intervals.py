"""Intervals of measured speed-ups, over other prompts and other runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

__all__ = ["CONFIDENCE", "interval_of_median"]

CONFIDENCE = 0.95

_RESAMPLES = 2000


def interval_of_median(ratios: Sequence[Sequence[float]], *, seed: int = 1) -> tuple[float, float]:
    """Return the 95 % interval of the median of ratios, by a hierarchical bootstrap (percentiles).

    Prompts are resampled first, then the runs of each prompt drawn: prompts differ more from each other than runs of
    one do, and resampling all runs alike would take three runs of a prompt for three prompts. Percentiles of few
    prompts are too narrow, so further ones are taken, of 8 prompts the 0.6th and the 99.4th (expanded percentiles,
    Hesterberg, arXiv 1411.5279). Of fewer than six prompts the interval is about the range of what was seen, and too
    narrow still.

    Args:
        ratios: by prompt and run, equally many runs of each.
        seed: of the resampling; equal ratios and seeds give equal intervals.
    """
    found = np.asarray(ratios, dtype=np.float64)
    n_prompts, n_runs = found.shape
    chance = np.random.default_rng(seed)
    prompts = chance.integers(n_prompts, size=(_RESAMPLES, n_prompts, 1))
    runs = chance.integers(n_runs, size=(_RESAMPLES, n_prompts, n_runs))
    medians = np.median(found[prompts, runs].reshape(_RESAMPLES, -1), axis=1)
    tail = _tail(n_prompts if n_prompts > 1 else n_runs)
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)


def _tail(n: int) -> float:
    """Return the share of resampled medians below an interval from ``n`` measurements; as many are above it."""
    if n < 2:
        return 0.5
    normal = NormalDist()
    z, freedom = normal.inv_cdf((1 + CONFIDENCE) / 2), n - 1
    # Student's t by its expansion in the degrees of freedom (Abramowitz and Stegun, 26.7.5).
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return normal.cdf(-t * (n / freedom) ** 0.5)

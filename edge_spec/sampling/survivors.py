"""From a row of logits to the few tokens that can still be drawn.

A row has up to 152,000 logits and a draw a handful of candidates, so neither the row nor much of it is ever
sorted. Look at the few logits close to the best one first; what is left out weighs at most its number times
its largest possible weight. Only where that bound leaves a filter's outcome open is more looked at.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from edge_spec.sampling.settings import SamplerSettings

__all__ = ["Few", "Ids", "Many", "Row", "head", "survivors"]

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Few = tuple[list[int], list[float]]
Many = tuple[Ids, npt.NDArray[np.float64]]

_STRIPES = 64
"""A row is folded this often to bound its k-th best value from below; see ``head``."""

_NEAR = 7.0
"""The first look goes this many nats below the best logit: what lies deeper weighs less than 0.001 of it."""

_FEW = 96
"""Up to this many candidates, plain Python is faster than calls into NumPy."""


def head(row: Row, k: int) -> tuple[Ids, Row]:
    """The ``k`` best ids of a row and their logits, best first, lowest id first among equals.

    Fold the row into stripes and take the maximum of each column: k values reach the k-th best of these
    maxima, so it is a threshold, and few other values pass it.
    """
    n = row.shape[0]
    n_columns = n // _STRIPES
    if k >= n:
        ids = np.arange(n)
    elif k > n_columns // 2:
        ids = (row >= np.partition(row, n - k)[n - k]).nonzero()[0]
    else:
        best = row[: n_columns * _STRIPES].reshape(_STRIPES, n_columns).max(axis=0)
        ids = (row >= np.partition(best, n_columns - k)[n_columns - k]).nonzero()[0]
    logits = row[ids]
    order = (-logits).argsort(kind="stable")[:k]
    return ids[order], logits[order]


def survivors(row: Row, settings: SamplerSettings) -> Few | Many:
    """The ids that can be drawn and their logits before temperature, best first; never empty.

    A pair of lists where they are few, of arrays where they may be many.

    Transforms 3 to 7 of ``SamplerSettings``, in that order. NaN is never drawn; a row without any number has
    its lowest id drawn. Weights are relative to the best token's and summed in float64, in descending order.
    """
    top = float(row.max())
    if not math.isfinite(top):
        row = np.nan_to_num(row, nan=-np.inf, posinf=np.finfo(np.float32).max, neginf=-np.inf)
        top = float(row.max())
        if top == -math.inf:
            return [0], [0.0]
    floor = -math.inf
    if settings.top_n_sigma > 0:
        floor = top - settings.top_n_sigma * float(row[row > -np.inf].std(dtype=np.float64))
    n = row.shape[0]
    k = settings.top_k if 0 < settings.top_k < n else n
    near = max(floor, top - _NEAR)
    ids = (row >= near).nonzero()[0]
    if ids.size <= _FEW and settings.typical_p == 1:
        # Sorting (depth, id) puts the lowest id first among equals.
        pairs = sorted(zip([top - x for x in row[ids].tolist()], ids.tolist(), strict=True))[:k]
        unseen = 0.0 if near == floor else (k - len(pairs)) * math.exp(-_NEAR)
        count = _count([depth for depth, _ in pairs], unseen, settings)
        if count is not None:
            return [token for _, token in pairs[:count]], [top - depth for depth, _ in pairs[:count]]
    return _survivors_of_all(row, k, floor, settings)


def _count(depths: list[float], unseen: float, settings: SamplerSettings) -> int | None:
    """How many of the best tokens survive top-p and min-p; None if tokens not seen may decide it.

    ``depths`` are the distances below the best logit, ascending; all other tokens lie deeper than ``_NEAR`` and
    weigh at most ``unseen`` together.
    """
    n_seen = len(depths)
    n_min_p = n_seen + 1 if unseen else n_seen
    if settings.min_p > 0:
        deepest = -math.log(settings.min_p)
        if deepest <= _NEAR or not unseen:
            n_min_p = bisect_right(depths, deepest)
    if settings.top_p == 1:
        return n_min_p if n_min_p <= n_seen else None
    masses = list(accumulate([math.exp(-depth) for depth in depths]))
    least = min(n_min_p, bisect_left(masses, settings.top_p * masses[-1]) + 1)
    most = min(n_min_p, bisect_left(masses, settings.top_p * (masses[-1] + unseen)) + 1)
    return most if least == most <= n_seen else None


def _survivors_of_all(row: Row, k: int, floor: float, settings: SamplerSettings) -> Many:
    """The same without a first look: everything is weighed."""
    ids, logits = head(row, k)
    x = logits.astype(np.float64)
    keep = (x >= floor) & (x > -math.inf)
    ids, x = ids[keep], x[keep]
    if settings.typical_p < 1:
        kept = _typical(x, settings.typical_p)
        ids, x = ids[kept], x[kept]
    count = ids.size
    if settings.top_p < 1:
        mass = np.exp(x - x[0]).cumsum()
        count = min(count, int(mass.searchsorted(settings.top_p * mass[-1])) + 1)
    if settings.min_p > 0:
        count = min(count, int((x[0] - x).searchsorted(-math.log(settings.min_p), side="right")))
    return ids[:count], x[:count]


def _typical(x: npt.NDArray[np.float64], typical_p: float) -> npt.NDArray[np.int64]:
    """Places kept by locally typical sampling (Meister et al., arXiv 2202.00666), ascending.

    As in llama.cpp, the token that brings the mass above ``typical_p`` is the last one kept.
    """
    log_p = x - x[0]
    log_p -= math.log(float(np.exp(log_p).sum()))
    p = np.exp(log_p)
    surprise = np.abs(-log_p + float((p * log_p).sum()))
    order = surprise.argsort(kind="stable")
    count = int(p[order].cumsum().searchsorted(typical_p, side="right")) + 1
    return np.sort(order[:count])

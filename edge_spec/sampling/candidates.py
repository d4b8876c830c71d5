"""From a row of logits to the few tokens that can still be drawn.

A row has up to 152,000 logits and a draw a handful of candidates, so neither the row nor much of it is ever
sorted. Look at the few logits close to the best one first; what is left out weighs at most its number times
its largest possible weight. Only where that bound leaves a filter's outcome open is more looked at.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from edge_spec.sampling.settings import SamplerSettings

__all__ = [
    "FEW",
    "LOWEST",
    "MARGIN",
    "REACH",
    "Few",
    "Ids",
    "Many",
    "Row",
    "candidates_among",
    "candidates_of",
    "head",
    "peak",
    "ranked",
]

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Few = tuple[list[int], list[float]]
Many = tuple[Ids, npt.NDArray[np.float64]]

_STRIPES = 64
"""A row is folded this often to bound its k-th best value from below; see ``head``."""

REACH = 7.0
"""The first look goes at most this many nats below the best: deeper tokens weigh less than 0.001 of it."""

MARGIN = 1.0
"""Where min-p bounds what can survive, the first look goes this much further, to weigh the rest for top-p."""

FEW = 96
"""Up to this many candidates, plain Python is faster than calls into NumPy."""

_LOOKS = (12, 48, 192)
"""How many of the best tokens a grammar is asked about, before it is asked about all."""

LOWEST = float(np.finfo(np.float32).min)


def peak(row: Row) -> tuple[Row, int]:
    """The row with numbers only, and the id of its best logit, the lowest among equals.

    NaN becomes -inf and infinity the largest float32; the row is copied only if that changes anything.
    """
    best = int(row.argmax())
    # arg max takes a NaN for the best there is.
    if not math.isfinite(row[best]):
        row = np.nan_to_num(row, nan=-np.inf, posinf=-LOWEST, neginf=-np.inf)
        best = int(row.argmax())
    return row, best


def head(row: Row, k: int) -> tuple[Ids, Row]:
    """The ``k`` best ids of a row and their logits, best first, lowest id first among equals.

    Fold the row into stripes and take the maximum of each column: k values reach the k-th best of these
    maxima, so it is a threshold, and few other values pass it.
    """
    n = row.shape[0]
    if k >= n:
        order = (-row).argsort(kind="stable")
        return order, row[order]
    n_columns = n // _STRIPES
    if k > n_columns // 2:
        ids = (row >= np.partition(row, n - k)[n - k]).nonzero()[0]
    else:
        best = row[: n_columns * _STRIPES].reshape(_STRIPES, n_columns).max(axis=0)
        ids = (row >= np.partition(best, n_columns - k)[n_columns - k]).nonzero()[0]
    logits = row[ids]
    order = (-logits).argsort(kind="stable")[:k]
    return ids[order], logits[order]


def ranked(row: Row, ids: Ids, k: int) -> tuple[Ids, Row]:
    """The ``k`` best of some ascending ids and their logits, in the order of ``head``."""
    logits = row[ids]
    if ids.size == 1:
        return ids, logits
    order, logits = head(logits, k)
    return ids[order], logits


def candidates_of(row: Row, settings: SamplerSettings) -> Few | Many:
    """The ids that can be drawn and their logits before temperature; never empty.

    A pair of lists, best first, where they are few; of arrays, in any order, where they may be many.

    Transforms 3 to 7 of ``SamplerSettings``, in that order. NaN is never drawn; a row without any number has
    its lowest id drawn. Weights are relative to the best token's and summed in float64.
    """
    row, best = peak(row)
    top = float(row[best])
    if top == -math.inf:
        return [0], [0.0]
    n = row.shape[0]
    k = settings.top_k if 0 < settings.top_k < n else n
    floor = LOWEST
    if settings.top_n_sigma > 0:
        sigma = float(row[row > -np.inf].std(dtype=np.float64))
        # Compared in float32 below and in float64 further down: the same number in both.
        floor = float(np.float32(max(floor, top - settings.top_n_sigma * sigma)))
    deepest = -math.log(settings.min_p) if settings.min_p > 0 else math.inf
    if settings.typical_p < 1:
        return _survivors_of_head(row, k, floor, deepest, settings)
    for reach in (deepest + MARGIN, REACH) if deepest + MARGIN < REACH else (REACH,):
        lowest = max(floor, top - reach)
        near = (row >= lowest).nonzero()[0]
        if min(near.size, k) > FEW:
            break
        seen, logits = ranked(row, near, k)
        ids, x = seen.tolist(), logits.tolist()
        n_unseen = 0 if lowest == floor else k - len(ids)
        count = _count([top - logit for logit in x], n_unseen, reach, deepest, settings.top_p)
        if count is not None:
            return ids[:count], x[:count]
    if k < n:
        return _survivors_of_head(row, k, floor, deepest, settings)
    return _survivors_of_all(row, top, floor, deepest, settings.top_p)


def candidates_among(row: Row, settings: SamplerSettings, allowed: Callable[[list[int]], list[bool]]) -> Few | None:
    """What ``candidates_of`` says of the row after all tokens that are not ``allowed`` are out, best first.

    Asks about the best tokens only, more of them as long as the others may decide it; None if too many would.
    """
    if settings.typical_p < 1 or settings.top_n_sigma > 0:
        return None
    row, _ = peak(row)
    n = row.shape[0]
    k = settings.top_k if 0 < settings.top_k < n else n
    deepest = -math.log(settings.min_p) if settings.min_p > 0 else math.inf
    for n_best in _LOOKS:
        if n_best >= n:
            return None
        best, logits = head(row, n_best)
        seen = [
            (token, logit)
            for token, logit, may in zip(best.tolist(), logits.tolist(), allowed(best.tolist()), strict=True)
            if may and logit > -math.inf
        ][:k]
        if not seen:
            continue
        ids, x = [token for token, _ in seen], [logit for _, logit in seen]
        lowest = float(logits[-1])
        n_unseen = 0 if lowest == -math.inf else min(k - len(ids), n - n_best)
        # The others lie as deep as the last one or deeper.
        reach = math.nextafter(x[0] - lowest, -math.inf)
        count = _count([x[0] - logit for logit in x], n_unseen, reach, deepest, settings.top_p)
        if count is not None:
            return ids[:count], x[:count]
    return None


def _count(depths: list[float], n_unseen: int, reach: float, deepest: float, top_p: float) -> int | None:
    """How many of the best tokens survive top-p and min-p; None if tokens not seen may decide it.

    ``depths`` are the distances below the best logit, ascending, and min-p keeps those up to ``deepest``. At
    most ``n_unseen`` other tokens count, all of them deeper than ``reach``.
    """
    n_seen = len(depths)
    n_min_p = n_seen + 1 if n_unseen and deepest > reach else bisect_right(depths, deepest)
    if top_p == 1:
        return n_min_p if n_min_p <= n_seen else None
    masses = list(accumulate([math.exp(-depth) for depth in depths]))
    mass = masses[-1]
    least = min(n_min_p, bisect_left(masses, top_p * mass) + 1)
    most = min(n_min_p, bisect_left(masses, top_p * (mass + n_unseen * math.exp(-reach))) + 1)
    return most if least == most <= n_seen else None


def _survivors_of_head(row: Row, k: int, floor: float, deepest: float, settings: SamplerSettings) -> Many:
    """The same where the ``k`` best have to be put in order."""
    ids, logits = head(row, k)
    x = logits.astype(np.float64)
    keep = x >= floor
    ids, x = ids[keep], x[keep]
    if settings.typical_p < 1:
        kept = _typical(x, settings.typical_p)
        ids, x = ids[kept], x[kept]
    count = ids.size
    if settings.top_p < 1:
        mass = np.exp(x - x[0]).cumsum()
        count = min(count, int(mass.searchsorted(settings.top_p * mass[-1])) + 1)
    if deepest < math.inf:
        count = min(count, int((x[0] - x).searchsorted(deepest, side="right")))
    return ids[:count], x[:count]


def _survivors_of_all(row: Row, top: float, floor: float, deepest: float, top_p: float) -> Many:
    """The same where every token counts; only what may survive top-p is put in order."""
    ids = (row >= floor).nonzero()[0]
    x = row[ids].astype(np.float64)
    depths = top - x
    if top_p < 1:
        mass = float(np.exp(-depths).sum())
        # Even if all lay there, the tokens deeper than this would weigh no more than 1 - top_p.
        deepest = min(deepest, math.log(x.size / ((1 - top_p) * mass)))
    if deepest < math.inf:
        keep = depths <= deepest
        ids, x, depths = ids[keep], x[keep], depths[keep]
    if top_p == 1:
        return ids, x
    order = depths.argsort(kind="stable")
    count = int(np.exp(-depths[order]).cumsum().searchsorted(top_p * mass)) + 1
    return ids[order[:count]], x[order[:count]]


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

"""The best of a row of logits, without sorting the row.

A row has up to 152,000 logits and a draw a handful of candidates.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["LOWEST", "Ids", "Row", "head", "peak"]

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_STRIPES = 64
"""A row is folded this often to bound its k-th best value from below; see ``head``."""

LOWEST = float(np.finfo(np.float32).min)


def peak(row: Row) -> tuple[Row, int]:
    """The row with numbers only, and the id of its best logit, the lowest among equals.

    NaN becomes -inf and infinity the largest float32; the row is copied only if that changes anything.
    """
    best = int(row.argmax())
    # arg max returns a NaN if there is one.
    if not math.isfinite(row[best]):
        row = np.nan_to_num(row, nan=-np.inf, posinf=-LOWEST, neginf=-np.inf)
        best = int(row.argmax())
    return row, best


def head(row: Row, k: int) -> tuple[Ids, Row]:
    """The ``k`` best ids of a row and their logits, best first, the lowest id first among equals.

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
    ids = ids[_best_first(row[ids])[:k]]
    return ids, row[ids]


def _best_first(logits: Row) -> Ids:
    """Places by falling logit, the first place first among equals.

    Sorts whole numbers made of a logit and its place, which for a whole vocabulary takes a tenth of a stable sort.
    """
    bits = (logits + np.float32(0)).view(np.int32).astype(np.int64)  # the sum turns -0 into 0
    rising = bits ^ (bits >> 31 & 0x7FFFFFFF)  # whole numbers that compare as the logits do
    keys = (~rising << 32) | np.arange(bits.size)
    keys.sort()
    return keys & 0xFFFFFFFF

"""Find the candidates of a row of logits: the tokens that can be drawn after all filters.

This is the reference of the draw in C (``src/draw.c``), and covers what C does not support.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from math import exp, inf

import numpy as np
import numpy.typing as npt

from edge_spec.errors import GrammarDeadEnd
from edge_spec.sampling.filters import EARLY, LATE, Filter, Logits, n_likely
from edge_spec.sampling.grammar import Node
from edge_spec.sampling.settings import SamplerSettings

__all__ = ["LOWEST", "Candidates", "Ids", "Row", "allowed_row", "candidates_of", "head", "mirostat", "next_mu", "peak"]

Row = npt.NDArray[np.float32]

Ids = npt.NDArray[np.int64]

_STRIPES = 64
"""Number of stripes into which a row is folded to bound its k-th best value; see ``head``."""

LOWEST = float(np.finfo(np.float32).min)


def peak(row: Row) -> tuple[Row, int]:
    """Return the row with numbers only, and the id of its best logit, the lowest among equals.

    NaN becomes -inf and infinity the largest float32; the row is copied only if that changes anything.
    """
    best = int(row.argmax())
    # arg max returns a NaN if there is one.
    if not math.isfinite(row[best]):
        row = np.nan_to_num(row, nan=-np.inf, posinf=-LOWEST, neginf=-np.inf)
        best = int(row.argmax())
    return row, best


def head(row: Row, k: int) -> tuple[Ids, Row]:
    """Return the ``k`` best ids of a row and their logits, best first, the lowest id first among equals.

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
    """Return positions by falling logit, the first position first among equals.

    Sorts whole numbers made of a logit and its place, which for a whole vocabulary takes a tenth of a stable sort.
    """
    bits = (logits + np.float32(0)).view(np.int32).astype(np.int64)  # the sum turns -0 into 0
    rising = bits ^ (bits >> 31 & 0x7FFFFFFF)  # whole numbers that compare as the logits do
    keys = (~rising << 32) | np.arange(bits.size)
    keys.sort()
    return keys & 0xFFFFFFFF


Candidates = tuple[Ids, Logits]
"""Token ids, and their logits before temperature."""

_LOOKS = (12, 48, 192)
"""Numbers of best tokens to check with a grammar, before all are checked."""


def candidates_of(row: Row, settings: SamplerSettings, node: Node | None = None, *, toss: float = 1.0) -> Candidates:
    """Return the tokens that can be drawn; never none.

    Transforms 4 to 9 of ``SamplerSettings``, in that order. Candidates come best first, the lowest id first among
    equals, unless no filter is on. NaN is never drawn; of a row without any number the lowest id is. Weights are
    relative to the best token's and summed in float64.

    Args:
        node: the place in the reply, where a grammar may have something to say.
        toss: see ``Filter``.

    Raises:
        GrammarDeadEnd: the grammar allows no token.
    """
    early = [each for each in EARLY if each.is_on(settings)]
    late = [each for each in LATE if each.is_on(settings)]
    found: Candidates | None = None
    if node is not None and node.state is not None:
        if not early and settings.top_n_sigma <= 0:
            found = _among_the_best(row, settings, node)
        if found is None:
            row = allowed_row(row, node)
    if found is None:
        row, best = peak(row)
        if row[best] == -inf:
            return np.array([0]), np.zeros(1)
        ids, x = _filtered(_best(row, settings, in_order=bool(early or late)), early, settings, toss)
        n = n_likely(x, settings)
        found = ids[:n], x[:n]
    return _filtered(found, late, settings, toss)


def allowed_row(row: Row, node: Node) -> Row:
    """Return the row with -inf for all tokens that a grammar does not allow at ``node``.

    The lowest id that it allows is the one to be drawn if none that it allows has a number.

    Raises:
        GrammarDeadEnd: it allows none.
    """
    mask = node.mask(row.shape[0])
    lowest = int(mask.argmax())
    if not mask[lowest]:
        raise GrammarDeadEnd(n_tokens=node.index)
    row = np.where(mask, peak(row)[0], np.float32(-inf))
    if row.max() == -inf:
        row[lowest] = 0
    return row


def _best(row: Row, settings: SamplerSettings, *, in_order: bool) -> Candidates:
    """Return the candidates of a row that pass top-n-sigma and top-k."""
    if settings.top_n_sigma > 0:
        floor = float(row.max()) - settings.top_n_sigma * float(row[row > -inf].std(dtype=np.float64))
        row = np.where(row >= np.float32(max(floor, LOWEST)), row, np.float32(-inf))
    n = row.shape[0]
    k = settings.top_k if 0 < settings.top_k < n else n
    if k == n and not in_order and settings.top_p == 1 and settings.min_p == 0:
        ids = np.arange(n)
    else:
        ids, _ = head(row, k)
    ids = ids[row[ids] > -inf]
    return ids, row[ids].astype(np.float64)


def _among_the_best(row: Row, settings: SamplerSettings, node: Node) -> Candidates | None:
    """Return the tokens that a grammar, top-k, top-p and min-p allow; None if too many must be checked.

    The grammar is asked about the best tokens, and about more of them while the others may decide which are left:
    these others weigh at least nothing, and at most as if all were as good as the last one that was looked at.
    """
    row, _ = peak(row)
    n = row.shape[0]
    k = settings.top_k if 0 < settings.top_k < n else n
    for n_best in _LOOKS:
        if n_best >= n:
            return None
        best, logits = head(row, n_best)
        may = np.array(node.allowed(best.tolist())) & (logits > -inf)
        ids, x = best[may][:k], logits[may][:k].astype(np.float64)
        if ids.size == 0:
            continue
        n_others = min(k - ids.size, n - n_best)
        bound = float(logits[-1]) if n_others else -inf
        count = n_likely(x, settings, bound=bound)
        if count == n_likely(x, settings, bound=bound, rest=n_others * exp(bound - x[0])) <= ids.size:
            return ids[:count], x[:count]
    return None


def _filtered(candidates: Candidates, filters: Iterable[Filter], settings: SamplerSettings, toss: float) -> Candidates:
    ids, x = candidates
    for each in filters:
        kept = each.kept(x, settings, toss)
        ids, x = ids[kept], x[kept]
    return ids, x


def mirostat(row: Row, temperature: float, mu: float) -> Candidates:
    """Return the ids whose surprise is at most ``mu`` bits and their logits before temperature, in the order of ids.

    The likeliest token always stays, the lowest id among equals. NaN is never drawn; of a row without any number
    the lowest id is.
    """
    row, best = peak(row)
    if row[best] == -np.inf:
        return np.array([0]), np.zeros(1)
    ids = (row > -np.inf).nonzero()[0]
    x = row[ids].astype(np.float64)
    kept = _surprise(x, temperature) <= mu
    kept[ids.searchsorted(best)] = True
    return ids[kept], x[kept]


def next_mu(mu: float, x: Logits, place: int, settings: SamplerSettings) -> float:
    """Return mirostat's mu after the candidate at ``place`` was drawn.

    Args:
        x: logits of the candidates before temperature, ``[n]``.
    """
    surprise = float(_surprise(x, settings.temperature)[place])
    return mu - settings.mirostat_eta * (surprise - settings.mirostat_tau)


def _surprise(x: Logits, temperature: float) -> Logits:
    """Return the surprise of each candidate in bits."""
    with np.errstate(over="ignore"):
        depths = (x - x.max()) / temperature
    surprise: Logits = math.log2(float(np.exp(depths).sum())) - depths / math.log(2)
    return surprise

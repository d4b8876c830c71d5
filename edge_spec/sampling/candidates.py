"""From a row of logits to its candidates: the tokens that can still be drawn after all filters.

This is the reference that the draw in C (``src/draw.c``) is compared with, and it does what C leaves to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf

import numpy as np

from edge_spec.errors import GrammarDeadEnd
from edge_spec.sampling.filters import EARLY, LATE, Filter, Logits, n_likely
from edge_spec.sampling.grammar import Node
from edge_spec.sampling.rows import LOWEST, Ids, Row, head, peak
from edge_spec.sampling.settings import SamplerSettings

__all__ = ["Candidates", "allowed_row", "candidates_of"]

Candidates = tuple[Ids, Logits]
"""Token ids, and their logits before temperature."""

_LOOKS = (12, 48, 192)
"""How many of the best tokens a grammar is asked about, before it is asked about all."""


def candidates_of(row: Row, settings: SamplerSettings, node: Node | None = None, *, toss: float = 1.0) -> Candidates:
    """The tokens that can be drawn; never none.

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
    """The row with -inf for all tokens that a grammar does not allow at ``node``.

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
    """What top-n-sigma and top-k leave of a row."""
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
    """What top-k, top-p and min-p leave of the tokens that a grammar allows; None if too many would have to be asked.

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

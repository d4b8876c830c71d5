"""Filters: choose candidates by their logits alone.

Candidates come best first, as float64 logits before temperature. ``n_likely`` is top-p and min-p, which nearly
everybody uses: it also tells when a look at the best few tokens is enough (see ``candidates``), and C knows it
(``src/draw.c``). The others are an entry each in ``EARLY`` or ``LATE``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_spec.sampling.settings import SamplerSettings

__all__ = ["EARLY", "FEW", "LATE", "Filter", "Logits", "n_likely", "weights"]

Logits = npt.NDArray[np.float64]
Kept = slice | npt.NDArray[np.bool_]

FEW = 96
"""Up to this many candidates, logarithms and exponentials are those of the C library, in Python as in C."""


@dataclass(frozen=True)
class Filter:
    """A transform that keeps some of the candidates.

    Attributes:
        is_on: whether settings ask for it.
        kept: from logits, best first, settings, and a uniform number in (0, 1) that belongs to the place in the
            reply, to what stays: at least one, in the same order.
    """

    is_on: Callable[[SamplerSettings], bool]
    kept: Callable[[Logits, SamplerSettings, float], Kept]


def weights(x: Logits) -> Logits:
    """Return the weight of each candidate relative to the best."""
    depths = x - x[0]
    return np.array([math.exp(depth) for depth in depths.tolist()]) if x.size <= FEW else np.exp(depths)


def n_likely(x: Logits, settings: SamplerSettings, *, bound: float = -math.inf, rest: float = 0.0) -> int:
    """Return how many of the best candidates top-p and min-p keep; one more than there are: all, and perhaps others.

    Args:
        bound: no other candidate has a higher logit; -inf if there are no others.
        rest: what the others weigh together.
    """
    n = x.size + (bound > -math.inf)
    if settings.top_p < 1:
        mass = weights(x).cumsum()
        n = min(n, int(mass.searchsorted(settings.top_p * (mass[-1] + rest))) + 1)
    if settings.min_p > 0:
        deepest = -math.log(settings.min_p)
        n_near = int((x[0] - x).searchsorted(deepest, side="right"))
        if n_near < x.size or x[0] - bound > deepest:
            n = min(n, n_near)
    return n


def _typical(x: Logits, settings: SamplerSettings, _: float) -> Kept:
    """Locally typical sampling (Meister et al., arXiv 2202.00666).

    As in llama.cpp, the token that brings the mass above ``typical_p`` is the last one that stays.
    """
    log_p = x - x[0]
    log_p -= math.log(float(np.exp(log_p).sum()))
    p = np.exp(log_p)
    surprise = np.abs(-log_p + float((p * log_p).sum()))
    order = surprise.argsort(kind="stable")
    count = int(p[order].cumsum().searchsorted(settings.typical_p, side="right")) + 1
    kept = np.zeros(x.size, dtype=np.bool_)
    kept[order[:count]] = True
    return kept


def _exclude_top_choices(x: Logits, settings: SamplerSettings, toss: float) -> Kept:
    """XTC: at random, remove all likely candidates but the least likely of them (the highest id among equals)."""
    if toss > settings.xtc_probability:
        return slice(None)
    p = weights(x)
    n_likely = int((p >= settings.xtc_threshold * p.sum()).sum())
    return slice(max(n_likely - 1, 0), None)


EARLY = (Filter(lambda settings: settings.typical_p < 1, _typical),)
"""Filters between top-k and top-p. They need all candidates."""

LATE = (Filter(lambda settings: settings.uses_xtc, _exclude_top_choices),)
"""Filters after min-p."""

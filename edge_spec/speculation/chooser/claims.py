"""From what a drafter claims to what comes true."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from math import exp
from typing import Any

from edge_spec.speculation.chooser.records import chance, positive, whole

__all__ = ["Calibration"]

_BINS_PER_UNIT = 1.5
_LAST_BIN = 10
_MAX_RANK = 2

_GREEDY = 1.8, 1.8
"""By how much the log odds of a greedy claim are stretched and raised, before anything was counted."""

_PRIOR, _MEMORY = 6.0, 600.0
"""Claims that the prior is worth, and claims of one bin that count."""

_RECALLED = 60.0
"""Claims that an earlier run is worth at most: this text may be another one."""


def _logistic(log_odds: float) -> float:
    return 1 / (1 + exp(-log_odds))


_BOUNDS = [_logistic((place + 0.5) / _BINS_PER_UNIT) for place in range(-_LAST_BIN, _LAST_BIN)]
"""Claims between two bins, of which the middle one is numbered 0."""


class Calibration:
    """The chance that a claim comes true, from counts of earlier claims.

    Claims fall into bins of equal width in log odds. Each bin counts how many of its claims came true; older ones fade,
    and a prior stands for the first few. (Binned calibration for a stopping rule as in SpecDec++, arXiv 2405.19715.)

    Args:
        greedy: of replies at temperature 0. Drafters turn margins into chances as if there were noise, and claim far
            too little for the likeliest token there: 0.25, 0.35 and 0.45 came true in 0.47, 0.66 and 0.82 of the cases
            (demo models). What they claim for its siblings, 0.06 to 0.3, was about right, so its prior is the claim.
    """

    def __init__(self, *, greedy: bool) -> None:
        self._greedy = greedy
        # By rank and bin: how many came true, and how many there were.
        self._counts: dict[tuple[int, int], list[float]] = {}

    def __call__(self, claim: float, rank: int = 0) -> float:
        """Return the chance that a drafted token is accepted, given that the one before it is.

        Args:
            claim: the drafter's own estimate of it.
            rank: 0 for the first of its siblings (of a table: its depth).
        """
        true, tried = self._bin(claim, rank)
        return true / tried

    def learn(self, claim: float, came_true: bool, rank: int = 0) -> None:
        """Learn whether a claim has come true."""
        counts = self._bin(claim, rank)
        counts[0] = counts[0] * (1 - 1 / _MEMORY) + came_true
        counts[1] = counts[1] * (1 - 1 / _MEMORY) + 1

    def as_json(self) -> list[tuple[int, int, float, float]]:
        """Return what was counted: rank, bin, share of its claims that came true, and how many there were."""
        return [(rank, place, true / tried, tried) for (rank, place), (true, tried) in sorted(self._counts.items())]

    def recall(self, counts: Iterable[Sequence[Any]]) -> None:
        """Begin with what was counted in an earlier run.

        Raises:
            ValueError, TypeError: it is damaged; nothing has changed.
        """
        found: dict[tuple[int, int], list[float]] = {}
        for rank, place, share, tried in counts:
            n = min(positive(tried), _RECALLED)
            found[min(whole(rank, least=0), _MAX_RANK), whole(place)] = [chance(share) * n, n]
        self._counts |= found

    def _bin(self, claim: float, rank: int) -> list[float]:
        key = (rank if rank < _MAX_RANK else _MAX_RANK, bisect(_BOUNDS, claim) - _LAST_BIN)
        counts = self._counts.get(key)
        if counts is None:
            slope, shift = _GREEDY if self._greedy and key[0] == 0 else (1.0, 0.0)
            prior = _logistic(slope * key[1] / _BINS_PER_UNIT + shift)
            counts = self._counts[key] = [_PRIOR * prior, _PRIOR]
        return counts

"""What one round of the decoding loop did, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from time import perf_counter
from typing import NamedTuple, Self

from edge_spec.speculation.tree import Tree

__all__ = ["Round", "Stopwatch"]


class Stopwatch:
    """Measures laps: seconds since it was started, or since the lap before."""

    __slots__ = ("_started", "laps")

    def __init__(self, laps: Sequence[float] = ()) -> None:
        self.laps = [*laps]
        self._started = perf_counter()

    def lap(self) -> None:
        """End a lap and start the next one."""
        now = perf_counter()
        self.laps.append(now - self._started)
        self._started = now

    def restart(self) -> None:
        """Start the lap anew: what came before was not for this."""
        self._started = perf_counter()

    def count(self, seconds: float) -> None:
        """Start the next lap after one that took so many seconds, as the part of what others shared."""
        self.laps.append(seconds)
        self._started = perf_counter()


class Round(NamedTuple):
    """What one step did.

    Attributes:
        tokens: the tokens written. The last one is the bonus (or corrected) token, the others were drafted. If
            the text ends, the last one may have been drafted as well.
        accepted: how many of them were drafted.
        drafted: number of drafted nodes at each depth. What lies below the end of the text does not count.
        n_rows: rows that the model computed for it, without padding.
        draft_s, verify_s, sample_s: seconds spent drafting, in the model, and picking tokens and updating caches.
    """

    tokens: tuple[int, ...]
    accepted: int
    drafted: tuple[int, ...]
    n_rows: int
    draft_s: float
    verify_s: float
    sample_s: float

    @classmethod
    def of_all(cls, rounds: Sequence[Self]) -> Self:
        """Return what rounds of several texts, which shared a decode, did together."""
        if len(rounds) == 1:
            return rounds[0]
        return cls(
            tuple(token for each in rounds for token in each.tokens),
            sum(each.accepted for each in rounds),
            tuple(map(sum, zip_longest(*(each.drafted for each in rounds), fillvalue=0))),
            sum(each.n_rows for each in rounds),
            sum(each.draft_s for each in rounds),
            sum(each.verify_s for each in rounds),
            sum(each.sample_s for each in rounds),
        )

    @classmethod
    def of(cls, draft: Tree, tree: Tree, path: Sequence[int], tokens: tuple[int, ...], watch: Stopwatch) -> Self:
        """Return the round in which ``tree``, the uncommitted tokens and ``draft`` below them, became ``tokens``.

        Args:
            path: the nodes of the tree that are text now.
            watch: started before drafting, with a lap after drafting and one after decoding.
        """
        watch.lap()
        # Where the text ends on a drafted token, the walk stops one node early.
        ended = tree.child(path[-1], tokens[-1]) is not None
        drafted = draft.counts_by_depth()
        return cls(
            tokens,
            len(tokens) - (not ended),
            drafted[: len(tokens)] if ended else drafted,
            len(tree),
            *watch.laps,
        )

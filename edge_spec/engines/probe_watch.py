"""What is noticed while a model is probed: how far it is, whether it takes too long, and whether others compute too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter

from edge_spec.engines.processor_time import processor_time
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import Tree

__all__ = ["ProbeWatch", "TimeIsUp"]

_SLOW, _OFTEN, _LOST_S = 4.0, 10, 3.0
"""A decode is slow that takes so many times as long as the fastest of its width. One may have other reasons than other
programs, as the first ones have; when so many are, and this time and more than half of all was lost, it is told. So it
is when threads wait for a core for so many times as long as they compute, less one, for longer than this."""

_LOOK_EACH_S = 2.0


class TimeIsUp(Exception):
    """A probe has taken as long as it may."""


class ProbeWatch:
    """Counts the tokens that a probe computes.

    Args:
        told: called with these and about as many as there will be: with none at first, and when a further hundredth is
            done.
        total: about how many there will be.
        limit_s: how long it may take.
        on_busy: called once, with how many times as long as they could decodes take, if others seem to compute.
        clock: returns seconds.
        used: returns seconds for which threads have computed, and waited for a core; None where that is not known.

    Attributes:
        fastest: seconds of the fastest decode, by its number of tokens.
    """

    def __init__(
        self,
        told: Callable[[int, int], object],
        total: int,
        *,
        limit_s: float = inf,
        on_busy: Callable[[float], object] = lambda times: None,
        clock: Callable[[], float] = perf_counter,
        used: Callable[[], tuple[float, float] | None] = processor_time,
    ) -> None:
        self.fastest: dict[int, float] = {}
        self._told, self._done, self._total = told, 0, total
        self._clock, self._ends_at = clock, clock() + limit_s
        self._on_busy, self._was_busy = on_busy, False
        self._used, self._used_before, self._looks_at = used, used(), clock() + _LOOK_EACH_S
        self._n_slow, self._spent_s, self._lost_s = 0, 0.0, 0.0
        told(0, total)

    def decode(self, model: Path, tokens: Sequence[int]) -> Logits:
        """Return the rows of some tokens that follow one another.

        Raises:
            TimeIsUp: the limit is reached.
        """
        began = self._clock()
        rows = model.decode(Tree.sequence(tokens))
        self._note(len(tokens), self._clock() - began)
        self.count(len(tokens))
        return rows

    def prefill(self, model: Path, tokens: Sequence[int]) -> None:
        """Read some tokens at once.

        Raises:
            TimeIsUp: the limit is reached.
        """
        model.prefill(tokens)
        self.count(len(tokens))

    def count(self, n: int) -> None:
        """Note that so many tokens were computed.

        Raises:
            TimeIsUp: the limit is reached.
        """
        before, self._done = self._done, min(self._done + n, self._total - 1)
        if 100 * self._done // self._total > 100 * before // self._total:
            self._told(self._done, self._total)
        now = self._clock()
        if now > self._ends_at:
            raise TimeIsUp
        if now > self._looks_at:
            self._looks_at = now + _LOOK_EACH_S
            self._look_at_threads()

    def end(self) -> None:
        """Tell that nothing is left."""
        self._told(self._total, self._total)

    def _note(self, width: int, seconds: float) -> None:
        fastest = self.fastest[width] = min(seconds, self.fastest.get(width, inf))
        self._spent_s += seconds
        if seconds > _SLOW * fastest:
            self._n_slow += 1
            self._lost_s += seconds - fastest
        if self._n_slow >= _OFTEN and self._lost_s > max(_LOST_S, self._spent_s / 2):
            self._tell_busy(self._spent_s / (self._spent_s - self._lost_s))

    def _look_at_threads(self) -> None:
        used = self._used()
        if used is None or self._used_before is None:
            return
        computed, waited = (now - before for now, before in zip(used, self._used_before, strict=True))
        if computed > 0 and waited > max(_LOST_S, (_SLOW - 1) * computed):
            self._tell_busy(1 + waited / computed)

    def _tell_busy(self, times: float) -> None:
        if not self._was_busy:
            self._was_busy = True
            self._on_busy(times)

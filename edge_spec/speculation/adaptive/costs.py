"""What decodes cost on this device now: seconds by number of rows."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping
from typing import Any

from edge_spec.speculation.adaptive.records import positive, whole

__all__ = ["CostCurve"]

_COMMON, _OWN = 0.1, 0.04
"""How fast the common factor and the correction of one width follow what is measured."""

_SURE = 4
"""Decodes of a width after which surprises are put down to the device and no longer to the shape."""

_STALE = 512
"""Decodes after which a width that none of them had is worth another try, if it could be cheaper than it was."""

_LOOK_EVERY = 64
_SUSPICIOUS = 1.6
"""How many times as dear as narrower ones suggest a width must seem to be tried again."""

_LITTLE = 0.1
"""What every further row counts as at least where widths are compared: small differences are mostly noise."""

_ODD = 1.1
"""How many times as dear as wider ones a width must seem to be tried again much sooner: a slow moment is likelier."""

_MOST_IN_VAIN = 4
"""Each try in vain doubles the time until the next one, so often at most."""

_NEXT = 2
"""How many times the widest known width a try may be wide."""

_RECENT = 16
_MOST_MISSED = 4
"""Decodes that one of the narrowest width may make up for: a single one may be a hiccup."""

_MAX_RATIO = 3.0


class CostCurve:
    """Seconds of a decode by its number of rows, refined while it runs.

    A first curve (from the probe) gives the shape. A factor follows what all decodes have in common: a second program,
    a processor that throttles, a cache that fills. A slower correction of each width but the narrowest follows the
    shape, which is relative to that one: if it had a correction of its own, factor and corrections could drift apart
    without end. Where a width turns out to be steeper, or flatter, than it seemed, those that are not decoded follow:
    the first curve may be of the wrong shape, and what seems too dear is never measured. Between known widths the
    curve is linear: kernels take rows in groups, so it may have a kink at any of them.

    A single width could also seem too dear for ever because of one slow moment, in this run or in one that is
    remembered. After some hundred decodes without it, or sooner where wider ones are cheaper, it counts as what the
    others suggest, until it is measured again; after tries in vain, less and less often.

    Args:
        seconds: first estimates by number of rows.
        only_shape: whether they are those of another model, so that the first decode says how fast this one is.
    """

    def __init__(self, seconds: Mapping[int, float] | None = None, *, only_shape: bool = False) -> None:
        self._shape = {n: s for n, s in (seconds or {}).items() if s > 0}
        self._widths = sorted(self._shape)
        self._factor = 1.0
        self._only_shape = only_shape and bool(self._shape)
        # How many decodes speak for each width; what comes from a first curve has been measured already.
        self._n_seen = dict.fromkeys(self._widths, _SURE)
        self._n_decodes = 0
        self._last: dict[int, int] = {}
        # What stale widths count as.
        self._hoped: dict[int, float] = {}
        self._n_in_vain: Counter[int] = Counter()
        # Asked for many times between two decodes.
        self._cached: dict[int, float] = {}

    def __call__(self, n_rows: int) -> float:
        """Return seconds of a decode of ``n_rows`` rows; 0 while nothing is known."""
        found = self._cached.get(n_rows)
        if found is None:
            found = self._cached[n_rows] = self._factor * self._interpolated(n_rows)
        return found

    def first(self, most: int) -> list[float]:
        """Return seconds of decodes of 1, 2, 3 and up to ``most`` rows; zeros while nothing is known."""
        found: list[float] = []
        widths = self._widths
        if not widths:
            return [0.0] * most
        below, low = widths[0], self._factor * self._known(widths[0])
        found = [low] * min(below, most)
        for above in widths[1:]:
            high = self._factor * self._known(above)
            step = (high - low) / (above - below)
            found += [low + step * n for n in range(1, min(above, most) - below + 1)]
            if above >= most:
                return found
            below, low = above, high
        return found + [low * n / below for n in range(below + 1, most + 1)]

    def learn(self, n_rows: int, seconds: float) -> None:
        """Learn from the seconds that a decode of ``n_rows`` rows has taken."""
        expected = self(n_rows)
        if self._only_shape and seconds > 0:
            self._only_shape = False
            self._factor *= seconds / expected
            self._cached.clear()
            return
        if not self._widths or expected <= 0:
            self._set(n_rows, seconds / self._factor)
            return
        # One hiccup must not count like many decodes. A lasting change comes through, a step at a time.
        ratio = min(max(seconds / expected, 1 / _MAX_RATIO), _MAX_RATIO)
        n_seen = self._n_seen[n_rows] = self._n_seen.get(n_rows, 0) + 1
        self._n_decodes += 1
        age, self._last[n_rows] = self._n_decodes - self._last.get(n_rows, 0), self._n_decodes
        if self._n_decodes % _LOOK_EVERY == 0:
            self._hope()
        if n_rows == self._widths[0]:
            all_of_it = 1 / n_seen if n_seen < _SURE else 1 - (1 - _COMMON - _OWN) ** min(age, _MOST_MISSED)
            self._factor *= ratio**all_of_it
            self._cached.clear()
            return
        # A width that was not decoded for long has missed corrections; the factor was kept up to date by the others.
        own = 1 / n_seen if n_seen < _SURE else 1 - (1 - _OWN) ** age
        known = self._interpolated(n_rows)
        # What it counted as is no measurement.
        before = self._shape.get(n_rows, known)
        if n_seen >= _SURE and age <= _RECENT:
            self._factor *= ratio**_COMMON
        self._set(n_rows, known * ratio**own)
        if n_rows > self._widths[0]:
            self._tilt(self._rise(n_rows, self._shape[n_rows]) / self._rise(n_rows, before))

    def as_json(self) -> dict[str, float]:
        """Return seconds by number of rows, as ``recall`` takes them."""
        return {str(n): self(n) for n in self._widths}

    def recall(self, seconds: Mapping[str, Any]) -> None:
        """Begin with what was known at the end of an earlier run.

        Raises:
            ValueError, TypeError: it is damaged; nothing has changed.
        """
        shape = {whole(n, least=1): positive(s) for n, s in seconds.items()}
        self._shape = self._shape | shape
        self._widths = sorted(self._shape)
        self._n_seen |= dict.fromkeys(shape, _SURE)
        # Now it is known how fast this model is.
        self._only_shape = False
        self._hoped.clear()
        self._cached.clear()

    def _set(self, n_rows: int, shape: float) -> None:
        if n_rows not in self._shape:
            insort(self._widths, n_rows)
        if n_rows in self._hoped:
            hoped = self._hoped.pop(n_rows)
            is_as_hoped = 2 * shape < hoped + self._shape[n_rows]
            self._n_in_vain[n_rows] = 0 if is_as_hoped else min(self._n_in_vain[n_rows] + 1, _MOST_IN_VAIN)
        self._shape[n_rows] = shape
        self._cached.clear()

    def _rise(self, n_rows: int, shape: float) -> float:
        """Return how much more than the narrowest width a width takes, and a little for every row."""
        narrowest = self._shape[self._widths[0]]
        return max(0.0, shape - narrowest) + self._little(n_rows)

    def _little(self, n_rows: int) -> float:
        return _LITTLE * self._shape[self._widths[0]] * (n_rows - self._widths[0])

    def _tilt(self, steeper: float) -> None:
        """Let the widths that were not decoded for long follow one that is steeper by so much than it seemed."""
        narrowest = self._shape[self._widths[0]]
        for n in self._widths[1:]:
            if n not in self._last or self._n_decodes - self._last[n] > _STALE:
                self._shape[n] = narrowest + max(0.0, self._rise(n, self._shape[n]) * steeper - self._little(n))

    def _hope(self) -> None:
        """See what the widths that were not decoded for long could cost now."""
        self._hoped.clear()
        below, slope, is_recent = self._widths[0], 0.0, True
        for place, n in enumerate(self._widths[1:], 1):
            wider = min(self._widths[place:], key=self._shape.__getitem__)
            is_odd = self._shape[n] > _ODD * self._shape[wider]
            patience = (_STALE // 4 if is_odd else _STALE) << self._n_in_vain[n]
            if self._n_decodes - self._last.get(n, 0) <= patience:
                slope, below, is_recent = max(0.0, (self._shape[n] - self._shape[below]) / (n - below)), n, True
                continue
            hoped = self._shape[below] + slope * (n - below)
            if is_odd:
                hoped = self._shape[below] + (self._shape[wider] - self._shape[below]) * (n - below) / (wider - below)
            # One at a time: the next one may be dearer by far.
            if is_recent and n <= _NEXT * below and (is_odd or _SUSPICIOUS * hoped < self._shape[n]):
                self._hoped[n] = hoped
            is_recent = False

    def _known(self, n_rows: int) -> float:
        return self._hoped.get(n_rows, self._shape[n_rows])

    def _interpolated(self, n_rows: int) -> float:
        widths = self._widths
        if not widths:
            return 0.0
        place = bisect_left(widths, n_rows)
        if place == len(widths):
            # In proportion beyond the widest known: many rows do not become cheaper by the row.
            return self._known(widths[-1]) * n_rows / widths[-1]
        above = widths[place]
        if above == n_rows or place == 0:
            return self._known(above)
        below = widths[place - 1]
        low, high = self._known(below), self._known(above)
        return low + (high - low) * (n_rows - below) / (above - below)

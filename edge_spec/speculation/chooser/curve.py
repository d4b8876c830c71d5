"""What decodes cost on this device now: seconds by number of rows."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from math import inf
from typing import Any

from edge_spec.speculation.chooser.records import positive, whole

__all__ = ["CostCurve"]

_COMMON, _OWN = 0.1, 0.04
"""How fast the factor and the shape of one width follow what is measured."""

_BEFORE = 3
"""Decodes that the first shape of a width counts as much as: its first own ones are learned from faster."""

_RECENT = 16
"""If a width was decoded at most so many decodes ago, a change of its seconds is taken for one of the device."""

_STALE = 512
"""A width that was not decoded for so long follows those that are."""

_MAX_RATIO = 3.0
"""One hiccup must not count like many decodes; a lasting change comes through, a step at a time."""

_LITTLE = 0.1
"""Share of the narrowest width's seconds that every further row counts as, besides what it takes, where the steepness
of widths is compared: small differences are mostly noise."""

_MOST_MISSED, _UNSEEN = 4, 8
"""After many decodes of other widths, a decode counts as if there had been several like it: at most so many of the
narrowest width, and of another one."""

_HOPE_EVERY, _HOPE = 64, 0.1
"""How often, and how fast, widths that seem too dear to be tried are hoped to be cheaper."""

_CLIFF = 1.5
"""Rows of one decode may take longer than one by one where a processor changes its way at some width: so much longer
at most."""


class CostCurve:
    """Seconds of a decode by its number of rows: a measured shape times one factor, refined while it runs.

    The first shape comes from the probe, from an earlier run or from another model; the first decodes say how fast this
    model is now. From then on the factor follows what all decodes have in common: a second program, a processor that
    throttles, a cache that fills. The shape of each width but the narrowest follows its own decodes, and widths that
    are not decoded follow those that are: where one turns out steeper than it seemed, so do they, and more rows never
    seem cheaper than fewer. Between known widths the curve is linear.

    Args:
        seconds: first estimates by number of rows.
    """

    def __init__(self, seconds: Mapping[int, float] | None = None) -> None:
        self._shape = _rising({n: s for n, s in (seconds or {}).items() if s > 0})
        self._widths = sorted(self._shape)
        self._factor = 1.0
        self._n_decodes = 0
        # Of each width the number of its last decode, and how many taught its shape.
        self._last: dict[int, int] = {}
        self._n_taught: dict[int, int] = {}

    def __call__(self, n_rows: int) -> float:
        """Return seconds of a decode of ``n_rows`` rows; 0 while nothing is known."""
        return self.first(n_rows)[-1]

    def first(self, most: int) -> list[float]:
        """Return seconds of decodes of 1, 2, 3 and up to ``most`` rows; zeros while nothing is known."""
        widths, found = self._widths, list[float]()
        if not widths:
            return [0.0] * most
        below, low = 0, self._factor * self._shape[widths[0]]
        for above in widths:
            high = self._factor * self._shape[above]
            step = (high - low) / (above - below)
            found += [low + step * n for n in range(1, above - below + 1)]
            if above >= most:
                return found[:most]
            below, low = above, high
        # In proportion beyond the widest known: many rows do not become cheaper by the row.
        return found + [low * n / below for n in range(below + 1, most + 1)]

    def learn(self, n_rows: int, seconds: float) -> None:
        """Learn from the seconds that a decode of ``n_rows`` rows has taken."""
        self._n_decodes += 1
        if self._n_decodes % _HOPE_EVERY == 0 and self._widths:
            self._hope()
        last, self._last[n_rows] = self._last.get(n_rows), self._n_decodes
        if n_rows not in self._shape:
            known = self(n_rows) / self._factor
            self._shape[n_rows] = known or seconds / self._factor
            insort(self._widths, n_rows)
            if not known:
                return
        expected = self._factor * self._shape[n_rows]
        if (self._n_decodes == 1 and seconds > 0) or (self._n_decodes == 2 and 0 < seconds < expected):
            # The first estimates may be another model's or another day's; the very first decode prepares buffers.
            self._factor *= seconds / expected
            return
        if last is None and seconds > expected:
            # The first decode of a width prepares its buffers: the next one says what it takes.
            self._last[n_rows] = self._n_decodes - _UNSEEN
            return
        age = self._n_decodes - last if last is not None else _UNSEEN
        ratio = min(max(seconds / expected, 1 / _MAX_RATIO), _MAX_RATIO)
        if n_rows == self._widths[0]:
            # The shape is relative to this width: with a correction of its own, the factor could drift without end.
            self._factor *= ratio ** (1 - (1 - _COMMON - _OWN) ** min(age, _MOST_MISSED))
            return
        if age <= _RECENT:
            self._factor *= ratio**_COMMON
        rise = self._rise(n_rows)
        # A width that was not decoded for long has missed corrections.
        self._n_taught[n_rows] = self._n_taught.get(n_rows, 0) + 1
        rate = max(_OWN, 1 / (self._n_taught[n_rows] + _BEFORE))
        self._shape[n_rows] *= ratio ** (1 - (1 - rate) ** min(age, _UNSEEN))
        self._lead(n_rows, self._rise(n_rows) / rise)

    def as_json(self) -> dict[str, float]:
        """Return seconds by number of rows, as ``recall`` takes them."""
        return {str(n): self._factor * shape for n, shape in self._shape.items()}

    def recall(self, seconds: Mapping[str, Any]) -> None:
        """Begin with what was known at the end of an earlier run.

        Raises:
            ValueError, TypeError: it is damaged; nothing has changed.
        """
        shape = _rising({whole(n, least=1): positive(s) for n, s in seconds.items()})
        if not shape:
            raise ValueError("a curve of no width")
        self._shape, self._widths, self._factor = shape, sorted(shape), 1.0

    def _rise(self, n_rows: int) -> float:
        """Return how much more than the narrowest width a width takes, and a little for every row."""
        narrowest = self._shape[self._widths[0]]
        return max(0.0, self._shape[n_rows] - narrowest) + _LITTLE * narrowest * (n_rows - self._widths[0])

    def _hope(self) -> None:
        """Let the widths that were not decoded for long become what narrower ones suggest, so that they are tried."""
        shape, narrowest, below = self._shape, self._widths[0], self._widths[0]
        for n in self._widths[1:]:
            if self._n_decodes - self._last.get(n, 0) <= _STALE:
                below = n
            elif below > narrowest:
                slope = max(0.0, shape[below] - shape[narrowest]) / (below - narrowest)
                hoped = shape[below] + slope * (n - below)
                shape[n] -= _HOPE * max(0.0, shape[n] - hoped)

    def _is_stale(self, n_rows: int) -> bool:
        return n_rows not in self._last or self._n_decodes - self._last[n_rows] > _STALE

    def _lead(self, n_rows: int, steeper: float) -> None:
        """Let the widths that were not decoded for long follow one that is steeper by so much than it seemed.

        They lie on either side of it, up to the next one that was decoded lately, which bounds them: what lies beyond
        follows that one. A width of few rows would pass its noise on to all others, many times larger.
        """
        shape, widths, place = self._shape, self._widths, self._widths.index(n_rows)
        first, end = place, place + 1
        while first > 1 and self._is_stale(widths[first - 1]):
            first -= 1
        while end < len(widths) and self._is_stale(widths[end]):
            end += 1
        narrowest, least = shape[widths[0]], shape[widths[first - 1]]
        most = shape[widths[end]] if end < len(widths) else inf
        for n in (*widths[first:place], *widths[place + 1 : end]):
            little = _LITTLE * narrowest * (n - widths[0])
            followed = narrowest + max(0.0, self._rise(n) * steeper - little)
            # What a noisy moment of one width says of others is not worth much more than rows one by one.
            followed = min(followed, _CLIFF * narrowest * n / widths[0])
            low, high = (shape[n_rows], most) if n > n_rows else (least, shape[n_rows])
            shape[n] = min(max(followed, low), high)


def _rising(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return a curve in which fewer rows never take longer than more, nor more of them much longer than the fewest,
    one decode after the other: what does has met a slow moment."""
    least, rising = float("inf"), dict[int, float]()
    for n in sorted(seconds, reverse=True):
        rising[n] = least = min(least, seconds[n])
    narrowest = min(rising, default=0)
    return {n: min(each, _CLIFF * rising[narrowest] * n / narrowest) for n, each in rising.items()}

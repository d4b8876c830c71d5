"""The time that a run may take."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

__all__ = ["Clock", "TimeIsUp"]


class TimeIsUp(Exception):
    """The time limit of this run is reached. Everything is saved, and the same command continues."""


class Clock:
    """Counts from when it is made.

    Args:
        limit_s: after so many seconds ``over`` is true; None for never.
    """

    def __init__(self, limit_s: float | None = None, *, now: Callable[[], float] = monotonic) -> None:
        self._now, self._begin, self._limit_s = now, now(), limit_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self._now() - self._begin

    def stop(self) -> None:
        """From now on it is time to stop."""
        self._limit_s = 0.0

    @property
    def over(self) -> bool:
        """Whether it is time to stop."""
        return self._limit_s is not None and self.elapsed_s >= self._limit_s

"""When a running model may give memory up, and when it may take some back."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Patience"]

_LONGEST_S = 600.0


class Patience:
    """Spaces steps down and up, so that two programs on one computer do not swing against each other.

    A step up comes only after memory was plentiful for a while. That while doubles whenever memory became scarce again
    soon after a step up, or a step up failed, since trying costs as much as succeeding.

    Args:
        clock: seconds.
        patience_s: seconds of plenty before the first step up.
        settle_s: seconds that memory gets to come back before the next step down.
    """

    def __init__(self, clock: Callable[[], float], *, patience_s: float = 20.0, settle_s: float = 1.0) -> None:
        self._clock = clock
        self._patience_s = self._first_patience_s = patience_s
        self._settle_s = settle_s
        self._plenty_since_s: float | None = None
        self._down_s = self._up_s = float("-inf")

    def may_step_down(self) -> bool:
        """Told that memory is scarce; whether to give some up now."""
        self._plenty_since_s = None
        return self._clock() - self._down_s >= self._settle_s

    def stepped_down(self) -> None:
        """Told that some was given up."""
        self._down_s = self._clock()
        soon = self._down_s - self._up_s < self._patience_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_S) if soon else self._first_patience_s

    def may_step_up(self, has_room: bool) -> bool:
        """Told whether memory has room for a step up; whether to take it now."""
        now = self._clock()
        if not has_room:
            self._plenty_since_s = None
            return False
        if self._plenty_since_s is None:
            self._plenty_since_s = now
        return now - self._plenty_since_s >= self._patience_s

    def stepped_up(self, *, worked: bool) -> None:
        """Told that a step up was tried."""
        self._plenty_since_s, self._up_s = None, self._clock()
        if not worked:
            self._patience_s = min(2 * self._patience_s, _LONGEST_S)

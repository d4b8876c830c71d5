"""When to pause the drafters, and for how long: calling them takes time even where they draft nothing."""

from __future__ import annotations

__all__ = ["Pauses"]

_SHARE = 0.005
"""Share of the time that may be spent on calling drafters in vain."""

_FOLLOW = 0.05
_MOST_VAIN = 8
_LONGEST = 1024


class Pauses:
    """Learns what calling the drafters costs and what their drafts gain, and sets the length of pauses.

    As long as drafts gain more time than all calls cost, including those that drafted nothing, there is no pause: a
    text that repeats itself now and then pays for the rounds in which nothing is found. Otherwise calls in vain get
    ``_SHARE`` of the time, and less the more of them came in a row.
    """

    def __init__(self) -> None:
        self._call_s = self._gained_s = 0.0
        self._n_vain = 0

    def drafted(self, gained_s: float) -> None:
        """Learn from a round with a draft.

        Args:
            gained_s: seconds that it saved over plain decoding; negative if it lost time.
        """
        self._gained_s += _FOLLOW * (gained_s - self._gained_s)
        self._n_vain = 0

    def after_no_draft(self, call_s: float, plain_s: float) -> int:
        """Return the number of rounds to pause for, after drafters were called and drafted nothing.

        Args:
            call_s: seconds that calling them took.
            plain_s: seconds of a round without a draft.
        """
        now = self._call_s or call_s
        # The very first call takes several times as long as later ones, and so does one that was disturbed.
        self._call_s = now + (0.5 if call_s < now else 0.1) * (min(call_s, 3 * now) - now)
        self._gained_s -= _FOLLOW * (self._gained_s + self._call_s)
        if self._gained_s > 0:
            return 0
        self._n_vain = min(self._n_vain + 1, _MOST_VAIN)
        return min(_LONGEST, int(self._n_vain * self._call_s / max(_SHARE * plain_s, 1e-9)))

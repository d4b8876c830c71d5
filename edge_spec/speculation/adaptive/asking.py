"""How long to leave the drafters in peace: asking them takes time even where nothing is drafted."""

from __future__ import annotations

__all__ = ["Asking"]

_SHARE = 0.005
"""Of the time, for asking in vain."""

_FOLLOW = 0.05
_MOST_VAIN = 8
_LONGEST = 1024


class Asking:
    """Learns what asking costs and what it brings, and says for how many rounds nobody need be asked.

    While drafts bring more than all the asking costs, drafters are asked in every round: a text that copies now and
    then pays for the rounds in which nothing is found. Where they do not, asking gets its share of the time, and less
    the longer it has been in vain.
    """

    def __init__(self) -> None:
        self._ask_s = self._gained_s = 0.0
        self._n_vain = 0

    def drafted(self, gained_s: float) -> None:
        """A round with a draft has gained so many seconds over plain decoding, or lost them."""
        self._gained_s += _FOLLOW * (gained_s - self._gained_s)
        self._n_vain = 0

    def in_vain(self, ask_s: float, plain_s: float) -> int:
        """Asking took so long and nothing was drafted; for how many rounds to ask nobody.

        Args:
            plain_s: seconds of a round without a draft.
        """
        now = self._ask_s or ask_s
        # The first time of all takes several times as long as later ones, and so does one that was disturbed.
        self._ask_s = now + (0.5 if ask_s < now else 0.1) * (min(ask_s, 3 * now) - now)
        self._gained_s -= _FOLLOW * (self._gained_s + self._ask_s)
        if self._gained_s > 0:
            return 0
        self._n_vain = min(self._n_vain + 1, _MOST_VAIN)
        return min(_LONGEST, int(self._n_vain * self._ask_s / max(_SHARE * plain_s, 1e-9)))

"""When to try a drafter that is not the best choice, to notice when text or device have changed."""

from __future__ import annotations

from collections import Counter

from edge_spec.speculation.adaptive.offer import Offer

__all__ = ["Trials"]

_SHARE = 0.005
"""Share of the time that trials of one drafter may cost."""

_BETWEEN = 8
_MEMORY = 0.9995
_MOST_FAILED = 4


class Trials:
    """Keeps what trials cost against the best choice to a small share of the time, and to less where they fail clearly.

    A trial that succeeds continues in the next round.
    """

    def __init__(self) -> None:
        self._total_s = 0.0
        self._lost_s: dict[str, float] = {}
        self._n_failed: Counter[str] = Counter()
        self._n_since = 0
        self._promising: Offer | None = None
        self._reader: Offer | None = None

    def may_try(self, offer: Offer) -> bool:
        """Return whether it is time to try a drafter."""
        if offer is self._promising:
            return True
        share = _SHARE / max(1, min(self._n_failed[offer.name], _MOST_FAILED))
        return self._n_since >= _BETWEEN and self._lost_s.get(offer.name, 0.0) <= share * self._total_s

    def began(self) -> None:
        """Note that the next round is a trial."""
        self._n_since = 0

    def read(self, offer: Offer, seconds: float) -> None:
        """Count the seconds that a drafter has spent on reading the text; its trial continues in the next round."""
        self._reader = offer
        self._lost_s[offer.name] = self._lost_s.get(offer.name, 0.0) + seconds

    def chosen(self, offer: Offer) -> None:
        """Forget the failed trials of a drafter that is the best choice now."""
        self._n_failed.pop(offer.name, None)

    def tried(self, offer: Offer, *, lost_s: float, succeeded: bool, is_hopeless: bool) -> None:
        """Learn from a finished trial.

        Args:
            lost_s: seconds more than its tokens would have taken with the best choice.
            succeeded: whether it brought more than plain decoding would have.
            is_hopeless: whether it has lost more than bad luck explains.
        """
        if succeeded:
            self._promising = offer
        self._n_failed[offer.name] += is_hopeless
        self._lost_s[offer.name] = max(0.0, self._lost_s.get(offer.name, 0.0) + lost_s)

    def round_over(self) -> None:
        """Count a finished round; call it before ``tried``."""
        self._promising, self._reader = self._reader, None
        self._n_since += 1

    def spent(self, seconds: float, *, n_rounds: int = 1) -> None:
        """Count the time of finished rounds."""
        memory = _MEMORY**n_rounds
        self._total_s = self._total_s * memory + seconds
        for name in self._lost_s:
            self._lost_s[name] *= memory

    def paused(self, seconds: float, *, n_rounds: int) -> None:
        """Count rounds during which the drafters were paused."""
        self._n_since += n_rounds
        self.spent(seconds, n_rounds=n_rounds)

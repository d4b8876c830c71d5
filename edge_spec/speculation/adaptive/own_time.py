"""What a round takes besides drafting and decoding: sampling and bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_spec.speculation.adaptive.records import at_least_zero

__all__ = ["OwnTime"]

_FOLLOW = 0.05


class OwnTime:
    """Seconds of sampling and bookkeeping: of a round that writes one token, and of each further token.

    With one mean for both, rounds of many tokens would make plain decoding seem slower than it is.
    """

    def __init__(self) -> None:
        self._round_s = 0.0
        self.token_s = 0.0

    def __call__(self, n_tokens: float) -> float:
        """Return seconds in a round that writes so many tokens."""
        return self._round_s + self.token_s * (n_tokens - 1)

    def learn(self, n_tokens: int, seconds: float) -> None:
        """Learn from a round that wrote ``n_tokens`` tokens."""
        if n_tokens == 1:
            self._round_s = _followed(self._round_s, seconds)
        elif self._round_s:
            self.token_s = _followed(self.token_s, max(0.0, seconds - self._round_s) / (n_tokens - 1))

    def as_json(self) -> dict[str, float]:
        """Return what was learned, as ``recall`` takes it."""
        return {"round_s": self._round_s, "token_s": self.token_s}

    def recall(self, learned: Mapping[str, Any]) -> None:
        """Begin with what was learned in an earlier run.

        Raises:
            ValueError, TypeError, KeyError: it is damaged; nothing has changed.
        """
        round_s, token_s = at_least_zero(learned["round_s"]), at_least_zero(learned["token_s"])
        self._round_s, self.token_s = round_s, token_s


def _followed(now: float, seconds: float) -> float:
    """Return a running mean in which one hiccup does not count like many rounds."""
    return now + _FOLLOW * (min(seconds, 3 * now) - now) if now else seconds

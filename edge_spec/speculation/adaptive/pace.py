"""How many tokens per second are written now."""

from __future__ import annotations

__all__ = ["Pace"]

_FADE = 0.99
_PLAIN_ROUNDS = 10
"""Rounds of plain decoding with which the rate begins, and that it never quite forgets."""


class Pace:
    """Tokens and seconds of the last rounds, older ones fading."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, n_tokens: int, seconds: float) -> None:
        """Count a finished round."""
        self._tokens = self._tokens * _FADE + n_tokens
        self._seconds = self._seconds * _FADE + seconds

    def add_plain(self, n_rounds: int, seconds: float) -> None:
        """Count ``n_rounds`` finished rounds of one token each, which took ``seconds`` in all."""
        faded = _FADE**n_rounds
        weight = (1 - faded) / (1 - _FADE)
        self._tokens = self._tokens * faded + weight
        self._seconds = self._seconds * faded + weight * seconds / n_rounds

    def rate(self, plain_s: float) -> float:
        """Return tokens per second; at least those of plain decoding, one in ``plain_s``. 0 while that is not known."""
        if plain_s <= 0:
            return 0.0
        return max(1 / plain_s, (self._tokens + _PLAIN_ROUNDS) / (self._seconds + _PLAIN_ROUNDS * plain_s))

    def speed_up(self, plain_s: float) -> float:
        """Over plain decoding, of which a token takes ``plain_s``."""
        return self._tokens / self._seconds * plain_s if self._seconds > 0 else 1.0

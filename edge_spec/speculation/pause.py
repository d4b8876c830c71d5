"""Rounds of plain decoding during which the drafter is paused: it is not called at all."""

from __future__ import annotations

from edge_spec.speculation.round import Round

__all__ = ["Pause"]


class Pause:
    """How long a drafter stays paused, and what happened meanwhile.

    With a small target a whole round takes some hundred microseconds, and calling drafters in vain would be a
    noticeable share of that. In a pause the decoding loop adds each round here and calls nothing of the drafter. When
    the drafter is called again, it takes in ``tokens`` and the times first, and then calls ``clear``.

    Attributes:
        n_left: rounds that the pause still lasts; 0 if the drafter is not paused.
        tokens: tokens written during the pause that the drafter has not been given yet.
        n_rounds: rounds of the pause that nobody has learned from yet; each had one row and wrote one token.
        verify_s, own_s: seconds of these rounds in the model, and outside of it.
    """

    __slots__ = ("n_left", "n_rounds", "own_s", "tokens", "verify_s")

    def __init__(self) -> None:
        self.n_left = 0
        self.tokens: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Count rounds and seconds from 0 again, once they have been learned from."""
        self.n_rounds, self.verify_s, self.own_s = 0, 0.0, 0.0

    def add(self, done: Round) -> None:
        """Count a finished round of one row."""
        self.n_left -= 1
        self.tokens += done.tokens
        self.n_rounds += 1
        self.verify_s += done.verify_s
        self.own_s += done.draft_s + done.sample_s

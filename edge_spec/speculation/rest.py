"""Rounds of plain decoding in which no drafter is asked, and none is told what was written."""

from __future__ import annotations

from edge_spec.speculation.round import Round

__all__ = ["NO_REST", "Rest"]


class Rest:
    """What a drafter that is not asked has missed.

    A small target's whole round takes some hundred microseconds: asking and telling drafters would be a noticeable
    share of it. The decoding loop counts such a round here and calls nothing of the drafter.

    Attributes:
        n_left: rounds for which the rest goes on; 0 while the drafter is asked.
        tokens: the end of the text that the drafter has not been told.
        n_rounds: rounds that nobody has taken in yet, each of one row and one token.
        verify_s, own_s: seconds that they took in the model, and outside of it.
    """

    __slots__ = ("n_left", "n_rounds", "own_s", "tokens", "verify_s")

    def __init__(self) -> None:
        self.n_left = 0
        self.tokens: list[int] = []
        self.clear()

    def clear(self) -> None:
        """What was counted has been taken in."""
        self.n_rounds, self.verify_s, self.own_s = 0, 0.0, 0.0

    def add(self, done: Round) -> None:
        """A round of one row is over."""
        self.n_left -= 1
        self.tokens += done.tokens
        self.n_rounds += 1
        self.verify_s += done.verify_s
        self.own_s += done.draft_s + done.sample_s


NO_REST = Rest()
"""Of drafters that want to be asked in every round: never begun."""

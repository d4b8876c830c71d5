"""How far to draft at most, asked before every round.

Whatever a policy answers changes when tokens arrive and never which.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["FixedPolicy", "Policy"]


class Policy(Protocol):
    """Chooses the draft limit of each round."""

    def limit(self) -> int:
        """Return the most tokens to draft now; 0 for plain decoding."""


class FixedPolicy:
    """Always drafts up to the same limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def limit(self) -> int:
        return self._limit

"""The drafter that never guesses: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.sampling import Sampler
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["NoDrafter"]


class NoDrafter:
    """Drafts nothing."""

    name = "off"

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """Nothing to prepare."""

    def draft(self, limit: int) -> Tree:
        return EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        """Nothing to learn."""

    def rollback(self, length: int) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to free."""

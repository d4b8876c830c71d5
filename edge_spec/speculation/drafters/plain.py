"""The drafter that never guesses: plain decoding."""

from __future__ import annotations

from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["NoDrafter"]


class NoDrafter(Drafter):
    """Drafts nothing, even where a grammar knows what comes."""

    name = "off"
    takes_guidance = False

    def draft(self, limit: int) -> Tree:
        return EMPTY

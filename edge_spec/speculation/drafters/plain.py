"""The drafter that never guesses: plain decoding."""

from __future__ import annotations

from edge_spec.speculation.drafters.base import Drafter

__all__ = ["NoDrafter"]


class NoDrafter(Drafter):
    """Drafts nothing, even where a grammar knows what comes."""

    name = "off"
    takes_guidance = False

"""Drafters: what guesses the target's next tokens."""

from edge_spec.speculation.drafters.base import Drafter

__all__ = ["Drafter"]

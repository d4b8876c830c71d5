"""Choosing among drafters by measured cost: which one, how far, or none."""

from edge_spec.speculation.adaptive.drafter import AdaptiveDrafter
from edge_spec.speculation.adaptive.policy import AdaptivePolicy

__all__ = ["AdaptiveDrafter", "AdaptivePolicy"]

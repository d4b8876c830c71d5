"""Choosing among drafters by measured cost: which one, how far, or none."""

from edge_spec.speculation.chooser.chooser import Chooser

__all__ = ["Chooser"]

"""Language models: what computes rows of logits."""

from edge_spec.backends.base import LanguageModel, Logits, NumericsProfile, Traits

__all__ = ["LanguageModel", "Logits", "NumericsProfile", "Traits"]

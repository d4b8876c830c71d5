"""Language models: what computes rows of logits."""

from edge_spec.speculation.language_model import LanguageModel, Logits, NumericsProfile, Capabilities

__all__ = ["LanguageModel", "Logits", "NumericsProfile", "Capabilities"]

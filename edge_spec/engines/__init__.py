"""Language models: what computes rows of logits."""

from edge_spec.speculation.language_model import Capabilities, LanguageModel, Logits, NumericsProfile

__all__ = ["Capabilities", "LanguageModel", "Logits", "NumericsProfile"]

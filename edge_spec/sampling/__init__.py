"""Sampling: from a row of logits to a token, by noise that target and drafters share."""

from edge_spec.sampling.sampler import Sampler
from edge_spec.sampling.settings import SamplerKeywords, SamplerSettings

__all__ = ["Sampler", "SamplerKeywords", "SamplerSettings"]

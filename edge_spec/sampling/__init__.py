"""Sampling: from a row of logits to a token, by noise that target and drafters share."""

from edge_spec.sampling.sampler import Sampler
from edge_spec.sampling.settings import SAMPLER_OPTIONS, SamplerKeywords, SamplerSettings

__all__ = ["SAMPLER_OPTIONS", "Sampler", "SamplerKeywords", "SamplerSettings"]

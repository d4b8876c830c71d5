"""Sampling: draw a token from a row of logits, with noise that target and drafters share."""

from edge_spec.sampling.sampler import Asked, Guesses, Sampler, guess_all
from edge_spec.sampling.settings import SAMPLER_OPTIONS, SamplerKeywords, SamplerSettings

__all__ = ["SAMPLER_OPTIONS", "Asked", "Guesses", "Sampler", "SamplerKeywords", "SamplerSettings", "guess_all"]

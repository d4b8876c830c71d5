"""Sampling by shared noise."""

from edge_spec.sampling.sampler import Sampler
from edge_spec.sampling.settings import SamplerSettings

__all__ = ["Sampler", "SamplerSettings"]

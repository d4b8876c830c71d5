"""Mirostat v2: truncation that steers a text's surprise (Basu et al., arXiv 2007.14966)."""

from __future__ import annotations

import math

import numpy as np

from edge_spec.sampling.candidates import Candidates
from edge_spec.sampling.filters import Logits
from edge_spec.sampling.rows import Row, peak
from edge_spec.sampling.settings import SamplerSettings

__all__ = ["mirostat", "next_mu"]


def mirostat(row: Row, temperature: float, mu: float) -> Candidates:
    """The ids whose surprise is at most ``mu`` bits and their logits before temperature, in the order of ids.

    The likeliest token always stays, the lowest id among equals. NaN is never drawn; of a row without any number
    the lowest id is.
    """
    row, best = peak(row)
    if row[best] == -np.inf:
        return np.array([0]), np.zeros(1)
    ids = (row > -np.inf).nonzero()[0]
    x = row[ids].astype(np.float64)
    kept = _surprise(x, temperature) <= mu
    kept[ids.searchsorted(best)] = True
    return ids[kept], x[kept]


def next_mu(mu: float, x: Logits, place: int, settings: SamplerSettings) -> float:
    """Mirostat's mu after the candidate at ``place`` was drawn.

    Args:
        x: logits of the candidates before temperature, ``[n]``.
    """
    surprise = float(_surprise(x, settings.temperature)[place])
    return mu - settings.mirostat_eta * (surprise - settings.mirostat_tau)


def _surprise(x: Logits, temperature: float) -> Logits:
    """In bits, of each candidate."""
    with np.errstate(over="ignore"):
        depths = (x - x.max()) / temperature
    surprise: Logits = math.log2(float(np.exp(depths).sum())) - depths / math.log(2)
    return surprise

"""Mirostat v2: truncation that steers a text's surprise (Basu et al., arXiv 2007.14966)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edge_spec.sampling.candidates import Many, Row, peak

__all__ = ["mirostat", "next_mu"]


def mirostat(row: Row, temperature: float, mu: float) -> Many:
    """The ids whose surprise is at most ``mu`` bits and their logits before temperature, in the order of ids.

    The likeliest token always survives, the lowest id among equals. NaN is never drawn; of a row without any number
    the lowest id is.
    """
    row, best = peak(row)
    if row[best] == -np.inf:
        return np.array([0]), np.zeros(1)
    ids = (row > -np.inf).nonzero()[0]
    x = row[ids].astype(np.float64)
    with np.errstate(over="ignore"):
        depths = (x - x.max()) / temperature
    kept = math.log2(float(np.exp(depths).sum())) - depths / math.log(2) <= mu
    kept[ids.searchsorted(best)] = True
    return ids[kept], x[kept]


def next_mu(mu: float, scores: npt.NDArray[np.float64], place: int, *, tau: float, eta: float) -> float:
    """Mirostat's mu after the token at ``place`` of the candidates was drawn.

    Args:
        scores: their logits after temperature, ``[n]``.
    """
    depths = scores - scores.max()
    surprise = math.log2(float(np.exp(depths).sum())) - float(depths[place]) / math.log(2)
    return mu - eta * (surprise - tau)

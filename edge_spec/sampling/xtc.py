"""XTC, exclude top choices: now and then all likely tokens but the least likely of them are out."""

from __future__ import annotations

import numpy as np

from edge_spec.sampling.candidates import Few, Many

__all__ = ["without_top_choices"]


def without_top_choices(ids: Few | Many, threshold: float) -> Many:
    """The candidates without those at least as likely as ``threshold``, of which the least likely one stays.

    Probabilities are those before temperature. Among equals the highest id counts as the least likely.
    """
    tokens, x = np.asarray(ids[0], dtype=np.int64), np.asarray(ids[1], dtype=np.float64)
    p = np.exp(x - x.max())
    top = (p >= threshold * p.sum()).nonzero()[0]
    if top.size < 2:
        return tokens, x
    last = max(top.tolist(), key=lambda place: (-x[place], tokens[place]))
    keep = np.ones(tokens.size, dtype=np.bool_)
    keep[top] = False
    keep[last] = True
    return tokens[keep], x[keep]

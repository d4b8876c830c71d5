"""Random texts of the demo family's tokens, and the rows of logits that a model computes for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.tree import Tree


def some_text(n: int, *, seed: int = 0, most: int = 8192) -> list[int]:
    """Ids from 300 to ``most``, which stand for text; the same for the same seed."""
    return np.random.default_rng(seed).integers(300, most, n).tolist()  # type: ignore[no-any-return]


def next_row(model: LanguageModel, token: int = 777) -> np.ndarray[Any, Any]:
    """The row after ``token``, ``[n_vocab]``; the model has not seen that token afterwards."""
    row = model.decode(Tree.sequence([token]))[0].copy()
    model.rollback(model.n_past)
    return row


def one_by_one(model: LanguageModel, tokens: list[int]) -> np.ndarray[Any, Any]:
    """The rows after each of these tokens, ``[len(tokens), n_vocab]``, by decodes of one token."""
    rows = []
    for token in tokens:
        rows.append(model.decode(Tree.sequence([token]))[0].copy())
        model.keep([0])
    return np.array(rows)

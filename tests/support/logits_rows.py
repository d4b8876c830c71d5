"""Random texts of the demo family's tokens, and the rows of logits that a model computes for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree


class Fresh:
    """Rows after texts, each read from the beginning."""

    def __init__(self, model: TextPath) -> None:
        self._model = model
        self._rows: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}

    def after(self, text: list[int]) -> np.ndarray[Any, Any]:
        key = tuple(text)
        if key not in self._rows:
            self._model.rollback(0)
            self._model.prefill(text[:-1])
            self._rows[key] = self._model.decode(Tree.sequence(text[-1:]))[0].copy()
        return self._rows[key]


def some_text(n: int, *, seed: int = 0, most: int = 8192) -> list[int]:
    """Ids from 300 to ``most``, which stand for text; the same for the same seed."""
    return np.random.default_rng(seed).integers(300, most, n).tolist()  # type: ignore[no-any-return]


def next_row(model: TextPath, token: int = 777) -> np.ndarray[Any, Any]:
    """The row after ``token``, ``[n_vocab]``; the model has not seen that token afterwards."""
    row = model.decode(Tree.sequence([token]))[0].copy()
    model.rollback(model.n_past)
    return row


def one_by_one(model: TextPath, tokens: list[int]) -> np.ndarray[Any, Any]:
    """The rows after each of these tokens, ``[len(tokens), n_vocab]``, by decodes of one token."""
    rows = []
    for token in tokens:
        rows.append(model.decode(Tree.sequence([token]))[0].copy())
        model.keep([0])
    return np.array(rows)

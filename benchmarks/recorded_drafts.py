"""A drafter that knows what the target will write, and errs as often as it is told to.

Weights drawn at random accept nothing that another model drafts. With what the target itself has written before,
errors put in, drafts are accepted and rejected as those of a real drafter are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.modes import DraftModels, Mode
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["RecordedDrafter", "recorded_auto", "recorded_mode"]


class RecordedDrafter(Drafter):
    """Drafts the continuation of a text that it was given: the first one that begins like what is written so far.

    Args:
        texts: prompts and what the target wrote after them, as token ids.
        n_vocab: wrong tokens are any others below it.
        accuracy: the share of drafted tokens that are right.
        trees: beside each token there is another one, and in half of these places the right one is the second.
    """

    name = "recorded"

    def __init__(
        self, texts: Sequence[Sequence[int]], n_vocab: int, *, accuracy: float, trees: bool = False, seed: int = 0
    ) -> None:
        self._texts = texts
        self._n_vocab = n_vocab
        self._accuracy = accuracy
        self._trees = trees
        self._rng = np.random.default_rng(seed)

    def draft(self, limit: int) -> Tree:
        n, known = len(self.text), self.text.tokens
        # The first rounds of a reply leave one text, or a few.
        ahead = next((text[n : n + limit] for text in self._texts if list(text[:n]) == known), ())
        tokens: list[int] = []
        parents: list[int] = []
        above = -1
        for token in ahead:
            wrong = (token + 1 + int(self._rng.integers(self._n_vocab - 1))) % self._n_vocab
            pair = [token if self._rng.random() < self._accuracy else wrong]
            if self._trees and len(tokens) + 1 < limit:
                pair = [*pair, wrong] if self._rng.random() < 0.5 else [wrong, token]
            if len(tokens) + len(pair) > limit:
                break
            parents += [above] * len(pair)
            tokens += pair
            above = len(tokens) - len(pair) + (pair.index(token) if token in pair else 0)
        return Tree(tuple(tokens), tuple(parents)) if tokens else EMPTY


def recorded_mode(
    texts: Sequence[Sequence[int]],
    n_vocab: int,
    *,
    accuracy: float,
    limit: int = 3,
    trees: bool = False,
    seed: int = 0,
) -> Mode:
    """A mode that drafts so; see ``RecordedDrafter``."""
    return Mode(
        name="recorded trees" if trees else "recorded",
        build=lambda models: RecordedDrafter(texts, n_vocab, accuracy=accuracy, trees=trees, seed=seed),
        limit=limit,
        target_trees=trees,
    )


def recorded_auto(texts: Sequence[Sequence[int]], n_vocab: int, *, accuracy: float, seed: int = 0) -> Mode:
    """Return what ``auto`` makes of such a drafter: drafting as far as that pays, else plain text."""

    def build(models: DraftModels) -> Chooser:
        recorded = RecordedDrafter(texts, n_vocab, accuracy=accuracy, seed=seed)
        return Chooser([recorded], seconds=models.seconds)

    return Mode(name="recorded", build=build, limit=9)

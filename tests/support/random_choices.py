"""Choices at random: of drafters, and of how far to draft."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree


class RandomChoices(Chooser):
    """A chooser that decides at random: drafter, length, trials, and whether to draft at all."""

    def __init__(self, drafters: Sequence[Drafter], seed: int) -> None:
        super().__init__(drafters, seconds={1: 1.0, 8: 2.0})
        self._seed = seed
        self._n_drafted = 0
        self._random = random.Random(seed)

    def draft(self, limit: int) -> Tree:
        # A draft that is asked for twice is the same twice.
        self._random.seed(f"{self._seed} {self._n_drafted}")
        self._last_plain, self._rest = self._n_rounds, 0
        if self._random.random() < 0.2:
            return EMPTY
        return super().draft(min(limit, self._random.randint(1, self.most)))

    def learn(self, done: Round) -> None:
        super().learn(done)
        self._n_drafted += 1

    def _best_size(self, values: Iterable[float]) -> tuple[int, float]:
        return self._random.randint(0, len(list(values))), self._random.uniform(-1, 1)

    def _is_worth_more(self, model: Candidate, value: float, n: int, depth: int, n_ends: int = 1) -> bool:
        return self._random.random() < 0.7

    def _expected_gain(self, model: Candidate) -> float:
        return self._random.uniform(-1, 1)

    def _pays_to_read(self, model: Candidate, gained: float) -> bool:
        return self._random.random() < 0.9

    def _is_due(self, candidate: Candidate) -> bool:
        return self._random.random() < 0.2


class RandomLimits:
    """Draws the limit of every round."""

    def __init__(self, seed: int, most: int = 9) -> None:
        self._random = random.Random(seed)
        self._most = most

    def __call__(self) -> int:
        return self._random.randint(0, self._most)
